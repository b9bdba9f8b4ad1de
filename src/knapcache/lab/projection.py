"""What a saving over a log says about other days: the saving in the log's own span, and from one day on a projection.

    saved        the saving over the whole log
    blocks       savings of the whole blocks of the log, counted from its first request. A block is a day if the log has
                 at least MIN_BLOCKS of them, and otherwise a quarter of a day
    per day      mean of the blocks ÷ length of a block in days
    range        per day ± t · s / √n, with n blocks of standard deviation s, and t the 97.5 % quantile of Student's
                 distribution with n − 1 degrees of freedom: a 95 % confidence interval of the mean. Not below 0

A log of less than a day has no projection: it may hold the busiest minute of the week. The blocks of a single day
differ by the time of day, which makes its range wide. Its range cannot contain what other days of the week add.
Rejected: a bootstrap over the blocks. With four blocks it draws from 35 sets, and its range is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knapcache.lab.trace import Floats

DAY = 86_400.0
MIN_BLOCKS = 4
Z = 1.959964
"""97.5 % quantile of the normal distribution."""
SPAN_UNITS = ((DAY, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


@dataclass(frozen=True)
class Projection:
    """A saving, the span it was made in, and what it projects to per day. Amounts are in the log's unit of cost."""

    seconds: float | None
    """Time from the first request to the last; None: the log has no times."""
    span: str
    """The same for people, such as `6 seconds` or `3.5 days`."""
    saved: float
    per_day: float | None
    """None: the log is too short."""
    per_day_low: float | None
    per_day_high: float | None
    method: str
    """How the range was computed, or why there is no projection."""


def projection(seconds: float | None, saved: float, blocks: Sequence[float] = ()) -> Projection:
    """Return the saving of a log that spans `seconds`, projected per day if it spans at least one day.

    blocks   the saving in each whole block of `block_length(seconds)` (`block_savings`)
    """
    span = span_text(seconds)
    length = block_length(seconds)
    if length is None or len(blocks) < MIN_BLOCKS:
        reason = "the log has no times" if seconds is None else f"the log spans {span}, which is less than a day"
        if length is not None:
            reason = f"there are {len(blocks)} blocks of savings, and a range needs {MIN_BLOCKS}"
        return Projection(seconds, span, saved, None, None, None, f"No projection: {reason}.")
    per_day = DAY / length
    mean = math.fsum(blocks) / len(blocks) * per_day
    deviation = float(np.std(np.asarray(blocks, np.float64), ddof=1)) * per_day
    half = t_quantile(len(blocks) - 1) * deviation / math.sqrt(len(blocks))
    what = "days" if length == DAY else "quarters of a day"
    method = f"95 % confidence interval of the mean over {len(blocks)} {what}, by Student's t distribution."
    return Projection(seconds, span, saved, mean, max(0.0, mean - half), mean + half, method)


def block_length(seconds: float | None) -> float | None:
    """Return the length of a block in seconds; None for less than a day."""
    if seconds is None or not DAY <= seconds < math.inf:
        return None
    return DAY if seconds >= MIN_BLOCKS * DAY else DAY / MIN_BLOCKS


def block_savings(times: Floats, saved: float, weights: Floats, seconds: float | None = None) -> list[float]:
    """Return the saving in each whole block of a log, for `projection`.

    times     arrival of each request, in any order
    saved     the saving over the whole log
    weights   share of each request in it, in any unit: the cost of a hit and 0 for a miss. Where only the sum of the
              saving is known, the cost of each request but the first for its key
    seconds   the span of the log, of which these requests are a sample. Default: their own span
    """
    if not len(times):
        return []
    since = times - times.min()
    seconds = float(since.max()) if seconds is None else seconds
    length, total = block_length(seconds), float(weights.sum())
    if length is None or not total > 0.0:
        return []
    count = int(seconds // length)
    block = np.minimum((since // length).astype(np.int64), count)
    sums = np.bincount(block, weights, minlength=count + 1)[:count]
    return [float(share) for share in sums / total * saved]


def span_text(seconds: float | None) -> str:
    """Return a duration for people: `6 seconds`, `1.5 hours`, `12 days`."""
    if seconds is None:
        return "an unknown time"
    length, name = next((unit for unit in SPAN_UNITS if seconds >= unit[0]), SPAN_UNITS[-1])
    number = f"{seconds / length:.3g}" if seconds < 1000 * length else f"{seconds / length:.0f}"
    return f"{number} {name}" if number == "1" else f"{number} {name}s"


def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, for at least 3 degrees of freedom.

    Cornish–Fisher expansion in 1/ν (Abramowitz and Stegun, 26.7.5): its error is below 1 % from 3 degrees on.
    """
    z, v = Z, float(degrees)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
