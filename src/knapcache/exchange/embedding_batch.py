"""Requests with several items, each of which has its own entry: embeddings. Only missing items are fetched.

    items = stored ∪ missing      sent: each missing item once      response: all items, in the order of the request

Pure: the fetcher sends `upstream_body` and passes the answer to `settle`.
"""

from __future__ import annotations

import io
import re
import secrets
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from knapcache.cache import Answer, Reply
from knapcache.cache.values import Lookup
from knapcache.errors import Incomplete, Uncacheable, public_text
from knapcache.exchange.exchange import CachedResponse, Exchange, FallbackAnswer, stored_meta
from knapcache.exchange.headers import forwarded_headers, outcome_headers
from knapcache.keys.edited_text import edited_text
from knapcache.keys.parse import SHORT
from knapcache.keys.scan import check_cost, strings
from knapcache.wire.base import CompleteAnswer, PerItem, read_object

VECTOR = re.compile(rb'(\[[^][{}"]{64,}\])')
"""An array of numbers, outside strings."""
BASE64 = b'"' + string.ascii_letters.encode() + string.digits.encode() + b"+/=_-"
"""Characters of a vector as a string, with its quotes."""
LONG_STRING = 64
ITEMS_AT_ONCE = 16
"""Items of a request that are looked up or stored without a pause. Storing one takes up to 0.1 ms."""
MAX_VECTOR = 1 << 20
"""Bytes between two strings: one vector of 50,000 numbers."""


class EmbeddingBatch:
    """One request with several items."""

    def __init__(self, exchange: Exchange, per_item: PerItem, found: list[Lookup]) -> None:
        self._exchange, self._per_item, self._found = exchange, per_item, found
        self._items = per_item.inputs(exchange.body.get("input"))
        self._payloads: dict[str, bytes] = {}
        self._answers: dict[str, Answer] = {}
        self._missing: dict[str, int] = {}
        for index, each in enumerate(found):
            if each.hit is not None and not exchange.control.refresh:
                self._payloads[each.key] = each.hit.payload
                self._answers[each.key] = each.hit
            else:
                self._missing.setdefault(each.key, index)

    @property
    def hits(self) -> int:
        """The number of items that are stored."""
        return sum(found.key not in self._missing for found in self._found)

    @property
    def size(self) -> int:
        """Bytes of the items that are stored so far."""
        return sum(map(len, self._payloads.values()))

    @property
    def complete(self) -> bool:
        """Whether all items are stored."""
        return not self._missing

    def upstream_body(self) -> bytes:
        """Return the request for the missing items."""
        if len(self._missing) == len(self._items):
            return self._exchange.upstream_body(False)
        body = {name: value for name, value in self._exchange.body.items() if name != "cache"}
        body["input"] = [self._items[index] for index in self._missing.values()]
        return edited_text(self._exchange.raw, self._exchange.body, body)

    def split(self, content: bytes) -> list[CompleteAnswer]:
        """Return the answers for the missing items, or raise Incomplete."""
        return self._per_item.split(read_answer(content), [self._items[index] for index in self._missing.values()])

    async def settle(
        self,
        settle: Callable[[Sequence[tuple[Lookup, Reply]]], Awaitable[list[Answer]]],
        headers: Mapping[str, str],
        parts: list[CompleteAnswer],
        seconds: float,
        fallback: FallbackAnswer | None = None,
    ) -> AsyncIterator[None]:
        """Store the answers for the missing items: each step stores at most `ITEMS_AT_ONCE`.

        settle     of the cache: blocks, or not
        seconds    how long they took
        fallback   set if another model than usual has answered
        """
        seconds /= len(parts)
        control = self._exchange.control
        meta = stored_meta(headers, "json")
        if fallback is not None:
            meta["fallback"] = fallback.model
        elif self._exchange.is_embedded:
            meta["embedded"] = True
        fetched = list(zip(self._missing.items(), parts, strict=True))
        for first in range(0, len(fetched), ITEMS_AT_ONCE):
            calls = []
            for (key, index), part in fetched[first : first + ITEMS_AT_ONCE]:
                self._payloads[key] = part.body
                reply = Reply(
                    payload=part.body,
                    model=part.model,
                    usage=part.usage,
                    seconds=seconds,
                    meta=meta,
                    cacheable=control.store and (fallback is None or fallback.keep),
                    ttl=control.ttl,
                    tags=control.tags,
                )
                calls.append((self._found[index], reply))
            for (lookup, _), answer in zip(calls, await settle(calls), strict=True):
                self._answers[lookup.key] = answer
            yield

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


def read_answer(content: bytes) -> dict[str, Any]:
    """Parse an answer, or raise Incomplete. Long vectors are checked one by one and stay JSON text.

    2,048 vectors have millions of numbers. As one call and as objects they would take half a second, and 150 MB. In
    base64 they take 20 ms, during which no other thread runs.
    """
    if len(content) <= SHORT:
        return read_object(content)
    mark, vectors, rest, at = secrets.token_hex(16), [], io.BytesIO(), 0

    def set_aside(vector: bytes) -> bytes:
        vectors.append(vector)
        return b'"%b %d"' % (mark.encode(), len(vectors) - 1)

    is_name = False
    try:
        for start, end in [*strings(content), (len(content), len(content))]:
            if start - at > MAX_VECTOR:
                raise Incomplete(f"more than {MAX_VECTOR} bytes between two strings")
            for k, piece in enumerate(VECTOR.split(content[at:start])):
                if k % 2:
                    orjson.loads(piece)
                    piece = set_aside(piece)
                rest.write(piece)
            text = content[start:end]
            is_value = is_name and content[at:start].strip() == b":"
            is_vector = is_value and len(text) > LONG_STRING and not text.translate(None, BASE64)
            rest.write(set_aside(text) if is_vector else text)
            at, is_name = end, text == b'"embedding"'
        check_cost(rest.getvalue())
    except (Uncacheable, ValueError) as error:
        raise Incomplete(f"not JSON, or too much of it: {public_text(error)}") from None
    answer = read_object(rest.getvalue())
    data = answer.get("data")
    for item in data if isinstance(data, list) else ():
        vector = item.get("embedding") if isinstance(item, dict) else None
        if isinstance(vector, str) and vector.startswith(mark):
            item["embedding"] = orjson.Fragment(vectors[int(vector.split()[1])])
            vectors[int(vector.split()[1])] = b""
    if any(vectors):
        raise Incomplete("a vector that is not the embedding of an item")
    return answer


def has_items(exchange: Exchange, per_item: PerItem) -> bool:
    """Return whether a request has several items."""
    given = exchange.body.get("input")
    return not exchange.bypass and isinstance(given, list) and len(per_item.inputs(given)) > 1
