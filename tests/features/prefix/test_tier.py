"""Where a request is read: on the event loop if it is short, in the pool if it is long, and not at all if too long."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from knapcache.features.prefix.settings import PrefixMode
from knapcache.features.prefix.tier import MAX_READ, PrefixMarker, PrefixTier
from knapcache.keys.parse import SHORT
from knapcache.model import Endpoint
from knapcache.price.input_tokens import InputTokens

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


def marker(mode: PrefixMode, size: int) -> PrefixMarker:
    tier = PrefixTier("a", "anthropic", mode, b"secret", input_price=lambda *_: None)
    return PrefixMarker(tier, Endpoint.MESSAGES, BODY, size, "claude", "account", Mock(call=AsyncMock()))


@pytest.mark.parametrize(("size", "in_pool"), [(SHORT, False), (SHORT + 1, True)])
async def test_long_requests_are_read_in_the_pool(size: int, in_pool: bool) -> None:
    observed, placed = marker("observe", size), marker("on", size)
    placed.pool.call.return_value = None  # type: ignore[attr-defined]
    assert await observed.mark() is await placed.mark() is None
    assert (observed.pool.submit.called, placed.pool.call.called) == (in_pool, in_pool)  # type: ignore[attr-defined]
    assert (placed.call is None) == in_pool, "the body was not understood"


@pytest.mark.parametrize(("size", "tariff"), [(MAX_READ, "anthropic"), (MAX_READ + 1, "")])
async def test_a_request_that_was_answered_before_it_was_read_is_read_unless_it_is_too_long(
    size: int, tariff: str
) -> None:
    observed = marker("observe", size)
    await observed.mark()
    found = observed.report(InputTokens(5, 0, 0, 0))
    assert found is not None
    assert (found.tariff, found.input) == (tariff, 5)
    assert observed.report(None) is None, "counted once"


@pytest.mark.parametrize("mode", ["observe", "on"])
async def test_a_request_that_was_not_sent_has_no_event(mode: PrefixMode) -> None:
    assert marker(mode, 10).report(None) is None
