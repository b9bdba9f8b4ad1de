"""Recognises repeated requests by their bytes, and answers hits without parsing them.

The key of a request depends only on its body, its principal and some headers. A request that was answered from the
cache is remembered by its bytes. If the same bytes come again, from the same namespace and without such headers, the
key is known: nothing has to be parsed, checked or hashed. The lookup itself is the same as ever: the policy counts the
request, the stored request is compared, expired answers are not served. This more than halves the cost of a hit.

    Invariant: Σ charge(request) ≤ capacity; the oldest request is dropped first. Only hits are remembered, so a flood
    of requests that never return changes nothing. Of a body only the fields that select the form of the answer are
    kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from knapcache.cache import Answer, Cache
from knapcache.exchange.cache_headers import hit_header_lines
from knapcache.exchange.exchange import Exchange
from knapcache.keys.parse import ParsedBody
from knapcache.keys.request import KeyedRequest
from knapcache.model import Endpoint
from knapcache.serve.http.access import AccessControl
from knapcache.serve.http.asgi_request import RawPairs
from knapcache.serve.observe.events import Event
from knapcache.serve.upstream.upstream import Upstream
from knapcache.wire.cache_control import NO_DIRECTIVES

CAPACITY = 32 << 20
MAX_LENGTH = 64 << 10
"""Bytes of a request. Longer ones take long to process anyway."""
OVERHEAD = 1280
"""Bytes that an entry takes beside the request and its canonical form, which is about as long."""
FORM_FIELDS = ("stream", "stream_options")
"""Fields that select the form of the answer."""


class KnownRequest(NamedTuple):
    """A request that was a hit before."""

    request: KeyedRequest
    exchange: Exchange
    """Without its text."""
    upstream: Upstream
    model: str
    plain: bool
    """It asks for no stream, and the stored answer is none."""


class FastPath:
    """Requests by their bytes. append_event: takes the events of hits that `respond` serves."""

    def __init__(
        self,
        cache: Cache,
        access: AccessControl,
        append_event: Callable[[Event], Any],
        capacity: int = CAPACITY,
    ) -> None:
        self._cache, self._get_nowait = cache, cache.get_nowait
        self._access, self._append_event = access, append_event
        self._capacity, self._charged = capacity, 0
        self._known: dict[tuple[bytes, str, Endpoint], KnownRequest] = {}

    def __len__(self) -> int:
        return len(self._known)

    def respond(self, headers: RawPairs, endpoint: Endpoint, body: bytes) -> list[bytes] | None:
        """Return the header lines and the body of a plain hit that is in memory; None if the request takes more."""
        started = time.perf_counter()
        head = self._access.known(headers)
        if head is None or not head.plain:
            return None
        known = self._known.get((body, head.principal.namespace, endpoint))
        if known is None or not known.plain:
            return None
        answer = self._get_nowait(known.request)
        if answer is None or answer.meta.get("form") != "json":
            return None
        usd, upstream_seconds, cost, _, tokens = answer.bill
        seconds = time.perf_counter() - started
        self._append_event(
            Event(
                time=time.time(), endpoint=endpoint.value, model=known.model, tenant=head.principal.name, outcome="hit",
                status=200, seconds=seconds, ttfb=seconds, stream=False, key=answer.key, size=answer.size, cost=cost,
                usd=usd, tokens=tokens, upstream_seconds=upstream_seconds,
            )
        )  # fmt: skip
        return [header_lines(answer), answer.payload]

    def find(self, body: bytes, namespace: str, endpoint: Endpoint) -> tuple[KnownRequest, Answer] | None:
        """Return a known request and its answer, counted as a hit; None, and nothing counted, if it takes more."""
        known = self._known.get((body, namespace, endpoint))
        answer = None if known is None else self._get_nowait(known.request)
        return None if known is None or answer is None else (known, answer)

    def remember(self, exchange: Exchange, upstream: Upstream, model: str, answer: Answer) -> None:
        """Remember a request that was a hit, and that came without query and without headers that change answers."""
        raw = exchange.raw
        if exchange.format.per_item is not None or exchange.control != NO_DIRECTIVES or len(raw) > MAX_LENGTH:
            return
        request = self._cache.keyed_request(exchange.endpoint, exchange.body, **exchange.key_args)
        assert request is not None, "a hit without a key"
        while self._known and self._charged + charge(raw) > self._capacity:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._charged -= charge(oldest[0])
        form = ParsedBody({name: exchange.body[name] for name in FORM_FIELDS if name in exchange.body})
        plain = not exchange.stream and answer.meta.get("form") == "json"
        known = KnownRequest(
            request=request,
            exchange=replace(exchange, body=form, raw=b""),
            upstream=upstream,
            model=model,
            plain=plain,
        )
        if self._known.setdefault((raw, exchange.namespace or "", exchange.endpoint), known) is known:
            self._charged += charge(raw)


def charge(raw: bytes) -> int:
    """Return the bytes that remembering a request takes."""
    return 2 * len(raw) + OVERHEAD


def header_lines(answer: Answer) -> bytes:
    """Return the headers of a plain answer that is served as it was stored, with the blank line after them."""
    lines = b"content-type: application/json\r\n%bcontent-length: %d\r\n" % (
        hit_header_lines(answer),
        len(answer.payload),
    )
    for name, value in answer.meta.get("ids", {}).items():
        lines += b"%b: %b\r\n" % (name.encode("latin-1"), value.encode("latin-1", "replace"))
    return lines + b"\r\n"
