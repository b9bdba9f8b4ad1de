"""When the Oracle need not be asked again: a certificate that a change of one item cannot alter the optimum.

Let x be an optimal set for values w, and λ any price. Lagrange's bound of step 1 in `exact` says of every set y

    w(y) ≤ L − Σ (what y decides against the price, |w − λS| an item)        L = λ·M + Σ max(0, w − λS)

and of x itself w(x) = L − G, where its *slack* is what x gives away against the price:

    G = λ·(room x leaves) + Σ over kept items with w < λS of (λS − w) + Σ over the others with w > λS of (w − λS)

Now values change to w'. Call a change harmless

    * of a kept item, if its value has not fallen;
    * of another, if its value has not risen, or if λS − w' > G still.

Claim: if all changes since x was found are harmless, x is still optimal. Take any set y.

    If y holds no item whose value rose outside x, then what y gained on x is at most 0: its items outside x did not
    rise, the items of x that it lacks did not fall. So w'(y) − w'(x) ≤ w(y) − w(x) ≤ 0.
    If y holds such an item q, it decides q against the price: w'(y) ≤ L' − (λS_q − w'_q) < L' − G. And G has not grown:
    harmless changes only ever put items on their side of λ, or nearer to it. So w'(x) ≥ L' − G > w'(y).

An item that was not there before counts as one whose value rose. A common factor on all values moves no optimum, so
values need not be normalised, and should not be: it would change every one of them. Whether x is the *only* optimum the
certificate does not say: who skips a call must also keep x when a call finds nothing better, or ties would tell.
"""

from __future__ import annotations

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# Far above the rounding of a value or of λS, far below what matters.
MARGIN = 1e-9


@kernel
def slack(values: Floats, sizes: Ints, capacity: int, chosen: Flags, price: float) -> float:
    """G, rounded up: how far the chosen set is below Lagrange's bound."""
    room, against = capacity, 0.0
    for i in range(values.shape[0]):
        worth = price * sizes[i]
        if chosen[i]:
            room -= sizes[i]
            against += max(0.0, worth - values[i])
        else:
            against += max(0.0, values[i] - worth)
    return (price * room + against) * (1.0 + MARGIN)


@kernel
def harmless(kept: bool, before: float, after: float, size: int, price: float, slack: float) -> bool:
    """Whether an item's value may go from `before` to `after` without altering the optimum. O(1)."""
    if kept:
        return after >= before
    return after <= before or price * size * (1.0 - MARGIN) - after > slack
