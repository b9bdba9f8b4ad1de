"""Embeddings of several texts at once: what is kept is given, and only the rest is fetched.

    items = kept ∪ missing        sent: the missing ones, each once        answer = all of them, in the order asked for

Pure: the transport looks at `sent`, sends it, and comes back with what it got.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from knapcache.cache import Cache, Reply
from knapcache.exchange.exchange import CACHE_STATUS, Exchange, Given, kept_meta, passing
from knapcache.match import Body
from knapcache.model import Endpoint
from knapcache.wire import embeddings
from knapcache.wire.pieces import compact, read_object


class Batch:
    """One request for several embeddings."""

    def __init__(self, cache: Cache, exchange: Exchange) -> None:
        self._cache, self._exchange = cache, exchange
        self._items = embeddings.items(exchange.body.get("input"))
        control = exchange.control
        self._found = [
            cache.lookup(
                Endpoint.EMBEDDINGS,
                Body({**exchange.body, "input": item}),  # read with the rest
                namespace=exchange.namespace,
                context=exchange.context,
                max_age=control.max_age,
            )
            for item in self._items
        ]
        self.bypass = not self._found or any(found.bypass is not None for found in self._found)
        """An item has no key: the request is to be sent as it is."""
        self._payloads: dict[str, bytes] = {}
        self._missing: dict[str, int] = {}
        for index, found in enumerate(self._found):
            if found.hit is not None and not control.refresh:
                self._payloads[found.key] = found.hit.payload
            else:
                self._missing.setdefault(found.key, index)
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
            self._cache.settle(self._found[index], reply)

    def given(self, headers: Iterable[tuple[str, str]] | None = None) -> Given:
        """The answer, once nothing is missing."""
        how = "hit" if headers is None else "miss"
        said = [("content-type", "application/json"), ("x-knapcache", how), ("cache-status", CACHE_STATUS[how])]
        said.append(("x-knapcache-hits", f"{self.hits}/{len(self._items)}"))
        own = [pair for pair in passing(headers or ()) if pair[0].lower() != "content-type"]
        body = embeddings.join([self._payloads[found.key] for found in self._found])
        return Given(200, said + own, body)


def batch_of(cache: Cache, exchange: Exchange) -> Batch | None:
    """The batch that an exchange is; None where it is for one item, or has no key."""
    several = exchange.endpoint is Endpoint.EMBEDDINGS and isinstance(exchange.body.get("input"), list)
    if exchange.bypass or not several or len(embeddings.items(exchange.body["input"])) == 1:
        return None
    return Batch(cache, exchange)
