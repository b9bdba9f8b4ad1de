"""The simulation of swap: logs of answer pairs, decisions equal to those of a plain loop, totals, and the cache."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.errors import InvalidInput
from knapcache.features.swap.frame import Frame, LabelBudget
from knapcache.features.swap.lab import replay
from knapcache.features.swap.lab.joint import framed_trace, joint_costs
from knapcache.features.swap.lab.read import STDIN, FramePairs, ScoredRequest, models_of, pairs_of, read_requests
from knapcache.features.swap.lab.replay import SwapOptions, SwapRun, choose_all, simulate, simulate_run
from knapcache.lab.replay import replay as replay_trace
from knapcache.lab.trace import Floats, Trace
from knapcache.policy import registry

LINE: dict[str, Any] = {"frame": "f", "score": 1, "cost": 2.0, "cheap": {"m.1": {"score": 0.5, "cost": 0.25}}}


def read(tmp_path: Path, *rows: Any) -> list[ScoredRequest]:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_requests(path)


def test_a_plain_and_a_compressed_log_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (request,) = read(tmp_path, {**LINE, "question": "Why?"})
    assert request == ("f", (1.0, 2.0), {"m.1": (0.5, 0.25)})
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "log.jsonl").read_bytes()))
    assert read_requests(packed) == [request]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "log.jsonl").read_bytes())))
    assert read_requests(STDIN) == [request]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frame": None}, "frame is missing"),
        ({"frame": 7}, "frame must be a text, not 7"),
        ({"score": 1.5}, "score must be from 0 to 1, not 1.5"),
        ({"score": True}, "score must be a number, not True"),
        ({"cost": -1}, "cost must be finite and not negative, not -1.0"),
        ({"cost": None}, "cost is missing"),
        ({"cheap": {}}, "cheap names no model"),
        ({"cheap": ["m"]}, "cheap must be an object with the cheaper models, not ['m']"),
        ({"cheap": {"m": 1}}, "cheap model 'm' must be an object with score and cost, not 1"),
        ({"cheap": {"m": {"cost": 1}}}, "cheap model 'm': score is missing"),
        ({"cheap": {"m": {"score": 0, "cost": "x"}}}, "cheap model 'm': cost must be a number, not 'x'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read(tmp_path, LINE, LINE | change)
    assert str(raised.value) == f"{tmp_path / 'log.jsonl'}, line 2: {message}"


def test_a_log_without_requests_or_costs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="contains no requests"):
        read(tmp_path)
    with pytest.raises(InvalidInput, match="the answers of the asked model cost nothing"):
        read(tmp_path, LINE | {"cost": 0})


def test_pairs_have_the_lines_of_their_model_by_frame(tmp_path: Path) -> None:
    other = {"n": {"score": 1, "cost": 1}, "m.1": {"score": 1, "cost": 0}}
    requests = read(tmp_path, LINE, LINE | {"frame": "g", "cheap": other}, LINE | {"score": 0})
    assert models_of(requests) == ["m.1", "n"]
    first, second = pairs_of(requests, "m.1")
    assert (first.frame, second.frame) == ("f", "g")
    assert (first.losses.tolist(), second.losses.tolist()) == ([0.5, -0.5], [0.0])
    assert (first.asked_costs.tolist(), first.cheap_costs.tolist()) == ([2.0, 2.0], [0.25, 0.25])
    assert [pairs.frame for pairs in pairs_of(requests, "n")] == ["g"]


# Decisions.


def drawn_losses(rng: np.random.Generator, *means: float) -> Floats:
    """Return 3,000 losses of each mean, in this order. A fifth of them differ from 0."""
    parts = [rng.choice([1.0, 0.0, -1.0], 3000, p=[0.1 + mean / 2, 0.8, 0.1 - mean / 2]) for mean in means]
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("means", "states"),
    [
        ((-0.1, -0.1), ["certified"]),
        ((0.15,), ["hopeless"]),
        ((0.05,), ["learning"]),
        ((-0.1, 0.2, 0.2, -0.2, -0.2, -0.2), ["certified", "learning"]),
    ],
)
def test_decisions_are_those_of_a_step_for_every_request(means: tuple[float, ...], states: list[str]) -> None:
    rng = np.random.default_rng(3)
    losses = drawn_losses(rng, *means)
    draws, asked = rng.random(len(losses)), rng.lognormal(size=len(losses))
    label_costs = asked * rng.uniform(0.1, 0.5, len(losses))
    fast, plain = Frame(0.05, LabelBudget(0.03)), Frame(0.05, LabelBudget(0.03))
    choices = choose_all(fast, draws, asked, losses, label_costs)
    expected, seen = [], set()
    for draw, cost, loss, label_cost in zip(*map(np.ndarray.tolist, (draws, asked, losses, label_costs)), strict=True):
        expected.append(plain.choose(draw))
        plain.budget.asked_cost += cost
        if expected[-1] in ("label", "audit"):
            plain.add_label(loss, label_cost)
        seen.add(plain.certificate.state)
    assert choices.tolist() == expected
    assert set(states) <= seen
    assert (fast.budget.asked_cost, fast.budget.label_cost) == (plain.budget.asked_cost, plain.budget.label_cost)
    one, other = fast.certificate, plain.certificate
    assert (one.state, one.tries, one.labels, one.evidence) == (other.state, other.tries, other.labels, other.evidence)
    assert (one.tries > 1) == (len(means) > 2)


def small_pairs(name: str = "f", mean: float = -0.1, lines: int = 400) -> FramePairs:
    rng = np.random.default_rng(8)
    asked = rng.uniform(1.0, 3.0, lines)
    return FramePairs(name, asked, asked / 4.0, drawn_losses(rng, mean)[:lines])


OPTIONS = SwapOptions(loss=0.05, budget=0.03, judge_price=0.1, requests=3000, repeats=2)


@pytest.mark.parametrize("mean", [-0.1, 0.03])
def test_totals_are_those_of_a_step_for_every_request(mean: float) -> None:
    pairs = small_pairs(mean=mean)
    run = simulate_run(pairs, OPTIONS, 1, 0)
    rng = np.random.default_rng([OPTIONS.seed, 1, 0])
    lines, draws = rng.integers(0, 400, 3000).tolist(), rng.random(3000).tolist()
    frame = Frame(0.05, LabelBudget(0.03))
    asked_cost = spent = label_cost = lost = 0.0
    labels = swapped = 0
    for line, draw in zip(lines, draws, strict=True):
        asked, cheap, loss = (float(a[line]) for a in (pairs.asked_costs, pairs.cheap_costs, pairs.losses))
        choice = frame.choose(draw)
        frame.budget.asked_cost += asked
        asked_cost += asked
        if choice == "swap":
            spent, swapped, lost = spent + cheap, swapped + 1, lost + loss
            continue
        spent += asked
        if choice != "asked":
            labels, label_cost = labels + 1, label_cost + cheap + 0.1 * asked
            frame.add_label(loss, cheap + 0.1 * asked)
    assert (run.labels, run.swapped, run.state) == (labels, swapped, frame.certificate.state)
    assert (run.asked_cost, run.spent, run.label_cost, run.lost) == pytest.approx(
        (asked_cost, spent, label_cost, lost), rel=1e-12
    )
    assert (swapped > 0) == (mean < 0)


# Rows.


def test_a_row_is_the_total_of_its_runs() -> None:
    frames = [small_pairs("good"), small_pairs("bad", 0.2)]
    calls = []
    row = simulate("m", frames, OPTIONS, progress=lambda: calls.append(1))
    assert len(calls) == row["runs"] == 4
    runs = [simulate_run(pairs, OPTIONS, repeat, k) for k, pairs in enumerate(frames) for repeat in range(2)]
    asked, labels = sum(run.asked_cost for run in runs), sum(run.label_cost for run in runs)
    assert row["bill"] == pytest.approx((sum(run.spent for run in runs) + labels) / asked)
    assert row["labels"] == pytest.approx(labels / asked)
    assert row["swapped"] == sum(run.swapped for run in runs) / 12_000
    assert row["loss"] == pytest.approx(sum(run.lost for run in runs) / 12_000)
    assert row["loss_of_swapped"] == pytest.approx(row["loss"] / row["swapped"])
    good, bad = row["frames"]
    assert (good["certified"], bad["hopeless"], bad["swapped"], bad["loss"]) == (2, 2, 0.0, 0.0)
    assert good["bill"] < 0.75 < 1.0 < bad["bill"] < 1.03
    assert row["wrongly_certified"] == 0
    assert simulate("m", frames, OPTIONS) == row
    assert simulate("m", frames, SwapOptions(**{**vars(OPTIONS), "seed": 1}))["bill"] != row["bill"]


def test_certified_runs_of_a_frame_that_loses_too_much_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SwapRun(asked_cost=100.0, spent=50.0, label_cost=8.0, labels=40, swapped=5, lost=1.0, state="certified")
    monkeypatch.setattr(replay, "simulate_run", lambda *_: run)
    row = simulate("m", [small_pairs("good"), small_pairs("bad", 0.2)], OPTIONS)
    assert (row["wrongly_certified"], row["runs"], row["bill"]) == (2, 4, 0.58)
    assert row["frames"][0]["beyond_budget"] == pytest.approx((8.0 - 3.0) / 0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": 0.0}, "the loss must be above 0"),
        ({"budget": 1.5}, "budget must be from 0 to 1, not 1.5"),
        ({"judge_price": -1.0}, "judge-price must be finite and not negative"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
    ],
)
def test_bad_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SwapOptions(**vars(OPTIONS) | change)


def test_options_at_their_bounds_are_accepted() -> None:
    for change in (
        {"budget": 0.0},
        {"budget": 1.0},
        {"judge_price": 0.0},
        {"requests": 1},
        {"repeats": 1},
        {"seed": 0},
    ):
        SwapOptions(**vars(OPTIONS) | change)


# Cache and swap.


def test_a_cache_that_holds_everything_costs_the_first_requests_by_any_price() -> None:
    trace, routed = framed_trace(keys=50, requests=2000, frames=2, certified=1, price_ratio=4.0, seed=5)
    costs = joint_costs(trace, routed, "gdsf-cost", capacity=1.0)
    first = np.unique(trace.keys, return_index=True)[1]
    total = trace.costs.sum()
    assert costs["cache"] == pytest.approx(trace.costs[first].sum() / total)
    assert costs["asked"] == costs["routed"] == pytest.approx(routed[first].sum() / total)
    assert costs["swap"] == pytest.approx(routed.sum() / total)
    cheaper = routed < trace.costs
    assert routed[cheaper] == pytest.approx(trace.costs[cheaper] / 4.0)
    assert (routed[~cheaper] == trace.costs[~cheaper]).all()


def test_the_routed_price_is_the_better_one_to_tell_a_policy() -> None:
    trace, routed = framed_trace(keys=500, requests=20_000, frames=8, certified=5, price_ratio=20.0, seed=1)
    costs = joint_costs(trace, routed, "gdsf-cost", capacity=0.1)
    assert costs["routed"] < 0.9 * costs["asked"] < costs["asked"] < min(costs["cache"], costs["swap"])


@pytest.mark.parametrize(("policy", "least"), [("adaptive", 0.03), ("gdsf-cost", 0.0)])
def test_residents_with_the_price_of_the_certified_model_cost_less(policy: str, least: float) -> None:
    """A certificate starts after half of the requests. The policy gets the new prices of its residents, or not."""
    trace, routed = framed_trace(keys=500, requests=20_000, frames=8, certified=5, price_ratio=20.0, seed=1)
    half, end = 10_000, 12_000
    before, after = (
        Trace(trace.keys[part], trace.sizes[part], costs[part], trace.ids)
        for part, costs in ((slice(half), trace.costs), (slice(half, end), routed))
    )
    prices = dict(zip(after.keys.tolist(), after.costs.tolist(), strict=True))
    paid = []
    for repriced in (False, True):
        built = registry.find(policy).build(int(0.1 * trace.working_set), trace.ids)
        replay_trace(built, before)
        for i in built.residents & prices.keys() if repriced else ():
            built.reprice(i, prices[i])
        built.check()
        paid.append(float(after.costs[~replay_trace(built, after).hits].sum()))
    assert paid[1] < (1.0 - least) * paid[0]


def test_a_capacity_out_of_range_is_refused() -> None:
    trace, routed = framed_trace(keys=5, requests=10, frames=1, certified=1, price_ratio=2.0)
    with pytest.raises(InvalidInput, match="capacity must be above 0 and at most 1, not 2"):
        joint_costs(trace, routed, "lru", capacity=2.0)
