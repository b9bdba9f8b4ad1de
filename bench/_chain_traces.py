"""Synthetic prompts as chains of blocks, for traffic that no public trace has. Each generator is seeded.

chat     conversations of few turns with some system prompts, after pauses of very different length
agents   some sessions at a time, each of which appends a little to a long prompt, again and again
rag      a system prompt, then documents by a Zipf law, then a question that never returns
loop     a fixed round of documents, too long for the cache: LRU finds almost nothing
scan     a small hot set, interrupted by long runs of prompts that never return
drift    documents by a Zipf law whose favourites change all the time
trap     documents that are hot for a while and never again; then new ones
phases   chat, agents, loop and drift in turns
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np

from knapcache.lab.kv import BlockTrace

Path = tuple[object, ...]
"""A prompt: what each of its blocks contains."""
BLOCK = 512


def to_trace(prompts: Iterator[Path]) -> BlockTrace:
    """Number the blocks of prompts: equal numbers mean equal blocks after equal blocks."""
    numbers: dict[tuple[int, object], int] = {}
    chains = []
    for prompt in prompts:
        before, chain = -1, []
        for content in prompt:
            before = numbers.setdefault((before, content), len(numbers))
            chain.append(before)
        chains.append(np.array(chain, np.int64))
    return BlockTrace(chains, BLOCK, len(numbers))


def fresh(rng: random.Random, blocks: int) -> Path:
    """Return blocks that no other prompt has."""
    name = rng.getrandbits(60)
    return tuple((name, k) for k in range(blocks))


def document(name: object, blocks: int) -> Path:
    return tuple((name, k) for k in range(blocks))


def zipf(rng: random.Random, n: int, exponent: float) -> Callable[[], int]:
    """Return a function that draws 0 … n − 1 by a Zipf law."""
    weights = list(accumulate((k + 1) ** -exponent for k in range(n)))
    return lambda: rng.choices(range(n), cum_weights=weights)[0]


def chat(rng: random.Random, requests: int) -> Iterator[Path]:
    waiting: list[tuple[float, int, Path]] = []  # time, random order of equal times, prompt so far
    for now in range(requests):
        waiting.sort(key=lambda one: one[0])
        if waiting and waiting[0][0] <= now:
            prompt = waiting.pop(0)[2]
        else:
            prompt = document(("system", rng.choice((0, 0, 0, 1, 2))), 3)
        prompt += fresh(rng, 1 + int(rng.expovariate(0.15)))
        if rng.random() < 0.55:
            waiting.append((now + rng.lognormvariate(5.0, 1.8), rng.getrandbits(30), prompt))
        yield prompt


def agents(rng: random.Random, requests: int) -> Iterator[Path]:
    sessions: list[Path] = []
    for _ in range(requests):
        if len(sessions) < 8:
            sessions.append(document("agent", 12) + fresh(rng, rng.randint(5, 60)))
        k = rng.randrange(len(sessions))
        sessions[k] += fresh(rng, rng.randint(0, 3))
        yield sessions[k]
        if rng.random() < 0.02:
            del sessions[k]


def rag(rng: random.Random, requests: int) -> Iterator[Path]:
    draw = zipf(rng, 2000, 0.9)
    for _ in range(requests):
        yield document("system", 2) + document(draw(), 8) + document(draw(), 8) + fresh(rng, 1)


def loop(rng: random.Random, requests: int) -> Iterator[Path]:
    for k in range(requests):
        yield document("system", 2) + document(k % 400, 12) + fresh(rng, 1)


def scan(rng: random.Random, requests: int) -> Iterator[Path]:
    draw = zipf(rng, 60, 0.6)
    for k in range(requests):
        yield document("system", 2) + (fresh(rng, 20) if k // 150 % 2 else document(draw(), 10))


def drift(rng: random.Random, requests: int) -> Iterator[Path]:
    draw = zipf(rng, 1000, 1.0)
    for k in range(requests):
        yield document("system", 2) + document(draw() + k // 10, 10) + fresh(rng, 1)


def trap(rng: random.Random, requests: int) -> Iterator[Path]:
    for k in range(requests):
        season = k // 1500
        hot = rng.random() < 0.7
        yield document((season, rng.randrange(40 if hot else 4000)), 10) + fresh(rng, 2)


def phases(rng: random.Random, requests: int) -> Iterator[Path]:
    parts = [kind(rng, requests) for kind in (chat, agents, loop, drift)]
    for k in range(requests):
        yield next(parts[k // 1000 % len(parts)])


KINDS = {kind.__name__: kind for kind in (chat, agents, rag, loop, scan, drift, trap, phases)}


def synthetic(kind: str, requests: int, seed: int = 1) -> BlockTrace:
    """Return the trace of one kind."""
    return to_trace(KINDS[kind](random.Random(f"{kind} {seed}"), requests))
