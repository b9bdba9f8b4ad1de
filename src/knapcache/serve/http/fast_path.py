"""The short way of a hit. Whoever asks again sends, nearly always, the same bytes.

The key of a request depends on its bytes, its caller and some headers, and on nothing else. So requests that were once
answered from the cache are known by their bytes: where these come again, from the same caller and without such headers,
nothing has to be read, checked or hashed to know the key. The answer is looked for under it as ever: the policy counts
it, the kept request is compared, expiry holds. What a hit costs us beyond the server falls to less than half.

    Invariant: Σ bytes remembered ≤ room; the oldest goes first. Only what was hit is remembered: a flood of requests
    that never return changes nothing here. Of a body is kept what says how the answer is to look, and not its text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from knapcache.cache import Answer, Cache
from knapcache.exchange.exchange import Exchange
from knapcache.keys.parse import ParsedBody
from knapcache.keys.request import KeyedRequest
from knapcache.model import Endpoint
from knapcache.serve.http.asgi_request import RawPairs
from knapcache.serve.upstream.upstream import Upstream
from knapcache.wire.cache_control import USUAL

ROOM = 32 << 20
LONGEST = 64 << 10
"""Bytes of a request: longer ones take long to answer anyway."""
AROUND = 1280
"""Bytes of what is remembered beside the request and its canonical form, which is about as long."""
SHAPE = ("stream", "stream_options")
"""Fields that say how the answer is to look."""

HIT: RawPairs = [
    (b"content-type", b"application/json"),
    (b"x-knapcache", b"hit"),
    (b"cache-status", b"knapcache; hit"),
]


class Known(NamedTuple):
    """A request that was hit before."""

    question: KeyedRequest
    exchange: Exchange
    """Without its text."""
    upstream: Upstream
    model: str
    plain: bool
    """It wants no stream, and what is kept is none."""


class FastPath:
    """Requests by their bytes."""

    def __init__(self, cache: Cache, room: int = ROOM) -> None:
        self._cache, self._room, self._taken = cache, room, 0
        self._known: dict[tuple[bytes, str, Endpoint], Known] = {}
        self.get = self._known.get
        """By the bytes of the body, the caller's namespace, and the endpoint."""

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, exchange: Exchange, upstream: Upstream, model: str, answer: Answer) -> None:
        """A request was hit, without query and without special headers."""
        raw = exchange.raw
        if exchange.endpoint is Endpoint.EMBEDDINGS or exchange.control != USUAL or len(raw) > LONGEST:
            return  # embeddings are kept by item
        question = self._cache.keyed_request(exchange.endpoint, exchange.body, **exchange.whose)
        assert question is not None, "a hit without a key"
        while self._known and self._taken + charge(raw) > self._room:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._taken -= charge(oldest[0])
        shape = ParsedBody({name: exchange.body[name] for name in SHAPE if name in exchange.body})
        plain = not exchange.stream and answer.meta.get("form") == "json"
        known = Known(question, replace(exchange, body=shape, raw=b""), upstream, model, plain)
        if self._known.setdefault((raw, exchange.namespace or "", exchange.endpoint), known) is known:
            self._taken += charge(raw)


def charge(raw: bytes) -> int:
    """Bytes that remembering a request takes."""
    return 2 * len(raw) + AROUND


def raw_headers(answer: Answer) -> RawPairs:
    """What is said with a plain answer that was kept as it is given."""
    said = [
        *HIT,
        (b"x-knapcache-key", answer.key.encode()),
        (b"age", b"%d" % answer.age),
        (b"content-length", b"%d" % len(answer.payload)),
    ]
    if answer.saved_usd is not None:
        said.append((b"x-knapcache-saved-usd", b"%.8f" % answer.saved_usd))
    for name, value in answer.meta.get("ids", {}).items():
        said.append((name.encode("latin-1"), value.encode("latin-1", "replace")))
    return said
