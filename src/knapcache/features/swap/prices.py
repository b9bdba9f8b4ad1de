"""What a miss costs: the price of the model that would answer it now.

A new answer has the price of its own model. An answer of the asked model that is stored when a certificate starts would
be one of the cheaper model after its eviction. So the policy is given the cheaper price for it, and the paid price when
the certificate ends. Hits tell nothing about that, because most of them reach no feature. So the entries of the frame
are looked up in the store, in a thread, when its certificate starts or ends, and those of all frames when this process
has become the owner of the store. Snapshots of the policy have the paid prices, so without a certificate after a
restart no entry keeps the cheaper one.

Only first turns are given another price: the asked model goes on with a conversation that it has begun. Answers of
audits keep the price that was paid.
"""

from __future__ import annotations

import asyncio
import logging
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

log = logging.getLogger("knapcache.serve")

CHECK_SECONDS = 1.0
BATCH = 64
"""Entries that are read before the thread pauses for as long as that has taken."""


class FramePrice(NamedTuple):
    """A frame, and the factor from the price of its asked model to the price of a miss."""

    route: SwapRoute
    tenant: str
    namespace: str
    factor: float


class MissPrices:
    """Gives the policy the prices of misses, in the process that owns the store."""

    def __init__(self, cache: InternalCache, tier: SwapTier) -> None:
        self._cache, self._tier = cache, tier
        self._pool = DeadlinePool("knapcache-prices", threads=1)
        self._closing = self._failed = False
        self._role: object = None
        self._certified: dict[str, FramePrice] = {}
        """Frames whose entries have the price of the cheaper model."""

    async def run(self) -> None:
        """Update prices again and again."""
        while True:
            try:
                await self.update()
                self._failed = False
            except Exception:  # an edge of the proxy: the task would end, and prices would stay as they are, unnoticed
                if not self._failed:
                    log.exception("Swap: the prices of misses were not updated; this is tried again")
                self._failed = True
            await asyncio.sleep(CHECK_SECONDS)

    async def update(self) -> None:
        """Update the prices of the frames whose certificate has started or ended since the last call."""
        role, tier = self._cache.coordinator.role, self._tier
        if not role.is_owner or tier.failure:
            return
        prices = {
            name: FramePrice(tier.routes[frame.route], frame.tenant, frame.namespace, self._factor(frame))
            for name, frame in tier.frames.labelled
            if frame.namespace
        }
        certified = {name: price for name, price in prices.items() if price.factor != 1.0}
        if role is self._role:
            # A frame whose certificate has ended may be gone, too.
            prices = {name: price._replace(factor=1.0) for name, price in self._certified.items()} | certified
            prices = {name: prices[name] for name in certified.keys() ^ self._certified.keys()}
        if prices:
            await self._pool.call(lambda: self._reprice(prices))
        self._role, self._certified = role, certified

    def _factor(self, frame: LiveFrame) -> float:
        swaps = frame.certified and self._tier.routes[frame.route].settings.swap == "on"
        return 1.0 / frame.price_ratio if swaps else 1.0

    def _reprice(self, prices: Mapping[str, FramePrice]) -> None:
        owners: dict[str, set[tuple[SwapRoute, str]]] = {}
        for price in prices.values():
            owners.setdefault(price.namespace, set()).add((price.route, price.tenant))
        costs: dict[bytes, float] = {}
        started = time.monotonic()
        for number, (key, cost, request) in enumerate(self._cache.stored_requests(owners.keys()), 1):
            if (turn := first_turn(request)) is not None:
                for route, tenant in owners.get(turn.namespace, ()):
                    name = frame_name(route, tenant, turn.endpoint, turn.model, turn.frame)
                    if (found := prices.get(name)) is not None:
                        costs[key] = cost * found.factor
            if self._closing:
                return
            if number % BATCH == 0:
                self._cache.reprice(costs)
                costs.clear()
                time.sleep(time.monotonic() - started)
                started = time.monotonic()
        self._cache.reprice(costs)

    async def close(self) -> None:
        """End the thread, which reads the store: that is closed next."""
        self._closing = True
        await self._pool.call(lambda: None)  # after what it does now
        self._pool.close()


class FirstTurn(NamedTuple):
    """What is read of a stored request."""

    namespace: str
    endpoint: Endpoint
    model: str
    frame: bytes


def first_turn(canonical: bytes) -> FirstTurn | None:
    """Return what is read of a stored request; None if the asked model would answer it in any case."""
    found = read_canonical(canonical) if len(canonical) <= MAX_PARSED else None
    if found is None or ANSWERED_BY in found.context or found.kind not in set(Endpoint):
        return None
    endpoint = Endpoint(found.kind)
    request = read_request(endpoint, found.body)
    if not isinstance(request, SwapRequest) or request.opening is not None:
        return None
    return FirstTurn(found.namespace, endpoint, str(found.body.get("model", "")), request.frame)
