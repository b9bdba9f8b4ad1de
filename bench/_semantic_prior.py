"""Fits CENTRE, SCALE and PRIOR of src/knapcache/features/semantic/score.py, and prints them.

    python bench/_semantic_prior.py

The labels are those of a replay that serves nothing, with three sets of questions: the templates of
_semantic_questions.py, the same in lower case, and 8,000 questions of CLINC (intents_clinc.jsonl.gz in
$KNAPCACHE_TRACES, default ../shared/data). The sets disagree about most weights, so the prior must be weak: each set
counts as WEIGHT labels, RIDGE pulls every weight but the constant towards 0, and the result is halved.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence

import _semantic_questions
import numpy as np
import numpy.typing as npt

from knapcache.features.semantic.differences import FEATURES
from knapcache.features.semantic.embedding import Embedder, local_embedder
from knapcache.features.semantic.learner import CANDIDATES, MIN_COSINE, Candidate, SemanticLearner
from knapcache.features.semantic.question import excluded
from knapcache.features.semantic.score import fit
from knapcache_experiments.measured import traces_directory

QUESTIONS = 8000
WEIGHT = 2000
RIDGE = 20.0
Array = npt.NDArray[np.float64]


def labels(embedder: Embedder, questions: Sequence[tuple[str, str]]) -> tuple[Array, Array]:
    """Return the features of the best candidate of each question, and whether it was wrong."""
    questions = [(text, meaning) for text, meaning in questions if not excluded(text)]
    vectors = embedder.embed([text for text, _ in questions])
    learner, rows, wrongs = SemanticLearner(error=1e-6), [], []  # the error is too small for anything to be served
    for at, (text, meaning) in enumerate(questions):
        cosines = vectors[:at] @ vectors[at]
        nearest = [int(each) for each in np.argsort(-cosines)[:CANDIDATES] if cosines[each] >= MIN_COSINE]
        found = [Candidate(each.to_bytes(4, "big"), questions[each][0], float(cosines[each])) for each in nearest]
        match = learner.match(text, found)
        if match is not None:
            wrong = questions[int.from_bytes(match.key, "big")][1] != meaning
            learner.add(match.label(wrong, "shadow"))
            rows.append(match.features[: len(FEATURES)])
            wrongs.append(wrong)
    return np.array(rows), np.array(wrongs, float)


def question_sets() -> dict[str, list[tuple[str, str]]]:
    """Return the sets, each in random order: text and meaning of each question."""
    templates = [(each.text, each.meaning) for each in _semantic_questions.each_once(seed=1)]
    with gzip.open(traces_directory() / "intents_clinc.jsonl.gz", "rt", encoding="utf-8") as lines:
        clinc = sorted({(row["text"], row["intent"]) for row in map(json.loads, lines)})
    return {
        "templates": templates,
        "lower case": [(text.lower(), meaning) for text, meaning in templates],
        "clinc": random.Random(1).sample(clinc, QUESTIONS),
    }


def main() -> None:
    embedder = local_embedder()
    found = {name: labels(embedder, questions) for name, questions in question_sets().items()}
    for name, (_, wrong) in found.items():
        print(f"{name}: {len(wrong)} labels, {wrong.mean():.1%} wrong")
    rows = np.vstack([x[:WEIGHT] for x, _ in found.values()])
    centre, scale = rows.mean(axis=0).round(2), rows.std(axis=0).round(2)
    z = np.vstack([np.hstack([np.ones((len(x), 1)), (x - centre) / scale]) for x, _ in found.values()])
    wrong = np.concatenate([y for _, y in found.values()])
    weight = np.concatenate([np.full(len(y), WEIGHT / len(y)) for _, y in found.values()])
    ridge = np.array([1e-3] + [RIDGE] * len(FEATURES))
    prior = fit(z, wrong, np.zeros(len(ridge)), ridge, np.zeros(len(ridge)), weight)
    prior[1:] /= 2
    prior = fit(z, wrong, prior, np.where(np.arange(len(ridge)) > 0, 1e9, 1e-3), prior, weight)  # the constant anew
    for name, values in (("CENTRE", centre), ("SCALE", scale), ("PRIOR", prior)):
        print(f"{name} = ({', '.join(f'{value:.2f}' for value in values)})")


if __name__ == "__main__":
    main()
