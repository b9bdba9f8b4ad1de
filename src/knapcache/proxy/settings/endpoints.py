"""Settings of upstreams, tenants and admin tokens."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from knapcache.errors import InvalidInput
from knapcache.exchange.headers import CREDENTIALS
from knapcache.proxy.settings.composition import with_features
from knapcache.proxy.settings.tables import MAYBE_SECRET, NOT_SHOWN, Table
from knapcache.proxy.settings.value_types import (
    LOCAL,
    SECRETS_NEEDED,
    TOKEN_CHARACTERS,
    AbsolutePath,
    ByteSize,
    Label,
    NameList,
    PositiveSeconds,
    header_fields,
    provider_of,
    proxy_url,
    upstream_url,
    valid_token,
)

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
PROVIDERS: tuple[dict[str, Any], ...] = (
    {
        "name": "openai",
        "url": "https://api.openai.com/v1",
        "key_env": "OPENAI_API_KEY",
        "models": "gpt-*, chatgpt-*, o1*, o3*, o4*, text-embedding-*, codex-*, ft:*, davinci-*, babbage-*",
    },
    {
        "name": "anthropic",
        "url": "https://api.anthropic.com",
        "key_env": "ANTHROPIC_API_KEY",
        "models": "claude-*",
    },
)
"""Default upstreams: those whose key is in the environment."""


def reason(error: OSError) -> str:
    """Return the short reason of the system or of OpenSSL."""
    return error.reason or "unknown" if isinstance(error, ssl.SSLError) else error.strerror or type(error).__name__


@with_features("upstream_settings")
class UpstreamSettings(Table):
    """A provider endpoint."""

    name: str = Field(min_length=1, max_length=64, description="name in logs and metrics; default: the host of url")
    url: Annotated[str, AfterValidator(upstream_url), MAYBE_SECRET] = Field(
        description="base URL, to which /chat/completions is appended; local: the embedded model"
    )
    models: NameList = Field(
        ("*",), description="model patterns with * and ?; the first upstream with a matching pattern gets the request"
    )
    kind: Literal["openai", "anthropic"] = Field(
        "openai", description="API of the provider; default: anthropic for hosts of anthropic.com, otherwise openai"
    )
    key_env: Annotated[str | None, MAYBE_SECRET] = Field(
        None, description="environment variable with the provider's API key; none: the caller's key is passed on"
    )
    headers: Annotated[dict[str, str], AfterValidator(header_fields), MAYBE_SECRET] = Field(
        {}, repr=False, description="additional request headers"
    )
    timeout: PositiveSeconds = Field(600.0, description="maximum time between two bytes of a response")
    connect_timeout: PositiveSeconds = Field(10.0, description="maximum time to connect, including DNS, proxy and TLS")
    total_timeout: PositiveSeconds = Field(
        3600.0, description="maximum time of an attempt, from connecting to the last byte of the response"
    )
    retries: int = Field(1, ge=0, le=10, description="further attempts before the first byte of a response")
    proxy: SecretStr | None = Field(
        None,
        description="proxy URL, http://user:password@host:port or https://…; empty: connect directly; "
        "none: by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY",
    )
    ca_file: AbsolutePath | None = Field(
        None, description="PEM file of trusted CA certificates, instead of the system's; also for an https:// proxy"
    )
    client_cert: AbsolutePath | None = Field(None, description="PEM file of a client certificate for TLS")
    client_key: AbsolutePath | None = Field(
        None, validate_default=True, description="PEM file of its private key; none: the key is in client_cert"
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_from_url(cls, values: Any) -> Any:
        """Derive name and kind from the host of the URL."""
        if not isinstance(values, dict) or not isinstance(values.get("url"), str):
            return values
        host, kind = provider_of(values)
        return {"name": host, "kind": kind, **values}

    @field_validator("key_env")
    @classmethod
    def _variable_with_key(cls, name: str | None) -> str | None:
        if name is not None and not VARIABLE.fullmatch(name):  # the message omits the value: it may be the key itself
            raise InvalidInput("must be the name, in capitals, of an environment variable that holds the key")
        if name is not None and SECRETS_NEEDED.get() and not os.environ.get(name):
            raise InvalidInput(f"the environment variable {name} is not set or is empty")
        return name

    @field_validator("proxy")
    @classmethod
    def _valid_proxy(cls, proxy: SecretStr | None) -> SecretStr | None:
        if proxy is not None and proxy.get_secret_value():
            proxy_url(proxy.get_secret_value())
        return proxy

    @field_validator("ca_file")
    @classmethod
    def _readable_certificates(cls, path: Path | None) -> Path | None:
        if path is not None and SECRETS_NEEDED.get():
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
            except OSError as error:
                raise InvalidInput(f"must be a readable PEM file with certificates: {reason(error)}") from None
        return path

    @field_validator("client_key")
    @classmethod
    def _matching_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "client_cert" not in info.data:  # it was rejected
            return key
        cert = info.data["client_cert"]
        if cert is None:
            if key is not None:
                raise InvalidInput("needs client_cert")
            return None
        if not SECRETS_NEEDED.get():
            return key
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
        except OSError as error:
            raise InvalidInput(
                f"client_cert and client_key must be readable PEM files of one key pair, the key without a "
                f"password: {reason(error)}"
            ) from None
        return key

    @property
    def local(self) -> bool:
        """Whether the upstream is the embedded model."""
        return self.url == LOCAL

    @property
    def key(self) -> str | None:
        """The provider's API key, read from the environment at each access."""
        return os.environ.get(self.key_env) if self.key_env else None

    def shown(self) -> dict[str, Any]:
        """Return the table without the values of headers."""
        return super().shown() | {"headers": dict.fromkeys(self.headers, NOT_SHOWN)}


def has_own_credential(settings: UpstreamSettings) -> bool:
    """Return whether requests are sent with a key of the settings, and not with the callers' keys."""
    return settings.key_env is not None or any(name.lower() in CREDENTIALS for name in settings.headers)


@with_features("tenant_settings")
class TenantSettings(Table):
    """A configured caller and its share of the cache."""

    name: Label = Field(description="name in logs, metrics and the dashboard")
    keys: Annotated[tuple[str, ...], MAYBE_SECRET] = Field(
        repr=False, description='digests of its API keys, "sha256:…"'
    )
    group: Label | None = Field(None, description="tenants of one group share their entries; none: no group")
    quota: ByteSize | None = Field(
        None, description="maximum size of the entries of the tenant or its group; none: no limit"
    )
    pass_key: bool = Field(False, description="pass the tenant's key to the upstream, if it is the provider's key")

    @field_validator("keys")
    @classmethod
    def _valid_digests(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not keys or not all(DIGEST.fullmatch(key) for key in keys):
            raise InvalidInput(
                "must be one or more digests (sha256: and 64 hex digits), as printed by `knapcache serve --hash-key`"
            )
        return keys

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in ("anonymous", "everyone") or name.startswith("caller-"):
            raise InvalidInput(
                "must not be anonymous, everyone or caller-…, which are names of callers that are not tenants"
            )
        return name

    def shown(self) -> dict[str, Any]:
        """Return the table without the digests."""
        return super().shown() | {"keys": f"{len(self.keys)} {NOT_SHOWN}"}


def default_upstreams() -> list[dict[str, Any]]:
    """Return the providers whose keys are in the environment, or the embedded model."""
    return [provider for provider in PROVIDERS if os.environ.get(str(provider["key_env"]))] or [{"url": LOCAL}]


def check_keys_and_quotas(tenants: tuple[TenantSettings, ...]) -> tuple[TenantSettings, ...]:
    """Reject tenants with the same key, and different quotas of the tenants of a group."""
    owner: dict[str, str] = {}
    quota: dict[str, int] = {}
    for tenant in tenants:
        for key in tenant.keys:
            if owner.setdefault(key, tenant.name) != tenant.name:
                raise InvalidInput(f"must have different keys: {owner[key]!r} and {tenant.name!r} have the same key")
        if tenant.group and tenant.quota and quota.setdefault(tenant.group, tenant.quota) != tenant.quota:
            raise InvalidInput(
                f"of the group {tenant.group!r} must have the same quota, because it applies to the group"
            )
    return tenants


Tenants = Annotated[tuple[TenantSettings, ...], AfterValidator(check_keys_and_quotas)]


class AdminTokenSettings(Table):
    """A further token of the admin API, with a role. The token itself is in no setting."""

    name: Label = Field(description="name in the audit log and on the dashboard")
    role: Literal["read-only", "operator"] = Field(
        "read-only", description="read-only: figures, no content and no changes; operator: everything"
    )
    digest: Annotated[str | None, MAYBE_SECRET] = Field(None, repr=False, description='digest of the token, "sha256:…"')
    token_env: Annotated[str | None, MAYBE_SECRET] = Field(
        None, description="environment variable with the token, instead of digest"
    )
    token_file: Annotated[AbsolutePath | None, MAYBE_SECRET] = Field(
        None, validate_default=True, description="file with the token, instead of digest; read again when it changes"
    )

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name == "admin":
            raise InvalidInput("must not be admin, which is the name of admin_token")
        return name

    @field_validator("digest")
    @classmethod
    def _valid_digest(cls, digest: str | None) -> str | None:
        if digest is not None and not DIGEST.fullmatch(digest):
            raise InvalidInput("must be sha256: and 64 hex digits, as printed by `knapcache serve --hash-key`")
        return digest

    @field_validator("token_env")
    @classmethod
    def _variable_with_token(cls, name: str | None) -> str | None:
        if name is not None and not VARIABLE.fullmatch(name):  # the message omits the value: it may be the token itself
            raise InvalidInput("must be the name, in capitals, of an environment variable that holds the token")
        if name is not None and SECRETS_NEEDED.get() and not valid_token(os.environ.get(name, "")):
            raise InvalidInput(f"the environment variable {name} must have {TOKEN_CHARACTERS}")
        return name

    @field_validator("token_file")
    @classmethod
    def _one_source(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        given = [name for name in ("digest", "token_env") if info.data.get(name) is not None]
        if {"digest", "token_env"} <= info.data.keys() and len(given) + (path is not None) != 1:
            raise InvalidInput("give one of digest, token_env and token_file")
        return path

    def shown(self) -> dict[str, Any]:
        """Return the table without the digest."""
        return super().shown() | {"digest": self.digest and NOT_SHOWN}
