"""The two kinds of others that the proxy speaks with: upstreams, where requests go, and tenants, who may ask."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from knapcache.errors import InvalidInput
from knapcache.serve.settings.forms import (
    LOCAL,
    Label,
    Names,
    Room,
    SomeSeconds,
    header_fields,
    proxy_url,
    upstream_url,
)

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


def reason(error: OSError) -> str:
    """The system's or OpenSSL's short reason."""
    return error.reason or "unknown" if isinstance(error, ssl.SSLError) else error.strerror or type(error).__name__


class UpstreamSettings(BaseModel):
    """Where requests go."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(
        min_length=1, max_length=64, description="name in logs and metrics; the address's host, where none is given"
    )
    url: Annotated[str, AfterValidator(upstream_url)] = Field(
        description="address that /chat/completions follows, or local: the embedded model"
    )
    models: Names = Field(
        ("*",), description="models it is asked for, as patterns with * and ?; the first upstream with one wins"
    )
    kind: Literal["openai", "anthropic"] = Field(
        "openai", description="whose API it speaks; anthropic where the host is Anthropic's"
    )
    key_env: str | None = Field(
        None, description="environment variable with the provider's key; without one the caller's own key is passed on"
    )
    headers: Annotated[dict[str, str], AfterValidator(header_fields)] = Field(
        {}, repr=False, description="further headers to send"
    )
    timeout: SomeSeconds = Field(600.0, description="longest silence between two bytes of an answer")
    connect_timeout: SomeSeconds = Field(
        10.0, description="longest time to open a connection: name lookup, proxy and TLS included"
    )
    total_timeout: SomeSeconds = Field(
        3600.0, description="longest time for one attempt, from connecting to the last byte of the answer"
    )
    retries: int = Field(1, ge=0, le=10, description="further attempts while nothing of an answer has come")
    proxy: SecretStr | None = Field(
        None,
        description="proxy URL, http://user:password@host:port or https://…; empty: connect directly; "
        "none: by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY",
    )
    ca_file: Path | None = Field(
        None, description="PEM file of CA certificates to trust instead of the system's, also for an https:// proxy"
    )
    client_cert: Path | None = Field(None, description="PEM file of a client certificate for TLS")
    client_key: Path | None = Field(
        None, validate_default=True, description="PEM file of its private key; none: it is in client_cert"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_its_host(cls, given: Any) -> Any:
        """Name and kind of an upstream that has only an address."""
        if not isinstance(given, dict) or not isinstance(given.get("url"), str):
            return given
        try:
            host = urlsplit(given["url"]).hostname or LOCAL
        except ValueError:  # the address itself is what is wrong, and is named for it
            host = LOCAL
        anthropic = host == "anthropic.com" or host.endswith(".anthropic.com")
        return {"name": host, "kind": "anthropic" if anthropic else "openai", **given}

    @field_validator("key_env")
    @classmethod
    def _has_a_key(cls, name: str | None) -> str | None:
        if name is not None and not VARIABLE.fullmatch(name):  # it may be the key itself
            raise InvalidInput("must be the name of an environment variable, in capitals, with the key in it")
        if name is not None and not os.environ.get(name):
            raise InvalidInput(f"the environment variable {name} is not set, or empty")
        return name

    @field_validator("proxy")
    @classmethod
    def _is_a_proxy(cls, proxy: SecretStr | None) -> SecretStr | None:
        if proxy is not None and proxy.get_secret_value():
            proxy_url(proxy.get_secret_value())
        return proxy

    @field_validator("ca_file", "client_cert", "client_key")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path and path.expanduser().absolute()

    @field_validator("ca_file")
    @classmethod
    def _has_certificates(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
            except OSError as error:
                raise InvalidInput(f"must be a readable PEM file with certificates: {reason(error)}") from None
        return path

    @field_validator("client_key")
    @classmethod
    def _belongs_to_its_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "client_cert" not in info.data:  # it was refused before
            return key
        cert = info.data["client_cert"]
        if cert is None:
            if key is not None:
                raise InvalidInput("needs client_cert")
            return None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
        except OSError as error:
            raise InvalidInput(
                f"client_cert and client_key must be readable PEM files that belong together, the key without a "
                f"password: {reason(error)}"
            ) from None
        return key

    @property
    def local(self) -> bool:
        """Whether it is the embedded model."""
        return self.url == LOCAL

    @property
    def key(self) -> str | None:
        """The provider's key. Read it once: it comes from the environment each time."""
        return os.environ.get(self.key_env) if self.key_env else None


class TenantSettings(BaseModel):
    """Who may ask, and in whose room their answers are."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Label = Field(description="name in logs, metrics and on the page")
    keys: tuple[str, ...] = Field(repr=False, description='digests of its API keys, "sha256:…"')
    group: Label | None = Field(None, description="tenants of one group share their answers")
    quota: Room | None = Field(None, description="most room its answers, or its group's, may take")
    pass_key: bool = Field(False, description="pass its key on upstream: where it is the provider's own")

    @field_validator("keys")
    @classmethod
    def _are_digests(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not keys or not all(DIGEST.fullmatch(key) for key in keys):
            raise InvalidInput(
                "must be one or more digests, sha256: and 64 hex digits, as `knapcache serve --hash-key` prints them"
            )
        return keys

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in ("anonymous", "everyone") or name.startswith("caller-"):
            raise InvalidInput("must not be anonymous, everyone or caller-…, which name callers that are no tenants")
        return name
