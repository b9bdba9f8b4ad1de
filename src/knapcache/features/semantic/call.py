"""One request on its way through the semantic tier: the finder of its exchange, then its event and its label."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from knapcache.cache import Answer
from knapcache.cache.values import SimilarMatch
from knapcache.exchange.exchange import Exchange
from knapcache.features.semantic.certificate import level_of
from knapcache.features.semantic.event import SemanticEvent, VerdictEvent
from knapcache.features.semantic.judging import AnswerPair, Judge, StoredAnswer
from knapcache.features.semantic.matcher import Asked, Found
from knapcache.features.semantic.question import Question, read_question
from knapcache.features.semantic.tier import SemanticTier
from knapcache.keys.request import KeyedRequest
from knapcache.price.meter import Bill
from knapcache.proxy.hooks import BodyEditor, CallHooks
from knapcache.store.base import Entry

FIND_SECONDS = 2.0
"""How long a request waits for a match."""


class SemanticCalls:
    """Makes the calls of one process, and labels their matches in the background."""

    def __init__(self, tier: SemanticTier, judge: Judge, append_verdict: Callable[[VerdictEvent], None]) -> None:
        self.tier, self._judge, self._append_verdict = tier, judge, append_verdict
        self._labels: set[asyncio.Task[None]] = set()

    def begin(self, exchange: Exchange, tenant: str, route: str = "") -> SemanticCall | None:
        """Return the call of a request; None if the tier is off for it. route: the name of the one that applies."""
        scope = self.tier.scope(tenant, route)
        mode = self.tier.mode(scope)
        return None if mode == "off" or exchange.bypass else SemanticCall(self, exchange, scope, mode, tenant)

    def label(self, asked: Asked, found: Found, answer: Answer, tenant: str) -> None:
        """Compare the answer of a match with the upstream's, without waiting for it."""
        task = asyncio.create_task(self._label(asked, found, answer, tenant))
        self._labels.add(task)
        task.add_done_callback(self._labels.discard)

    async def _label(self, asked: Asked, found: Found, answer: Answer, tenant: str) -> None:
        entry, match = found.entry, found.match
        assert entry is not None
        assert match is not None
        judgement = await self._judge.verdict(
            AnswerPair(
                endpoint=asked.endpoint,
                question=asked.question.text,
                matched_question=match.text,
                stored=StoredAnswer(entry.payload, entry.meta["meta"]["form"]),
                new=StoredAnswer(answer.payload, answer.meta["form"]),
                tenant=tenant,
            )
        )
        if judgement is None:
            return
        now = time.time()
        label = match.label(judgement.verdict != "same", "audit" if found.kind == "audit" else "shadow", now)
        self.tier.add_label(asked.scope, found, label, judgement.rung)
        self._append_verdict(
            VerdictEvent(found.match_id, asked.scope, found.kind, judgement.verdict, judgement.rung, judgement.usd, now)
        )

    async def close(self) -> None:
        for task in list(self._labels):
            task.cancel()
        await asyncio.gather(*self._labels, return_exceptions=True)
        self._judge.close()
        await self.tier.close()


class SemanticCall(CallHooks):
    """The semantic tier's part of one request."""

    name = "semantic"
    finds = True

    def __init__(self, calls: SemanticCalls, exchange: Exchange, scope: str, mode: str, tenant: str) -> None:
        self._calls, self._exchange, self._scope, self._mode = calls, exchange, scope, mode
        self._tenant = tenant
        self._asked: Asked | None = None
        self._search: asyncio.Task[Found] | None = None
        self._found: Found | None = None
        """None: the request was not an exact miss."""
        self._seconds = 0.0
        self._part: SemanticEvent | None = None

    async def find(self, request: KeyedRequest) -> tuple[Entry, SimilarMatch] | None:
        """Return the entry that may answer the request, or None: the request is sent upstream.

        Where nothing may be served the request does not wait: the search goes on while the upstream works.
        """
        if self._found is not None and self._found.kind == "served":  # after `find_after_failure`
            return self._found.served
        started = time.perf_counter()
        exchange, tier = self._exchange, self._calls.tier
        if not exchange.control.similar:
            self._found = Found("refused")
            return None
        question = read_question(exchange.endpoint, exchange.body, tier.max_temperature)
        if not isinstance(question, Question):
            self._found = Found("excluded", question)
            return None
        self._asked = asked = Asked(
            self._scope, self._mode, exchange.endpoint, question, request, exchange.namespace, exchange.context,
            exchange.control.max_age, self._tenant,
        )  # fmt: skip
        self._found = Found("failed", "timeout")
        self._search = asyncio.create_task(tier.find(asked))
        if not tier.may_serve(self._scope):
            return None
        try:
            async with asyncio.timeout(FIND_SECONDS):
                self._found = await asyncio.shield(self._search)
        except TimeoutError:
            return None
        finally:
            self._seconds = time.perf_counter() - started
        return self._found.served

    def find_after_failure(self) -> bool:
        """Return whether the next `find` returns a match that was drawn for an audit: the upstream has failed.

        There is no label then. That does not depend on the answers, because there is no new one.
        """
        if self._found is None or self._found.kind != "audit":
            return False
        self._found = self._found._replace(kind="served")
        return True

    async def answered(self, answer: Answer | None) -> None:
        """Add the question for later ones, label a match in the background, and prepare the part of the event."""
        if self._found is None:
            return
        if self._search is not None and self._found.kind == "failed":
            try:
                async with asyncio.timeout(FIND_SECONDS):
                    self._found = await asyncio.shield(self._search)
            except TimeoutError:
                pass
            if self._found.kind == "served":  # it was found too late
                self._found = self._found._replace(kind="shadow", similar=None)
        found, asked = self._found, self._asked
        if asked is not None and answer is not None and answer.outcome == "miss" and answer.size:
            self._calls.tier.add_question(asked, found, answer.payload)
            if found.entry is not None and found.kind in ("shadow", "audit"):
                self._calls.label(asked, found, answer, self._tenant)
        self._part = self._event(found, asked)

    def event_part(self, *, sent: bool, bill: Bill | None, editor: BodyEditor | None) -> SemanticEvent | None:  # noqa: ARG002
        return self._part

    def _event(self, found: Found, asked: Asked | None) -> SemanticEvent:
        match, shown = found.match if found.entry is not None else None, self._calls.tier.show_content
        key = "" if asked is None else asked.request.key.digest.hex()
        if match is None or asked is None:
            return SemanticEvent(found.kind, reason=found.reason, scope=self._scope, key=key, seconds=self._seconds)
        return SemanticEvent(
            kind=found.kind,
            match_id=found.match_id,
            reason=found.reason,
            scope=self._scope,
            key=key,
            matched_key=match.key.hex(),
            similarity=match.cosine,
            risk=match.risk,
            level=level_of(match.risk),
            features=match.features,
            seconds=self._seconds,
            question=asked.question.text if shown else "",
            matched_question=match.text if shown else "",
        )
