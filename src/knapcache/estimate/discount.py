"""Discounted request counts at eight half-lives.

A request counts half as much after every H further requests:

    F(q) ← F(q) · 2^(−Δt/H) + 1            Δt requests after the last one for q

Each half-life is a quarter of the one before, so one power serves all: 2^(−Δt/(H/4)) is the fourth power of 2^(−Δt/H).
"""

from __future__ import annotations

from knapcache.kernel import Records, kernel

MAX_HALF_LIFE = 2.0**20
HALF_LIFE_COUNT = 8
HALF_LIVES = tuple(MAX_HALF_LIFE / 4**k for k in range(HALF_LIFE_COUNT))
"""In requests: 1,048,576 … 64."""

DISCOUNT_ROW = [
    ("last", "i8"),  # t of the last request
    ("recent", f"({HALF_LIFE_COUNT},)f4"),  # F at that time, by half-life
]


@kernel
def count_request(rows: Records, i: int, now: int) -> None:
    """Count a request for i at t = now, at every half-life."""
    decay = 2.0 ** ((rows[i].last - now) / MAX_HALF_LIFE)
    for k in range(HALF_LIFE_COUNT):
        rows[i].recent[k] = rows[i].recent[k] * decay + 1.0
        decay *= decay
        decay *= decay
    rows[i].last = now
