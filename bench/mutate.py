"""Mutation testing: puts small faults into the code, one at a time, and counts those that a test notices.

    python bench/mutate.py [--sample 300] [--seed 1] [--jobs 1] [--areas keys,wire] [--out DIR]

Cosmic Ray makes the mutants and runs the tests. mutate.toml lists the areas: the files of each, and the tests that can
notice a fault in them. The sample has the same number of mutants from each area; the same seed and source give the same
sample. Tests run in copies of the tree, first without a mutant: if they fail, the area is untested. A mutant counts as
noticed, with the state timeout, if its tests take three times as long as that and 30 seconds more, or if one of them
misses a time limit of its own. On a busy machine, test such a mutant again.

mutmut 3.8 was tried: it needs all tests to pass with a wrapper around each function, whose frames triple the depth of
recursion. tests/keys fails that way.

Prints a table and the survivors; writes mutation.json to DIR. Exit code 1 if less than 95 % are noticed.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from _results import options_for, write_result

from knapcache.cli.output import print_table

ROOT = Path(__file__).resolve().parents[1]
CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
STATES = ("noticed", "timeout", "survived", "equivalent", "untested")
Mutant = dict[str, Any]
"""area, file, line, operator, occurrence (of the operator in the file), old and new (first line that differs), state"""


class RemoveStatement:
    """Operator that Cosmic Ray lacks: replace a call, raise or del by `pass`. Log calls are left alone."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        is_log = node.get_code(include_prefix=False).startswith("log.")
        if node.parent is not None and node.parent.type == "simple_stmt" and not is_log:
            called = node.type == "atom_expr" and node.children[-1].get_code().startswith("(")
            if called or node.type in ("raise_stmt", "del_stmt"):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, _index: int) -> Any:
        from parso.python.tree import Keyword

        return Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)


def find_operator(name: str) -> Any:
    """Return an operator of Cosmic Ray, or the one above."""
    from cosmic_ray import plugins

    return RemoveStatement() if name == "RemoveStatement" else plugins.get_operator(f"core/{name}")()


def mutants_of(area: str, seed: int) -> Iterator[Mutant]:
    """Yield the mutants of an area in random order, by a hash: a change of the source leaves most in place."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    found = []
    for file in (file for pattern in CONFIG["areas"][area]["files"] for file in ROOT.glob(pattern)):
        nodes = list(ast_nodes(get_ast(file.read_text(encoding="utf-8"))))
        for name in CONFIG["operators"] if file.name not in CONFIG["skip"] else ():
            operator = find_operator(name)
            starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
            found += [(str(file.relative_to(ROOT)), name, k, line) for k, (line, _) in enumerate(starts)]
    for path, name, k, line in sorted(found, key=lambda m: hashlib.sha256(repr((seed, m[:3])).encode()).digest()):
        source = (ROOT / path).read_text(encoding="utf-8")
        mutated = mutate_code(source, find_operator(name), k)
        pairs = zip(source.split("\n"), mutated.split("\n"), strict=False)
        old, new = next((a.strip(), b.strip()) for a, b in pairs if a != b)
        if not re.match(CONFIG["ignored"], old):
            mutant = {"area": area, "file": path, "line": line, "operator": name, "occurrence": k}
            yield mutant | {"old": old, "new": new, "state": "untested"}


def run_area(area: str, number: int, seed: int) -> list[Mutant]:
    """Draw mutants of an area, and test them in a copy of the tree. Return them with their states."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.testing import run_tests

    tests = [path.relative_to(ROOT) for name in CONFIG["areas"][area]["tests"] for path in sorted(ROOT.glob(name))]
    equivalent = [{name: known[name] for name in known if name != "reason"} for known in CONFIG["equivalent"]]
    mutants, limit = list(islice(mutants_of(area, seed), number)), 3600.0
    with tempfile.TemporaryDirectory() as folder:
        copy = f"{folder}/tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "out", "results", "__pycache__"))
        os.chdir(copy)
        # Kernels are not compiled: one changed file would compile all of them.
        os.environ |= {"PYTHONPATH": f"{copy}/src:{copy}/experiments:{copy}", "KNAPCACHE_COMPILE": "0"}
        for mutant in (mutants[0] | {"operator": "NoOp", "old": "", "new": ""}, *mutants):
            if any(known.items() <= mutant.items() for known in equivalent):
                mutant["state"] = "equivalent"
                continue
            # Tests that have the name of the file come first: they end most runs.
            ordered = sorted(tests, key=lambda test: Path(mutant["file"]).stem not in test.name)
            command = " ".join([sys.executable, "-m", CONFIG["tests"], *map(str, ordered)])
            began = time.monotonic()
            with use_mutation(Path(mutant["file"]), find_operator(mutant["operator"]), mutant["occurrence"]):
                outcome, output = run_tests(command, limit)
            seconds = time.monotonic() - began
            late = output == "timeout" or re.search("^E .*TooSlow: |ran again, more than", output, re.M)
            mutant["state"] = outcome.value if outcome.value == "survived" else STATES[bool(late)]
            failed = " ".join(re.findall("^(?:FAILED|ERROR).*", output, re.M))
            if mutant["operator"] != "NoOp":
                print("{state}, {0:.0f} s: {file}:{line} {old} → {new}".format(seconds, **mutant), failed, flush=True)
            elif mutant["state"] == "survived":
                print(f"{area}: tests take {seconds:.0f} s", flush=True)
                limit = 30 + 3 * seconds
            else:
                print(f"{area}: tests fail without a mutant:\n{output[-3000:]}", flush=True)
                break
        os.chdir(ROOT)
    return mutants


def main() -> int:
    parser = options_for(__doc__, "mutation.json")
    parser.add_argument("--sample", type=int, default=300, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="areas that are tested at the same time")
    parser.add_argument("--areas", default=",".join(CONFIG["areas"]), help="names, separated by commas; all by default")
    options = parser.parse_args()
    areas = options.areas.split(",")
    jobs = [(area, -(-options.sample // len(areas)), options.seed) for area in areas]
    with multiprocessing.Pool(options.jobs) as pool:
        mutants = [mutant for tested in pool.starmap(run_area, jobs, chunksize=1) for mutant in tested]
    rows = []
    for area in [*areas, "total"]:
        counts = Counter(mutant["state"] for mutant in mutants if area in (mutant["area"], "total"))
        share = 1 - (counts["survived"] + counts["untested"]) / max(1, counts.total() - counts["equivalent"])
        rows.append({"area": area} | {state: counts[state] for state in STATES} | {"share": round(share, 4)})
    print_table(rows, title="Mutants")
    survivors = [mutant for mutant in mutants if mutant["state"] == "survived"]
    write_result(options.out, "mutation", {"seed": options.seed, "areas": rows, "survivors": survivors})
    return int(rows[-1]["share"] < 0.95)


if __name__ == "__main__":
    sys.exit(main())
