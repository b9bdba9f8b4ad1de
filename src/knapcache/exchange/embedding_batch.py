"""Requests with several items, each of which has its own entry: embeddings. Only missing items are fetched.

    items = stored ∪ missing      sent: each missing item once      response: all items, in the order of the request

Pure: the fetcher sends `upstream_body` and passes the answer to `settle`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from knapcache.cache import Answer, Cache, Reply
from knapcache.cache.values import Lookup
from knapcache.exchange.cache_headers import outcome_headers
from knapcache.exchange.exchange import CachedResponse, Exchange, stored_meta
from knapcache.exchange.headers import forwarded_headers
from knapcache.keys import ParsedBody
from knapcache.wire.base import PerItem
from knapcache.wire.json_util import read_object, to_json


class EmbeddingBatch:
    """One request with several items."""

    def __init__(self, cache: Cache, exchange: Exchange, per_item: PerItem, found: list[Lookup]) -> None:
        self._cache, self._exchange, self._per_item, self._found = cache, exchange, per_item, found
        self._items = per_item.inputs(exchange.body.get("input"))
        self.bypass = any(each.bypass is not None for each in found)
        """An item has no key: the request is sent as it is."""
        self._payloads: dict[str, bytes] = {}
        self._answers: dict[str, Answer] = {}
        self._missing: dict[str, int] = {}
        for index, each in enumerate(found):
            if each.hit is not None and not exchange.control.refresh:
                self._payloads[each.key] = each.hit.payload
                self._answers[each.key] = each.hit
            else:
                self._missing.setdefault(each.key, index)
        self._started = time.perf_counter()

    @property
    def hits(self) -> int:
        """The number of items that are stored."""
        return sum(found.key not in self._missing for found in self._found)

    @property
    def complete(self) -> bool:
        """Whether all items are stored."""
        return not self._missing

    def upstream_body(self) -> bytes:
        """Return the request for the missing items."""
        if len(self._missing) == len(self._items):
            return self._exchange.upstream_body(False)
        body = {name: value for name, value in self._exchange.body.items() if name != "cache"}
        return to_json({**body, "input": [self._items[index] for index in self._missing.values()]})

    def settle(self, headers: Mapping[str, str], content: bytes) -> None:
        """Store the answer for the missing items, or raise Incomplete."""
        inputs = [self._items[index] for index in self._missing.values()]
        parts = self._per_item.split(read_object(content), inputs)
        seconds = (time.perf_counter() - self._started) / len(parts)
        control = self._exchange.control
        meta = stored_meta(headers, "json")
        for (key, index), part in zip(self._missing.items(), parts, strict=True):
            self._payloads[key] = part.body
            reply = Reply(
                payload=part.body,
                model=part.model,
                usage=part.usage,
                seconds=seconds,
                meta=meta,
                cacheable=control.store,
                ttl=control.ttl,
            )
            self._answers[key] = self._cache.settle_answer(self._found[index], reply)

    def response(self, upstream_headers: Iterable[tuple[str, str]] | None = None) -> CachedResponse:
        """Return the response, once no item is missing. upstream_headers: if the missing items were fetched."""
        headers = [("content-type", "application/json")]
        headers += outcome_headers("hit" if upstream_headers is None else "miss")
        headers.append(("x-knapcache-hits", f"{self.hits}/{len(self._items)}"))
        headers += [pair for pair in forwarded_headers(upstream_headers or ()) if pair[0].lower() != "content-type"]
        return CachedResponse(200, headers, self._per_item.join([self._payloads[found.key] for found in self._found]))

    def answers(self) -> tuple[Answer, ...]:
        """Return one answer an item. An item that occurs twice in the request was paid for once."""
        paid: set[str] = set()
        answers = []
        for found in self._found:
            answer = self._answers[found.key]
            again = answer.outcome == "miss" and found.key in paid
            answers.append(answer._replace(outcome="coalesced") if again else answer)
            paid.add(found.key)
        return tuple(answers)


def item_requests(exchange: Exchange, per_item: PerItem) -> list[ParsedBody]:
    """Return one request an item; none if there is only one, or the request has no key."""
    if exchange.bypass or not isinstance(exchange.body.get("input"), list):
        return []
    items = per_item.inputs(exchange.body["input"])
    return [] if len(items) == 1 else [ParsedBody({**exchange.body, "input": item}) for item in items]
