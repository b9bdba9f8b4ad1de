"""Savings of answers by similarity in a small cache, for bench/semantic.py, by how the policy counts them.

    exact only     no answers by similarity
    no credit      they are served, and the policy does not see them
    credit         the entry that answered counts a request, as for an exact hit
    clusters       and a newcomer starts with the number of requests for its meaning so far

The policy is GDSF with costs. Here similarity always finds a resident entry of the same meaning: the difference between
the rows is that of the counting alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from _semantic_questions import Question

from knapcache.policy.classic.gdsf import GDSF

CAPACITY = 0.1
"""Share of the size of all answers."""
RULES = ("exact only", "no credit", "credit", "clusters")


def money_saved(questions: Sequence[Question], rule: str, seed: int) -> float:
    """Return the share of the cost of all requests that a rule saves."""
    ids = {text: number for number, text in enumerate(dict.fromkeys(question.text for question in questions))}
    rng = random.Random(seed)
    by_meaning = {meaning: (rng.lognormvariate(7, 0.8), rng.lognormvariate(0, 1.0)) for meaning in
                  dict.fromkeys(question.meaning for question in questions)}  # fmt: skip
    sizes = {ids[question.text]: int(by_meaning[question.meaning][0]) + 1 for question in questions}
    policy: Any = GDSF(int(CAPACITY * sum(sizes.values())), len(ids), by_cost=True, history=rule == "clusters")
    residents: dict[str, dict[int, None]] = {}
    counts: dict[str, int] = {}
    meanings = {ids[question.text]: question.meaning for question in questions}
    saved = total = 0.0
    for question in questions:
        number, meaning = ids[question.text], question.meaning
        cost = by_meaning[meaning][1]
        total += cost
        counts[meaning] = counts.get(meaning, 0) + 1
        if policy.arrive(number):
            saved += cost
            continue
        near = residents.get(meaning)
        if near and rule != "exact only":
            saved += cost
            if rule != "no credit":
                policy.arrive(next(iter(near)))
            continue
        if rule == "clusters":
            policy.rows["requests"][number] = counts[meaning]
        decision = policy.settle(number, sizes[number], cost)
        if decision.admit:
            residents.setdefault(meaning, {})[number] = None
        for evicted in decision.evicted:
            residents[meanings[evicted]].pop(evicted, None)
    policy.check()
    return saved / total
