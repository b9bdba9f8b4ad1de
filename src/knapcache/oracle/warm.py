"""Solving again after a few items have changed.

The solution depends on the items near the price; all others would have to change a lot to matter. So they are frozen.
With an interval of prices lo … hi around λ and a margin g,

    frozen in    w − hi·S ≥ g         frozen out    lo·S − w ≥ g         near    all others, and every changed item

Of the frozen items only total size and value are kept. To solve again, solve the near items alone, in the capacity that
the items frozen in leave. Let that give the price λ', the bound U' and the gain (see `exact`). If lo ≤ λ' ≤ hi, then at
price λ' every frozen item is on its side by at least g. So the break solution and the bound of the whole problem are
those of the near items, and any solution that decides a frozen item differently gains at most U' − g. Hence

    if lo ≤ λ' ≤ hi  and  U' − gain ≤ g,  the solution and its certificate are those of the whole problem.

If the condition fails, everything is solved from scratch and frozen again. A changed item stays near until then, so the
near items grow slowly; when their arrays are full, the problem is also solved from scratch.

Pass counts, not frequencies: dividing all values by the number of rounds moves no optimum but changes every item.
"""

from __future__ import annotations

from typing import NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import kernel
from knapcache.model import Selection
from knapcache.oracle.exact import FrozenItems, SearchOptions, Workspace, select_in
from knapcache.oracle.groups import ROUNDING
from knapcache.oracle.problem import SIZES_LIMIT, VALUES_LIMIT, Floats, Ints, read_problem
from knapcache.oracle.sums import argsort, two_sum

SAMPLE = 4096
# Target number of near items: enough that some dozen changes move neither the price nor the gap out of its margin.
MIN_NEAR, NEAR_SHARE = 1024, 64
# State of an item: its position among the near items, or one of these.
FROZEN_OUT, FROZEN_IN = -1, -2


NOTHING_FROZEN = FrozenItems(0, 0.0, 0.0, 0.0)
NO_START = np.zeros(0, np.bool_)


class Margins(NamedTuple):
    """The interval of prices lo … hi and the margin g for which items are frozen."""

    low: float
    high: float
    margin: float


class WarmSolver:
    """A knapsack that is solved repeatedly while a few items change at a time.

    `solve` returns what `knapcache.oracle.solve` does, in a tenth of the time or less on large problems. `cold_solves`
    and `warm_solves` count the solutions from scratch and the others.
    """

    def __init__(
        self,
        values: npt.ArrayLike,
        sizes: npt.ArrayLike,
        capacity: SupportsIndex,
        *,
        beta: float = 0.0,
        work_limit: int | None = None,
        tol: float | None = None,
    ) -> None:
        """Take the same arguments as `knapcache.oracle.solve`. The arrays are copied."""
        p = read_problem(values, sizes, capacity, beta, work_limit, tol)
        n = p.values.shape[0]
        self._values, self._sizes, self._chosen = p.values.copy(), p.sizes.copy(), np.zeros(n, np.bool_)
        self._space = Workspace(
            values=self._values,
            sizes=self._sizes,
            chosen=self._chosen,
            density=np.empty(n, np.int64),
            items=np.empty(n, np.int64),
        )
        self._capacity, self._options = p.capacity, SearchOptions(p.beta, p.tol, p.work_limit)
        self._total_size, self._total_value = int(self._sizes.sum()), float(self._values.sum())
        self._position = np.full(n, FROZEN_OUT, np.int64)
        self._ready = False
        self._near, self._near_values, self._near_sizes = self._space.items[:0], self._values[:0], self._sizes[:0]
        self._near_count = 0
        self._frozen = NOTHING_FROZEN
        self._margins = Margins(0.0, 0.0, 0.0)
        self.cold_solves = self.warm_solves = 0

    def change(self, items: npt.ArrayLike, values: npt.ArrayLike, sizes: npt.ArrayLike | None = None) -> None:
        """Set new values, and optionally new sizes, for some items. Raises InvalidInput and then changes nothing."""
        which = np.atleast_1d(np.asarray(items))
        if which.ndim != 1 or which.dtype.kind not in "iu":
            raise InvalidInput("items must be a flat list of integers")
        if which.size and not 0 <= int(which.min()) <= int(which.max()) < len(self._values):
            raise InvalidInput(f"items must be in 0 … {len(self._values) - 1}, not {which.min()} … {which.max()}")
        which = which.astype(np.int64)
        new = read_problem(np.atleast_1d(values), self._sizes[which] if sizes is None else np.atleast_1d(sizes), 0)
        if new.values.shape != which.shape:
            raise InvalidInput(f"{len(which)} items have {len(new.values)} values; the numbers must be equal")
        if len(set(which.tolist())) != len(which):
            raise InvalidInput("items must not contain duplicates")
        size = self._total_size + sum(new.sizes.tolist()) - sum(self._sizes[which].tolist())
        value = self._total_value + float(new.values.sum()) - float(self._values[which].sum())
        if size >= SIZES_LIMIT:
            raise InvalidInput(f"sizes would sum to {size}; they must sum to less than 2**62")
        if value >= VALUES_LIMIT:
            raise InvalidInput(f"values would sum to {value:g}; they must sum to less than 2**960 (about 9.7e288)")
        self._total_size, self._total_value = size, value
        self._ready = self._ready and self._near_count + len(which) <= len(self._near)
        if self._ready:
            self._near_count, self._frozen = thaw(
                which, self._values, self._sizes, self._position, self._near, self._near_count, self._frozen
            )
            place = self._position[which]
            self._near_values[place], self._near_sizes[place] = new.values, new.sizes
        self._values[which], self._sizes[which] = new.values, new.sizes

    def solve(self) -> Selection:
        """Return the best set for the current values and sizes."""
        found = self._solve_near() if self._ready else None
        if found is None:
            found = self._solve_all()
        chosen = self._chosen.copy()
        chosen.flags.writeable = False
        value, upper_bound, price, proven = found
        return Selection(
            chosen=chosen,
            value=value,
            upper_bound=upper_bound,
            gap=upper_bound - value,
            proven=proven,
            price=price,
        )

    def _solve_near(self) -> tuple[float, float, float, bool] | None:
        """Solve the near items alone; None if the result is not that of the whole problem."""
        k = self._near_count
        if self._frozen.size > self._capacity:
            return None
        near = Workspace(
            values=self._near_values[:k],
            sizes=self._near_sizes[:k],
            chosen=np.empty(k, np.bool_),
            density=self._space.density[:k],
            items=self._space.items[:k],
        )
        value, upper_bound, price, proven, _, open_ = select_in(
            near, self._capacity, self._frozen, self._options, self._chosen[self._near[:k]]
        )
        low, high, margin = self._margins
        if not (low <= price <= high and open_ <= margin):
            return None
        self.warm_solves += 1
        self._chosen[self._near[:k]] = near.chosen
        return float(value), float(upper_bound), float(price), bool(proven)

    def _solve_all(self) -> tuple[float, float, float, bool]:
        self.cold_solves += 1
        value, upper_bound, price, proven, _, open_ = select_in(
            self._space, self._capacity, NOTHING_FROZEN, self._options, NO_START
        )
        self._ready = price > 0.0 and len(self._values) > MIN_NEAR
        if self._ready:
            self._freeze(price, 2.0 * open_)
        return float(value), float(upper_bound), float(price), bool(proven)

    def _freeze(self, price: float, min_margin: float) -> None:
        """Choose the margins, at least `min_margin`, and freeze all items they allow."""
        n = len(self._values)
        self._margins = Margins(*choose_margins(self._values, self._sizes, self._capacity, price, min_margin))
        spare = max(MIN_NEAR, n // NEAR_SHARE)
        self._near_count, self._frozen = freeze(self._space, self._capacity, self._margins, self._position)
        near = self._space.items[: self._near_count]
        self._near = np.concatenate([near, np.empty(spare, np.int64)])
        self._near_values = np.concatenate([self._values[near], np.empty(spare)])
        self._near_sizes = np.concatenate([self._sizes[near], np.empty(spare, np.int64)])

    def check(self) -> None:
        """Recompute the totals of the frozen items and the near items; raise CorruptState on a difference."""
        if not self._ready:
            return
        frozen = self._frozen
        near = self._near[: self._near_count]
        into, out = self._position == FROZEN_IN, self._position == FROZEN_OUT
        kept = frozen.kept + frozen.kept_error
        equal: dict[str, bool] = {
            "size frozen in": frozen.size == int(self._sizes[into].sum()),
            "value frozen in": bool(np.isclose(kept, self._values[into].sum(), rtol=1e-9, atol=0.0)),
            "value frozen out": bool(
                np.isclose(frozen.left_out, self._values[out].sum(), rtol=1e-9, atol=1e-9 * self._total_value)
            ),
            "positions": bool((self._position[near] == np.arange(len(near))).all()),
            "near items": len(near) == int((self._position >= 0).sum()),
            "near values": bool((self._values[near] == self._near_values[: len(near)]).all()),
            "near sizes": bool((self._sizes[near] == self._near_sizes[: len(near)]).all()),
        }
        wrong = [what for what, holds in equal.items() if not holds]
        if wrong:
            raise CorruptState(f"{', '.join(wrong)}: stored and recomputed numbers differ")


@kernel
def choose_margins(
    values: Floats, sizes: Ints, capacity: int, price: float, min_margin: float
) -> tuple[float, float, float]:
    """Return lo, hi and g so that about the wanted number of items is near, estimated from a sample.

    More items are near if `min_margin` requires it.
    """
    n = values.shape[0]
    stride, m = max(1, n // SAMPLE), 0
    off, apart = np.empty(n // stride + 1, np.float64), np.empty(n // stride + 1, np.float64)
    for i in range(0, n, stride):
        size_cost = price * sizes[i]
        off[m], apart[m] = abs(values[i] - size_cost), abs(values[i] / size_cost - 1.0)
        m += values[i] > 0.0 and sizes[i] <= capacity and apart[m] > 1e-12  # ties are near with any margins
    wanted = min(m - 1, 8 + max(MIN_NEAR, n // NEAR_SHARE) // (2 * stride))
    if wanted < 0:
        return price * 0.5, price * 1.5, min_margin
    # Half the width: with few distinct densities the interval then ends before the next one.
    width = min(0.5, 0.5 * apart[argsort(apart[:m])[wanted]])
    return price * (1.0 - width), price * (1.0 + width), max(min_margin, off[argsort(off[:m])[wanted]])


@kernel
def freeze(space: Workspace, capacity: int, margins: Margins, position: Ints) -> tuple[int, FrozenItems]:
    """Set every item's position and write the near items to `space.items`; returns their number and the frozen
    totals.
    """
    values, sizes, chosen, near = space.values, space.sizes, space.chosen, space.items
    low, high, margin = margins.low, margins.high, margins.margin
    count, size, kept, kept_error, left_out = 0, 0, 0.0, 0.0, 0.0
    for i in range(values.shape[0]):
        w, s = values[i], sizes[i]
        # Rounding counts against freezing.
        if w - high * s >= margin + (w + high * s) * ROUNDING and s <= capacity:
            position[i] = FROZEN_IN
            chosen[i] = True
            size += s
            kept, error = two_sum(kept, w)
            kept_error += error
        elif low * s - w >= margin + (w + low * s) * ROUNDING or w == 0.0 or s > capacity:
            position[i] = FROZEN_OUT
            chosen[i] = False
            left_out += w
        else:
            position[i] = count
            near[count] = i
            count += 1
    return count, FrozenItems(size, kept, kept_error, left_out)


@kernel
def thaw(
    items: Ints, values: Floats, sizes: Ints, position: Ints, near: Ints, count: int, frozen: FrozenItems
) -> tuple[int, FrozenItems]:
    """Move the frozen ones of these items to the near items; returns the number of near items and the frozen totals."""
    size, kept, kept_error, left_out = frozen
    for i in items:
        if position[i] >= 0:
            continue
        if position[i] == FROZEN_IN:
            size -= sizes[i]
            kept, error = two_sum(kept, -values[i])
            kept_error += error
        else:
            left_out -= values[i]
        position[i] = count
        near[count] = i
        count += 1
    return count, FrozenItems(size, kept, kept_error, left_out)
