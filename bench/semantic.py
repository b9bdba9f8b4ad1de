"""Benchmark of the semantic tier: what it serves at which error, beside other rules, and what it costs.

    python bench/semantic.py [--out DIR] [--parts LIST] [--entries N] [--seed N]
    python bench/semantic.py --markdown FILE

Parts, all by default:

    serve         share of requests served by similarity and errors among them, for the tier and for other rules
                  (_semantic_peers.py), on the same questions, vectors and index. `slots` are templates with exact truth
                  (_semantic_questions.py), each question once in random order; `popular` draws 10,000 of them with
                  Zipf's popularity. `held out` are other templates: the prior of the tier's score is fitted to those
                  of `slots` and to 8,000 questions of CLINC. `clinc` has 22,500 questions with 150 intents in random
                  order, from intents_clinc.jsonl.gz in $KNAPCACHE_TRACES (default ../shared/data), if it is there.
    certificate   false certificates where the true error is the allowed one; labels until a right certificate; wrong
                  answers served after the true error rises from 0.2 % to 5 %
    vetoes        perturbed questions that are vetoed, by the rules of tests/support/perturbed_questions.py, which share
                  no code with the tier
    money         cost saved by GDSF in a small cache, by how answers by similarity count (_semantic_money.py)
    speed         CPU time of an embedding of 20 tokens, of one with a match whose candidates were never read, and of a
                  search among --entries questions, whose vectors are near those of real ones
    live          throughput of exact hits of the proxy with the tier off and in shadow (_semantic_live.py)

Prints tables; writes semantic.json and semantic.png to DIR. --markdown prints the tables of
docs/reference/semantic-lab.md from such a file and runs nothing.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _semantic_live
import _semantic_money
import _semantic_peers
import _semantic_questions
import numpy as np
from _results import Row, options_for, print_targets, run_or_show, target, write_result
from _semantic_plot import TIER, draw

from knapcache.cli.output import print_table
from knapcache.errors import InvalidInput
from knapcache.features.semantic.audits import AUDIT_RATE, Audits
from knapcache.features.semantic.certificate import LEVELS, Certificate
from knapcache.features.semantic.differences import veto
from knapcache.features.semantic.drift import DriftWatch
from knapcache.features.semantic.embedding import Embedder, local_embedder
from knapcache.features.semantic.index import FrameIndexes
from knapcache.features.semantic.lab import embed_questions, exclude_long, replay, truth_differs
from knapcache.features.semantic.lab.read import LoggedQuestion, QuestionFields, parse
from knapcache.features.semantic.lab.report import summary
from knapcache.features.semantic.learner import CANDIDATES, Candidate, SemanticLearner, parsed
from knapcache.features.semantic.words import read_words
from knapcache_experiments.measured import traces_directory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the perturbed questions of the tests

from tests.support import perturbed_questions

PARTS = ("serve", "certificate", "vetoes", "money", "speed", "live")
CLINC = "intents_clinc.jsonl.gz"
POPULAR, POPULAR_MONEY = 10_000, 20_000
STREAMS: dict[str, tuple[float, ...]] = {
    "slots": (0.01,), "popular": (0.01,), "held out": (0.05, 0.02), "clinc": (0.05, 0.02, 0.01),
}  # fmt: skip
"""Allowed errors, by stream."""
BARS = {("slots", 0.01): 0.3, ("clinc", 0.05): 0.35}
"""The least share served, by stream and allowed error."""
THRESHOLDS = (0.8, 0.9, 0.95)
NULL_RUNS, NULL_LABELS, NULL_ERRORS = 400, 3000, (0.01, 0.05)
CERTIFY_RUNS, TRUE_ERRORS, MAX_LABELS = 60, (0.001, 0.0025, 0.005), 20_000
DRIFT_RUNS, DRIFT_FROM, DRIFT_TO, DRIFT_ERROR = 100, 0.002, 0.05, 0.01
MAX_EMBED_MS, MAX_SEARCH_MS, MIN_VETOED, MIN_HITS = 10.0, 1.0, 0.95, 0.98
MUST_VETO = ("number", "negation", "swap")
EMBEDDINGS, SEARCHES, ENTRIES, TOKENS = 300, 3000, 1_000_000, 20
Log = Callable[[str], None]


def stream(name: str, seed: int) -> list[tuple[str, str]] | None:
    """Return the texts and meanings of a stream in the order of the requests; None if its file is missing."""
    if name != "clinc":
        templates = _semantic_questions.HELD_OUT if name == "held out" else _semantic_questions.TEMPLATES
        once = _semantic_questions.each_once(seed, templates)
        drawn = _semantic_questions.popular(POPULAR, seed) if name == "popular" else once
        return [(question.text, question.meaning) for question in drawn]
    path = traces_directory() / CLINC
    if not path.exists():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    random.Random(seed).shuffle(rows)
    return [(row["text"], row["intent"]) for row in rows]


def measure_stream(name: str, seed: int, embedder: Embedder, log: Log) -> Iterator[Row]:
    """Yield a row for the tier and for each other rule, at each allowed error of a stream."""
    pairs = stream(name, seed)
    if pairs is None:
        log(f"{name}: skipped, {traces_directory() / CLINC} does not exist; set KNAPCACHE_TRACES to another directory")
        return
    texts, fields = [text for text, _ in pairs], QuestionFields(truth="truth")
    questions = [
        parse(f"line {k}", {"text": text, "truth": truth}, fields, 0.0) for k, (text, truth) in enumerate(pairs, 1)
    ]
    questions = exclude_long(questions, embedder.tokens)
    # The other rules exclude nothing, so every text has a vector.
    whole = [
        LoggedQuestion(q.place, q.key, q.frame, text, "", q.truth) for q, text in zip(questions, texts, strict=True)
    ]
    vectors = embed_questions(whole, embedder)
    log(f"{name}: {len(texts):,} questions embedded")
    for error in STREAMS[name]:
        found = replay(questions, vectors, error=error, compare=truth_differs, seed=seed)
        found.check()
        result = summary(found, questions)
        columns = ("requests", "served", "wrong", "served_rate", "error", "running_rate", "labels", "certified")
        yield {"stream": name, "allowed": error, "rule": TIER} | {column: result[column] for column in columns}
        rule: _semantic_peers.PeerRule = _semantic_peers.PerRequestGuarantee(error, seed)
        peer = _semantic_peers.run_peer(rule, whole, vectors, texts)
        yield {"stream": name, "allowed": error, "requests": len(texts)} | peer
        log(f"{name}: replayed with an error of {error:g}")
    for rule in peer_rules(log):
        peer = _semantic_peers.run_peer(rule, whole, vectors, texts)
        yield {"stream": name, "allowed": None, "requests": len(texts)} | peer


def peer_rules(log: Log) -> Iterator[_semantic_peers.PeerRule]:
    """Yield the rules without an allowed error."""
    try:
        yield _semantic_peers.GptCacheEvaluation()
    except ImportError:
        log("GPTCache: skipped, gptcache is not installed")
    yield from map(_semantic_peers.Threshold, THRESHOLDS)


def false_certificates(error: float, seed: int) -> Row:
    """Return the share of runs that are ever certified although the true error of every level is the allowed one."""
    draw, certified = random.Random(f"{seed} {error}"), 0
    for _ in range(NULL_RUNS):
        certificate = Certificate(error)
        for _ in range(NULL_LABELS):
            certificate.add(draw.choice(LEVELS), draw.random() < error)
            if certificate.level >= 0:
                certified += 1
                break
    return {"allowed": error, "runs": NULL_RUNS, "labels": NULL_LABELS, "certified": certified / NULL_RUNS}


def labels_to_certify(true_error: float, seed: int) -> Row:
    """Return how many labels certify an error of 1 %, by the true error."""
    draw, counts = random.Random(f"{seed} {true_error}"), []
    for _ in range(CERTIFY_RUNS):
        certificate, count = Certificate(0.01), 0
        while certificate.level < 0 and count < MAX_LABELS:
            certificate.add(LEVELS[0], draw.random() < true_error)
            count += 1
        counts.append(count)
    counts.sort()
    return {
        "true_error": true_error, "runs": CERTIFY_RUNS, "median_labels": statistics.median(counts),
        "p90_labels": counts[int(0.9 * len(counts))],
    }  # fmt: skip


def wrong_before_stop(seed: int) -> list[int]:
    """Return how many wrong answers are served after the error has risen, until the tier is back in shadow.

    There is no shadow: only audits show the drift. 256 entries answer equally often.
    """
    draw, found = random.Random(f"{seed} drift"), []
    for _ in range(DRIFT_RUNS):
        certificate, watch, audits, wrong_served = Certificate(DRIFT_ERROR), DriftWatch(DRIFT_ERROR), Audits(), 0
        for _ in range(3000):
            certificate.add(LEVELS[0], draw.random() < DRIFT_FROM)
        while certificate.level >= 0:
            wrong = draw.random() < DRIFT_TO
            key, doubt = draw.randbytes(1), max(1.0, watch.factor, certificate.alarm_value)
            if audits.is_due(audits.rate(key, doubt, AUDIT_RATE), draw.random):
                audits.add(key, "audit", certified=True)
                certificate.add(LEVELS[0], wrong)
                watch.add(LEVELS[0], wrong, servable=True)
            else:
                audits.count_served(key)
                wrong_served += wrong
        found.append(wrong_served)
    return sorted(found)


def vetoed_shares(seed: int) -> list[Row]:
    """Return the share of perturbed questions that is vetoed, by change, as they are and in lower case."""
    rng, total, vetoed = random.Random(seed), Counter[str](), Counter[str]()
    texts = [question.text for question in _semantic_questions.questions()]
    texts += [text for text, _ in stream("clinc", seed) or []]
    for text in texts:
        for change, rule in perturbed_questions.RULES.items():
            changed = rule(text, rng)
            if changed is None:
                continue
            for name, one, other in ((change, text, changed), (f"{change}, lower case", text.lower(), changed.lower())):
                total[name] += 1
                vetoed[name] += bool(veto(read_words(other), read_words(one)))
    return [{"change": each, "questions": total[each], "vetoed": vetoed[each] / total[each]} for each in sorted(total)]


def money(seed: int) -> Row:
    """Return the share of the cost that is saved, by how answers by similarity count."""
    questions = _semantic_questions.popular(POPULAR_MONEY, seed)
    return {rule: _semantic_money.money_saved(questions, rule, seed) for rule in _semantic_money.RULES}


def time_embedding(embedder: Embedder) -> Row:
    """Return the time of one text of TOKENS tokens."""
    words = ["word"]
    while embedder.tokens(" ".join(words)) < TOKENS:
        words.append("word")
    text = " ".join(words)
    return times_of(f"embedding of {embedder.tokens(text)} tokens", lambda: embedder.embed([text]), EMBEDDINGS)


def time_match(embedder: Embedder, seed: int) -> Row:
    """Return the time of an embedding and a match with CANDIDATES questions that were never read, of TOKENS tokens."""
    draw = random.Random(seed)
    texts = [question.text for question in _semantic_questions.questions()]
    pairs = (" ".join(draw.sample(texts, 2)) for _ in itertools.count())
    asked = (text for text in pairs if abs(embedder.tokens(text) - TOKENS) <= 1)
    learner, cosines = SemanticLearner(), [0.95 - 0.05 * k for k in range(CANDIDATES)]
    groups = [[next(asked) for _ in range(CANDIDATES + 1)] for _ in range(EMBEDDINGS)]

    def match(group: list[str]) -> None:
        embedder.embed(group[:1])
        learner.match(group[0], [Candidate(b"", text, cosine) for text, cosine in zip(group[1:], cosines, strict=True)])

    parsed.cache_clear()
    calls = iter(groups)
    return times_of(f"embedding and match of {TOKENS} tokens", lambda: match(next(calls)), EMBEDDINGS)


def time_search(embedder: Embedder, entries: int, seed: int, log: Log) -> list[Row]:
    """Return the times of a search and of an addition among so many questions: vectors near those of real ones."""
    rng = np.random.default_rng(seed)
    texts = [question.text for question in _semantic_questions.questions()]
    base = np.concatenate([embedder.embed(texts[k : k + 32]) for k in range(0, len(texts), 32)])

    def vectors(count: int) -> Any:
        drawn = base[rng.integers(len(base), size=count)] + rng.normal(0.0, 0.03, (count, base.shape[1]))
        return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)

    index = FrameIndexes(base.shape[1], limit=entries + SEARCHES)
    for start in range(0, entries, 10_000):
        if start % 200_000 == 0:
            log(f"index: {start:,} of {entries:,} questions")
        for number, vector in enumerate(vectors(min(10_000, entries - start)), start):
            index.add(b"frame", number.to_bytes(8), vector)
    asked = iter(vectors(2 * SEARCHES))
    rows = [times_of(f"search among {entries:,} questions", lambda: index.search(b"frame", next(asked), 6), SEARCHES)]
    numbers = iter(range(entries, entries + SEARCHES))
    add = lambda: index.add(b"frame", next(numbers).to_bytes(8), next(asked))  # noqa: E731
    return [*rows, times_of(f"addition to {entries:,} questions", add, SEARCHES)]


def times_of(part: str, call: Callable[[], object], count: int) -> Row:
    """Return the minimum, the median and the 99th percentile of the CPU time of a call, in milliseconds.

    Calls run on one thread, so on an idle machine it is their duration. Other work on the machine does not count.
    """
    taken = []
    for _ in range(count):
        start = time.process_time()
        call()
        taken.append(1000.0 * (time.process_time() - start))
    taken.sort()
    return {
        "part": part, "min_ms": taken[0], "median_ms": statistics.median(taken), "p99_ms": taken[count * 99 // 100]
    }  # fmt: skip


def check_targets(record: Row) -> list[Row]:
    """Return the measured targets of the parts that ran."""
    targets = []
    for row in record.get("serve", ()):
        if row["rule"] != TIER:
            continue
        name = f"{row['stream']}, δ = {row['allowed']:g}"
        if least := BARS.get((row["stream"], row["allowed"])):
            targets.append(target(f"{name}: share served", row["served_rate"], at_least=least))
        if row["served"]:
            targets.append(target(f"{name}: error among hits", row["error"], at_most=row["allowed"]))
    for row in record.get("null", ()):
        sampling = 0.05 + 2.0 * (0.05 * 0.95 / row["runs"]) ** 0.5
        metric = f"false certificates, true error = δ = {row['allowed']:g}, {row['runs']} runs"
        targets.append(target(metric, row["certified"], at_most=round(sampling, 3)))
    vetoes = [row for row in record.get("vetoes", ()) if row["change"].startswith(MUST_VETO)]
    targets += [target(f"vetoed: {row['change']}", row["vetoed"], at_least=MIN_VETOED) for row in vetoes]
    for row in record.get("times", ()):
        if row["part"].startswith("embedding"):
            targets.append(target(row["part"], row["median_ms"], at_most=MAX_EMBED_MS, unit="ms", worst=row["p99_ms"]))
        elif row["part"].startswith("search"):
            targets.append(target(f"{row['part']}, 99 %", row["p99_ms"], at_most=MAX_SEARCH_MS, unit="ms"))
    if live := record.get("live"):
        metric = "exact hits a second, shadow / off"
        targets.append(target(metric, live["ratio"], at_least=MIN_HITS, worst=live["worst_ratio"]))
    return targets


def markdown(record: Row) -> str:
    """Return the tables of the documentation."""
    text = ["| stream | rule | allowed error | served | error among hits |", "|---|---|---|---|---|"]
    for row in record.get("serve", ()):
        allowed = f"{100 * row['allowed']:g} %" if row["allowed"] else "none"
        error = f"{100 * row['error']:.1f} %" if row["served"] else "–"
        text.append(f"| {row['stream']} | {row['rule']} | {allowed} | {100 * row['served_rate']:.1f} % | {error} |")
    text += ["", "| metric | measured | target | met |", "|---|---|---|---|"]
    for row in record["targets"]:
        text.append(f"| {row['metric']} | {row['measured']:.4g} | {row['target']} | {'yes' if row['met'] else 'no'} |")
    if "money" in record:
        text += ["", "| counting | cost saved |", "|---|---|"]
        text += [f"| {rule} | {100 * saved:.1f} % |" for rule, saved in record["money"].items()]
    if "times" in record:
        text += ["", "| part | minimum | median | 99 % |", "|---|---|---|---|"]
        for row in record["times"]:
            text.append(
                f"| {row['part']} | {row['min_ms']:.2f} ms | {row['median_ms']:.2f} ms | {row['p99_ms']:.2f} ms |"
            )
    return "\n".join(text)


def run(args: argparse.Namespace) -> None:
    parts = args.parts.split(",") if args.parts else list(PARTS)
    for part in parts:
        if part not in PARTS:
            raise InvalidInput(f"{part!r} is not one of {', '.join(PARTS)}")
    if args.entries < 0:
        raise InvalidInput(f"entries must be at least 0, not {args.entries}")
    record: Row = {"seed": args.seed}

    def log(text: str) -> None:
        print(text, file=sys.stderr)

    embedder = local_embedder() if {"serve", "speed"} & set(parts) else None
    if "serve" in parts and embedder:
        record["serve"] = [row for name in STREAMS for row in measure_stream(name, args.seed, embedder, log)]
        shown = ("stream", "allowed", "rule", "served", "wrong", "served_rate", "error", "labels", "certified")
        print_table([{name: row.get(name) for name in shown} for row in record["serve"]], title="served by similarity")
    if "certificate" in parts:
        record["null"] = [false_certificates(error, args.seed) for error in NULL_ERRORS]
        print_table(record["null"], title="false certificates")
        record["certify"] = [labels_to_certify(error, args.seed) for error in TRUE_ERRORS]
        print_table(record["certify"], title="labels until an error of 1 % is certified")
        wrong = wrong_before_stop(args.seed)
        record["drift"] = {
            "runs": len(wrong), "median": statistics.median(wrong), "p90": wrong[int(0.9 * len(wrong))],
            "max": wrong[-1],
        }  # fmt: skip
        print_table([record["drift"]], title="wrong answers served after the error rose from 0.2 % to 5 %")
    if "vetoes" in parts:
        record["vetoes"] = vetoed_shares(args.seed)
        print_table(record["vetoes"], title="perturbed questions")
    if "money" in parts:
        record["money"] = money(args.seed)
        print_table([record["money"]], title="share of the cost that GDSF saves")
    if "speed" in parts and embedder:
        record["times"] = [time_embedding(embedder), time_match(embedder, args.seed)]
        if args.entries:
            record["times"] += time_search(embedder, args.entries, args.seed, log)
        print_table(record["times"], title="times")
    if "live" in parts:
        record["live"] = _semantic_live.hit_throughput()
        print_table([record["live"]], title="exact hits")
    record["targets"] = check_targets(record)
    print_targets(record["targets"])
    write_result(args.out, "semantic", record)
    if args.out and record.get("serve"):
        draw(record["serve"], args.out / "semantic.png")


def main() -> None:
    parser = options_for(__doc__, "semantic.json and semantic.png")
    option = parser.add_argument
    option("--parts", metavar="LIST", help=f"parts, of {', '.join(PARTS)} (default: all)")
    option("--entries", type=int, metavar="N", default=ENTRIES, help=f"questions in the index (default: {ENTRIES:,})")
    option("--seed", type=int, metavar="N", default=1, help="seed of all draws (default: 1)")
    run_or_show(parser, run, markdown)


if __name__ == "__main__":
    main()
