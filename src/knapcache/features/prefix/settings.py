"""Settings of marks for the prompt caches of providers, of the proxy, of routes and of upstreams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from knapcache.proxy.settings.parts import RoutePart, SettingsPart, UpstreamPart
from knapcache.proxy.settings.value_types import is_below, provider_of

PrefixMode = Literal["off", "observe", "on", "manage"]


class PrefixUpstreamSettings(UpstreamPart):
    """Settings of an upstream."""

    prompt_cache: Literal["anthropic", "openai", "off"] = Field(
        "off",
        description="prompt cache of the provider, for `prefix`; default: anthropic for kind anthropic, openai for "
        "hosts of openai.com and openai.azure.com, otherwise off",
    )

    @model_validator(mode="before")
    @classmethod
    def _prompt_cache_of_provider(cls, values: Any) -> Any:
        """Derive the prompt cache from the host of the URL and the kind of the upstream."""
        if not isinstance(values, dict) or not isinstance(values.get("url"), str):
            return values
        host, kind = provider_of(values)
        openai = is_below(host, "openai.com") or is_below(host, "openai.azure.com")
        return {"prompt_cache": "anthropic" if kind == "anthropic" else "openai" if openai else "off", **values}

    @field_validator("prompt_cache", mode="before")
    @classmethod
    def _without_bedrock(cls, name: Any) -> Any:
        """Accept the value in files of older versions, which marked requests to Bedrock's own API."""
        return "off" if name == "bedrock" else name


class PrefixRouteSettings(RoutePart):
    """Settings of a route."""

    prefix: PrefixMode | None = Field(
        None, description="marks for the provider's prompt cache; none: as the proxy's setting"
    )


class PrefixSettings(SettingsPart):
    """Settings of the proxy."""

    if TYPE_CHECKING:
        route: tuple[PrefixRouteSettings, ...]
        upstreams: tuple[PrefixUpstreamSettings, ...]

    prefix: PrefixMode = Field(
        "observe",
        description="marks for the provider's prompt cache; observe: none, only show what they would save; on: mark "
        "requests that carry no marks; manage: also change the TTL of callers' own marks",
    )
