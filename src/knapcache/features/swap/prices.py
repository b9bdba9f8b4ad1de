"""What a miss costs: the price of the model that would answer it now.

A new answer has the price of its own model. An answer of the asked model that is stored when a certificate starts would
be one of the cheaper model after its eviction. So the policy is given the cheaper price for it, and the paid price when
the certificate ends. Hits tell nothing about that, because most of them reach no feature. So the entries of the frame
are looked up in the store, in a thread, when its certificate starts or ends, and those of all frames when this process
has become the owner of the store.

Only first turns are given another price: the asked model goes on with a conversation that it has begun. Answers of
audits keep the price that was paid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

from knapcache.cache.internal import InternalCache
from knapcache.features.swap.frames import LiveFrame
from knapcache.features.swap.request import SwapRequest, read_request
from knapcache.features.swap.tier import SwapRoute, SwapTier, frame_name
from knapcache.keys.outline import MAX_PARSED, read_canonical
from knapcache.model import Endpoint
from knapcache.proxy.http.call import ANSWERED_BY
from knapcache.threads import DeadlinePool

CHECK_SECONDS = 1.0
BATCH = 64
"""Entries that are read before the thread pauses for as long as that has taken."""


class FramePrice(NamedTuple):
    """A frame, and the factor from the price of its asked model to the price of a miss."""

    route: SwapRoute
    tenant: str
    factor: float


class MissPrices:
    """Gives the policy the prices of misses, in the process that owns the store."""

    def __init__(self, cache: InternalCache, tier: SwapTier) -> None:
        self._cache, self._tier = cache, tier
        self._pool = DeadlinePool("knapcache-prices", threads=1)
        self._closing = False
        self._role: object = None
        self._certified: set[str] = set()
        """Frames whose entries have the price of the cheaper model."""

    async def run(self) -> None:
        """Update prices again and again."""
        while True:
            await self.update()
            await asyncio.sleep(CHECK_SECONDS)

    async def update(self) -> None:
        """Update the prices of the frames whose certificate has started or ended since the last call."""
        role, tier = self._cache.coordinator.role, self._tier
        if not role.is_owner or tier.failure:
            return
        frames = {name: frame for name, frame in tier.frames.labelled if frame.namespace}
        certified = {name for name, frame in frames.items() if self._swaps(frame)}
        changed = frames.keys() if role is not self._role else certified ^ self._certified
        prices = {
            name: FramePrice(
                tier.routes[frames[name].route],
                frames[name].tenant,
                1.0 / frames[name].price_ratio if name in certified else 1.0,
            )
            for name in changed & frames.keys()
        }
        namespaces = {frames[name].namespace for name in prices}
        self._role, self._certified = role, certified
        if prices:
            await self._pool.call(lambda: self._reprice(prices, namespaces))

    def _swaps(self, frame: LiveFrame) -> bool:
        return frame.certified and self._tier.routes[frame.route].settings.swap == "on"

    def _reprice(self, prices: Mapping[str, FramePrice], namespaces: set[str]) -> None:
        owners = {(price.route, price.tenant) for price in prices.values()}
        costs: dict[bytes, float] = {}
        started = time.monotonic()
        for number, (key, cost, request) in enumerate(self._cache.stored_requests(namespaces), 1):
            turn = first_turn(request)
            for route, tenant in owners:
                price = None if turn is None else prices.get(frame_name(route, tenant, *turn))
                if price is not None:
                    costs[key] = cost * price.factor
            if number % BATCH == 0:
                self._cache.reprice(costs)
                costs.clear()
                if self._closing:
                    return
                time.sleep(time.monotonic() - started)
                started = time.monotonic()
        self._cache.reprice(costs)

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._pool.close()


def first_turn(canonical: bytes) -> tuple[Endpoint, str, bytes] | None:
    """Return endpoint, model and frame of a stored request; None if the asked model would answer it in any case."""
    found = read_canonical(canonical) if len(canonical) <= MAX_PARSED else None
    if found is None or ANSWERED_BY in found.context or found.kind not in set(Endpoint):
        return None
    endpoint = Endpoint(found.kind)
    request = read_request(endpoint, found.body)
    if not isinstance(request, SwapRequest) or request.opening is not None:
        return None
    return endpoint, str(found.body.get("model", "")), request.frame
