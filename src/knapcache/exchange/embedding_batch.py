"""Embeddings of several texts at once: what is kept is given, and only the rest is fetched.

    items = kept ∪ missing        sent: the missing ones, each once        answer = all of them, in the order asked for

Pure: the transport looks at `sent`, sends it, and comes back with what it got.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from knapcache.cache import Answer, Cache, Reply
from knapcache.cache.values import Lookup
from knapcache.exchange.exchange import CACHE_STATUS, CachedResponse, Exchange, kept_meta, passing
from knapcache.keys import ParsedBody
from knapcache.model import Endpoint
from knapcache.wire import embeddings
from knapcache.wire.json_util import compact, read_object


class Batch:
    """One request for several embeddings."""

    def __init__(self, cache: Cache, exchange: Exchange, found: list[Lookup]) -> None:
        self._cache, self._exchange, self._found = cache, exchange, found
        self._items = embeddings.items(exchange.body.get("input"))
        control = exchange.control
        self.bypass = any(each.bypass is not None for each in found)
        """An item has no key: the request is to be sent as it is."""
        self._payloads: dict[str, bytes] = {}
        self._answers: dict[str, Answer] = {}
        self._missing: dict[str, int] = {}
        for index, each in enumerate(found):
            if each.hit is not None and not control.refresh:
                self._payloads[each.key] = each.hit.payload
                self._answers[each.key] = each.hit
            else:
                self._missing.setdefault(each.key, index)
        self._started = time.perf_counter()

    @property
    def hits(self) -> int:
        """Items that are there."""
        return sum(found.key not in self._missing for found in self._found)

    @property
    def complete(self) -> bool:
        """Nothing is to be fetched."""
        return not self._missing

    def sent(self) -> bytes:
        """The request for what is missing."""
        if len(self._missing) == len(self._items):
            return self._exchange.sent(False)
        body = {name: value for name, value in self._exchange.body.items() if name != "cache"}
        return compact({**body, "input": [self._items[index] for index in self._missing.values()]})

    def settle(self, headers: Mapping[str, str], content: bytes) -> None:
        """The missing ones have come; Incomplete if they have not."""
        inputs = [self._items[index] for index in self._missing.values()]
        parts = embeddings.parts(read_object(content), inputs)
        seconds = (time.perf_counter() - self._started) / len(parts)
        control = self._exchange.control
        meta = kept_meta(headers, "json")
        for (key, index), part in zip(self._missing.items(), parts, strict=True):
            self._payloads[key] = part.payload
            reply = Reply(part.payload, part.model, part.usage, seconds, meta, control.store, control.ttl)
            self._answers[key] = self._cache.settle_answer(self._found[index], reply)

    def given(self, headers: Iterable[tuple[str, str]] | None = None) -> CachedResponse:
        """The answer, once nothing is missing."""
        outcome = "hit" if headers is None else "miss"
        said = [("content-type", "application/json"), ("x-knapcache", outcome), ("cache-status", CACHE_STATUS[outcome])]
        said.append(("x-knapcache-hits", f"{self.hits}/{len(self._items)}"))
        own = [pair for pair in passing(headers or ()) if pair[0].lower() != "content-type"]
        body = embeddings.join([self._payloads[found.key] for found in self._found])
        return CachedResponse(200, said + own, body, parts=tuple(self._parts()))

    def _parts(self) -> Iterator[Answer]:
        """Where each item comes from. What was asked for twice in one request was paid for once."""
        paid = set()
        for found in self._found:
            answer = self._answers[found.key]
            yield answer._replace(outcome="coalesced") if answer.outcome == "miss" and found.key in paid else answer
            paid.add(found.key)


def items_of(exchange: Exchange) -> list[ParsedBody]:
    """A request for each item, where there are several; none where there is one, or the exchange has no key."""
    several = exchange.endpoint is Endpoint.EMBEDDINGS and isinstance(exchange.body.get("input"), list)
    if exchange.bypass or not several:
        return []
    items = embeddings.items(exchange.body["input"])
    # Read with the rest.
    return [] if len(items) == 1 else [ParsedBody({**exchange.body, "input": item}) for item in items]


def batch_of(cache: Cache, exchange: Exchange) -> Batch | None:
    """The batch that an exchange is; None where it is none."""
    asked, wish = items_of(exchange), {**exchange.whose, "max_age": exchange.control.max_age}
    return Batch(cache, exchange, [cache.lookup(exchange.endpoint, item, **wish) for item in asked]) if asked else None


async def batch_of_async(cache: Cache, exchange: Exchange) -> Batch | None:
    """The same for coroutines."""
    asked, wish = items_of(exchange), {**exchange.whose, "max_age": exchange.control.max_age}
    found = [await cache.lookup_async(exchange.endpoint, item, **wish) for item in asked]
    return Batch(cache, exchange, found) if asked else None
