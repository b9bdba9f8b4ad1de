"""Dangerous pairs and drift: what the semantic tier stops before any score, what it serves, and when it notices.

    python bench/semantic_dangers.py [--out DIR] [--parts LIST] [--runs N] [--seed N]

Parts, all by default. Data is in $KNAPCACHE_TRACES (default ../shared/data):

    pairs    share of dangerous pairs that exclusions and vetoes stop, of dangerous_pairs.tsv (`open`), if it is there,
             and of _semantic_dangers.py (`own`), by kind; share of paraphrases (similar_pairs.jsonl.gz) that they stop
    forms    forms of the rule about differences (_semantic_forms.py): share served and wrong on the templates at 1 %
             and on CLINC (intents_clinc.jsonl.gz) at 5 %, and how many dangerous pairs the tier would serve then; the
             tier's form also on CLINC at 1 %
    drift    the drill of _semantic_drift.py, --runs times with each repair

Prints tables; writes semantic_dangers.json to DIR.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import _semantic_questions
import numpy as np
from _results import Row, options_for, print_targets, target, write_result
from _semantic_dangers import HARMLESS, DangerousPair, dangerous_pairs
from _semantic_drift import Drill, intent_questions
from _semantic_forms import FORMS

from knapcache.cli.output import print_table
from knapcache.features.semantic.differences import contradiction, veto
from knapcache.features.semantic.embedding import local_embedder
from knapcache.features.semantic.lab import replay, truth_differs
from knapcache.features.semantic.lab.read import QuestionFields, parse
from knapcache.features.semantic.lab.report import summary
from knapcache.features.semantic.learner import Candidate, SemanticLearner
from knapcache.features.semantic.question import excluded
from knapcache.features.semantic.words import QuestionWords, read_words
from knapcache_experiments.measured import traces_directory

PARTS = ("pairs", "forms", "drift")
OWN_FORM = "word, and substitutions by pair"
DRIFT_ERROR, REPAIRS = 0.05, ("purge", "back")
Veto = Callable[[QuestionWords, QuestionWords], str]


def open_pairs() -> list[DangerousPair]:
    """Return the pairs of dangerous_pairs.tsv; none if it is missing."""
    path = traces_directory() / "dangerous_pairs.tsv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [DangerousPair(*row) for row in list(csv.reader(file, delimiter="\t"))[1:]]


def clinc() -> list[tuple[str, str]]:
    with gzip.open(traces_directory() / "intents_clinc.jsonl.gz", "rt", encoding="utf-8") as file:
        return [(row["text"], row["intent"]) for row in map(json.loads, file)]


@cache
def vector_of(text: str) -> Any:
    return local_embedder().embed([text])[0]


def vectors_of(texts: Sequence[str]) -> Any:
    return np.array([vector_of(text) for text in texts])


def is_stopped(pair: DangerousPair, rule: Veto) -> bool:
    return bool(excluded(pair.one) or excluded(pair.other) or rule(read_words(pair.one), read_words(pair.other)))


def pair_rows() -> Iterator[Row]:
    """Yield the share of pairs that is stopped, by set and kind."""
    for name, pairs in (("open", open_pairs()), ("own", dangerous_pairs())):
        for kind in ["all", *dict.fromkeys(pair.kind for pair in pairs)] if pairs else []:
            chosen = [pair for pair in pairs if kind in ("all", pair.kind)]
            shares = (sum(is_stopped(pair, rule) for pair in chosen) / len(chosen) for rule in (veto, contradiction))
            yield dict(zip(("stopped", "contradictions"), shares, strict=True)) | {
                "set": name, "kind": kind, "pairs": len(chosen),
            }  # fmt: skip
    path = traces_directory() / "similar_pairs.jsonl.gz"
    same = [DangerousPair("", *pair) for pair in HARMLESS]
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            same += [DangerousPair("", row["origin"], row["similar"]) for row in map(json.loads, file)]
    words = [(read_words(one), read_words(other)) for _, one, other in same]
    stopped, contradictions = (sum(bool(rule(*pair)) for pair in words) / len(words) for rule in (veto, contradiction))
    yield {
        "stopped": stopped,
        "contradictions": contradictions,
        "set": "paraphrases",
        "kind": "all",
        "pairs": len(same),
    }


def served_dangers(learner: SemanticLearner, pairs: Sequence[DangerousPair]) -> int:
    """Return how many dangerous pairs a learner would serve, in one direction or the other."""
    served = 0
    for _, one, other in pairs:
        if not excluded(one) and not excluded(other):
            cosine = float(vector_of(one) @ vector_of(other))
            matches = [learner.match(a, [Candidate(b"k", b, cosine)]) for a, b in ((one, other), (other, one))]
            served += any(match is not None and learner.serves(match) for match in matches)
    return served


def form_row(name: str, stream: str, error: float, seed: int) -> Row:
    """Return what is served with a form of the rule."""
    rows = clinc()
    random.Random(seed).shuffle(rows)
    if stream == "slots":
        rows = [(question.text, question.meaning) for question in _semantic_questions.each_once(seed)]
    fields = QuestionFields(truth="truth")
    questions = [parse(f"{k}", {"text": text, "truth": truth}, fields, 0.0) for k, (text, truth) in enumerate(rows)]
    learner = SemanticLearner(error, FORMS[name]())
    vectors = vectors_of([text for text, _ in rows])
    found = replay(questions, vectors, error=error, compare=truth_differs, seed=seed, learner=learner)
    result = summary(found, questions)
    columns = ("served_rate", "error", "wrong", "audits", "alarms")
    row = {"form": name, "stream": stream, "allowed": error} | {column: result[column] for column in columns}
    served = {"open_served": open_pairs(), "own_served": dangerous_pairs()}
    return row | {name: served_dangers(learner, pairs) for name, pairs in served.items()}


def drift_row(repair: str, seed: int) -> Row:
    questions = intent_questions(clinc(), seed)
    vectors = vectors_of([text for text, _ in questions])
    return {"seed": seed} | Drill(questions, vectors, DRIFT_ERROR, repair, seed).run()


def check_targets(record: Row) -> list[Row]:
    targets = [
        target(f"{row['set']} pairs stopped before any score", row["stopped"], at_least=0.8)
        for row in record.get("pairs", ())
        if row["set"] != "paraphrases" and row["kind"] == "all"
    ]
    for row in record.get("forms", ()):
        if row["form"] == OWN_FORM:
            name = f"{row['stream']}, δ = {row['allowed']:g}"
            targets += [
                target(f"{name}: open dangerous pairs served", row["open_served"], at_most=0),
                target(f"{name}: error among hits", row["error"] or 0.0, at_most=row["allowed"]),
            ]
            least = {("slots", 0.01): 0.3, ("clinc", 0.05): 0.35}.get((row["stream"], row["allowed"]))
            if least:
                targets.append(target(f"{name}: share served", row["served_rate"], at_least=least))
    if drills := record.get("drift"):
        for name, most in (("wrong_after_drift", 15), ("audit_share", 0.08), ("labels_to_recover", 300)):
            for repair in REPAIRS if name == "labels_to_recover" else ("",):
                chosen = [row[name] for row in drills if row["repair"] == repair or not repair]
                values = sorted(value for value in chosen if value is not None)
                label = f"drift: {name}, {repair}, median" if repair else f"drift: {name}, median"
                targets.append(target(label, values[len(values) // 2], at_most=most, worst=values[-1]))
    return targets


def run(args: argparse.Namespace) -> None:
    record: Row = {"seed": args.seed}
    parts = args.parts.split(",") if args.parts else PARTS
    if not (traces_directory() / "intents_clinc.jsonl.gz").exists():
        print("forms, drift: skipped, intents_clinc.jsonl.gz is missing; set KNAPCACHE_TRACES", file=sys.stderr)
        parts = [part for part in parts if part == "pairs"]
    if "pairs" in parts:
        record["pairs"] = list(pair_rows())
        print_table(record["pairs"], title="stopped before any score")
    if "forms" in parts:
        runs = [(name, *stream) for name in FORMS for stream in (("slots", 0.01), ("clinc", 0.05))]
        record["forms"] = [form_row(*each, args.seed) for each in (*runs, (OWN_FORM, "clinc", 0.01))]
        print_table(record["forms"], title="forms of the rule")
    if "drift" in parts:
        record["drift"] = [drift_row(repair, args.seed + k) for k in range(args.runs) for repair in REPAIRS]
        print_table(record["drift"], title="drift")
    record["targets"] = check_targets(record)
    print_targets(record["targets"])
    write_result(args.out, "semantic_dangers", record)


def main() -> None:
    parser = options_for(__doc__, "semantic_dangers.json")
    parser.add_argument("--parts", metavar="LIST", help=f"parts, of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--runs", type=int, metavar="N", default=8, help="drills with each repair (default: 8)")
    parser.add_argument("--seed", type=int, metavar="N", default=1, help="seed of all draws (default: 1)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
