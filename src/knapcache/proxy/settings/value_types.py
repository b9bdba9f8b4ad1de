"""Types of setting values: sizes, durations, lists, names, URLs, headers, policies, prices, the shared store.

Each validator returns the parsed value or raises InvalidInput with the allowed values. The message omits the given
value; tables.py adds it unless it may be a secret.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr, ValidationInfo

from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.price import Meter
from knapcache.price.weights import MAX_AMOUNT, Weights
from knapcache.store.redis.urls import FORMS, SCHEMES, Address, parse
from knapcache.units import ALLOWED_AMOUNTS, parse_bytes

LOCAL = "local"
"""The `url` of the embedded model."""
TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)")
LABEL = re.compile(r"[A-Za-z0-9._@-]{1,64}")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
MODEL_NAME = re.compile(r"[!-~]{1,256}")
REQUEST_PATTERN = re.compile(r"(?:[A-Z]+|\*) /v1/[!-~]*")
SHADOW = re.compile(r"(?P<policy>[a-z0-9-]+)(?:@[1-9][0-9]*x)?")
SECRET = re.compile(r"[0-9A-Fa-f]{64}")
MIN_TOKEN_LENGTH = 16
"""Characters of an admin token. 16 random characters cannot be guessed."""
TOKEN_CHARACTERS = f"at least {MIN_TOKEN_LENGTH} printable ASCII characters without spaces"
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
PASSTHROUGH = (
    "GET /v1/models",
    "GET /v1/models/*",
    "POST /v1/moderations",
    "POST /v1/audio/speech",
    "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations",
    "POST /v1/images/generations",
    "POST /v1/images/edits",
    "POST /v1/images/variations",
    "POST /v1/responses/input_tokens",
    "POST /v1/messages/count_tokens",
    "POST /v1/rerank",
)
"""Requests that only compute something. None of them lists, reads or deletes what another caller has stored."""
SECRETS_NEEDED: ContextVar[bool] = ContextVar("secrets_needed", default=True)
"""Whether keys of providers, tokens, certificates and models must be there. Commands that read settings and serve no
request do without: often only the account of the proxy can read them."""


def byte_size(value: Any) -> int:
    """Parse a size in bytes: 4096 or "256MB"."""
    found = parse_bytes(value)
    if found is None:
        raise InvalidInput(f"must be {ALLOWED_AMOUNTS}, at least 1")
    return found


def byte_size_or_zero(value: Any) -> int:
    return 0 if value in (0, "0") and not isinstance(value, bool) else byte_size(value)


def duration(value: Any) -> float:
    """Parse a duration in seconds: 90, "90", "15m", "12h" or "30d"."""
    if isinstance(value, str) and (match := TIME.fullmatch(value.strip())):
        value = float(match[1]) * TIMES[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_AMOUNT:
        raise InvalidInput("must be a number of seconds, at least 0, with an optional unit (s, m, h, d)")
    return float(value)


def positive(value: float) -> float:
    if not value:
        raise InvalidInput("must be more than 0 seconds")
    return value


def model_name(name: str) -> str:
    """Check the name of a model, which is sent in a response header."""
    if not MODEL_NAME.fullmatch(name):
        raise InvalidInput("must have 1 to 256 printable ASCII characters")
    return name


def label(value: str) -> str:
    """Check a name that needs no quoting in a header, a metric or a URL."""
    if not LABEL.fullmatch(value):
        raise InvalidInput("must be 1 to 64 letters, digits, or any of . _ @ -")
    return value


def name_list(value: Any) -> Any:
    """Split "a, b" into a list; return other values unchanged."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def request_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Check patterns of requests: "METHOD /v1/path", in which * stands for any text, or "*" for every request."""
    if not all(pattern == "*" or REQUEST_PATTERN.fullmatch(pattern) for pattern in patterns):
        raise InvalidInput(
            'must be patterns of requests such as "GET /v1/models/*", with the method in capitals, or "*" for all'
        )
    return patterns


def header_patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check and lower-case patterns of header names."""
    if not all(HEADER.fullmatch(name) and name.strip("*") for name in names):
        raise InvalidInput('must be names of headers, or patterns such as "x-trace-*"')
    return tuple(name.lower() for name in names)


def split_http_url(url: str) -> SplitResult | None:
    """Split an http or https URL. None if it has no host, a bad port, spaces or control characters."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # bad port, open bracket, or a host label that is empty or longer than 63 characters
        return None
    return parts if usable and not re.search(r"[\s\\\x00-\x1f\x7f]", url) else None


def http_url(value: str) -> str:
    """Check a URL that paths can be appended to, and that has no secret in it."""
    parts = split_http_url(value)
    if parts is None:
        raise InvalidInput("must be a URL that starts with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidInput("must not contain a user or a password; key_env names the variable with the key")
    if parts.query or parts.fragment or value[-1] in "?#":
        raise InvalidInput("must be a URL without ? and #")
    return value.rstrip("/")


def upstream_url(value: str) -> str:
    """Check the URL of an upstream, or LOCAL."""
    return value if value == LOCAL else http_url(value)


def provider_of(upstream: Mapping[str, Any]) -> tuple[str, str]:
    """Return the host of an upstream's URL, and its kind: the given one, or the one of the host."""
    try:
        host = urlsplit(upstream["url"]).hostname or LOCAL
    except ValueError:  # the validator of url reports it
        host = LOCAL
    return host, upstream.get("kind", "anthropic" if is_below(host, "anthropic.com") else "openai")


def is_below(host: str, domain: str) -> bool:
    """Return whether a host is a domain or below it."""
    return host == domain or host.endswith("." + domain)


def proxy_url(value: str) -> str:
    """Check a proxy's URL, which may have a user and a password. Without a scheme it is http://, as in curl."""
    url = value if "://" in value else f"http://{value}"
    if split_http_url(url) is None:
        raise InvalidInput("must be the URL of a proxy, http://host:port or https://host:port (SOCKS is not supported)")
    return url


def header_fields(headers: dict[str, str]) -> dict[str, str]:
    """Check and lower-case header names. Values must be one line: a line break would start another header."""
    for name, value in headers.items():
        if not HEADER.fullmatch(name) or name.lower() in RESERVED_HEADERS:
            raise InvalidInput(
                f"{name[:40]!r} cannot be set: it is not a valid header name, or the proxy sets it itself"
            )
        if not value.isprintable() or not value.isascii():
            raise InvalidInput(f"the value of {name} must be printable ASCII on one line")
    return {name.lower(): value for name, value in headers.items()}


def networks(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check IP addresses and networks, and return each as a network: 10.0.0.7 becomes 10.0.0.7/32."""
    try:
        return tuple(str(ipaddress.ip_network(value)) for value in values)
    except ValueError:
        raise InvalidInput("must be IP addresses or networks such as 10.0.0.7, 10.0.0.0/8, fd00::/8") from None


def valid_token(text: str) -> bool:
    """Return whether an admin token has TOKEN_CHARACTERS."""
    return len(text) >= MIN_TOKEN_LENGTH and re.fullmatch(r"[!-~]+", text) is not None


def admin_token(token: SecretStr) -> SecretStr:
    if not valid_token(token.get_secret_value()):
        raise InvalidInput(f"must be {TOKEN_CHARACTERS}")
    return token


def absolute_path(path: Path) -> Path:
    """Return a path from the root, with ~ replaced."""
    return path.expanduser().absolute()


def existing_file(path: Path) -> Path:
    """Check that a path is a file's."""
    if SECRETS_NEEDED.get() and not path.is_file():
        raise InvalidInput("must be an existing file")
    return path


def tls_key(key: Path | None, info: ValidationInfo) -> Path | None:
    """Check that tls_key is set if and only if tls_cert is."""
    if "tls_cert" in info.data and (key is None) != (info.data["tls_cert"] is None):
        if key is None:
            raise InvalidInput("is missing, and tls_cert needs it: the PEM file of the private key (--tls-key FILE)")
        raise InvalidInput("needs tls_cert, the PEM file of the certificate (--tls-cert FILE)")
    return key


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def online_policy(name: str) -> str:
    """Check the name of a policy that needs no future requests."""
    if not registry.find(name).online:
        raise InvalidInput("must be an online policy (offline ones need all future requests)")
    return name


def online_shadows(shadows: tuple[str, ...]) -> tuple[str, ...]:
    """Check names of online policies, each with an optional factor of the capacity."""
    for name in shadows:
        match = SHADOW.fullmatch(name)
        if not match:
            raise InvalidInput("must be names of policies, each with an optional @2x for twice the capacity")
        online_policy(match["policy"])
    return shadows


def valid_cost(cost: str) -> str:
    Weights.of(cost)
    return cost


def valid_prices(prices: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Check prices of models as for cost = usd, also if the cost does not use prices."""
    if prices:
        Meter("usd", prices)
    return prices


def valid_fallback_price(value: Any) -> Any:
    """Check dollars per second, or prices of one model."""
    if value is None:
        return None
    if not isinstance(value, dict):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise InvalidInput("must be dollars per second, or prices such as { input = 2.5, output = 10 }") from None
    Meter("usd", None, value)
    return value


def checked_secret(secret: SecretStr) -> SecretStr:
    """Return the secret of a shared store as lower-case hex digits."""
    if not SECRET.fullmatch(secret.get_secret_value()):
        raise InvalidInput("must be 64 hex digits, such as the output of openssl rand -hex 32")
    return SecretStr(secret.get_secret_value().lower())


def store_url(url: SecretStr) -> SecretStr:
    """Check the URL of a shared store. It may hold a password, so no message repeats it."""
    store_address(url.get_secret_value())
    return url


def store_address(url: str) -> Address:
    """Return the address of a shared store. User and password may come from the environment (store/redis/urls.py)."""
    scheme, colon, location = url.partition(":")
    if not colon or scheme.lower() not in SCHEMES:
        raise InvalidInput(f"must be {FORMS}")
    return parse(scheme.lower(), location)


def one_place(memory_only: bool, info: ValidationInfo) -> bool:
    """Reject entries in memory together with a shared store."""
    if memory_only and info.data.get("store") is not None:
        raise InvalidInput("cannot be combined with store: entries are in memory, or in the server")
    return memory_only


ByteSize = Annotated[int, BeforeValidator(byte_size)]
ByteSizeOrZero = Annotated[int, BeforeValidator(byte_size_or_zero)]
Seconds = Annotated[float, BeforeValidator(duration)]
PositiveSeconds = Annotated[float, BeforeValidator(duration), AfterValidator(positive)]
NameList = Annotated[tuple[str, ...], BeforeValidator(name_list)]
Networks = Annotated[tuple[str, ...], BeforeValidator(name_list), AfterValidator(networks)]
RequestPatterns = Annotated[tuple[str, ...], BeforeValidator(name_list), AfterValidator(request_patterns)]
HeaderPatterns = Annotated[tuple[str, ...], BeforeValidator(name_list), AfterValidator(header_patterns)]
AdminToken = Annotated[SecretStr, AfterValidator(admin_token)]
AbsolutePath = Annotated[Path, AfterValidator(absolute_path)]
ExistingFile = Annotated[Path, AfterValidator(absolute_path), AfterValidator(existing_file)]
TlsKey = Annotated[ExistingFile | None, AfterValidator(tls_key)]
Label = Annotated[str, AfterValidator(label)]
ModelName = Annotated[str, AfterValidator(model_name)]
Url = Annotated[str, AfterValidator(http_url)]
PolicyName = Annotated[str, AfterValidator(online_policy)]
ShadowList = Annotated[tuple[str, ...], BeforeValidator(name_list), AfterValidator(online_shadows)]
Cost = Annotated[str, AfterValidator(valid_cost)]
Prices = Annotated[dict[str, dict[str, float]], AfterValidator(valid_prices)]
FallbackPrice = Annotated[dict[str, float] | float | None, BeforeValidator(valid_fallback_price)]
MemoryOnly = Annotated[bool, AfterValidator(one_place)]
SecretDigits = Annotated[SecretStr, AfterValidator(checked_secret)]
StoreUrl = Annotated[SecretStr, AfterValidator(store_url)]
