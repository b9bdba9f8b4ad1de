"""Cache and swap together: which price of a miss a cache policy must use.

A miss costs the price of the model that would answer it. In frames where a cheaper model is certified, that is not the
price of the asked model. Costs are shares of what the asked model costs without a cache:

    cache     a cache, and the asked model answers every miss
    swap      no cache
    asked     both; the policy uses the price of the asked model as the cost of a miss
    routed    both; the policy uses the price of the model that would answer
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab import traffic
from knapcache.lab.replay import replay
from knapcache.lab.trace import Floats, Trace
from knapcache.policy import registry


def joint_costs(trace: Trace, routed_costs: Floats, policy: str, *, capacity: float, seed: int = 0) -> dict[str, float]:
    """Replay a trace whose costs are those of the asked model, and return the costs of the four ways.

    routed_costs   the cost of each request with the model that would answer it
    capacity       share of the working set
    """
    if not 0.0 < capacity <= 1.0:
        raise InvalidInput(f"capacity must be above 0 and at most 1, not {capacity}")
    routed = replace(trace, costs=routed_costs)
    misses = {}
    for price, told in (("asked", trace), ("routed", routed)):
        built = registry.find(policy).build_for(int(capacity * trace.working_set), told, seed=seed)
        misses[price] = ~replay(built, told).hits
    return {
        "cache": float(trace.costs[misses["asked"]].sum()) / trace.total_cost,
        "swap": routed.total_cost / trace.total_cost,
        "asked": float(routed.costs[misses["asked"]].sum()) / trace.total_cost,
        "routed": float(routed.costs[misses["routed"]].sum()) / trace.total_cost,
    }


def framed_trace(
    *, keys: int, requests: int, frames: int, certified: int, price_ratio: float, seed: int = 0
) -> tuple[Trace, Floats]:
    """Return a trace with popularity by Zipf's law (0.9), and the costs by the model that answers each request.

    Sizes and costs are those of LLM answers, as in lab/traffic.py. Keys belong to `frames` equally likely frames. In
    `certified` of these a cheaper model answers, whose price is that of the asked model ÷ price_ratio.
    """
    random = np.random.default_rng(seed)
    drawn = traffic.zipf(random, requests, keys, 0.9)
    sizes, costs = traffic.answers(random, keys, with_size=True)
    cheaper = random.integers(0, frames, keys) < certified
    routed = np.where(cheaper, costs / price_ratio, costs)
    return Trace(drawn, sizes[drawn], costs[drawn], keys), routed[drawn]
