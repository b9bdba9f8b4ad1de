"""Types of setting values: sizes, durations, lists, names, URLs, headers.

Each validator returns the parsed value or raises InvalidInput with the allowed values. The message omits the given
value; problems.py adds it unless it may be a secret.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator

from knapcache.errors import InvalidInput
from knapcache.price.weights import MAX_AMOUNT
from knapcache.units import ALLOWED_AMOUNTS, parse_amount

LOCAL = "local"
"""The `url` of the embedded model."""
TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)")
LABEL = re.compile(r"[A-Za-z0-9._@-]{1,64}")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
RESERVED_HEADERS = {
    "connection",
    "content-length",
    "host",
    "transfer-encoding",
    "accept-encoding",
    "keep-alive",
    "te",
    "upgrade",
}
"""Headers of the connection, which the proxy sets itself."""


def byte_size(given: Any) -> int:
    """Parse a size in bytes: 4096 or "256MB"."""
    found = parse_amount(given) if isinstance(given, str) else None
    if found is not None and not found[1] and found[0].denominator == 1 and found[0] >= 1:
        return int(found[0])
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return given
    raise InvalidInput(f"must be {ALLOWED_AMOUNTS}, at least 1")


def duration(given: Any) -> float:
    """Parse a duration in seconds: 90, "90", "15m", "12h" or "30d"."""
    if isinstance(given, str) and (match := TIME.fullmatch(given.strip())):
        given = float(match[1]) * TIMES[match[2]]
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= MAX_AMOUNT:
        raise InvalidInput("must be a number of seconds, at least 0, with an optional unit (s, m, h, d)")
    return float(given)


def positive(given: float) -> float:
    """Reject a duration of 0 seconds."""
    if not given:
        raise InvalidInput("must be more than 0 seconds")
    return given


def label(given: str) -> str:
    """Check a name that needs no quoting in a header, a metric or a URL."""
    if not LABEL.fullmatch(given):
        raise InvalidInput("must be 1 to 64 letters, digits, or any of . _ @ -")
    return given


def name_list(given: Any) -> Any:
    """Split "a, b" into a list; return other values unchanged."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given


def split_http_url(url: str) -> SplitResult | None:
    """Split an http or https URL. None if it has no host, a bad port, spaces or control characters."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # bad port, open bracket, or a host label that is empty or longer than 63 characters
        return None
    return parts if usable and not re.search(r"[\s\\\x00-\x1f\x7f]", url) else None


def http_url(given: str) -> str:
    """Check a URL that paths can be appended to, and that has no secret in it."""
    parts = split_http_url(given)
    if parts is None:
        raise InvalidInput("must be a URL that starts with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput("must not contain a user or a password; key_env names the variable with the key")
    if parts.query or parts.fragment or given[-1] in "?#":
        raise InvalidInput("must be a URL without ? and #")
    return given.rstrip("/")


def upstream_url(given: str) -> str:
    """Check the URL of an upstream, or LOCAL."""
    return given if given == LOCAL else http_url(given)


def proxy_url(given: str) -> str:
    """Check a proxy's URL, which may have a user and a password. Without a scheme it is http://, as in curl."""
    url = given if "://" in given else f"http://{given}"
    if split_http_url(url) is None:
        raise InvalidInput("must be the URL of a proxy, http://host:port or https://host:port (SOCKS is not supported)")
    return url


def header_fields(given: dict[str, str]) -> dict[str, str]:
    """Check and lower-case header names. Values must be one line: a line break would start another header."""
    for name, value in given.items():
        if not HEADER.fullmatch(name) or name.lower() in RESERVED_HEADERS:
            raise InvalidInput(
                f"{name[:40]!r} cannot be set: it is not a valid header name, or the proxy sets it itself"
            )
        if not value.isprintable() or not value.isascii():
            raise InvalidInput(f"the value of {name} must be printable ASCII on one line")
    return {name.lower(): value for name, value in given.items()}


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


ByteSize = Annotated[int, BeforeValidator(byte_size)]
Seconds = Annotated[float, BeforeValidator(duration)]
PositiveSeconds = Annotated[float, BeforeValidator(duration), AfterValidator(positive)]
NameList = Annotated[tuple[str, ...], BeforeValidator(name_list)]
Label = Annotated[str, AfterValidator(label)]
Url = Annotated[str, AfterValidator(http_url)]
