"""The prefix tier of one upstream: marks requests for the provider's prefix cache, and learns from its reports.

    off       there is no tier
    observe   nothing is changed; the learner decides as if its marks were sent
    on        requests without marks of their own are marked
    manage    as on; and the caller's own marks get the time to live that the learner chooses

Marks are placed on the body that is sent, after the key is made. A prefix is live at one provider, for one model and
one account, so the ids of prefixes depend on these. Each process learns from its own requests.

OpenAI's models before GPT-5.6 cache without marks. For them the tier only adds `prompt_cache_key`, which is the same
for requests with equal tools and system prompt, so that they reach the same machine.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from knapcache.features.prefix.blocks import SYSTEM_ROLES, BodyBlocks, read_blocks
from knapcache.features.prefix.event import MAX_POSITIONS, PrefixEvent
from knapcache.features.prefix.learner import Placement, PrefixLearner
from knapcache.features.prefix.marks import with_cache_key, with_marks, with_ttl
from knapcache.features.prefix.provider_cache import Mark
from knapcache.features.prefix.request import Position, PrefixLengths
from knapcache.features.prefix.settings import PrefixMode
from knapcache.features.prefix.tariff import ANTHROPIC, OPENAI_BREAKPOINTS, Tariff
from knapcache.keys.parse import SHORT
from knapcache.model import Endpoint
from knapcache.price.input_tokens import InputTokens
from knapcache.threads import DeadlinePool
from knapcache.wire.base import to_json

log = logging.getLogger("knapcache.serve")

PrefixProvider = Literal["anthropic", "openai"]

BREAKPOINT_MODELS = re.compile(r"gpt-(5\.[6-9]|5\.\d\d|[6-9]|\d\d)")
"""OpenAI's models with breakpoints and a write price: GPT-5.6 and later."""
KEY_PREFIX, KEY_BYTES = "knapcache-", 12
"""Beginning of a `prompt_cache_key`, and the bytes of the digest that follows."""
MAX_MODELS = 1000
"""Models that are known to accept marks, and to refuse them. Callers choose the names, so their number is bounded."""
MAX_READ = 1_000_000
"""Bytes of a request that is read on the event loop, which takes half a millisecond."""
MAX_FAMILIES = 10_000
"""Prefixes whose `prompt_cache_key` is remembered."""


class PrefixCall(NamedTuple):
    """One request on its way to the provider."""

    shape: Endpoint
    blocks: BodyBlocks
    model: str
    learner: PrefixLearner | None = None
    """None: the provider caches without marks."""
    placement: Placement | None = None
    """None: the request has no block that can be marked."""
    changed: Mapping[str, Any] | None = None
    """The body to send; None: as it came."""
    as_placed: bool = False
    """Whether the request is sent with the marks of the placement."""


class PrefixTier:
    """Marks the requests to one upstream. All methods run on the event loop's thread."""

    def __init__(
        self,
        upstream: str,
        provider: PrefixProvider,
        mode: PrefixMode,
        secret: bytes,
        *,
        input_price: Callable[[Endpoint, str, int], float | None],
    ) -> None:
        self.upstream, self._provider, self.mode, self._secret = upstream, provider, mode, secret
        self._input_price = input_price
        """Dollars of a plain input token, by endpoint, model and number of input tokens."""
        self.clock: Callable[[], float] = time.time
        self._learners: dict[str, PrefixLearner] = {}
        self._lengths = PrefixLengths()
        self._families: dict[int, str] = {}
        self._accepted: set[str] = set()
        """Models with which the upstream has answered a marked request with success."""
        self._refused: set[str] = set()

    def in_mode(self, mode: PrefixMode) -> PrefixTier:
        """Return the same tier, with all it has learned, in another mode."""
        found = copy.copy(self)
        found.mode = mode
        return found

    def place(
        self, shape: Endpoint, body: dict[str, Any], model: str, blocks: BodyBlocks, started: float | None = None
    ) -> PrefixCall:
        """Choose the marks of a request, and count it. started: when it was sent; None: it is sent now."""
        tariff = self._tariff(model)
        changes = self.mode != "observe" and model not in self._refused
        if tariff is None:
            changed = self._with_key(shape, body, blocks) if changes else body
            return PrefixCall(shape, blocks, model, changed=None if changed is body else changed)
        learner = self._learners.get(tariff.name)
        if learner is None:
            learner = self._learners[tariff.name] = PrefixLearner(tariff)
        end = blocks.marks[-1][0] if blocks.marks else last_markable(blocks, len(blocks.ids))
        if end < 0:
            return PrefixCall(shape, blocks, model, learner)
        now, system = self.clock() if started is None else started, last_markable(blocks, blocks.system)
        placement = learner.place(self._lengths.request(blocks, end, system, model, tariff.minimum_of(model), now))
        call = PrefixCall(shape, blocks, model, learner, placement)
        if blocks.managed:
            return self._keep_marks(body, call, learner, placement)
        if not changes:
            return call
        positions, changed = placement.request.positions, body
        marks = [(positions[mark.at].block, mark.ttl) for mark in placement.marks]
        if marks or tariff.reads_at_marks:  # without marks, OpenAI would place one
            try:
                changed = with_marks(shape, changed, marks)
            except ValueError as error:  # cannot happen, and must not cost the caller an answer
                log.error("Request sent without marks for prompt caching: %s", error)
                return call
        changed = self._with_key(shape, changed, blocks)
        return call._replace(changed=None if changed is body else changed, as_placed=True)

    def _keep_marks(
        self, body: dict[str, Any], call: PrefixCall, learner: PrefixLearner, placement: Placement
    ) -> PrefixCall:
        """Return a call with the caller's own marks. In the mode manage they may get another time to live."""
        places = {position.block: at for at, position in enumerate(placement.request.positions)}
        own = [Mark(places[block], ttl) for block, ttl in call.blocks.marks]
        ttl = max((mark.ttl for mark in placement.marks), default=0.0)
        changed = None
        changes = self.mode == "manage" and call.model not in self._refused and len(learner.tariff.ttls) > 1
        if changes and ttl and any(mark.ttl != ttl for mark in own):
            own = [mark._replace(ttl=ttl) for mark in own]
            changed = with_ttl(call.shape, body, ttl)
        return call._replace(placement=learner.with_marks(placement, own), changed=changed, as_placed=True)

    def report(self, call: PrefixCall, counted: InputTokens | None) -> PrefixEvent:
        """Count an answer. counted: its input tokens, as the provider has reported them; None: unknown."""
        learner, placement = call.learner, call.placement
        tokens = 0 if counted is None else counted.total
        fields: dict[str, Any] = {
            "tariff": "" if learner is None else learner.tariff.name,
            "marked": call.changed is not None and placement is not None,
            "own_marks": call.blocks.managed,
            "usd_per_token": self._input_price(call.shape, call.model, tokens),
        }
        if learner is None or placement is None:
            return reported_event(self.mode, counted, **fields)
        request = self._lengths.correct(placement.request, call.blocks.sizes[-1], tokens, call.model)
        expected, paid = learner.report(placement._replace(request=request), counted if call.as_placed else None)
        bills = {**paid, "learned": learner.tariff.cost(expected)}
        if counted is not None:
            bills["paid"] = learner.tariff.cost(counted)
        return reported_event(
            self.mode,
            counted,
            **fields,
            rule=placement.rule,
            below=request.end.tokens < request.minimum,
            predicted=expected.read,
            bills=bills,
            tokens=request.tokens,
            positions=logged_positions(request.positions),
            system=request.system,
            kind=request.kind,
        )

    def refusable(self, model: str) -> bool:
        """Return whether the upstream has not yet accepted a marked request to a model. Some models have no cache."""
        return model not in self._accepted

    def accept(self, model: str) -> None:
        """Take note that the upstream has answered a marked request to a model with success."""
        if len(self._accepted) < MAX_MODELS:
            self._accepted.add(model)

    def refuse(self, model: str) -> None:
        """Mark no more requests to a model: the upstream has refused one with marks, and answered it without."""
        if len(self._refused) < MAX_MODELS:
            self._refused.add(model)
            log.warning(
                "Upstream %s refuses marks for prompt caching with the model %.100r. Its requests are sent without.",
                self.upstream,
                model,
            )

    def _tariff(self, model: str) -> Tariff | None:
        if self._provider == "anthropic":
            return ANTHROPIC
        return OPENAI_BREAKPOINTS if BREAKPOINT_MODELS.search(model) else None

    def _with_key(self, shape: Endpoint, body: dict[str, Any], blocks: BodyBlocks) -> dict[str, Any]:
        """Return a body with a `prompt_cache_key` that requests with equal tools and system prompt share.

        It does not reveal them. A request without both has none, and neither has one to another provider than OpenAI.
        """
        if self._provider != "openai" or not blocks.system:
            return body
        prefix = blocks.ids[blocks.system - 1]
        found = self._families.get(prefix)
        if found is None:
            content = [body.get("model"), body.get("tools"), body.get("instructions")]
            if shape == Endpoint.CHAT:
                content.append(leading_messages(body))
            digest = hashlib.blake2b(to_json(content), key=self._secret, digest_size=KEY_BYTES)
            if len(self._families) >= MAX_FAMILIES:
                del self._families[next(iter(self._families))]
            found = self._families[prefix] = KEY_PREFIX + digest.hexdigest()
        return with_cache_key(body, found)


@dataclass(eq=False)
class PrefixMarker:
    """Marks one request, when it is sent: the `marker` of its exchange."""

    tier: PrefixTier
    shape: Endpoint
    body: dict[str, Any]
    size: int
    """Bytes of the body as it came; a long one is read in `pool`."""
    model: str
    account: str
    """The credential with which it is sent."""
    pool: DeadlinePool
    call: PrefixCall | None = None
    observed: float | None = None
    """When the request was sent, in the mode observe."""
    blocks: list[BodyBlocks | None] = field(default_factory=list)
    """The blocks of a long request in that mode, when they were read."""

    async def mark(self) -> Mapping[str, Any] | None:
        """Return the marked body, or None: the body is sent as it came.

        In the mode observe nothing is changed, so the request does not wait: blocks are read while the provider works,
        or with the report.
        """
        if self.tier.mode == "observe":
            self.observed = self.tier.clock()
            if self.size > SHORT:
                self.pool.submit(lambda: self.blocks.append(self._read()))
            return None
        blocks = self._read() if self.size <= SHORT else await self.pool.call(self._read)
        if blocks is None:
            return None
        self.call = self.tier.place(self.shape, self.body, self.model, blocks)
        return self.call.changed

    def _read(self) -> BodyBlocks | None:
        return read_blocks(self.shape, self.body, (self.tier.upstream, self.model, self.account))

    def _observe(self, sent: float) -> PrefixCall | None:
        """Return the call of a request that was sent as it came."""
        if self.blocks:
            blocks = self.blocks.pop()
        else:  # a short request, or one that was answered faster than it was read
            blocks = self._read() if self.size <= MAX_READ else None
        return None if blocks is None else self.tier.place(self.shape, self.body, self.model, blocks, sent)

    @property
    def refusable(self) -> bool:
        """Whether the upstream has not yet accepted a marked body for this model."""
        return self.tier.refusable(self.model)

    def answered(self, status: int, *, marked: bool) -> None:
        """Take note of the status with which the upstream has answered a body with or without marks."""
        if status != 200:
            return
        if marked:
            self.tier.accept(self.model)
        else:
            self.tier.refuse(self.model)
            self.call = None

    def report(self, counted: InputTokens | None) -> PrefixEvent | None:
        """Count the answer, once. Return what is recorded of it; None: the request was not sent."""
        call, self.call = self.call, None
        if self.observed is not None:
            sent, self.observed = self.observed, None
            call = self._observe(sent)
        if call is None:
            return None if counted is None else reported_event(self.tier.mode, counted)
        return self.tier.report(call, counted)


def leading_messages(body: Mapping[str, Any]) -> list[Any]:
    """Return the system messages at the start of a chat."""
    messages = body.get("messages")
    found = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or message.get("role") not in SYSTEM_ROLES:
            break
        found.append(message)
    return found


def last_markable(blocks: BodyBlocks, count: int) -> int:
    """Return the index of the last of the first `count` blocks that may be marked; -1: none."""
    for at in range(count - 1, -1, -1):
        if blocks.markable[at]:
            return at
    return -1


def logged_positions(positions: Sequence[Position]) -> tuple[tuple[int, int], ...]:
    """Return digest and length of each position; none if they are too many for an event."""
    if len(positions) > MAX_POSITIONS:
        return ()
    return tuple((hash(each.id), each.tokens) for each in positions)


def reported_event(mode: str, counted: InputTokens | None, **fields: Any) -> PrefixEvent:
    """Return the event of a request whose input tokens the provider has reported, or not."""
    if counted is not None:
        fields |= {
            "reported": True,
            "input": counted.total,
            "read": counted.read,
            "short_written": counted.short_written,
            "long_written": counted.long_written,
        }
    return PrefixEvent(mode=mode, **fields)
