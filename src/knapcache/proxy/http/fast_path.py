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

from collections.abc import Callable, Mapping
from time import perf_counter, time
from typing import Any

from knapcache.cache import Answer
from knapcache.cache.internal import InternalCache
from knapcache.cache.values import EMPTY
from knapcache.exchange.exchange import Exchange
from knapcache.exchange.headers import hit_header_lines, stored_ids
from knapcache.keys.parse import ParsedBody
from knapcache.keys.request import KeyedRequest
from knapcache.model import Endpoint
from knapcache.proxy.events.events import MAX_TEXT, Event
from knapcache.proxy.http.access import RequestHead
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.store.base import Entry

CAPACITY = 32 << 20
MAX_LENGTH = 64 << 10
"""Bytes of a request. Longer ones take long to process anyway."""
OVERHEAD = 1408
"""Bytes that an entry takes beside the request and its canonical form, which is about as long."""
FORM_FIELDS = ("stream", "stream_options")
"""Fields that select the form of the answer."""

new_tuple = tuple.__new__


class KnownRequest:
    """A request that was a hit before.

    exchange   without its text
    plain      it asks for no stream, and the stored answer is none
    """

    __slots__ = ("_meta", "event_fields", "exchange", "header_lines", "model", "plain", "request", "route", "upstream")

    def __init__(
        self, request: KeyedRequest, exchange: Exchange, upstream: Upstream, model: str, *, plain: bool, route: str
    ) -> None:
        self.request, self.exchange, self.upstream, self.model, self.plain = request, exchange, upstream, model, plain
        self.route = route
        self._meta: Mapping[str, Any] | None = None
        self.header_lines = b"", b""
        """The headers of the response, before and after its age."""
        self.event_fields: tuple[Any, ...] = ()
        """The fields of the event after `ttfb`."""

    def prepare(self, entry: Entry) -> bool:
        """Encode what every hit on an entry has in common, once. False if the entry is not a plain answer.

        An entry is recognised by its metadata, which is small. A reference to the whole entry would keep it in memory
        after its eviction.
        """
        if entry.meta is self._meta:
            return True
        stored_with = entry.meta.get("meta", EMPTY)
        if stored_with.get("form") != "json" or "status" in stored_with:
            return False
        self.header_lines = header_lines(entry, self.route)
        stored = entry.meta
        self.event_fields = Event(
            time=0.0, endpoint="", model="", tenant="", outcome="hit", status=200, seconds=0.0, ttfb=0.0, stream=False,
            key=entry.key.hex(), size=entry.size, cost=entry.cost, usd=stored.get("usd"),
            tokens=stored.get("tokens", 0), upstream_seconds=entry.seconds, route=self.route,
        )[8:]  # fmt: skip
        self._meta = stored
        return True


class FastPath:
    """Requests by their bytes. append_event: takes the events of hits that `respond` serves."""

    def __init__(
        self,
        cache: InternalCache,
        append_event: Callable[[Event], Any],
        capacity: int = CAPACITY,
    ) -> None:
        self._cache, self._get_nowait, self._get_entry_nowait = cache, cache.get_nowait, cache.get_entry_nowait
        self._get_remote, self._append_event = cache.get_remote, append_event
        self._capacity, self._charged = capacity, 0
        self._known: dict[tuple[bytes, str, Endpoint], KnownRequest] = {}

    def __len__(self) -> int:
        return len(self._known)

    def respond(self, head: RequestHead, endpoint: Endpoint, body: bytes) -> tuple[bytes, ...] | None:
        """Return the header lines and the body of a plain hit that is in memory; None if the request takes more."""
        started = perf_counter()
        if not head.plain:
            return None
        principal = head.principal
        known = self._known.get((body, head.known_as, endpoint))
        if known is None or not known.plain:
            return None
        entry = self._get_entry_nowait(known.request, known.prepare)
        if entry is None:
            return None
        now, seconds = time(), perf_counter() - started
        self._append_event(
            # Not Event(…), which takes three times as long.
            new_tuple(
                Event,
                (now, endpoint.value, known.model, principal.name, "hit", 200, seconds, seconds, *known.event_fields),
            )
        )
        before_age, after_age = known.header_lines
        return before_age, b"%d" % max(0.0, now - entry.created), after_age, entry.payload

    async def find(self, body: bytes, known_as: str, endpoint: Endpoint) -> tuple[KnownRequest, Answer] | None:
        """Return a known request and its answer, counted as a hit; None, and nothing counted, if it takes more."""
        known = self._known.get((body, known_as, endpoint))
        if known is None:
            return None
        answer = self._get_nowait(known.request) or await self._get_remote(known.request)
        return None if answer is None else (known, answer)

    def remember(
        self, exchange: Exchange, upstream: Upstream, model: str, answer: Answer, known_as: str, route: str = ""
    ) -> None:
        """Remember a request that was a hit, and that came without query and without headers that change answers.

        known_as   that of its head
        """
        raw = exchange.raw
        if exchange.format.per_item is not None or not exchange.control.serves_any_hit or len(raw) > MAX_LENGTH:
            return
        request = self._cache.keyed_request(exchange.endpoint, exchange.body, **exchange.key_args)
        assert request is not None, "a hit without a key"
        request = request._replace(body=None)  # only an answer that is stored needs it
        while self._known and self._charged + charge(raw) > self._capacity:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._charged -= charge(oldest[0])
        form = ParsedBody({name: exchange.body[name] for name in FORM_FIELDS if name in exchange.body})
        plain = not exchange.stream and answer.meta.get("form") == "json"
        known = KnownRequest(
            request, exchange._replace(body=form, raw=b""), upstream, model[:MAX_TEXT], plain=plain, route=route
        )
        if self._known.setdefault((raw, known_as, exchange.endpoint), known) is known:
            self._charged += charge(raw)


def charge(raw: bytes) -> int:
    """Return the bytes that remembering a request takes."""
    return 2 * len(raw) + OVERHEAD


def header_lines(entry: Entry, route: str = "") -> tuple[bytes, bytes]:
    """Return the headers of a plain answer that is served as it was stored: before its age, and after it."""
    meta = entry.meta.get("meta", EMPTY)
    before_age, after_age = hit_header_lines(
        entry.key.hex(), entry.meta.get("usd"), entry.seconds, entry.meta.get("tokens", 0), meta
    )
    lines = [b"%bcontent-length: %d\r\n" % (after_age, len(entry.payload))]
    if route:
        lines.append(b"x-knapcache-route: %b\r\n" % route.encode("latin-1"))
    for name, value in stored_ids(meta).items():
        lines.append(b"%b: %b\r\n" % (name.encode("latin-1"), value.encode("latin-1", "replace")))
    return b"content-type: application/json\r\n%b" % before_age, b"".join([*lines, b"\r\n"])
