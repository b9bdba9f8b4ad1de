"""The settings of a shared store: its URL, the secret that all proxies must have, and the admin token derived from it.

The URL may hold a password, so no message and no log line repeats it; `shown_url` returns what may be shown.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Annotated

from pydantic import AfterValidator, SecretStr, ValidationInfo

from knapcache.errors import InvalidInput
from knapcache.store.redis.urls import FORMS, SCHEMES, Address, parse

SECRET_BYTES = 32
_SECRET = re.compile(rf"[0-9A-Fa-f]{{{2 * SECRET_BYTES}}}")


def checked_secret(secret: SecretStr) -> SecretStr:
    """Return the secret as lower-case hex digits. Raises InvalidInput."""
    if not _SECRET.fullmatch(secret.get_secret_value()):
        raise InvalidInput(f"must be {2 * SECRET_BYTES} hex digits, such as the output of openssl rand -hex 32")
    return SecretStr(secret.get_secret_value().lower())


def derived_token(secret: str) -> str:
    """Return the admin token that follows from a secret. The token does not reveal the secret."""
    digest = hmac.new(bytes.fromhex(secret), b"admin token", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def checked_url(url: SecretStr) -> SecretStr:
    """Return the URL of a shared store. Raises InvalidInput if it cannot be parsed."""
    parse_url(url.get_secret_value())
    return url


def parse_url(url: str) -> Address:
    """Return the address of a shared store. User and password may come from the environment (store/redis/urls.py)."""
    scheme, colon, location = url.partition(":")
    if not colon or scheme.lower() not in SCHEMES:
        raise InvalidInput(f"must be {FORMS}")
    return parse(scheme.lower(), location)


def credentials(address: Address) -> list[str]:
    """Return the passwords of a store."""
    return [password for password in (address.password, address.sentinel_password) if password]


def one_place(memory_only: bool, info: ValidationInfo) -> bool:
    """Reject entries in memory together with a shared store."""
    if memory_only and info.data.get("store") is not None:
        raise InvalidInput("cannot be combined with store: entries are in memory, or in the engine")
    return memory_only


MemoryOnly = Annotated[bool, AfterValidator(one_place)]
SecretDigits = Annotated[SecretStr, AfterValidator(checked_secret)]
StoreUrl = Annotated[SecretStr, AfterValidator(checked_url)]
