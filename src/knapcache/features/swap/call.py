"""Swap's part of one request: which model answers it, its headers, its label and its event."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from knapcache.cache import Answer
from knapcache.exchange.exchange import Exchange
from knapcache.features.swap.checks import failed_check
from knapcache.features.swap.event import SwapEvent
from knapcache.features.swap.labelling import Labeller
from knapcache.features.swap.request import REFUSAL_HEADER, SwapRequest, read_request
from knapcache.features.swap.tier import SwapDecision, SwapRoute, SwapTier
from knapcache.keys.parse import SHORT
from knapcache.price.meter import Bill
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.hooks import BodyEditor, CallContext, CallHooks, Substitute
from knapcache.proxy.http.call import substitute_context
from knapcache.proxy.upstream import Pairs
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.wire.base import CompleteAnswer


class LogprobEditor:
    """Asks for log probabilities. A model that refuses the option gets the request without it."""

    refusable = True

    def __init__(self, body: Mapping[str, Any], route: SwapRoute) -> None:
        self._body, self._route = body, route

    async def mark(self) -> Mapping[str, Any]:
        """Return the changed body."""
        return {**self._body, "logprobs": True}

    def answered(self, status: int, *, marked: bool) -> None:
        """Remember a model that has refused the option, and has answered without it."""
        if status == 200 and not marked:
            self._route.refuse_logprobs()


class SwapCall(CallHooks):
    """Swap's part of one request."""

    name = "swap"
    substitutes = True

    def __init__(
        self, context: ProxyContext, tier: SwapTier, labeller: Labeller, route: SwapRoute, call: CallContext
    ) -> None:
        assert call.exchange is not None
        self._context, self._tier, self._labeller, self._route = context, tier, labeller, route
        self._call, self._exchange = call, call.exchange
        self._decision = SwapDecision("asked")
        self._called = False
        """The upstream was called, so the request is not a hit."""
        self._usd_saved = 0.0
        self._failed_check = ""
        self.checks = bool(route.settings.swap_escalate)
        self.edits = route.asks_logprobs(call.exchange.endpoint)

    async def substitute(self) -> Substitute | None:
        """Return the cheaper model if it answers this request."""
        exchange, call = self._exchange, self._call
        if call.headers.get(REFUSAL_HEADER, "").strip().lower() == "off":
            self._decision = SwapDecision("refused")
            return None
        if not self._route.accepts(call.upstream):
            self._decision = SwapDecision("excluded", reason="key of the caller")
            return None
        if self._route.is_asked(call.upstream, call.model):
            self._decision = SwapDecision("excluded", reason="the cheaper model")
            return None
        read = partial(read_request, exchange.endpoint, exchange.body)
        request = read() if len(exchange.raw) <= SHORT else await self._context.body_pool.call(read)
        if not isinstance(request, SwapRequest):
            self._decision = SwapDecision("excluded", reason=request)
            return None
        self._decision = self._tier.decide(self._route, call.tenant, exchange.endpoint, call.model, request)
        if self._decision.kind != "swap":
            return None
        substitute = self._tier.substitute(self._route, self._decision.frame)
        if reason := await self._why_asked(exchange, request, substitute):
            self._decision = SwapDecision("asked", self._decision.frame, reason)
            return None
        return substitute

    async def _why_asked(self, exchange: Exchange, request: SwapRequest, substitute: Substitute) -> str:
        """Return why the asked model answers by what is stored; empty: the cheaper one may answer."""
        cache, opening = self._context.cache, request.opening
        swapped = substitute_context(exchange, substitute)

        def is_stored(body: dict[str, Any], context: Mapping[str, str]) -> bool:
            keyed = cache.keyed_request(exchange.endpoint, body, namespace=exchange.namespace, context=context)
            return keyed is not None and cache.similar.entry(keyed.key.digest) is not None

        def look() -> str:
            if is_stored(exchange.body, exchange.context):
                return "stored"
            if opening is None or (is_stored(opening, swapped) and not is_stored(opening, exchange.context)):
                return ""
            return "conversation"  # the cheaper model is not known to have begun it

        return await self._context.body_pool.call(look)

    def editor(self, upstream: Upstream, model: str) -> BodyEditor | None:
        """Return what asks the cheaper model for log probabilities, if a check needs them."""
        swapped = self._decision.kind == "swap" and upstream is self._route.upstream and model == self._route.model
        return LogprobEditor(self._exchange.body, self._route) if swapped else None

    def accepts(self, answer: CompleteAnswer | None) -> bool:
        """Return whether no check sends the request on to the asked model. The answer was paid for in any case."""
        exchange, route = self._exchange, self._route
        failed = failed_check(route.settings.swap_escalate, exchange.endpoint, exchange.body, answer)
        if not failed:
            return True
        self._failed_check = failed
        if answer is not None:  # one that is not complete has an unknown cost
            model = answer.model or route.model
            bill = self._context.meter.bill(exchange.endpoint, model, answer.usage, 0.0, service_tier=answer.tier)
            self._context.count_payment(exchange.endpoint, model, self._call.tenant, bill)
            self._usd_saved = -(bill.usd or 0.0)
        return False

    def fell_back(self) -> None:
        """The asked model answers, because the cheaper one has failed or its answer was not accepted."""
        self._decision = self._decision._replace(kind="escalated", reason=self._failed_check or "failed")

    async def before_call(self, size: int) -> None:  # noqa: ARG002
        self._called = True

    async def answered(self, answer: Answer | None) -> None:
        decision = self._decision
        frame = self._tier.frames.get(decision.frame)
        if answer is None or answer.outcome != "miss" or not answer.size or frame is None:
            return
        bill = answer.bill
        if decision.kind == "swap":
            self._usd_saved = (bill.usd or 0.0) * (frame.answer_ratio - 1.0)
            frame.budget.count(bill.cost * frame.answer_ratio)
            return
        frame.budget.count(bill.cost)
        if decision.kind in ("label", "audit"):
            self._labeller.begin(self._route, decision.frame, self._call, answer, decision.kind)

    def response_headers(self) -> Pairs:
        if self._decision.kind != "swap":
            return []
        headers = [("x-knapcache-loss-bound", f"{self._route.settings.swap_loss:g}")]
        # An answer that was fetched names its model already.
        return headers if self._called else [*headers, ("x-knapcache-model", self._route.model)]

    def event_part(self, *, sent: bool, bill: Bill | None, editor: BodyEditor | None) -> SwapEvent:  # noqa: ARG002
        kind, frame, reason = self._decision
        return SwapEvent(kind, frame[:16], self._route.model, reason, self._usd_saved)
