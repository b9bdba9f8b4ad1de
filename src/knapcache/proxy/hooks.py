"""Hooks: the methods of a feature that a request calls.

`Feature.begin` returns the hooks of a request, or None. The request calls them in the order of the list of features.
A request that the fast path answers meets none. Each method may be left out.

    substitute      before the cache is asked: another model that answers instead of the asked one
    accepts         the answer of that model, before anything of it is sent
    fell_back       that model has failed, or its answer was not accepted
    find            after an exact miss: an answer to a similar request
    before_call     before each call of the upstream; may refuse it
    editor          changes the body for one upstream
    forwarded       a piece of an answer that is sent without the cache
    charge          what the calls have cost, once
    answered        the request was answered
    event_part      what the event of the request says about the feature
    recorded        the event
    end             the request has ended, whatever came of it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import orjson

from knapcache.cache import Answer
from knapcache.cache.values import SimilarMatch
from knapcache.errors import UpstreamFailed
from knapcache.exchange.exchange import Exchange
from knapcache.keys.request import KeyedRequest
from knapcache.price.meter import Bill
from knapcache.proxy.events.events import Event
from knapcache.proxy.settings.routes import RouteSettings
from knapcache.proxy.upstream import Pairs
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.store.base import Entry
from knapcache.wire.base import CompleteAnswer


class CallRefused(UpstreamFailed):
    """A feature does not allow a call of the upstream. The provider has not failed."""

    event_reason = ""
    """The reason of the event."""

    @property
    def headers(self) -> Pairs:
        """Headers of the response beside its content type."""
        return []

    def body(self) -> bytes:
        """Return the body of the response, in JSON."""
        return orjson.dumps({"error": {"message": str(self), "type": "refused"}})

    def concerns(self, tenant: str) -> bool:  # noqa: ARG002
        """Return whether it is about this caller. Of a call that several requests share, it may be about another."""
        return True


class CallContext(NamedTuple):
    """One request, as features see it."""

    exchange: Exchange | None
    """None: the path is not cached (passthrough.py), and the request costs an unknown amount."""
    model: str
    tenant: str
    """The name of the caller."""
    credential: str | None
    """What the caller has sent to the provider; None: a key that the proxy has issued."""
    headers: Mapping[str, str]
    query: bytes
    upstream: Upstream
    """The first of those that may answer."""
    route: RouteSettings | None = None
    """The route that applies."""


class PaidCall(NamedTuple):
    """What the calls of one request have cost."""

    answered: bool = False
    """The upstream has answered with success."""
    known: bool = False
    """The cost is known: that of the two fields below."""
    usd: float = 0.0
    tokens: int = 0
    output: int = 0
    """If the cost is not known: tokens of the answer that have arrived, by their length."""
    bill: Bill | None = None
    """If the cost is not known: the cost of what has arrived, as far as its usage is known."""


class Substitute(NamedTuple):
    """Another model that answers a request. Its answers are entries of their own.

    If it fails, the request goes to its own upstreams. So the feature has checked that all fit together
    (check_members).
    """

    model: str
    upstream: Upstream
    terms: str = ""
    """On what its answers depend beside request and model. It is a part of their key."""


class BodyEditor(Protocol):
    """Changes the body of one request for one upstream."""

    async def mark(self) -> Mapping[str, Any] | None:
        """Return the changed body, or None: the body is sent as it came."""

    @property
    def refusable(self) -> bool:
        """Whether the upstream has not yet accepted a changed body for this model."""

    def answered(self, status: int, *, marked: bool) -> None:
        """Take note of the status with which the upstream has answered a body with or without changes."""


class CallHooks:
    """The hooks of one feature for one request. Every method may be left out."""

    __slots__ = ()
    name = ""
    """The feature's."""
    substitutes = False
    """Whether `substitute` may return a model."""
    checks = False
    """Whether `accepts` is to be called. A substituted request then waits for its whole answer."""
    finds = False
    """Whether `find` may return an answer."""
    edits = False
    """Whether `editor` may return one."""

    async def substitute(self) -> Substitute | None:
        """Return the model that answers instead of the asked one, or None. Called once, before `find`."""
        return None

    def accepts(self, answer: CompleteAnswer | None) -> bool:  # noqa: ARG002
        """Return whether a substituted request may get this answer; None: it is not complete.

        False: the request is fetched as one without a substitute.
        """
        return True

    def fell_back(self) -> None:
        """Take note that the substitute has failed, or was not accepted. The asked model has to answer."""

    async def find(self, request: KeyedRequest) -> tuple[Entry, SimilarMatch] | None:  # noqa: ARG002
        """Return the entry that may answer the request, or None. Called after an exact miss; it raises nothing."""
        return None

    def find_after_failure(self) -> bool:
        """Return whether the next `find` returns an answer, because the upstream has failed."""
        return False

    async def before_call(self, size: int) -> None:
        """Prepare for a call of the upstream. Raises CallRefused if it is not allowed. size: bytes of the body."""

    def editor(self, upstream: Upstream, model: str) -> BodyEditor | None:  # noqa: ARG002
        """Return what changes the body for an upstream that is asked for this model, or None."""
        return None

    def forwarding(self, content_type: str) -> None:
        """Take note that an answer of this type is sent without the cache."""

    def forwarded(self, piece: bytes) -> None:
        """Take a piece of that answer."""

    def charge(self, paid: PaidCall) -> float:  # noqa: ARG002
        """Take what the calls have cost. Return the dollars that are counted because the cost is not known."""
        return 0.0

    async def answered(self, answer: Answer | None) -> None:
        """The request was answered. answer: that of the upstream or the cache, if it is complete."""

    def response_headers(self) -> Pairs:
        """Return headers for the response."""
        return []

    def event_part(self, *, sent: bool, bill: Bill | None, editor: BodyEditor | None) -> Any:  # noqa: ARG002
        """Return the part of the event, a NamedTuple, or None.

        sent     the upstream was called
        bill     what it cost
        editor   what has changed the body that was answered; None: it was sent as it came
        """
        return None

    def recorded(self, event: Event, answer: Answer | None) -> None:
        """Take the event of the request, and its answer."""

    def end(self) -> None:
        """The request has ended. Of a request that was answered, `charge` was called before."""
