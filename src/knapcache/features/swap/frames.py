"""The frames that a process keeps, and which of them one more replaces.

A caller may send another system prompt with each request. So there are bounds, and no caller can use up the room of
others:

    Invariant: at most MAX_FRAMES frames with labels, of which one tenant has MAX_TENANT_FRAMES, and as many without.

A new frame replaces one of a tenant with more frames, or one of its own. Of these it is the one with the fewest labels;
of equal ones, the oldest. A certified frame is never replaced. If all are certified, the new frame gets no room.

Frames with labels are added and replaced only when labels are read from the log, which all processes read in the same
order. So all processes keep the same ones. A frame that was replaced and comes back begins to learn once more, as after
an alarm: its next certificate needs more evidence.
"""

from __future__ import annotations

from collections.abc import Iterator

from knapcache.errors import CorruptState
from knapcache.features.swap.frame import Frame, LabelBudget
from knapcache.features.swap.log import SwapLabel
from knapcache.features.swap.settings import SwapRouteSettings

MAX_FRAMES = 1000
MAX_TENANT_FRAMES = MAX_FRAMES // 2
MAX_REPLACED = 10_000
"""Replaced frames whose tries are remembered."""


class SharedBudget(LabelBudget):
    """The budget of all frames of a tenant on a route."""

    unlogged = 0.0
    """Cost of the asked model that this process has counted since its last label."""

    def count(self, cost: float) -> None:
        """Count what the asked model has cost for a request, or would have."""
        self.asked_cost += cost
        self.unlogged += cost


class LiveFrame:
    """A frame, and what a process knows about it beside its labels."""

    def __init__(self, tenant: str, route: SwapRouteSettings, model: str, budget: SharedBudget) -> None:
        self.tenant, self.route, self.model = tenant, route.name, model
        self.namespace = ""
        """Of its entries; empty: no label has named it yet."""
        self.decision, self.budget = Frame(route.swap_loss, budget), budget
        self._asked = self._cheaper = 0.0
        """Costs of both models for the requests with labels."""
        self._escalated = 0.0
        """Cost of the asked model for those of them whose cheaper answer fails a check."""
        self.rungs: dict[str, int] = {}
        self.asked_twice = self.differing_twice = 0
        """Labels for which the asked model was asked a second time, and of these, with answers that are no tie."""

    def add(self, record: SwapLabel, *, own: bool) -> None:
        """Add a label. own: of this process, which has counted its `asked_cost` before."""
        if not own:
            self.budget.asked_cost += record.asked_cost
        self.namespace = record.namespace or self.namespace
        self._asked += record.asked_answer
        self._cheaper += record.cheaper_answer
        if record.rung == "escalated":
            self._escalated += record.asked_answer
        self.rungs[record.rung] = self.rungs.get(record.rung, 0) + 1
        if record.again is not None:
            self.asked_twice += 1
            self.differing_twice += record.again != 0.0
        self.decision.add_label(record.z, record.cost)

    @property
    def certified(self) -> bool:
        """Whether the cheaper model may answer."""
        return self.decision.certificate.state == "certified"

    @property
    def floor(self) -> float:
        """How often the asked model differs from itself, as a share: less is not to be expected of another model."""
        return self.differing_twice / self.asked_twice if self.asked_twice else 0.0

    @property
    def answer_ratio(self) -> float:
        """Cost of an answer of the asked model ÷ cost of one of the cheaper model, over the requests with labels."""
        return self._asked / self._cheaper if self._cheaper > 0.0 else 1.0

    @property
    def price_ratio(self) -> float:
        """Cost of the asked model ÷ cost of the cheaper one with its checks: of both, if the answer fails one."""
        cost = self._cheaper + self._escalated
        return self._asked / cost if cost > 0.0 else 1.0


class FrameTable:
    """Frames by name, of which each tenant has its share."""

    def __init__(self) -> None:
        self._tenants: dict[str, dict[str, LiveFrame]] = {}
        """Frames of each tenant that has some, the oldest first."""
        self._frames: dict[str, LiveFrame] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def __iter__(self) -> Iterator[tuple[str, LiveFrame]]:
        return iter(list(self._frames.items()))

    def get(self, name: str) -> LiveFrame | None:
        """Return a frame, or None."""
        return self._frames.get(name)

    def has_room(self, tenant: str) -> bool:
        """Return whether a tenant may have one more frame."""
        return self._may_grow(tenant) or self._victim(tenant) is not None

    def add(self, name: str, frame: LiveFrame) -> tuple[str, LiveFrame] | None:
        """Add a frame of a tenant that has room. Return the one that it replaces, if any."""
        victim = None if self._may_grow(frame.tenant) else self._victim(frame.tenant)
        found = None if victim is None else (victim, self.pop(victim))
        self._frames[name] = self._tenants.setdefault(frame.tenant, {})[name] = frame
        return found

    def pop(self, name: str) -> LiveFrame:
        """Remove a frame, and return it."""
        frame = self._frames.pop(name)
        of_tenant = self._tenants[frame.tenant]
        del of_tenant[name]
        if not of_tenant:
            del self._tenants[frame.tenant]
        return frame

    def clear(self) -> None:
        """Remove all frames."""
        self._tenants.clear()
        self._frames.clear()

    def _may_grow(self, tenant: str) -> bool:
        """Return whether a tenant may have one more frame without replacing one."""
        return len(self) < MAX_FRAMES and len(self._tenants.get(tenant, ())) < MAX_TENANT_FRAMES

    def _victim(self, tenant: str) -> str | None:
        """Return the name of the frame that one more of a tenant replaces; None: there is none."""
        own = self._tenants.get(tenant, {})
        larger = [frames for frames in self._tenants.values() if len(frames) > len(own)]
        for frames in [] if len(own) >= MAX_TENANT_FRAMES else sorted(larger, key=len, reverse=True):
            if (found := least_useful(frames)) is not None:
                return found
        return least_useful(own)

    def check(self) -> None:
        """Raise CorruptState unless the invariant holds."""
        by_tenant = {name: tenant for tenant, frames in self._tenants.items() for name in frames}
        if by_tenant != {name: frame.tenant for name, frame in self}:
            raise CorruptState("frames and those of the tenants differ")
        if len(self) > MAX_FRAMES or any(len(each) > MAX_TENANT_FRAMES for each in self._tenants.values()):
            raise CorruptState("too many frames")


def least_useful(frames: dict[str, LiveFrame]) -> str | None:
    """Return the name of the frame to replace: not certified, with the fewest labels, the oldest of equal ones."""
    labels = {name: each.decision.certificate.labels for name, each in frames.items() if not each.certified}
    return min(labels, key=labels.__getitem__, default=None)


class Frames:
    """All frames of a process."""

    def __init__(self) -> None:
        self.labelled, self.new = FrameTable(), FrameTable()
        """With and without labels."""
        self._tries: dict[str, int] = {}
        """Of frames that were replaced, the oldest first."""
        self._budgets: dict[tuple[str, str], SharedBudget] = {}
        """By tenant and route."""

    def __iter__(self) -> Iterator[tuple[str, LiveFrame]]:
        yield from self.labelled
        yield from self.new

    def get(self, name: str) -> LiveFrame | None:
        """Return a frame, or None."""
        return self.labelled.get(name) or self.new.get(name)

    def budget(self, tenant: str, route: SwapRouteSettings) -> SharedBudget:
        """Return the budget of a tenant's labels on a route."""
        found = self._budgets.get((tenant, route.name))
        if found is None:
            found = self._budgets[tenant, route.name] = SharedBudget(route.swap_budget)
        return found

    def _frame(self, tenant: str, route: SwapRouteSettings, model: str) -> LiveFrame:
        return LiveFrame(tenant, route, model, self.budget(tenant, route))

    def for_request(self, name: str, tenant: str, route: SwapRouteSettings, model: str) -> LiveFrame | None:
        """Return the frame of a request, perhaps a new one; None: the tenant has too many."""
        found = self.get(name)
        if found is None and self.labelled.has_room(tenant):
            found = self._frame(tenant, route, model)
            self.new.add(name, found)
        return found

    def for_label(self, name: str, tenant: str, route: SwapRouteSettings, model: str) -> LiveFrame | None:
        """Return the frame of a label, perhaps a new one; None: the tenant has too many."""
        found = self.labelled.get(name)
        if found is not None or not self.labelled.has_room(tenant):
            return found
        found = self._frame(tenant, route, model) if self.new.get(name) is None else self.new.pop(name)
        certificate = found.decision.certificate
        certificate.tries = self._tries.pop(name, certificate.tries)
        if (replaced := self.labelled.add(name, found)) is not None:
            self._tries[replaced[0]] = replaced[1].decision.certificate.tries + 1
            if len(self._tries) > MAX_REPLACED:
                del self._tries[next(iter(self._tries))]
        return found

    def clear(self) -> None:
        """Forget all frames."""
        self.labelled.clear()
        self.new.clear()
        self._tries.clear()
        self._budgets.clear()
