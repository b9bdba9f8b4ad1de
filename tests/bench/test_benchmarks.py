"""Every benchmark describes itself and its options with --help, and a short run prints a table and writes JSON."""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.lab.grid import GridCell, run_cell
from knapcache.lab.traces.sessions import COLUMNS
from knapcache.policy.adaptive.experts import EXPERT_COUNT, HAZARD, RECENCY
from knapcache_experiments.worlds import draw_world
from tests.support.programs import find_module
from tests.support.redis_servers import require_engine
from tests.support.warm_python import WarmPython

pytestmark = pytest.mark.tools

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))
NAMES = sorted(path.stem for path in BENCH.glob("[!_]*.py"))

SHORT_RUNS = [
    "client_faults --fault content-length",
    "encryption --quick",
    "kv --traces synthetic --quick",
    "policies --traces oasst_zipf_0.6 --capacities 5% --policies lru,gdsf-cost,pfoo --subject gdsf-cost --jobs 1",
    "prefix --traces agent_sessions --random 0",
    "semantic --parts vetoes",
    "semantic_judge --each 1",
    "streams --quick",
    "semantic_dangers --parts pairs",
    "swap --quick --parts certificate,alarm,pairs",
]
LONG_RUNS = [
    "embeddings --requests 2 --inputs 64 --numbers 64 --runs 1",
    "cluster --scale 0.02",
    "learned --traces adaptsize_camp --capacities 5%",
    "library --quick",
    "local_model --quick",
    "oracle --quick",
    "proxy --quick --only knapcache",
    "reliability --scale 0.002",
    "replay --quick",
    "sampling --quick",
    "scale --entries 2000,4000",
    "shadow_sampling --quick",
    "soak --minutes 2",
    "vsocb --quick",
]
"""They take more than 10 seconds, some of them only while kernels are compiled."""
NOT_RUN = {"first_start", "mutate", "readers"}
"""The first installs packages from the network, the second has a test of its own, the third has no short form."""
NEEDED = {"cluster": "redis", "local_model": "xllamacpp", "replay": "libcachesim", "semantic_judge": "onnxruntime"}


def test_every_benchmark_is_run() -> None:
    assert {run.split()[0] for run in SHORT_RUNS + LONG_RUNS} | NOT_RUN == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    parsers: list[argparse.ArgumentParser] = []
    parse = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, *given: Any) -> Any:
        parsers.append(parser)
        return parse(parser, *given)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 0
    description = str(parsers[0].description)
    assert description[0].isupper()
    assert description.split("\n\n")[0].endswith(".")
    assert description.splitlines()[0] in capsys.readouterr().out
    assert [action.dest for action in parsers[0]._actions if not action.help] == []


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Write a small trace for each benchmark that reads public ones. Return the directory."""
    rng = np.random.default_rng(0)
    for name in ("adaptsize_camp", "oasst_zipf_0.6"):
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["time", "key", "size", "cost"])
            lines.writerows((t, key, 10 + key % 7, 1 + key % 3) for t, key in enumerate(rng.zipf(1.3, 2000) % 300))
    rows = [f"{60 * k},s,{k},{k - 1},{2000 * k},{2000 * (k + 1)},9,0,tool,m" for k in range(20)]
    (tmp_path / "agent_sessions.csv.gz").write_text("\n".join((",".join(COLUMNS), *rows)) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    "run", [*SHORT_RUNS, *(pytest.param(run, marks=pytest.mark.long) for run in LONG_RUNS)], ids=lambda run: run[:40]
)
def test_a_short_run_prints_a_table_and_writes_json(run: str, traces: Path, tmp_path: Path, warm: WarmPython) -> None:
    name, *arguments = run.split()
    if name in NEEDED:
        find_module(NEEDED[name], f"the package {NEEDED[name]}")
    if name == "cluster":
        require_engine()
    out = tmp_path / "out"
    env = os.environ | {"KNAPCACHE_TRACES": str(traces)}
    done = warm.run(BENCH / f"{name}.py", *arguments, "--out", out, env=env)
    assert done.returncode == 0 or (name == "vsocb" and "Traceback" not in done.stderr), done.stderr  # slow machine
    assert "\n ───" in done.stdout
    records = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*.json")]
    assert records
    assert all(records)
    assert all(image.read_bytes().startswith(b"\x89PNG") for image in out.glob("*.png"))


def test_an_expert_leads_from_beginning_to_end() -> None:
    """The expert of recency then decides as LRU does: `bench/policies.py --experts`."""
    worlds: Any = importlib.import_module("_worlds")
    world = draw_world(3, requests=3000)
    capacity = world.capacities[0]
    lru = run_cell([world.trace], GridCell("lru", capacity, 0))["cost_ratio"]
    assert worlds.expert_cost(world, capacity, RECENCY) == pytest.approx(lru)
    assert worlds.expert_cost(world, capacity, HAZARD) != pytest.approx(lru)
    assert len(worlds.EXPERTS) == EXPERT_COUNT
