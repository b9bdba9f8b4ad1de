"""Settings of the semantic tier, of the proxy, of tenants and of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from knapcache.proxy.settings.parts import RoutePart, SettingsPart, TenantPart
from knapcache.proxy.settings.tables import MAYBE_SECRET
from knapcache.proxy.settings.value_types import Url

SemanticMode = Literal["off", "shadow", "on"]
ErrorRate = Annotated[float, Field(gt=0.0, lt=0.5)]


class SemanticTenantSettings(TenantPart):
    """Settings of a tenant."""

    semantic: SemanticMode | None = Field(
        None, description="answers to questions in another wording: off, shadow or on; none: as the proxy's setting"
    )
    semantic_error: ErrorRate | None = Field(
        None, description="allowed share of wrong answers among those; none: as the proxy's setting"
    )


class SemanticRouteSettings(RoutePart):
    """Settings of a route."""

    semantic: SemanticMode | None = Field(
        None, description="answers to questions in another wording; none: as the tenant's setting"
    )
    semantic_error: ErrorRate | None = Field(
        None, description="allowed share of wrong answers among those; none: as the tenant's setting"
    )


class SemanticSettings(SettingsPart):
    """Settings of the proxy."""

    if TYPE_CHECKING:
        tenants: tuple[SemanticTenantSettings, ...]
        route: tuple[SemanticRouteSettings, ...]

    semantic: SemanticMode = Field(
        "off",
        description="answers to questions in another wording; shadow: serve none, only learn and measure; "
        "on: serve them once their error rate is certified",
    )
    semantic_error: ErrorRate = Field(
        0.01, description="allowed share of wrong answers among those served to questions in another wording"
    )
    semantic_temperature: float = Field(
        0.0, ge=0.0, le=2.0, description="requests that set a higher temperature are never matched with other wordings"
    )
    semantic_judge: str | None = Field(
        None, description="model that compares answers if nothing simpler decides; one of the upstreams serves it"
    )
    semantic_questions: int = Field(
        100_000, ge=100, le=10_000_000, description="maximum number of questions that are compared with new ones"
    )
    semantic_embeddings: Annotated[Url | None, MAYBE_SECRET] = Field(
        None, description="URL of an OpenAI-compatible API with /embeddings; none: the local embedding model"
    )
    semantic_embeddings_model: str | None = Field(None, description="embedding model of that API")
    semantic_embeddings_key_env: Annotated[str | None, MAYBE_SECRET] = Field(
        None, description="environment variable with the key of that API"
    )
