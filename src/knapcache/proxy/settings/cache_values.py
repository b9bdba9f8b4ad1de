"""Types of the settings that name policies, costs and prices. They raise InvalidInput for other values."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.price import Meter
from knapcache.price.weights import Weights
from knapcache.proxy.settings.value_types import name_list

SHADOW = re.compile(r"(?P<policy>[a-z0-9-]+)(?:@[1-9][0-9]*x)?")


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
    """Check the formula of a cost."""
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


PolicyName = Annotated[str, AfterValidator(online_policy)]
ShadowList = Annotated[tuple[str, ...], BeforeValidator(name_list), AfterValidator(online_shadows)]
Cost = Annotated[str, AfterValidator(valid_cost)]
Prices = Annotated[dict[str, dict[str, float]], AfterValidator(valid_prices)]
FallbackPrice = Annotated[dict[str, float] | float | None, BeforeValidator(valid_fallback_price)]
