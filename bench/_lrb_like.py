"""An eviction policy like LRB (Song et al., NSDI 2020: "Learning Relaxed Belady for Content Distribution Network
Caching"), for bench/learned.py.

LRB predicts the time to the next request of an object from its last 31 request intervals, ten exponentially decayed
counters, its size and its age, with gradient-boosted trees that are trained again and again on sampled objects. To
evict, 64 objects are drawn; the one of the greatest log(time) · size is evicted, where the objective is the number of
misses. Before the first model, and for objects not requested within the memory window, it is LRU.

The features, labels, tree parameters and sample are those of the authors' code. What differs:

    batch            a model is trained on 4,096 samples instead of 131,072, which the traces here never reach
    memory window    16,384 requests; the authors choose it for each trace and cache size by validation
    samples          at most one sample of an object waits for its label; the authors allow several
    cost             optional: log(time) · size / mean cost of the object's misses, and that cost as a feature
"""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from knapcache.kernel import kernel, records
from knapcache.lab.trace import Trace

BATCH, WINDOW, DRAWN = 4096, 16_384, 64
DELTAS, COUNTERS = 31, 10
FEATURES = 1 + DELTAS + 2 + COUNTERS + 1
TREES = {
    "objective": "regression", "num_leaves": 32, "num_threads": 1, "feature_fraction": 0.8, "bagging_freq": 5,
    "bagging_fraction": 0.8, "learning_rate": 0.1, "verbosity": -1, "force_row_wise": True, "seed": 0,
}  # fmt: skip
ITERATIONS = 32
HEAD = [
    ("t", "i8"), ("capacity", "i8"), ("used", "i8"), ("cached", "i8"), ("known", "i8"), ("full", "?"),
    ("random", "i8"), ("by_cost", "?"), ("trees", "i8"), ("samples", "i8"),
]  # fmt: skip
ROWS = [
    ("last", "i8"), ("entry_size", "i8"), ("paid", "f8"), ("misses", "i8"), ("sampled", "i8"), ("requests", "i8"),
    ("deltas", f"({DELTAS},)f8"), ("counters", f"({COUNTERS},)f8"),
    ("resident", "?"), ("older", "i8"), ("newer", "i8"),
    ("cached_slot", "i8"), ("cached_id", "i8"), ("known_slot", "i8"), ("known_id", "i8"),
]  # fmt: skip
NODE = [("feature", "i8"), ("threshold", "f8"), ("left", "i8"), ("right", "i8"), ("value", "f8")]


@kernel
def draw(head: Any, n: int) -> int:
    """Return a random number below n."""
    head[0].random = head[0].random * 48271 % 2147483647
    return int(head[0].random % n)


@kernel
def fill(rows: Any, i: int, t: int, x: Any) -> None:
    """Write the features of object i at time t into x."""
    q = rows[i]
    age = t - q.last
    x[0] = age
    passed, within = 0.0, 0
    for j in range(DELTAS):
        x[1 + j] = q.deltas[j]
        passed += q.deltas[j]
        within += int(q.deltas[j] > 0.0 and passed < WINDOW)
    x[1 + DELTAS] = q.entry_size
    x[2 + DELTAS] = within
    for j in range(COUNTERS):
        x[3 + DELTAS + j] = q.counters[j] * 0.5 ** (age // (1024 << j))
    x[FEATURES - 1] = q.paid / max(q.misses, 1)


@kernel
def predict(nodes: Any, trees: int, x: Any) -> float:
    """Return the sum of the trees; tree k starts at node k, leaves have feature −1."""
    total = 0.0
    for k in range(trees):
        n = k
        while nodes[n].feature >= 0:
            n = nodes[n].left if x[nodes[n].feature] <= nodes[n].threshold else nodes[n].right
        total += nodes[n].value
    return total


@kernel
def label(head: Any, rows: Any, i: int, distance: int, samples: Any, labels: Any) -> None:
    """Move the waiting sample of object i, if any, to the training data."""
    if rows[i].sampled >= 0 and head[0].samples < BATCH:
        fill(rows, i, rows[i].sampled, samples[head[0].samples])
        labels[head[0].samples] = np.log1p(distance)
        head[0].samples += 1
    rows[i].sampled = -1


@kernel
def victim(head: Any, rows: Any, nodes: Any, x: Any) -> int:
    """Return the object to evict."""
    h = head[0]
    end = len(rows) - 1
    oldest = rows[end].newer
    if h.trees == 0 or h.t - rows[oldest].last >= WINDOW:
        return int(oldest)
    found, worst = -1, 0.0
    for k in range(min(h.cached, DRAWN)):
        i = rows[k if h.cached <= DRAWN else draw(head, h.cached)].cached_id
        fill(rows, i, h.t, x)
        score = predict(nodes, h.trees, x) * rows[i].entry_size
        if h.by_cost:
            score /= max(rows[i].paid / max(rows[i].misses, 1), 1e-12)
        if found < 0 or score > worst:
            found, worst = i, score
    return int(found)


@kernel
def unlink(rows: Any, i: int) -> None:
    rows[rows[i].older].newer = rows[i].newer
    rows[rows[i].newer].older = rows[i].older


@kernel
def push(rows: Any, i: int) -> None:
    end = len(rows) - 1
    before = rows[end].older
    rows[i].older, rows[i].newer = before, end
    rows[before].newer = i
    rows[end].older = i


@kernel
def run(
    head: Any, rows: Any, nodes: Any, samples: Any, labels: Any, keys: Any, sizes: Any, costs: Any, hits: Any
) -> None:
    """Replay until the end of the trace or until the training data is full."""
    h = head[0]
    x = np.zeros(FEATURES)
    while h.t < len(keys) and h.samples < BATCH:
        t, i = h.t, keys[h.t]
        if t >= WINDOW:  # forget an object that was not requested within the window
            k = keys[t - WINDOW]
            if rows[k].last == t - WINDOW and not rows[k].resident:
                label(head, rows, k, 2 * WINDOW, samples, labels)
                rows[k].last, rows[k].requests = -1, 0
                h.known -= 1
                moved = rows[h.known].known_id
                rows[rows[k].known_slot].known_id = moved
                rows[moved].known_slot = rows[k].known_slot
        q = rows[i]
        hits[t] = q.resident
        if q.requests > 0:
            distance = t - q.last
            label(head, rows, i, t - max(q.sampled, 0), samples, labels)
            for j in range(DELTAS - 1, 0, -1):
                q.deltas[j] = q.deltas[j - 1]
            q.deltas[0] = distance
            for j in range(COUNTERS):
                q.counters[j] = q.counters[j] * 0.5 ** (distance // (1024 << j)) + 1.0
        else:
            q.deltas[:] = 0.0
            q.counters[:] = 1.0
            q.sampled = -1
            rows[h.known].known_id = i
            q.known_slot = h.known
            h.known += 1
        q.requests += 1
        q.last = t
        if h.full:
            k = rows[draw(head, h.known)].known_id
            if rows[k].sampled < 0:
                rows[k].sampled = t
        if q.resident:
            unlink(rows, i)
            push(rows, i)
        else:
            q.paid += costs[t]
            q.misses += 1
            q.entry_size = sizes[t]
            if sizes[t] <= h.capacity:
                while h.used + sizes[t] > h.capacity:
                    h.full = True
                    v = victim(head, rows, nodes, x)
                    unlink(rows, v)
                    rows[v].resident = False
                    h.used -= rows[v].entry_size
                    h.cached -= 1
                    moved = rows[h.cached].cached_id
                    rows[rows[v].cached_slot].cached_id = moved
                    rows[moved].cached_slot = rows[v].cached_slot
                q.resident = True
                h.used += q.entry_size
                rows[h.cached].cached_id = i
                q.cached_slot = h.cached
                h.cached += 1
                push(rows, i)
        h.t += 1


def flattened(model: dict[str, Any]) -> Any:
    """Return the trees of a LightGBM model as one array of nodes."""
    roots = [tree["tree_structure"] for tree in model["tree_info"]]
    nodes: list[tuple[int, float, int, int, float]] = [(-1, 0.0, 0, 0, 0.0)] * len(roots)

    def place(tree: dict[str, Any], at: int) -> None:
        if "split_feature" not in tree:
            nodes[at] = (-1, 0.0, 0, 0, tree["leaf_value"])
            return
        left = len(nodes)
        nodes.extend([nodes[at]] * 2)
        nodes[at] = (tree["split_feature"], tree["threshold"], left, left + 1, 0.0)
        place(tree["left_child"], left)
        place(tree["right_child"], left + 1)

    for k, root in enumerate(roots):
        place(root, k)
    array = records(NODE, len(nodes))
    array[:] = np.array(nodes, array.dtype)
    return array


def replay_lrb_like(trace: Trace, capacity: int, *, by_cost: bool) -> tuple[npt.NDArray[np.bool_], int]:
    """Return the hits and the number of models that were trained."""
    head, rows, nodes = records(HEAD, 1), records(ROWS, trace.ids + 1), records(NODE, 1)
    head["capacity"], head["random"], head["by_cost"] = capacity, 1, by_cost
    rows["last"] = rows["sampled"] = -1
    rows["older"][-1] = rows["newer"][-1] = trace.ids
    samples, labels = np.zeros((BATCH, FEATURES)), np.zeros(BATCH)
    hits = np.zeros(len(trace.keys), bool)
    models = 0
    while head["t"][0] < len(trace.keys):
        run(head, rows, nodes, samples, labels, trace.keys, trace.sizes, trace.costs, hits)
        if head["samples"][0] == BATCH:
            used = samples if by_cost else samples[:, :-1]
            booster = lightgbm.train(TREES, lightgbm.Dataset(used, labels), ITERATIONS)
            nodes = flattened(booster.dump_model())
            head["trees"], head["samples"] = booster.num_trees(), 0
            models += 1
    return hits, models
