"""Synthetic traffic with shared prefixes, for bench/prefix.py: conversations whose requests return after known gaps.

A conversation begins with a system prompt and a first message, and each turn adds a message. A turn continues the one
before, as agents and chats do. `KINDS` has the traffic by name. `random N` is a mixture of populations with random
properties. All are drawn from seeds, and the same on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from knapcache.features.prefix.lab.chains import to_prefix_requests
from knapcache.features.prefix.request import PrefixRequest
from knapcache.lab.traces.sessions import SharingRequest

DAY = 86_400.0
MODEL = "claude-sonnet-4-5"


@dataclass(frozen=True)
class Population:
    """Conversations with the same properties."""

    count: int
    turns: float
    """Mean number of requests; geometric."""
    gap: float
    """Median seconds from one turn to the next; lognormal."""
    spread: float = 0.6
    """Standard deviation of its logarithm."""
    start: float = 0.0
    end: float = DAY
    """Population begin between these times."""
    first: int = 6000
    """Median tokens of the first request; lognormal."""
    added: int = 900
    """Median tokens that a turn adds."""
    system: int = 3000
    """Tokens of the system prompt."""
    shared_system: int = 0
    """Number of system prompts that all conversations share; 0: each has its own."""
    branches: float = 0.0
    """Share of turns that leave an earlier turn, as subagents and edited messages do."""
    tools: float = 0.5
    """Share of turns that are results of tools. They come four times as soon as others."""

    def draw(self, name: str, rng: random.Random) -> Iterator[SharingRequest]:
        """Yield the requests of all conversations, each in order."""
        for number in range(self.count):
            turns = 1
            while rng.random() < 1.0 - 1.0 / self.turns:
                turns += 1
            time = rng.uniform(self.start, self.end)
            family = f"{name}-{number}"
            system = f"{name}-system-{rng.randrange(self.shared_system)}" if self.shared_system else ""
            lengths = [self.system + round(rng.lognormvariate(math.log(self.first - self.system), 0.5))]
            kind = "text"
            for turn in range(turns):
                parent = turn - 1
                if turn:
                    if turn > 2 and rng.random() < self.branches:
                        parent = rng.randrange(turn - 1)
                    lengths.append(lengths[parent] + max(20, round(rng.lognormvariate(math.log(self.added), 0.8))))
                yield SharingRequest(
                    time=time,
                    id=(family, turn),
                    parent=(family, parent) if turn else (system, 0) if system else None,
                    shared_tokens=lengths[parent] if turn else self.system if system else 0,
                    input_tokens=lengths[turn],
                    system_tokens=self.system,
                    kind=kind,
                    model=MODEL,
                )
                kind = "tool" if rng.random() < self.tools else "text"
                gap = rng.lognormvariate(math.log(self.gap), self.spread)
                time += gap / 4.0 if kind == "tool" else gap

    def systems(self, name: str) -> Iterator[SharingRequest]:
        """Yield one request for each shared system prompt, from which conversations branch."""
        for number in range(self.shared_system):
            yield SharingRequest(
                time=self.start,
                id=(f"{name}-system-{number}", 0),
                parent=None,
                shared_tokens=0,
                input_tokens=self.system,
                system_tokens=self.system,
                kind="text",
                model=MODEL,
            )


AGENTS = Population(count=120, turns=40, gap=40.0)
"""Loops of an agent: the next request comes within a minute, mostly."""
PAUSES = Population(count=200, turns=25, gap=900.0, tools=0.1, first=20_000)
"""A quarter of an hour from turn to turn."""
DAYS = Population(count=400, turns=8, gap=14_400.0, tools=0.0, end=5 * DAY)
"""Hours from turn to turn."""
SINGLE = Population(count=4000, turns=1.0, gap=60.0)
"""Requests that never return."""
CHAT = Population(count=1200, turns=3.5, gap=120.0, spread=1.3, tools=0.0, first=4000, system=500, added=500)
"""People who write: many conversations of few turns, with gaps of seconds to hours."""

KINDS: dict[str, tuple[Population, ...]] = {
    "agents": (AGENTS,),
    "pauses": (PAUSES,),
    "days": (DAYS,),
    "single": (SINGLE,),
    "chat": (CHAT,),
    "shared system prompts": (Population(count=4000, turns=1.2, gap=60.0, shared_system=4, system=5000, first=7000),),
    "branches": (Population(count=120, turns=40, gap=60.0, branches=0.3),),
    "agents and single": (AGENTS, SINGLE),
    "agents and pauses": (AGENTS, PAUSES),
    "single, then agents": (
        Population(count=3000, turns=1.0, gap=60.0, end=DAY / 2),
        Population(count=80, turns=40, gap=40.0, start=DAY / 2),
    ),
    "agents, then single": (
        Population(count=80, turns=40, gap=40.0, end=DAY / 2),
        Population(count=3000, turns=1.0, gap=60.0, start=DAY / 2),
    ),
    "agents, then pauses": (
        Population(count=80, turns=40, gap=40.0, end=DAY / 2),
        Population(count=120, turns=25, gap=900.0, tools=0.1, first=20_000, start=DAY / 2, end=DAY),
    ),
}


def random_mixture(rng: random.Random) -> tuple[Population, ...]:
    """Draw one to three populations of about 3,000 requests in all, over 6 hours to 2 days."""
    count = rng.randint(1, 3)
    end = rng.choice((DAY / 4, DAY, 2 * DAY))
    found = []
    for _ in range(count):
        turns = math.exp(rng.uniform(0.0, math.log(60.0)))
        system = rng.choice((0, 1500, 6000, 15_000))
        start = rng.choice((0.0, 0.0, end / 2))
        found.append(
            Population(
                count=max(1, round(3000 / count / turns)),
                turns=turns,
                gap=math.exp(rng.uniform(math.log(10.0), math.log(7200.0))),
                spread=rng.uniform(0.2, 1.6),
                start=start,
                end=end if start or rng.random() < 0.7 else end / 2,
                first=system + round(math.exp(rng.uniform(math.log(500.0), math.log(60_000.0)))),
                added=round(math.exp(rng.uniform(math.log(100.0), math.log(5000.0)))),
                system=system,
                shared_system=rng.choice((0, 0, 1, 5)) if system else 0,
                branches=rng.choice((0.0, 0.0, 0.2)),
                tools=rng.random(),
            )
        )
    return tuple(found)


def draw(kind: str, minimum_of: Callable[[str], int]) -> list[PrefixRequest]:
    """Return the requests of a kind of traffic, or of the mixture `random N`, in the order of time."""
    rng = random.Random(kind)
    populations = KINDS[kind] if kind in KINDS else random_mixture(rng)
    requests: list[SharingRequest] = []
    for number, population in enumerate(populations):
        requests += population.systems(str(number))
        requests += population.draw(str(number), rng)
    requests.sort(key=lambda request: request.time)

    def broken(index: int, reason: str) -> NoReturn:
        raise AssertionError(f"{requests[index]}: {reason}")

    return to_prefix_requests(requests, minimum_of, broken)
