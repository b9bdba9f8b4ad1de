"""Forms of values that settings share: room, time, lists, addresses. Each reads what people write, or says what it is.

The messages end before "not …": what was given is added by whoever knows whether it may be shown.
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
"""The upstream that is no address: the embedded model."""
TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)")
LABEL = re.compile(r"[A-Za-z0-9._@-]{1,64}")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OURS = {"connection", "content-length", "host", "transfer-encoding", "accept-encoding", "keep-alive", "te", "upgrade"}
"""Headers that belong to the connection, which the proxy makes itself."""


def room(given: Any) -> int:
    """Bytes, from 4096 or "256MB"."""
    found = parse_amount(given) if isinstance(given, str) else None
    if found is not None and not found[1] and found[0].denominator == 1 and found[0] >= 1:
        return int(found[0])
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return given
    raise InvalidInput(f"must be {ALLOWED_AMOUNTS}, at least 1")


def seconds(given: Any) -> float:
    """Seconds, from 90, "90", "15m", "12h" or "30d"."""
    if isinstance(given, str) and (match := TIME.fullmatch(given.strip())):
        given = float(match[1]) * TIMES[match[2]]
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= MAX_AMOUNT:
        raise InvalidInput("must be seconds, from 0 on, or a number with s, m, h or d behind it")
    return float(given)


def some_time(given: float) -> float:
    """More than no time."""
    if not given:
        raise InvalidInput("must be more than 0 seconds")
    return given


def label(given: str) -> str:
    """A name that may stand in a header, a metric or an address as it is."""
    if not LABEL.fullmatch(given):
        raise InvalidInput("must be 1 to 64 letters, digits, or any of . _ @ -")
    return given


def names(given: Any) -> Any:
    """A list, also as "a, b"."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given


def split_http_url(url: str) -> SplitResult | None:
    """Split an http or https URL. None if it has no host, a bad port, spaces or control characters."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # the port is no number, a bracket is not closed, a label is empty or longer than 63 characters
        return None
    return parts if usable and not re.search(r"[\s\\\x00-\x1f\x7f]", url) else None


def http_url(given: str) -> str:
    """Check a URL that paths can be appended to, and that has no secret in it."""
    parts = split_http_url(given)
    if parts is None:
        raise InvalidInput("must be an address that starts with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput("must not hold a user or a password: name the variable with the key in key_env")
    if parts.query or parts.fragment or given[-1] in "?#":
        raise InvalidInput("must be an address without ? and #")
    return given.rstrip("/")


def upstream_url(given: str) -> str:
    """An address, or the word for the embedded model."""
    return given if given == LOCAL else http_url(given)


def proxy_url(given: str) -> str:
    """Check a proxy's URL, which may have a user and a password. Without a scheme it is http://, as in curl."""
    url = given if "://" in given else f"http://{given}"
    if split_http_url(url) is None:
        raise InvalidInput("must be the URL of a proxy, http://host:port or https://host:port (SOCKS is not supported)")
    return url


def header_fields(given: dict[str, str]) -> dict[str, str]:
    """Headers that can be sent as they are: a line break in one would begin another."""
    for name, value in given.items():
        if not HEADER.fullmatch(name) or name.lower() in OURS:
            raise InvalidInput(
                f"{name[:40]!r} cannot be set: it is no name of a header, or one of the connection's own"
            )
        if not value.isprintable() or not value.isascii():
            raise InvalidInput(f"the value of {name} must be printable ASCII on one line")
    return {name.lower(): value for name, value in given.items()}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


Room = Annotated[int, BeforeValidator(room)]
Seconds = Annotated[float, BeforeValidator(seconds)]
SomeSeconds = Annotated[float, BeforeValidator(seconds), AfterValidator(some_time)]
Names = Annotated[tuple[str, ...], BeforeValidator(names)]
Label = Annotated[str, AfterValidator(label)]
Url = Annotated[str, AfterValidator(http_url)]
