"""`knapcache semantic LOG`: replay a question log with the semantic tier in shadow."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from knapcache.cli import options
from knapcache.cli.output import print_table, print_text, progress_bar
from knapcache.errors import InvalidInput
from knapcache.features.semantic.audits import AUDIT_RATE
from knapcache.features.semantic.certificate import Certificate
from knapcache.features.semantic.embedding import local_embedder
from knapcache.features.semantic.lab import report
from knapcache.features.semantic.lab.pairs_report import pairs_report
from knapcache.features.semantic.lab.read import QuestionFields, read_questions
from knapcache.features.semantic.lab.replay import comparison_for, embed_questions, exclude_long, replay
from knapcache.lab.files import OutputFile

DESCRIPTION = """Replay a log of questions with the semantic tier, and report what it would serve by similarity, the
error that it certifies, and the error that it has.

The tier serves nothing until its labels certify that at most --error of what it serves is wrong. A label comes from
the truth of the log (--truth), else from the answers in the log, which are compared as the tier's judge does without
a model. A log with neither shows how many requests have a match; nothing is certified then.

LOG has one JSON object per line: with `text`, or with the body of a request, at the top level or in `request` or
`body`. The answer is in `answer` or `response`. A directory means its files, in the order of their names. A proxy's log
(knapcache log export) can be used, too: lines that it answered by similarity are left out. Needs
knapcache[semantic]."""
EXAMPLES = r"""examples:
  knapcache semantic questions.jsonl --truth intent --error 0.05
  knapcache semantic requests.jsonl.gz --json result.json --plot result.png
  knapcache semantic requests.jsonl.gz --report wordings.md
  knapcache log export --output log.jsonl && knapcache semantic log.jsonl
  zcat log.gz | knapcache semantic - --truth label --json -
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    option = parser.add_argument
    option(
        "log",
        metavar="LOG",
        type=Path,
        help="JSON lines, plain or compressed with gzip or zstd, or a directory of such files; - reads stdin",
    )
    option(
        "--error",
        metavar="SHARE",
        type=float,
        default=0.01,
        help="allowed share of wrong answers among those served (default: 0.01)",
    )
    option("--truth", metavar="FIELD", help="field that is equal for questions that mean the same")
    option("--cost", metavar="FIELD", help="field with the cost of a request (default: cost, where a line has it)")
    option(
        "--audit",
        metavar="SHARE",
        type=float,
        default=AUDIT_RATE,
        help=f"share of what could be served that is labelled instead (default: {AUDIT_RATE:g})",
    )
    option(
        "--temperature",
        metavar="T",
        type=float,
        default=0.0,
        help="match requests up to this temperature (default: 0)",
    )
    option("--seed", metavar="N", type=int, default=0, help="seed of the draws for audits (default: 0)")
    option("--wrong", metavar="N", type=int, default=0, help="list the first N wrong answers that were served")
    options.add_json_file(parser, "numbers")
    option(
        "--report",
        metavar="FILE",
        help="write the most valuable wordings that were not matched and the most dangerous near ones, as Markdown",
    )
    options.add_plot(parser, "the shares served and wrong")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> None:
    # Everything that can be rejected is rejected before the log is read.
    start = time.perf_counter()
    Certificate(args.error)
    if not 0.0 <= args.audit <= 1.0:
        raise InvalidInput(f"audit must be from 0 to 1, not {args.audit}")
    fields = QuestionFields(args.truth, args.cost)
    pairs = OutputFile(Path(args.report)) if args.report is not None else None
    out = options.ResultOutput(args)
    left_out = Counter[str]()
    with progress_bar() as bar:
        task = bar.add_task(f"reading {args.log.name}", total=None)
        questions = read_questions(
            args.log,
            fields,
            max_temperature=args.temperature,
            left_out=left_out,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
        bar.remove_task(task)
        embedder = local_embedder()
        questions = exclude_long(questions, embedder.tokens)
        embedding = bar.add_task("embedding the questions", total=None)
        vectors = embed_questions(
            questions, embedder, lambda done, total: bar.update(embedding, completed=done, total=total)
        )
        replaying = bar.add_task(f"replaying {len(questions):,} requests", total=len(questions))
        compare = comparison_for(questions, embedder)
        found = replay(
            questions,
            vectors,
            error=args.error,
            compare=compare,
            audit=args.audit,
            seed=args.seed,
            progress=lambda done: bar.update(replaying, completed=done),
        )
    found.seconds = time.perf_counter() - start
    result = report.summary(found, questions, compare, left_out.total())
    if pairs:
        pairs.write(pairs_report(found, args.log.name))
    paths = out.write(result, lambda: report.figure_png(found, args.log.name))
    if paths is None:
        return
    print_text(*report.facts(result, found))
    if found.compared:
        print_table(report.level_rows(result))
    if rows := report.reason_rows(result):
        print_table(rows)
    if rows := report.wrong_rows(found, args.wrong):
        print_table(rows, title="served and wrong")
    for path in [*paths, *([pairs.path] if pairs else [])]:
        print(path)
