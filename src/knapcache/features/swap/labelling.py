"""Labels: the cheaper model answers a request in the background, and the judge compares it with the asked model.

Bounds: at most MAX_PENDING labels are made at a time in a process, MAX_TENANT of one tenant, and no more than the
budget allows, of which audits are free. A request that does not fit gets none. That does not bias the labels, because
it does not depend on the answers. A label that was begun is always stored: if the cheaper model fails or is too slow,
that is a loss, because a caller would have waited for it.

For a random ASKED_TWICE of the labels the asked model answers a second time, and its two answers are compared as well.
That shows how often it differs from itself. It is no part of the certificate, and its cost is part of the label's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from knapcache.cache import Answer
from knapcache.errors import Incomplete, UpstreamFailed
from knapcache.exchange.exchange import Exchange
from knapcache.features.swap.checks import failed_check
from knapcache.features.swap.event import LabelNote
from knapcache.features.swap.frames import SharedBudget
from knapcache.features.swap.judge import LOSS, MAX_SENT, TIE, Rung, are_equal, judge_data, read_verdict
from knapcache.features.swap.log import SwapLabel
from knapcache.features.swap.tier import SwapRoute, SwapTier
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.hooks import CallContext
from knapcache.proxy.upstream.own_calls import REFUSED_OPTION, OwnAnswer, WordModel
from knapcache.proxy.upstream.own_calls import call as own_call
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.wire.answer_text import answer_text
from knapcache.wire.base import to_json

log = logging.getLogger("knapcache.serve")

MAX_PENDING, MAX_TENANT = 64, 32
TIMEOUT = 120.0
"""Seconds for the answer of the cheaper model, and for each verdict."""
ASKED_TWICE, MAX_TWICE = 0.1, 100
"""Share of labels for which the asked model is asked again, and how often in a frame: then the share is known."""
NOT_COPIED = frozenset(("cache", "stream", "stream_options"))
"""Fields of a request that the second call does not need."""


class Verdict(NamedTuple):
    """A label, and what it cost beside the answer of the cheaper model."""

    z: float
    rung: Rung
    cost: float = 0.0
    usd: float = 0.0


class Labeller:
    """Makes labels in the background. All methods run on the event loop's thread."""

    def __init__(self, context: ProxyContext, tier: SwapTier) -> None:
        self._context, self._tier = context, tier
        self._pending: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: set[str] = set()
        """Models whose failure was logged."""

    def begin(self, route: SwapRoute, frame: str, call: CallContext, answer: Answer, source: str) -> None:
        """Compare the answer of the asked model with one of the cheaper model, without waiting for it."""
        exchange, tenant = call.exchange, call.tenant
        assert exchange is not None
        if self._pending[tenant] >= MAX_TENANT or self._pending.total() >= MAX_PENDING:
            return
        budget = self._tier.frames.budget(tenant, route.settings)
        if source == "label" and not budget.allows_label():  # others have begun since the draw
            return
        self._pending[tenant] += 1
        budget.pending += 1
        task = asyncio.create_task(self._label(route, frame, exchange, call, answer, source))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._end(tenant, budget))

    def _end(self, tenant: str, budget: SharedBudget) -> None:
        self._pending[tenant] -= 1
        budget.pending -= 1

    async def _label(
        self, route: SwapRoute, frame: str, exchange: Exchange, call: CallContext, answer: Answer, source: str
    ) -> None:
        tenant, model = call.tenant, route.asked_model or call.model
        twice = self._asks_twice(frame)  # before any answer is known
        cheaper = await self._answer(route.upstream, route.model, exchange, tenant, route)
        bill = None if cheaper is None else cheaper.bill
        cost, usd = (0.0, 0.0) if bill is None else (bill.cost, bill.usd or 0.0)
        if cheaper is not None and self._fails_a_check(route, exchange, cheaper):
            verdict = Verdict(TIE, "escalated")
        else:
            verdict = await self._compare(route.judge, exchange, answer, cheaper, tenant)
        paid, paid_usd, again = cost + verdict.cost, usd + verdict.usd, None
        if twice and (second := await self._answer(call.upstream, model, exchange, tenant)) is not None:
            with_itself = await self._compare(route.judge, exchange, answer, second, tenant)
            again = with_itself.z
            paid += second.bill.cost + with_itself.cost
            paid_usd += (second.bill.usd or 0.0) + with_itself.usd
        budget = self._tier.frames.budget(tenant, route.settings)
        unlogged, budget.unlogged = budget.unlogged, 0.0
        record = SwapLabel(
            id=os.urandom(8).hex(),
            frame=frame,
            tenant=tenant,
            route=route.settings.name,
            model=call.model,
            swap_model=route.model,
            judge=route.settings.swap_judge or "",
            checks=route.settings.swap_escalate,
            z=verdict.z,
            cost=paid,
            asked_cost=unlogged,
            asked_answer=0.0 if bill is None else answer.bill.cost,
            cheaper_answer=cost,
            rung=verdict.rung,
            source=source,
            time=time.time(),
            again=again,
            namespace=exchange.namespace or "",
        )
        await self._tier.append(record)
        note = LabelNote(frame[:16], verdict.z, verdict.rung, paid_usd)
        self._context.events.append_note("swap", note)

    def _asks_twice(self, frame: str) -> bool:
        live = self._tier.frames.get(frame)
        return random.random() < ASKED_TWICE and (live is None or live.asked_twice < MAX_TWICE)

    def _fails_a_check(self, route: SwapRoute, exchange: Exchange, cheaper: OwnAnswer) -> bool:
        """Return whether the caller would have got the answer of the asked model."""
        names = route.settings.swap_escalate
        return bool(names and failed_check(names, exchange.endpoint, exchange.body, cheaper.answer))

    async def _answer(
        self, upstream: Upstream, model: str, exchange: Exchange, tenant: str, route: SwapRoute | None = None
    ) -> OwnAnswer | None:
        """Return the answer of a model; None if it has none. route: that whose cheaper model it is."""
        body: dict[str, Any] = {name: value for name, value in exchange.body.items() if name not in NOT_COPIED}
        body["model"] = model
        call = partial(own_call, upstream, exchange.endpoint, model, meter=self._context.meter)
        try:
            async with asyncio.timeout(TIMEOUT):
                if route is None or not route.asks_logprobs(exchange.endpoint):
                    found = await call(to_json(body))
                elif (found := await call(to_json(body | {"logprobs": True}))) in REFUSED_OPTION:
                    found = await call(to_json(body))
                    if isinstance(found, OwnAnswer):
                        route.refuse_logprobs()
        except (UpstreamFailed, Incomplete, TimeoutError) as error:
            self._log_failure(model, str(error) or f"no answer within {TIMEOUT:g} seconds")
            return None
        if isinstance(found, int):
            self._log_failure(model, f"status {found}")
            return None
        self._failed.discard(model)
        self._context.count_payment(found.endpoint, found.model, tenant, found.bill)
        return found

    async def _compare(
        self, judge: WordModel | None, exchange: Exchange, answer: Answer, cheaper: OwnAnswer | None, tenant: str
    ) -> Verdict:
        text = answer_text(exchange.endpoint, answer.payload, answer.meta["form"])
        other = None if cheaper is None else cheaper.text
        if text is None or other is None:
            return Verdict(LOSS, "text")
        if are_equal(text, other):
            return Verdict(TIE, "equal")
        if judge is None:
            return Verdict(LOSS, "differ")
        question = to_json({name: value for name, value in exchange.body.items() if name not in NOT_COPIED}).decode()
        if max(len(question), len(text), len(other)) > MAX_SENT:
            return Verdict(LOSS, "text")
        labels, cost, usd = [], 0.0, 0.0
        for asked_first in (True, False):
            pair = (text, other) if asked_first else (other, text)
            try:
                async with asyncio.timeout(TIMEOUT):
                    found = await judge.ask(judge_data(question, *pair))
            except (UpstreamFailed, Incomplete, TimeoutError) as error:
                self._log_failure(judge.model, str(error) or f"no answer within {TIMEOUT:g} seconds")
                labels.append(LOSS)
                continue
            self._failed.discard(judge.model)
            self._context.count_payment(found.endpoint, found.model, tenant, found.bill)
            cost, usd = cost + found.bill.cost, usd + (found.bill.usd or 0.0)
            labels.append(read_verdict(found.text, asked_first=asked_first))
        return Verdict(sum(labels) / len(labels), "model", cost, usd)

    def _log_failure(self, model: str, reason: str) -> None:
        """Log a failure, once until the model has answered again."""
        if model not in self._failed:
            self._failed.add(model)
            log.warning("The model %s failed for a label: %s", model, reason)

    async def close(self) -> None:
        """End all labels that are being made."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
