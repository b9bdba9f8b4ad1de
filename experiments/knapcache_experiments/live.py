"""Adaptive and LRU at the same capacity, measured with the proxy and a small real model.

Seconds and dollars come from the proxy's ledger, for requests sent by a client and answers written by SmolLM2
(live_measurement.py). Model and clock are not reproducible, so a run writes a record of every request, and table and
figure are computed from the record:

    knapcache experiment live -o DIR
        use the included record; takes seconds
    knapcache experiment live --run --record FILE -o DIR
        measure again and write FILE; takes many minutes

    saved = 1 − (cost of the policy's misses) / (cost of LRU's misses)

Both run the same requests. Costs are model seconds, which the policies minimise, and dollars at a nominal token price,
which do not depend on the load of the machine. The capacity is two fifths of the size of all answers.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.lab.executors import Jobs
from knapcache.lab.figures import new_figure, style
from knapcache.lab.files import OutputFile
from knapcache.lab.synthetic import popularity
from knapcache.policy import registry
from knapcache_experiments import live_measurement
from knapcache_experiments.experiment import Experiment, ExperimentResult, ExperimentSettings, option
from knapcache_experiments.measured import TABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINE = "lru"
INCLUDED = "live"
"""Name of the included record."""
MAX_REQUESTS = 1_000
"""Requests per run: the proxy lists no more."""
MIN_CAPACITY = 64 << 10
"""Bytes, of a store in memory."""


@dataclass(frozen=True, kw_only=True)
class LiveSettings(ExperimentSettings):
    """Settings of the live run."""

    repeats: int = option(2, "independent repeats, each with its own popularity and requests")
    policies: tuple[str, ...] = option(("adaptive", "lru"), "comma-separated policies to compare")
    queries: int = option(30, "number of prompts")
    requests: int = option(300, "requests per run")
    arrivals: str = option("zipf:0.8", "arrival distribution: uniform, zipf:A or power:A")
    tokens: tuple[int, ...] = option((4, 24, 160), "maximum tokens per answer; prompts cycle through the list")
    capacity: int = option(95_000, "capacity in bytes")
    upstream: str = option("local", "upstream: local (the embedded model) or a URL")
    run: bool = option(False, "measure again instead of reading the record")
    record: str = option(INCLUDED, "record file: written with --run, else read")

    def __post_init__(self) -> None:
        super().__post_init__()
        from knapcache.demo.prompts import demo_prompts

        for name, low, high in (
            ("queries", 1, len(demo_prompts())),
            ("requests", 1, MAX_REQUESTS),
            ("capacity", MIN_CAPACITY, 1 << 40),
        ):
            if not low <= getattr(self, name) <= high:
                raise InvalidInput(f"{name} must be from {low} to {high}, not {getattr(self, name)}")
        if min(self.tokens) < 1:
            raise InvalidInput(f"tokens must be at least 1, not {min(self.tokens)}")
        if len(set(self.policies)) < len(self.policies):
            raise InvalidInput(f"policies must be different, not {', '.join(self.policies)}")
        for policy in self.policies:
            if not registry.find(policy).online:
                raise InvalidInput(f"policies must be online, and {policy} is not")
        popularity(self.arrivals, 1)  # raises InvalidInput on a bad distribution
        if self.run and self.record == INCLUDED:
            raise InvalidInput("--run needs a file for the record: --record FILE")

    def plan(self) -> live_measurement.LiveRunPlan:
        return live_measurement.LiveRunPlan(
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(live_measurement.LiveRunPlan)}
        )


def read(settings: LiveSettings) -> dict[str, Any]:
    """Read the record. Raises InvalidInput if it was measured with other settings."""
    path = TABLES / f"{INCLUDED}.json" if settings.record == INCLUDED else Path(settings.record)
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        measured = record["settings"]
    except OSError as error:
        raise InvalidInput(f"cannot read {settings.record}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{settings.record} is not a record of a live run") from None
    for name, wanted in json.loads(json.dumps(dataclasses.asdict(settings.plan()))).items():
        if measured.get(name) != wanted:
            raise InvalidInput(
                f"the record was measured with {name} = {measured.get(name)}, not {wanted}; --run measures again"
            )
    return record


def measure(settings: LiveSettings) -> dict[str, Any]:
    """Run the measurement and write the record."""
    live_measurement.require_proxy()
    file = OutputFile(Path(settings.record))
    plan = settings.plan()
    record = live_measurement.measure(plan)
    record = {"environment": record["environment"], "settings": dataclasses.asdict(plan), "runs": record["runs"]}
    file.write(as_text(record))
    return record


def as_text(record: dict[str, Any]) -> str:
    """Return the record as JSON with one request per line, so that records can be diffed."""
    text = json.dumps(
        {**record, "runs": [{**run, "requests": f"<{k}>"} for k, run in enumerate(record["runs"])]}, indent=1
    )
    for k, run in enumerate(record["runs"]):
        lines = ",\n   ".join(json.dumps(row) for row in run["requests"])
        text = text.replace(f'"<{k}>"', f"[\n   {lines}\n  ]")
    return text + "\n"


def table_rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per run, and one per policy for all its repeats."""
    policies = list(dict.fromkeys(run["policy"] for run in runs))
    rows = [table_row([run], run["repeat"]) for run in runs]
    rows += [table_row([run for run in runs if run["policy"] == policy], None) for policy in policies]
    for one in rows:
        baseline = next((r for r in rows if r["policy"] == BASELINE and r["repeat"] == one["repeat"]), None)
        for unit in ("seconds", "usd"):
            spent = baseline[f"{unit}_spent"] if baseline else 0.0
            one[f"saved_{unit}_percent"] = 100.0 * (1.0 - one[f"{unit}_spent"] / spent) if spent else None
    return rows


def table_row(runs: list[dict[str, Any]], repeat: int | None) -> dict[str, Any]:
    """Sum the ledgers of some runs of a policy. `shadow_cost_…`: seconds that other policies would have spent."""
    ledger = {name: sum(run["ledger"][name] for run in runs) for name in live_measurement.LEDGER}
    shadow_costs = {
        f"shadow_cost_{name}": sum(run["shadow_cost"][name] for run in runs) for name in runs[0]["shadow_cost"]
    }
    return {
        "policy": runs[0]["policy"],
        "repeat": repeat,
        **ledger,
        "wall_seconds": sum(run["wall_seconds"] for run in runs),
        **shadow_costs,
    }


def run(settings: LiveSettings, _jobs: Jobs) -> ExperimentResult:
    """Measure or read the record; return its table and figure."""
    record = measure(settings) if settings.run else read(settings)
    rows = table_rows(record["runs"])
    return ExperimentResult(rows, draw(settings, record, rows))


def draw(settings: LiveSettings, record: dict[str, Any], rows: list[dict[str, Any]]) -> Figure:
    """Plot the cumulative cost of misses, and hits and misses per run."""
    figure, (left, right) = new_figure(2, width=5.8)
    for one in record["runs"]:
        spent = np.cumsum([seconds * (1 - hit) for _, hit, _, seconds, _, _ in one["requests"]])
        line_style = {**style(one["policy"]), "alpha": 1.0 if one["repeat"] == 0 else 0.5}
        label = one["policy"] if one["repeat"] == 0 else None
        left.plot(range(1, len(spent) + 1), spent, label=label, linewidth=1.8, **line_style)
    left.set_xlim(0, settings.requests)
    left.set_ylim(bottom=0)
    left.set_xlabel("request")
    left.set_ylabel("model seconds, cumulative")
    left.set_title(f"{settings.repeats} repeats; repeat 0 is opaque" if settings.repeats > 1 else "")
    left.legend()
    by_run = [r for r in rows if r["repeat"] is not None]
    y = range(len(by_run))
    for column, offset, alpha in (("hits", None, 0.6), ("misses", "hits", 0.2)):
        right.barh(
            y,
            [r[column] for r in by_run],
            left=[r[offset] for r in by_run] if offset else 0,
            color=[style(r["policy"])["color"] for r in by_run],
            alpha=alpha,
        )
    for position, r in zip(y, by_run, strict=True):
        text = f"{r['hits']} hits, {r['misses']} misses: {r['seconds_spent']:.0f} s, ${r['usd_spent']:.4f}"
        right.annotate(text, (0, position), textcoords="offset points", xytext=(6, -3), fontsize=9)
    right.set_yticks(y, [f"{r['policy']}, {r['repeat']}" for r in by_run])
    right.invert_yaxis()
    right.grid(visible=False, axis="y")
    right.set_xlabel("requests, by policy and repeat")
    machine = record["environment"]["machine"]
    figure.suptitle(
        f"{settings.queries} prompts, {settings.arrivals}, {settings.capacity / 1e3:g} kB, live on {machine}"
    )
    return figure


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/background/live-run.md."""
    lines = ["| repeat | policy | hits | seconds of the model | dollars | wall clock | against LRU: seconds, dollars |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for r in rows:
        saved = [r[f"saved_{unit}_percent"] for unit in ("seconds", "usd")]
        against = "–" if None in saved or r["policy"] == BASELINE else ", ".join(f"{-x:+.1f} %" for x in saved)
        repeat = "all" if r["repeat"] is None else f"{r['repeat']}"
        columns = [repeat, f"`{r['policy']}`", f"{r['hits']} of {r['requests']}", f"{r['seconds_spent']:.1f}"]
        columns += [f"{r['usd_spent']:.5f}", f"{r['wall_seconds']:.1f} s", against.replace("-", "−")]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    name="live",
    summary="adaptive and LRU measured with the real proxy and a small real model",
    text=__doc__ or "",
    settings=LiveSettings,
    run=run,
    quick={},
)
