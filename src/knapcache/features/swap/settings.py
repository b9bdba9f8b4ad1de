"""Settings of swap, of routes."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from knapcache.errors import InvalidInput
from knapcache.proxy.settings.parts import RoutePart
from knapcache.proxy.settings.value_types import ModelName, NameList

CHECKS = ("empty", "length", "refusal", "json")
LOGPROB = "logprob:"
"""Checks of answers (checks.py): names, and this one with a number."""
SwapMode = Literal["off", "shadow", "on"]


def check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    bounds = [name for name in names if name not in CHECKS]
    if len(bounds) > 1 or not all(map(is_logprob, bounds)):
        raise InvalidInput(f"must be of {', '.join(CHECKS)}, and one number below 0 such as {LOGPROB}-0.5")
    return names


def is_logprob(name: str) -> bool:
    """Return whether a check is a bound of the mean log probability."""
    try:
        return name.startswith(LOGPROB) and -math.inf < float(name.removeprefix(LOGPROB)) < 0.0
    except ValueError:
        return False


def least_logprob(names: tuple[str, ...]) -> float | None:
    """Return the least mean log probability that checks accept; None: they do not ask for it."""
    return next((float(name.removeprefix(LOGPROB)) for name in names if is_logprob(name)), None)


class SwapRouteSettings(RoutePart):
    """Settings of a route."""

    swap: SwapMode = Field(
        "off",
        description="a cheaper model; shadow: swap nothing, only learn what it would lose; on: let it answer where its "
        "loss is certified",
    )
    swap_model: ModelName | None = Field(
        None, description="the cheaper model; one of the upstreams serves it, with a key of its own"
    )
    swap_loss: float = Field(
        0.02, gt=0.0, lt=1.0, description="allowed mean loss of the cheaper model: its losses minus its wins, of 1"
    )
    swap_judge: ModelName | None = Field(
        None,
        description="model that compares two answers; none: an answer that differs in text, JSON or number is a loss",
    )
    swap_budget: float = Field(
        0.03, ge=0.0, le=1.0, description="most that labels may cost, as a share of what the asked model costs"
    )

    swap_escalate: Annotated[NameList, AfterValidator(check_names)] = Field(
        (),
        description="answers of the cheaper model that are replaced by one of the asked model: empty, length, refusal, "
        "json, and logprob:-0.5 for a mean log probability below that; streams then wait for the whole answer",
    )

    @model_validator(mode="after")
    def _has_model(self) -> Self:
        if self.swap != "off" and self.swap_model is None:
            raise InvalidInput(f'swap is "{self.swap}", so swap_model must name the cheaper model')
        return self
