"""All upstreams of the proxy, the embedded model, and groups of upstreams: which one gets a request, and which one is
next if it fails.

    order        the first member that is available; the others are its fallbacks
    weights      smooth weighted round robin
    least-busy   the member with the fewest calls in flight, divided by its weight; of equal ones, by weights

A member is available if it is healthy, or half-open without a probe (upstream.py). Each member gets a request once at
most. When no available one is left, the others follow, the least recently failed first: no request fails before every
member was tried.

Calls in flight and health are those of this process. With several workers each one balances its own requests.

Smooth weighted round robin, for each choice among the available members:
    current_i += weight_i for all i;  the member with the largest current is chosen;  its current −= Σ weight_i
Of any Σ weight_i choices in a row each member gets weight_i, and they are spread evenly (integer weights).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from knapcache.errors import InvalidInput
from knapcache.keys.scan import MAX_MODEL_LENGTH, find_model
from knapcache.model import Endpoint
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.routes import check_members
from knapcache.proxy.settings.value_types import MODEL_NAME
from knapcache.proxy.upstream.embedded_model import EmbeddedModel
from knapcache.proxy.upstream.upstream import MAX_KNOWN_MODELS, Upstream

if TYPE_CHECKING:
    from knapcache.proxy.settings.routes import RouteSettings, RouteUpstreamSettings

log = logging.getLogger("knapcache.serve")

Balance = Literal["order", "weights", "least-busy"]
BALANCES: tuple[Balance, ...] = ("order", "weights", "least-busy")


class Upstreams:
    """All upstreams of the settings, in their order."""

    def __init__(self, settings: Settings) -> None:
        self.embedded_model = embedded_model(settings)
        """None: no upstream is local."""
        self.all = [
            Upstream(each, self.embedded_model if each.local else None, settings.max_answer)
            for each in settings.upstreams
        ]
        self.groups = route_groups(self.all, settings.route)
        """By name of the route, of routes that name upstreams."""
        self._settings = settings
        self._known: dict[str, Upstream | None] = {}

    async def open(self) -> None:
        """Start the embedded model."""
        if self.embedded_model is not None:
            await self.embedded_model.start()

    def for_model(self, model: str) -> Upstream | None:
        """The first upstream with a pattern that matches the model, or None."""
        try:
            return self._known[model]
        except KeyError:
            settings = self._settings.upstream_for(model)
            found = next((upstream for upstream in self.all if upstream.settings is settings), None)
            if len(self._known) < MAX_KNOWN_MODELS and len(model) <= MAX_MODEL_LENGTH:
                self._known[model] = found
            return found

    def find_model(self, body: bytes) -> str:
        """Return the model of a body that is not parsed, or "". Raises Uncacheable if that takes too long.

        With one upstream it is not looked for, because it selects nothing.
        """
        return find_model(body) if len(self.all) > 1 else ""

    async def close(self) -> None:
        """Close all connections, and stop the embedded model. Requests in progress fail."""
        for upstream in self.all:
            upstream.client.close()
        if self.embedded_model is not None:
            await self.embedded_model.stop()


def embedded_model(settings: Settings) -> EmbeddedModel | None:
    """Return the embedded model, if an upstream is local."""
    if not any(upstream.local for upstream in settings.upstreams):
        return None
    found = EmbeddedModel(
        settings.local_model, settings.local_threads, settings.local_context, settings.local_prompt_cache
    )
    if found.name in settings.prices:
        log.warning("Dollars of the embedded model are simulated: it is free, and its price is made up in `prices`.")
    return found


class GroupMember:
    """An upstream in a group."""

    __slots__ = ("current", "model", "upstream", "weight")

    def __init__(self, upstream: Upstream, weight: float = 1.0, model: str | None = None) -> None:
        if not 0.0 < weight < float("inf"):
            raise InvalidInput(f"weight of {upstream.name} must be greater than 0, not {weight}")
        if model is not None and not MODEL_NAME.fullmatch(model):
            raise InvalidInput(f"model of {upstream.name} must have 1 to 256 printable ASCII characters, not {model!r}")
        self.upstream, self.weight, self.model = upstream, weight, model
        self.current = 0.0
        """Of smooth weighted round robin."""


class UpstreamGroup:
    """Upstreams for the same requests. Raises InvalidInput if they do not fit together.

    fallback_cache   store answers of another model than that of the first member
    endpoints        the group gets requests to these endpoints only; empty: to any
    """

    __slots__ = ("_balance", "context", "fallback_cache", "members", "name")

    def __init__(
        self,
        members: Sequence[GroupMember],
        balance: Balance = "order",
        *,
        fallback_cache: bool = False,
        endpoints: Collection[Endpoint] = (),
    ) -> None:
        if not members:
            raise InvalidInput("a group needs at least one upstream")
        if balance not in BALANCES:
            raise InvalidInput(f"balance must be one of {', '.join(BALANCES)}, not {balance!r}")
        check_members([member.upstream.settings for member in members], [endpoint.value for endpoint in endpoints])
        self.members, self._balance, self.fallback_cache = tuple(members), balance, fallback_cache
        first = members[0]
        self.name = first.upstream.name
        self.context: Mapping[str, str] = first.upstream.context
        """A part of every key: that of the first member, and the model that it is asked for if that is fixed."""
        if first.model is not None:
            self.context = {**self.context, "model": first.model}

    @classmethod
    def from_names(
        cls,
        upstreams: Iterable[Upstream],
        members: Sequence[RouteUpstreamSettings],
        *,
        balance: Balance = "order",
        fallback_cache: bool = False,
        endpoints: Collection[Endpoint] = (),
    ) -> UpstreamGroup:
        """Return the group of these members of all `upstreams` of the settings. Raises InvalidInput."""
        known = {upstream.name: upstream for upstream in upstreams}
        for member in members:
            if member.name not in known:
                raise InvalidInput(f"no upstream is named {member.name!r}; there are {', '.join(sorted(known))}")
        return cls(
            [GroupMember(known[member.name], member.weight, member.model) for member in members],
            balance,
            fallback_cache=fallback_cache,
            endpoints=endpoints,
        )

    def after(self, upstream: Upstream, model: str) -> UpstreamGroup:
        """Return a group that asks an upstream for this model, and then the members of this group.

        The upstream may be one of them. The caller has checked that they fit together.
        """
        group = UpstreamGroup([GroupMember(upstream, model=model)])
        group.members += self.members
        return group

    def choose(self, tried: Collection[GroupMember] = ()) -> GroupMember | None:
        """Return the member to send a request to; None if all were tried."""
        members = self.members
        if len(members) == 1:
            return None if tried else members[0]
        now = time.monotonic()
        rest = [member for member in members if member not in tried]
        available = [member for member in rest if member.upstream.health.available(now)]
        if not available:
            return min(rest, key=last_failure, default=None)
        if self._balance == "order" or len(available) == 1:
            return available[0]
        if self._balance == "least-busy":
            load = {member: member.upstream.client.in_flight / member.weight for member in available}
            least = min(load.values())
            available = [member for member in available if load[member] == least]
        return next_by_weight(available)

    def has_available(self, tried: Collection[GroupMember]) -> bool:
        """Return whether a request could go to a member that was not tried and is available."""
        now = time.monotonic()
        return any(member not in tried and member.upstream.health.available(now) for member in self.members)

    def replaced_model(self, member: GroupMember, model: str) -> str:
        """Return the model that answers instead of that of the first member; empty: it is the same model."""
        sent, first = member.model or model, self.members[0].model or model
        return "" if sent == first else sent


def route_groups(upstreams: Iterable[Upstream], routes: Iterable[RouteSettings]) -> dict[str, UpstreamGroup]:
    """Return the groups of the routes that name upstreams, by the route's name. Raises InvalidInput."""
    known, found = list(upstreams), {}
    for route in routes:
        if not route.upstreams:
            continue
        try:
            found[route.name] = UpstreamGroup.from_names(
                known,
                route.upstreams,
                balance=route.balance,
                fallback_cache=route.fallback_cache,
                endpoints=[Endpoint(name) for name in route.endpoint],
            )
        except InvalidInput as error:
            raise InvalidInput(f"route {route.name}: {error}") from None
    return found


def group_of_one(upstream: Upstream) -> UpstreamGroup:
    """Return the group of one upstream. It is made once."""
    group = upstream.alone
    if not isinstance(group, UpstreamGroup):
        group = upstream.alone = UpstreamGroup([GroupMember(upstream)])
    return group


def next_by_weight(members: Sequence[GroupMember]) -> GroupMember:
    """Return the next member by smooth weighted round robin."""
    for member in members:
        member.current += member.weight
    chosen = max(members, key=current)
    chosen.current -= sum(member.weight for member in members)
    return chosen


def current(member: GroupMember) -> float:
    """Return the state of smooth weighted round robin."""
    return member.current


def last_failure(member: GroupMember) -> float:
    """Return when the member failed the last time."""
    return member.upstream.health.last_failure
