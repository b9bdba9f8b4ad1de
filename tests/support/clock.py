"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """Returns `now`, in seconds. Each reading adds `step` before."""

    def __init__(self, now: float = 1_700_000_000.0, step: float = 0.0) -> None:
        self.now, self.step = now, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now
