"""The event of one request: what it asked for, what came of it, which calls it took, and what features add."""

from __future__ import annotations

import time
from typing import Any

from knapcache.cache import Answer
from knapcache.exchange.exchange import Exchange
from knapcache.price.meter import Bill
from knapcache.proxy.events.events import NO_PARTS, Event, EventBuffer, UpstreamTry, payment_of
from knapcache.proxy.hooks import CallHooks
from knapcache.proxy.http.access import RequestHead
from knapcache.proxy.http.asgi_request import AsgiRequest
from knapcache.proxy.http.call_cost import NOTHING, CallCost
from knapcache.proxy.http.sending import Calls, UpstreamSender
from knapcache.wire.cache_control import NO_DIRECTIVES

UNUSABLE = "a stored answer does not have what this request asks for"
"""Why a request that has a key is sent without the cache."""
NOT_SENT = frozenset(("hit", "similar", "stale", "rejected"))
"""Outcomes of requests that no upstream has served."""


class CallRecord:
    """What the event of one request says."""

    __slots__ = (
        "_error", "_events", "_exchange", "_head", "_request", "_time", "_ttfb", "_upstream", "hooks", "model",
        "refused", "route_name", "sender",
    )  # fmt: skip

    def __init__(
        self,
        request: AsgiRequest,
        head: RequestHead,
        exchange: Exchange,
        upstream: str,
        model: str,
        events: EventBuffer,
        route_name: str,
    ) -> None:
        self._request, self._head, self._exchange, self._events = request, head, exchange, events
        self._upstream, self.model = upstream, model
        self.route_name = route_name
        """Name of the route that applies; empty: none does."""
        self.hooks: tuple[CallHooks, ...] = ()
        """What features do for the request."""
        self.sender: UpstreamSender | None = None
        """None: nothing was sent."""
        self.refused = ""
        """Why a feature has refused the request."""
        self._time, self._ttfb = time.time(), 0.0
        self._error = ""
        """Why the call failed for which this request has waited."""

    def mark_first_byte(self) -> None:
        """Take note of the time of the first byte of the response."""
        if not self._ttfb:
            self._ttfb = time.perf_counter() - self._request.started

    def mark_failed(self, reason: str) -> None:
        """Take note that the upstream has failed the request, or the one for whose call it has waited."""
        if self.sender is None:
            self._error = reason
        else:
            self.sender.broken(reason)

    def append(self, outcome: str, status: int, answer: Answer | None = None, cost: CallCost = NOTHING) -> None:
        """Add the event to the buffer."""
        self._append(self.event(outcome, status, answer, cost, attempts=outcome != "hit"), answer)

    def append_refreshed(self, event: Event, stale: Answer, answers: tuple[Answer, ...], cost: CallCost) -> None:
        """Add the event of a request that was served stale, with the calls of its background fetch."""
        calls = self._take_calls()
        if calls is not None:
            upstream, attempts, error, tried, open_until = calls
            event = event._replace(
                upstream=upstream, attempts=attempts, error=error, tried=tried, open_until=open_until
            )
        for bill in (cost.bill, *(answer.bill for answer in answers)):
            if bill is not None:
                payment = payment_of(event.endpoint, event.model, event.tenant, bill, cost.usd_estimated)
                self._events.append_payment(payment)
                event = event._replace(parts={**event.parts, **self._parts(bill, sent=True)})
        self._append(event, stale)

    def _append(self, event: Event, answer: Answer | None) -> None:
        self._events.append(event)
        for hooks in self.hooks:
            hooks.recorded(event, answer)

    def event(
        self, outcome: str, status: int, answer: Answer | None, paid: CallCost = NOTHING, *, attempts: bool = False
    ) -> Event:
        """Return the event of the request. attempts: with the upstream calls that are in no event yet."""
        seconds = time.perf_counter() - self._request.started
        key, size, cost, usd, upstream_seconds, tokens = "", 0, 0.0, None, 0.0, 0
        bill = paid.bill
        if answer is not None:
            key, size, bill = answer.key, answer.size, bill or answer.bill
        if bill is not None:
            usd, upstream_seconds, cost, _, tokens, _ = bill
        exchange, upstream, error = self._exchange, self._upstream, ""
        calls: tuple[int, ...] = ()
        tried: tuple[UpstreamTry, ...] = ()
        open_until = 0.0
        found = self._take_calls() if attempts else None
        if found is not None:
            upstream, calls, error, tried, open_until = found
        elif outcome in NOT_SENT:
            upstream = ""
        return Event(  # positional: keywords take twice as long
            self._time, exchange.endpoint.value, self.model, self._head.principal.name, outcome, status, seconds,
            self._ttfb or seconds, exchange.stream, key, size, cost, usd, tokens, upstream_seconds, upstream, calls,
            error, self._request.headers.get("traceparent", ""), self._reason(outcome),
            self._parts(bill, sent=outcome in ("miss", "bypass")) if self.hooks else NO_PARTS, tried,
            open_until, self.route_name, paid.usd_estimated,
        )  # fmt: skip

    def _parts(self, bill: Bill | None, *, sent: bool) -> dict[str, Any]:
        """Return the parts of features. sent: the upstream was called for this event."""
        editor = None if self.sender is None else self.sender.editor
        found = {}
        for each in self.hooks:
            if (part := each.event_part(sent=sent, bill=bill, editor=editor)) is not None:
                found[each.name] = part
        return found

    def _reason(self, outcome: str) -> str:
        """Return what in the request explains the outcome."""
        exchange = self._exchange
        if outcome == "rejected":
            return self.refused
        if outcome == "bypass":
            return exchange.bypass or UNUSABLE
        return exchange.control.asked if outcome != "hit" and exchange.control is not NO_DIRECTIVES else ""

    def _take_calls(self) -> Calls | None:
        """Return the upstream calls that are in no event yet; None: there are none."""
        if self.sender is not None:
            return self.sender.take_calls()
        if not self._error:
            return None
        error, self._error = self._error, ""
        return self._upstream, (), error, (), 0.0
