"""When an Oracle call can be skipped: a certificate that a change of one item cannot change the optimum.

Let x be an optimal set for values w, and λ any price. For every set y, Lagrange's bound of step 1 in `exact` gives

    w(y) ≤ L − Σ (|w − λS| over the items that y decides against the price)        L = λ·M + Σ max(0, w − λS)

and for x itself w(x) = L − G, where the *slack* G is what x loses against the price:

    G = λ·(capacity x leaves free) + Σ over kept items with w < λS of (λS − w)
        + Σ over the others with w > λS of (w − λS)

Now values change to w'. Call a change harmless

    * of a kept item, if its value has not fallen;
    * of another item, if its value has not risen, or if still λS − w' > G.

Claim: if all changes since x was found are harmless, x is still optimal. Take any set y.

    If y contains no item outside x whose value rose, then y gained nothing on x: its items outside x did not rise, and
    the items of x that it lacks did not fall. So w'(y) − w'(x) ≤ w(y) − w(x) ≤ 0.
    If y contains such an item q, it decides q against the price: w'(y) ≤ L' − (λS_q − w'_q) < L' − G. G has not grown,
    because harmless changes only move items to their side of λ or nearer to it. So w'(x) ≥ L' − G > w'(y).

A new item counts as one whose value rose. A common factor on all values moves no optimum, so values need not be
normalised. They should not be: normalising changes every one of them. The certificate does not say that x is the *only*
optimum. So a caller that skips calls must also keep x when a call finds nothing better; otherwise ties would make a
difference.
"""

from __future__ import annotations

from knapcache.kernel import kernel
from knapcache.oracle.problem import Flags, Floats, Ints

# Far above the rounding error of a value or of λS, and far below relevant differences.
MARGIN = 1e-9


@kernel
def slack(values: Floats, sizes: Ints, capacity: int, chosen: Flags, price: float) -> float:
    """Return G, rounded up: how far the chosen set is below Lagrange's bound."""
    free, against = capacity, 0.0
    for i in range(values.shape[0]):
        size_cost = price * sizes[i]
        if chosen[i]:
            free -= sizes[i]
            against += max(0.0, size_cost - values[i])
        else:
            against += max(0.0, values[i] - size_cost)
    return (price * free + against) * (1.0 + MARGIN)


@kernel
def harmless(kept: bool, before: float, after: float, size: int, price: float, slack: float) -> bool:
    """Return whether an item's value may change from `before` to `after` without changing the optimum. O(1)."""
    if kept:
        return after >= before
    return after <= before or price * size * (1.0 - MARGIN) - after > slack
