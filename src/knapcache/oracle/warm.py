"""The Oracle asked again after a few items have changed.

A solution hangs on the items near the price; the others would have to change a lot to matter. So freeze them. With an
interval of prices lo … hi around λ and a margin g,

    frozen in    w − hi·S ≥ g         frozen out    lo·S − w ≥ g         near    all others, and whatever changes

and keep of the frozen only their size and value in total. To solve again, solve the near items alone, in the room that
what is frozen in leaves. Let that give the price λ', the bound U' and the gain (see `exact`). If lo ≤ λ' ≤ hi, then at
price λ' every frozen item is on its side by at least g, so the break solution and the bound of the whole problem are
those of the near items, and any solution that decides a frozen item otherwise gains at most U' − g. Hence

    lo ≤ λ' ≤ hi  and  U' − gain ≤ g        make the answer, and its certificate, that of the whole problem.

If the condition fails, everything is solved from scratch and frozen anew. An item that changes leaves the frozen ones
for good, so the near items grow slowly; when there is no place for more, that too is a reason to begin anew.

Feed counts and not frequencies: dividing all values by the number of rounds moves no optimum and touches every item.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState, InvalidInput
from knapcache.kernel import kernel
from knapcache.model import Selection
from knapcache.oracle.approximate import good_enough, tolerance
from knapcache.oracle.exact import improve_break, select_in
from knapcache.oracle.groups import ROUNDING
from knapcache.oracle.problem import SIZES_LIMIT, VALUES_LIMIT, Flags, Floats, Ints, read
from knapcache.oracle.sums import total, two_sum

SAMPLE = 4096
# Near items aimed at: enough that some dozen changes move neither price nor gap out of their margins.
FEWEST_NEAR, SHARE_NEAR = 1024, 64
# Where an item is: its place among the near items, or one of these.
FROZEN_OUT, FROZEN_IN = -1, -2
# What is frozen: size in, value in as two floats (the second is what rounding took off the first), value out.
Frozen = tuple[int, float, float, float]


class WarmSolver:
    """A knapsack that is solved again and again while its items change a few at a time.

    `solve` answers as `knapcache.oracle.solve` does, at a tenth of its price or less on large problems. `cold` and
    `warm` count how often it had to begin anew and how often not.
    """

    def __init__(
        self,
        values: npt.ArrayLike,
        sizes: npt.ArrayLike,
        capacity: SupportsIndex,
        *,
        beta: float = 0.0,
        budget: int | None = None,
        tol: float | None = None,
    ) -> None:
        """Arguments as those of `knapcache.oracle.solve`; the arrays are copied."""
        given = read(values, sizes, capacity, beta, budget, tol)
        self._values, self._sizes = given.values.copy(), given.sizes.copy()
        self._capacity, self._beta, self._tol, self._budget = given.capacity, given.beta, given.tol, given.budget
        self._total_size, self._total_value = int(self._sizes.sum()), float(self._values.sum())
        n = self._values.shape[0]
        self._chosen = np.zeros(n, np.bool_)
        self._density, self._items = np.empty(n, np.int64), np.empty(n, np.int64)
        self._where = np.full(n, FROZEN_OUT, np.int64)
        self._ready = False
        self._near, self._near_values, self._near_sizes = self._items[:0], self._values[:0], self._sizes[:0]
        self._near_count = 0
        self._frozen: Frozen = (0, 0.0, 0.0, 0.0)
        self._interval, self._margin = (0.0, 0.0), 0.0
        self.cold = self.warm = 0

    def change(self, items: npt.ArrayLike, values: npt.ArrayLike, sizes: npt.ArrayLike | None = None) -> None:
        """Give the named items new values, and new sizes where these are given too."""
        which = np.atleast_1d(np.asarray(items))
        if which.ndim != 1 or which.dtype.kind not in "iu":
            raise InvalidInput("items must be a flat list of whole numbers")
        if which.size and not 0 <= int(which.min()) <= int(which.max()) < len(self._values):
            raise InvalidInput(f"items must be in 0 … {len(self._values) - 1}, not {which.min()} … {which.max()}")
        which = which.astype(np.int64)
        given = read(np.atleast_1d(values), self._sizes[which] if sizes is None else np.atleast_1d(sizes), 0)
        if given.values.shape != which.shape:
            raise InvalidInput(f"{len(which)} items have {len(given.values)} values; they must be as many")
        if len(np.unique(which)) != len(which):
            raise InvalidInput("items must not be named twice")
        size = self._total_size + sum(given.sizes.tolist()) - sum(self._sizes[which].tolist())
        value = self._total_value + float(given.values.sum()) - float(self._values[which].sum())
        if size >= SIZES_LIMIT:
            raise InvalidInput(f"sizes would sum to {size}; they must sum to less than 2**62")
        if value >= VALUES_LIMIT:
            raise InvalidInput(f"values would sum to {value:g}; they must sum to less than 2**960 (about 9.7e288)")
        self._total_size, self._total_value = size, value
        self._ready = self._ready and self._near_count + len(which) <= len(self._near)
        if self._ready:
            self._near_count, self._frozen = thaw(
                which, self._values, self._sizes, self._where, self._near, self._near_count, *self._frozen
            )
            place = self._where[which]
            self._near_values[place], self._near_sizes[place] = given.values, given.sizes
        self._values[which], self._sizes[which] = given.values, given.sizes

    def solve(self) -> Selection:
        """The best set as things are now."""
        found = self._solve_near() if self._ready else None
        if found is None:
            found = self._solve_all()
        chosen = self._chosen.copy()
        chosen.flags.writeable = False
        value, upper_bound, price, proven = found
        return Selection(chosen, value, upper_bound, upper_bound - value, proven, price)

    def _solve_near(self) -> tuple[float, float, float, bool] | None:
        k, (size, kept, kept_rest, left_out) = self._near_count, self._frozen
        if size > self._capacity:
            return None
        values, sizes = self._near_values[:k], self._near_sizes[:k]
        chosen = np.empty(k, np.bool_)
        gap, open_, price, least, _ = improve_break(
            values, sizes, self._capacity, self._capacity - size, kept, max(0.0, left_out), self._beta, self._tol,
            self._budget, chosen, self._density[:k], self._items[:k],
        )  # fmt: skip
        if not (self._interval[0] <= price <= self._interval[1] and open_ <= self._margin):
            return None
        self.warm += 1
        self._chosen[self._near[:k]] = chosen
        near_value, exact = total(values, chosen, True)
        value, off = two_sum(kept, near_value)
        exact = exact and kept_rest == 0.0 and off == 0.0
        value += kept_rest + off
        proven = gap <= tolerance(self._beta, self._tol, value, least)
        if not proven:
            left_out += total(values, chosen, False)[0]
            proven = good_enough(gap, self._beta, self._tol, value, left_out, least)
        upper_bound = value if gap == 0.0 and exact else (value + gap) * (1.0 + ROUNDING)
        return float(value), float(upper_bound), float(price), bool(proven)

    def _solve_all(self) -> tuple[float, float, float, bool]:
        self.cold += 1
        value, upper_bound, price, proven, _, open_ = select_in(
            self._values, self._sizes, self._capacity, self._beta, self._tol, self._budget, self._chosen,
            self._density, self._items,
        )  # fmt: skip
        self._ready = price > 0.0 and len(self._values) > FEWEST_NEAR
        if self._ready:
            self._freeze(price, 2.0 * open_)
        return float(value), float(upper_bound), float(price), bool(proven)

    def _freeze(self, price: float, margin: float) -> None:
        """Choose interval and margin from a sample, so that about the wanted number of items is near, or more if the
        margin must be larger.
        """
        n = len(self._values)
        stride = max(1, n // SAMPLE)
        w, worth = self._values[::stride], price * self._sizes[::stride]
        useful = (w > 0.0) & (self._sizes[::stride] <= self._capacity)
        off, apart = np.abs(w - worth)[useful], np.abs(w / worth - 1.0)[useful]
        # Ties are near whatever interval and margin are. Half the width, so that where densities are few the interval
        # ends before the next one.
        off, apart = np.sort(off[apart > 1e-12]), np.sort(apart[apart > 1e-12])
        wanted = min(len(off) - 1, 8 + max(FEWEST_NEAR, n // SHARE_NEAR) // (2 * stride))
        width = 0.5 * float(apart[wanted]) if wanted >= 0 else 0.5
        width = min(width, 0.5)
        self._interval = (price * (1.0 - width), price * (1.0 + width))
        self._margin = max(margin, float(off[wanted]) if wanted >= 0 else 0.0)
        spare = max(FEWEST_NEAR, n // SHARE_NEAR)
        self._near_count, self._frozen = freeze(
            self._values, self._sizes, self._capacity, *self._interval, self._margin, self._chosen, self._where,
            self._items,
        )  # fmt: skip
        near = self._items[: self._near_count]
        self._near = np.concatenate([near, np.empty(spare, np.int64)])
        self._near_values = np.concatenate([self._values[near], np.empty(spare)])
        self._near_sizes = np.concatenate([self._sizes[near], np.empty(spare, np.int64)])

    def check(self) -> None:
        """Derive what is kept of the frozen items anew; raise CorruptState when it differs."""
        if not self._ready:
            return
        size, kept, rest, left_out = self._frozen
        near = self._near[: self._near_count]
        into, out = self._where == FROZEN_IN, self._where == FROZEN_OUT
        same: dict[str, bool] = {
            "size frozen in": size == int(self._sizes[into].sum()),
            "value frozen in": bool(np.isclose(kept + rest, self._values[into].sum(), rtol=1e-9, atol=0.0)),
            "value frozen out": bool(
                np.isclose(left_out, self._values[out].sum(), rtol=1e-9, atol=1e-9 * self._total_value)
            ),
            "places": bool((self._where[near] == np.arange(len(near))).all()),
            "near items": len(near) == int((self._where >= 0).sum()),
            "near values": bool((self._values[near] == self._near_values[: len(near)]).all()),
            "near sizes": bool((self._sizes[near] == self._near_sizes[: len(near)]).all()),
        }
        wrong = [what for what, holds in same.items() if not holds]
        if wrong:
            raise CorruptState(f"{', '.join(wrong)}: the books and counting anew differ")


@kernel
def freeze(
    values: Floats, sizes: Ints, capacity: int, low: float, high: float, margin: float, chosen: Flags, where: Ints,
    near: Ints,
) -> tuple[int, Any]:  # fmt: skip
    """Sort the items into frozen and near; returns how many are near, and what is frozen."""
    count, size, kept, rest, left_out = 0, 0, 0.0, 0.0, 0.0
    for i in range(values.shape[0]):
        w, s = values[i], sizes[i]
        # Rounding counts against freezing.
        if w - high * s >= margin + (w + high * s) * ROUNDING and s <= capacity:
            where[i] = FROZEN_IN
            chosen[i] = True
            size += s
            kept, off = two_sum(kept, w)
            rest += off
        elif low * s - w >= margin + (w + low * s) * ROUNDING or w == 0.0 or s > capacity:
            where[i] = FROZEN_OUT
            chosen[i] = False
            left_out += w
        else:
            where[i] = count
            near[count] = i
            count += 1
    return count, (size, kept, rest, left_out)


@kernel
def thaw(
    items: Ints, values: Floats, sizes: Ints, where: Ints, near: Ints, count: int, size: int, kept: float, rest: float,
    left_out: float,
) -> tuple[int, Any]:  # fmt: skip
    """Move the items to the near ones, those that are frozen; returns how many are near, and what is frozen."""
    for i in items:
        if where[i] >= 0:
            continue
        if where[i] == FROZEN_IN:
            size -= sizes[i]
            kept, off = two_sum(kept, -values[i])
            rest += off
        else:
            left_out -= values[i]
        where[i] = count
        near[count] = i
        count += 1
    return count, (size, kept, rest, left_out)
