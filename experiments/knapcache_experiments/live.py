"""End to end, live: `adaptive` against LRU at the same budget, through the real proxy, in front of a real small model.

Nothing is simulated: seconds and dollars are from the proxy's own ledger, for requests that a client sent and answers
that SmolLM2 wrote (live_measurement.py says how). Model and clock are not the same twice, so a run leaves a record, every
request with its outcome, and the table and the figure are made from the record:

    knapcache experiment live --out DIR                        from the record that comes with the project, in a moment
    knapcache experiment live --run --record FILE --out DIR    measures anew, into FILE, for many minutes

    saved = 1 − (what the policy's misses cost) / (what LRU's misses cost), on the same requests

in seconds of the model, which is what the policies were told to save, and in dollars at a stand-in price of tokens,
which do not change when something else slows the machine down. The capacity is two fifths of what all answers need.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knapcache.errors import InvalidInput
from knapcache.policy import registry
from knapcache.sim.executors import Jobs
from knapcache.sim.figures import new_figure, style
from knapcache.sim.files import OutputFile
from knapcache.sim.synthetic import popularity
from knapcache_experiments import live_measurement
from knapcache_experiments.experiment import Experiment, ExperimentResult, ExperimentSettings, option
from knapcache_experiments.measured import TABLES

BASELINE = "lru"
SHIPPED = "live"
"""The name of the record that comes with the project."""
MOST = 1_000
"""Requests of a run: as many as the proxy lists."""
LEAST_ROOM = 64 << 10
"""Of a store in memory."""
NOT_MEASURED = ("run", "record")
"""Settings that say what is to be done, not what was measured."""


@dataclass(frozen=True, kw_only=True)
class LiveSettings(ExperimentSettings):
    """The live run."""

    repeats: int = option(2, "independent repetitions, each with popularity and requests of its own")
    policies: tuple[str, ...] = option(("adaptive", "lru"), "policies to compare, separated by commas")
    queries: int = option(30, "number of prompts")
    requests: int = option(300, "requests in a run")
    arrivals: str = option("zipf:0.8", "arrivals: uniform, zipf:A or power:A")
    tokens: tuple[int, ...] = option((4, 24, 160), "most tokens of an answer, by turns")
    capacity: int = option(95_000, "room of the cache, in bytes")
    upstream: str = option("local", "what answers: local, the embedded model, or the URL of a server")
    run: bool = option(False, "measure anew; otherwise the record is read")
    record: str = option(SHIPPED, "file of what was measured: written with --run, else read")

    def __post_init__(self) -> None:
        super().__post_init__()
        from knapcache.demo.prompts import demo_prompts

        for name, least, most in (
            ("queries", 1, len(demo_prompts())),
            ("requests", 1, MOST),
            ("capacity", LEAST_ROOM, 1 << 40),
        ):
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(f"{name} must be from {least} to {most}, not {getattr(self, name)}")
        if min(self.tokens) < 1:
            raise InvalidInput(f"tokens must be at least 1, not {min(self.tokens)}")
        if len(set(self.policies)) < len(self.policies):
            raise InvalidInput(f"policies must be different, not {', '.join(self.policies)}")
        for policy in self.policies:
            if not registry.find(policy).online:
                raise InvalidInput(f"policies must be ones that do not see the future, and {policy} does")
        popularity(self.arrivals, 1)  # raises on a word that cannot be read
        if self.run and self.record == SHIPPED:
            raise InvalidInput("--run needs a file to keep what it measures: --record FILE")

    def plan(self) -> live_measurement.LiveRunPlan:
        """What there is to measure."""
        return live_measurement.LiveRunPlan(
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(live_measurement.LiveRunPlan)}
        )


def read(settings: LiveSettings) -> dict[str, Any]:
    """The record, which must be of these settings."""
    path = TABLES / f"{SHIPPED}.json" if settings.record == SHIPPED else Path(settings.record)
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        measured = record["settings"]
    except OSError as error:
        raise InvalidInput(f"{settings.record} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{settings.record} is no record of a live run") from None
    for name, wanted in json.loads(json.dumps(dataclasses.asdict(settings.plan()))).items():
        if measured.get(name) != wanted:
            raise InvalidInput(
                f"the record was measured with {name} = {measured.get(name)}, not {wanted}: --run measures"
            )
    return record


def measure(settings: LiveSettings) -> dict[str, Any]:
    """Run, and keep the record."""
    live_measurement.need_the_proxy()
    file = OutputFile(Path(settings.record))
    plan = settings.plan()
    record = live_measurement.measure(plan)
    record = {"environment": record["environment"], "settings": dataclasses.asdict(plan), "runs": record["runs"]}
    file.write(as_text(record))
    return record


def as_text(record: dict[str, Any]) -> str:
    """JSON with a request a line, so that two records can be compared."""
    text = json.dumps(
        {**record, "runs": [{**run, "requests": f"<{k}>"} for k, run in enumerate(record["runs"])]}, indent=1
    )
    for k, run in enumerate(record["runs"]):
        lines = ",\n   ".join(json.dumps(row) for row in run["requests"])
        text = text.replace(f'"<{k}>"', f"[\n   {lines}\n  ]")
    return text + "\n"


def rows_of(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for every run, and one for all repeats of a policy together."""
    policies = list(dict.fromkeys(run["policy"] for run in runs))
    made = [row([run], run["repeat"]) for run in runs]
    made += [row([run for run in runs if run["policy"] == policy], None) for policy in policies]
    for one in made:
        theirs = next((r for r in made if r["policy"] == BASELINE and r["repeat"] == one["repeat"]), None)
        for unit in ("seconds", "usd"):
            spent = theirs[f"{unit}_spent"] if theirs else 0.0
            one[f"saved_{unit}_percent"] = 100.0 * (1.0 - one[f"{unit}_spent"] / spent) if spent else None
    return made


def row(runs: list[dict[str, Any]], repeat: int | None) -> dict[str, Any]:
    """Sums over some runs of a policy; `would_…`: what others would have spent on the same requests, in seconds."""
    books = {name: sum(run["ledger"][name] for run in runs) for name in live_measurement.LEDGER}
    would = {f"shadow_cost_{name}": sum(run["shadow_cost"][name] for run in runs) for name in runs[0]["shadow_cost"]}
    return {
        "policy": runs[0]["policy"],
        "repeat": repeat,
        **books,
        "wall_seconds": sum(run["wall_seconds"] for run in runs),
        **would,
    }


def run(settings: LiveSettings, _jobs: Jobs) -> ExperimentResult:
    """Measure, or read what was measured; draw what misses cost as requests go by, and what became of them."""
    record = measure(settings) if settings.run else read(settings)
    runs = record["runs"]
    made = rows_of(runs)
    figure, (left, right) = new_figure(2, width=5.8)
    for one in runs:
        spent = np.cumsum([seconds * (1 - hit) for _, hit, _, seconds, _, _ in one["requests"]])
        looks = {**style(one["policy"]), "alpha": 1.0 if one["repeat"] == 0 else 0.5}
        label = one["policy"] if one["repeat"] == 0 else None
        left.plot(range(1, len(spent) + 1), spent, label=label, linewidth=1.8, **looks)
    left.set_xlim(0, settings.requests)
    left.set_ylim(bottom=0)
    left.set_xlabel("request")
    left.set_ylabel("seconds of the model, cumulative")
    left.set_title(f"{settings.repeats} repeats; the first is drawn full" if settings.repeats > 1 else "")
    left.legend()
    bars = [r for r in made if r["repeat"] is not None]
    places = range(len(bars))
    for what, first, alpha in (("hits", None, 0.6), ("misses", "hits", 0.2)):
        right.barh(
            places,
            [r[what] for r in bars],
            left=[r[first] for r in bars] if first else 0,
            color=[style(r["policy"])["color"] for r in bars],
            alpha=alpha,
        )
    for place, r in zip(places, bars, strict=True):
        text = f"{r['hits']} hits, {r['misses']} misses: {r['seconds_spent']:.0f} s, ${r['usd_spent']:.4f}"
        right.annotate(text, (0, place), textcoords="offset points", xytext=(6, -3), fontsize=9)
    right.set_yticks(places, [f"{r['policy']}, {r['repeat']}" for r in bars])
    right.invert_yaxis()
    right.grid(visible=False, axis="y")
    right.set_xlabel("requests, by policy and repeat")
    machine = record["environment"]["machine"]
    figure.suptitle(
        f"{settings.queries} prompts, {settings.arrivals}, {settings.capacity / 1e3:g} kB, live on {machine}"
    )
    return ExperimentResult(made, figure)


def markdown(made: list[dict[str, Any]]) -> str:
    """The table of docs/background/live-run.md."""
    lines = ["| repeat | policy | hits | seconds of the model | dollars | wall clock | against LRU: seconds, dollars |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for r in made:
        saved = [r[f"saved_{unit}_percent"] for unit in ("seconds", "usd")]
        against = "–" if None in saved or r["policy"] == BASELINE else ", ".join(f"{-x:+.1f} %" for x in saved)
        repeat = "all" if r["repeat"] is None else f"{r['repeat']}"
        columns = [repeat, f"`{r['policy']}`", f"{r['hits']} of {r['requests']}", f"{r['seconds_spent']:.1f}"]
        columns += [f"{r['usd_spent']:.5f}", f"{r['wall_seconds']:.1f} s", against.replace("-", "−")]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    name="live",
    summary="adaptive against LRU through the real proxy and the real small model (from its record; --run measures)",
    text=__doc__ or "",
    settings=LiveSettings,
    run=run,
    quick={},
)
