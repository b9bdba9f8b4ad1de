"""M̂: the set of queries that the Oracle recommends (line 25 of Algorithm 1)."""

from __future__ import annotations

import numpy as np

from knapcache.estimate.statistics import empirical_value, values_of
from knapcache.kernel import Records, kernel
from knapcache.oracle.exact import FrozenItems, SearchOptions, Workspace, select, select_in
from knapcache.policy.vsocb.certificate import Candidates, certify, record_values
from knapcache.policy.vsocb.near_queries import (
    NONE_UNPROVEN,
    freeze_queries,
    frozen_totals,
    make_near,
    margins_hold,
    near_candidates,
    within_margins,
)

RELATIVE_TOLERANCE = 1e-13
UNLIMITED = -1


@kernel
def recommend_warm(head: Records, rows: Records) -> np.ndarray:
    """Return what `recommend` returns, looking only at the queries near the price if that is enough."""
    h = head[0]
    if margins_hold(head):
        queries, frozen = near_candidates(head, rows), frozen_totals(head)
        value, upper_bound, price, open_ = call_oracle(head, queries, frozen)
        if within_margins(head, queries, value, price, open_):
            h.oracle_calls += 1
            certify(
                head, queries, frozen, value, upper_bound, price, h.least_unproven == NONE_UNPROVEN and h.beta == 0.0
            )
            return update_recommended(head, rows, queries, frozen.size)
    queries, price, open_, value = recommend_all(head, rows, True)
    changed = update_recommended(head, rows, queries, 0)
    freeze_queries(head, rows, queries, price, open_, value)
    return changed


@kernel
def recommend(head: Records, rows: Records, fill: bool) -> np.ndarray:
    """M̂_t = Oracle(Q_t, Ĉ_t, P̂_t, S, M); with `fill`, use the space it leaves by empirical value (E7).

    Return the ids in exactly one of M̂_t and M̂_{t−1}.
    """
    return update_recommended(head, rows, recommend_all(head, rows, fill)[0], 0)


@kernel
def recommend_all(head: Records, rows: Records, fill: bool) -> tuple[Candidates, float, float, float]:
    """Choose M̂_t from all queries; also returns the price, the distance from its bound, and the value of M̂_t."""
    h = head[0]
    h.oracle_calls += 1
    h.all_solved += 1
    ids, sizes, previous = np.empty(h.seen, np.int64), np.empty(h.seen, np.int64), np.empty(h.seen, np.bool_)
    n = 0
    for i in range(len(rows) - 1):
        if rows[i].misses > 0:  # q ∈ Q_t
            ids[n], sizes[n], previous[n] = i, rows[i].entry_size, rows[i].recommended
            n += 1
    values, chosen = values_of(head, rows, ids, True), np.zeros(n, np.bool_)
    queries = Candidates(ids=ids, values=values, sizes=sizes, previous=previous, chosen=chosen)
    frozen = FrozenItems(0, 0.0, 0.0, 0.0)
    value, upper_bound, price, open_ = call_oracle(head, queries, frozen)
    if fill:
        proven = not fill_with_unproven(head, rows, queries)
        record_values(head, rows, queries)
        certify(head, queries, frozen, value, upper_bound, price, proven and h.beta == 0.0)
    return queries, price, open_, value


@kernel
def call_oracle(head: Records, queries: Candidates, frozen: FrozenItems) -> tuple[float, float, float, float]:
    """Choose from the queries, starting from M̂_{t−1}; returns value, upper bound, price and distance from its bound."""
    h, n = head[0], len(queries.ids)
    space = Workspace(
        values=queries.values,
        sizes=queries.sizes,
        chosen=queries.chosen,
        density=np.empty(n, np.int64),
        items=np.empty(n, np.int64),
    )
    options = SearchOptions(h.beta, RELATIVE_TOLERANCE, UNLIMITED)
    value, upper_bound, price, _, work, open_ = select_in(space, h.capacity, frozen, options, queries.previous)
    h.oracle_work += work
    return value, upper_bound, price, open_


@kernel
def update_recommended(head: Records, rows: Records, queries: Candidates, frozen_size: int) -> np.ndarray:
    """Write the choice to M̂; returns the ids that changed."""
    h, n = head[0], 0
    h.recommended_size = frozen_size
    changed = np.empty(len(queries.ids), np.int64)
    for k in range(len(queries.ids)):
        if queries.chosen[k]:
            h.recommended_size += queries.sizes[k]
        if queries.chosen[k] != queries.previous[k]:
            rows[queries.ids[k]].recommended = queries.chosen[k]
            changed[n] = queries.ids[k]
            n += 1
    return changed[:n]


@kernel
def fill_with_unproven(head: Records, rows: Records, queries: Candidates) -> bool:
    """E7: call the Oracle again for queries of value 0 and the space left, by empirical value.

    Return whether there was such a query.
    """
    free = head[0].capacity
    unproven = 0
    for k in range(len(queries.ids)):
        if queries.chosen[k]:
            free -= queries.sizes[k]
        elif queries.values[k] == 0.0:
            unproven += 1
    if unproven == 0:
        return False
    where = np.empty(unproven, np.int64)
    values = np.empty(unproven, np.float64)
    sizes = np.empty(unproven, np.int64)
    m = 0
    for k in range(len(queries.ids)):
        if queries.values[k] == 0.0 and not queries.chosen[k]:
            where[m] = k
            values[m] = empirical_value(head, rows, queries.ids[k])
            sizes[m] = queries.sizes[k]
            m += 1
    chosen = np.zeros(unproven, np.bool_)
    select(values, sizes, free, head[0].beta, RELATIVE_TOLERANCE, UNLIMITED, chosen)
    for m in range(unproven):
        queries.chosen[where[m]] = chosen[m]
    return True


@kernel
def add_recommendation(head: Records, rows: Records, i: int) -> None:
    """M̂ ∪ {i}."""
    if not rows[i].recommended:
        make_near(head, rows, i)
        rows[i].recommended = True
        head[0].recommended_size += rows[i].entry_size
        head[0].certified = False
