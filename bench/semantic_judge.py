"""Measure the judge of the semantic tier on pairs of answers with known truth: what its rungs accept wrongly.

    python bench/semantic_judge.py [--out DIR] [--each N]

The pairs are built by `bench/_answer_pairs.py`; the embeddings are those of the local model. A false "same" is what
adds to the error of the certificate: if it accepts a share f of wrong candidates, a certified error of delta is at most
delta / (1 - f). The upper limit of f is that of Clopper and Pearson at 95 %. A "same" that is missed delays the
certificate, or is left to the judge model.

Prints a table; writes semantic_judge.json to DIR.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from typing import Any

import numpy as np
from _answer_pairs import build_pairs
from _results import options_for, write_result
from numpy.typing import NDArray

from knapcache.cli.output import print_table
from knapcache.features.semantic import judge
from knapcache.features.semantic.embedding import Embedder, local_embedder

THRESHOLDS = (0.7, 0.8, 0.85, 0.9, 0.95)


class CachedCosine:
    """Cosine of two texts. Each text is embedded once."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def __call__(self, a: str, b: str) -> float:
        for text in (a, b):
            if text not in self._vectors:
                self._vectors[text] = self._embedder.embed([text])[0]
        return float(self._vectors[a] @ self._vectors[b])


def upper_limit(wrong: int, total: int) -> float:
    """Return the one-sided 95 % limit of Clopper and Pearson: the share at which so few are seen in 5 % of samples."""
    low, high = wrong / total, 1.0
    for _ in range(60):
        share = (low + high) / 2
        terms, term = 0.0, (1 - share) ** total
        for k in range(wrong + 1):
            terms += term
            term *= (total - k) / (k + 1) * share / (1 - share)
        low, high = (share, high) if terms > 0.05 else (low, share)
    return high


def measure(each: int) -> dict[str, Any]:
    """Return how each rung decides pairs of each kind, and what other thresholds would accept."""
    pairs = build_pairs(each=each)
    embedder = local_embedder()
    cosine = CachedCosine(embedder)
    started = time.perf_counter()
    verdicts = [judge.compare_answers(pair.stored, pair.new, cosine) for pair in pairs]
    seconds = time.perf_counter() - started
    rows = []
    for truth in (True, False):
        for kind in sorted({pair.kind for pair in pairs if pair.same == truth}):
            found = Counter(
                verdict
                for pair, verdict in zip(pairs, verdicts, strict=True)
                if pair.same == truth and pair.kind == kind
            )
            counts = {f"{verdict} {rung}": count for (verdict, rung), count in sorted(found.items())}
            rows.append({"truth": "same" if truth else "different", "kind": kind, "pairs": found.total(), **counts})
    different = sum(not pair.same for pair in pairs)
    accepted = Counter(
        rung for pair, (verdict, rung) in zip(pairs, verdicts, strict=True) if verdict == "same" and not pair.same
    )
    total = accepted.total()
    return {
        "machine": platform.platform(),
        "build": embedder.build,
        "pairs": len(pairs),
        "same": len(pairs) - different,
        "different": different,
        "rows": rows,
        "accepted_wrongly": {rung: accepted.get(rung, 0) for rung in ("equal", "embedding")},
        "accepted_wrongly_limit": upper_limit(total, different),
        "thresholds": [threshold_row(pairs, cosine, threshold) for threshold in THRESHOLDS],
        "milliseconds_per_pair": 1000 * seconds / len(pairs),
    }


def threshold_row(pairs: Any, cosine: CachedCosine, threshold: float) -> dict[str, Any]:
    """Return what the embedding rung accepts with another threshold, and with the threshold alone."""
    before, judge.SAME = judge.SAME, threshold
    try:
        found = [judge.compare_answers(pair.stored, pair.new, cosine)[0] == "same" for pair in pairs]
    finally:
        judge.SAME = before
    alone = [cosine(pair.stored, pair.new) >= threshold for pair in pairs]
    same, different = [pair.same for pair in pairs], [not pair.same for pair in pairs]
    return {
        "cosine": threshold,
        "same_found": float(np.mean(np.array(found)[same])),
        "accepted_wrongly": float(np.mean(np.array(found)[different])),
        "cosine_alone_same_found": float(np.mean(np.array(alone)[same])),
        "cosine_alone_accepted_wrongly": float(np.mean(np.array(alone)[different])),
    }


def main() -> None:
    parser = options_for(__doc__, "semantic_judge.json")
    parser.add_argument("--each", type=int, default=120, help="pairs of a template, of each truth (default: 120)")
    arguments = parser.parse_args()
    record = measure(arguments.each)
    print_table(record["rows"])
    print_table(record["thresholds"])
    print(
        f"accepted wrongly: {record['accepted_wrongly']} of {record['different']}, "
        f"at most {record['accepted_wrongly_limit']:.2%}"
    )
    write_result(arguments.out, "semantic_judge", record)


if __name__ == "__main__":
    main()
