"""Simulated traffic with swap: what a cheaper model would have saved, and what it would have lost.

Each run draws requests of one frame from the log, with replacement. `Frame` decides for each of them:

    asked, label, audit    the asked model answers, for its cost
    swap                   the cheaper model answers, for its cost; the request loses score(asked) − score(cheap)
    label, audit           also cost a label: an answer of the cheaper model and a verdict

The draw of a request shows whether it can get a label at all. Only requests that can are given to `Frame`, one by one;
the rest is handled as arrays. The result is the same as with a step for every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from knapcache.errors import InvalidInput
from knapcache.features.swap.certificate import LossCertificate, State
from knapcache.features.swap.frame import AUDIT, MAX_LABELLED, Choice, Frame, LabelBudget
from knapcache.features.swap.lab.read import FramePairs
from knapcache.lab.trace import Floats

Choices = npt.NDArray[np.str_]
LABELLED: Final[tuple[Choice, ...]] = ("label", "audit")
LABEL_DRAWS: Final[dict[State, float]] = {"learning": MAX_LABELLED, "certified": AUDIT, "hopeless": 0.0}
"""The draws from which on a request gets no label, by the state of its frame."""


@dataclass(frozen=True, kw_only=True)
class SwapOptions:
    """Parameters of a simulation."""

    loss: float
    """Allowed mean loss."""
    budget: float
    """Most that labels may cost, as a share of what the asked model costs."""
    judge_price: float
    """Cost of a verdict, as a share of what the asked model's answer costs."""
    requests: int
    """Requests of a frame in each run."""
    repeats: int
    """Runs of each frame."""
    seed: int = 0

    def __post_init__(self) -> None:
        LossCertificate(self.loss)  # raises InvalidInput
        if not 0.0 <= self.budget <= 1.0:
            raise InvalidInput(f"budget must be from 0 to 1, not {self.budget}")
        if not 0.0 <= self.judge_price < np.inf:
            raise InvalidInput(f"judge-price must be finite and not negative, not {self.judge_price}")
        for name, least in (("requests", 1), ("repeats", 1), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise InvalidInput(f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True, kw_only=True)
class SwapRun:
    """Totals of one run of a frame."""

    asked_cost: float
    """Cost of all requests with the asked model alone."""
    spent: float
    """Cost of all answers that callers got."""
    label_cost: float
    labels: int
    swapped: int
    """Requests that the cheaper model answered."""
    lost: float
    """Sum of the losses of these."""
    state: State
    """State of the frame at the end."""


def simulate_run(pairs: FramePairs, options: SwapOptions, repeat: int, number: int) -> SwapRun:
    """Simulate one run of a frame. Equal numbers of frame and repeat give equal draws, for every cheaper model."""
    random = np.random.default_rng([options.seed, repeat, number])
    lines = random.integers(0, len(pairs.losses), options.requests)
    draws = random.random(options.requests)
    asked, cheap, losses = pairs.asked_costs[lines], pairs.cheap_costs[lines], pairs.losses[lines]
    label_costs = cheap + options.judge_price * asked
    frame = Frame(options.loss, LabelBudget(options.budget))
    choices = choose_all(frame, draws, asked, losses, label_costs)
    swapped, labelled = choices == "swap", np.isin(choices, LABELLED)
    return SwapRun(
        asked_cost=float(asked.sum()),
        spent=float(np.where(swapped, cheap, asked).sum()),
        label_cost=float(label_costs[labelled].sum()),
        labels=int(labelled.sum()),
        swapped=int(swapped.sum()),
        lost=float(losses[swapped].sum()),
        state=frame.certificate.state,
    )


def choose_all(frame: Frame, draws: Floats, asked_costs: Floats, losses: Floats, label_costs: Floats) -> Choices:
    """Return the choice of the frame for each request, in order, and update the frame."""
    choices = np.full(len(draws), "asked", dtype="<U5")
    # cumsum adds in the order of the requests, so these sums are equal to those of single steps to the last bit.
    before = np.cumsum(np.concatenate(([frame.budget.asked_cost], asked_costs)))
    start = 0
    while start < len(draws):
        state, end = frame.certificate.state, len(draws)
        labelled: list[int] = []
        for k in (start + np.flatnonzero(draws[start:] < LABEL_DRAWS[state])).tolist():
            frame.budget.asked_cost = float(before[k])
            if frame.choose(float(draws[k])) in LABELLED:
                labelled.append(k)
                frame.add_label(float(losses[k]), float(label_costs[k]))
                if frame.certificate.state != state:
                    end = k + 1
                    break
        if state == "certified":
            choices[start:end] = "swap"
        choices[labelled] = "audit" if state == "certified" else "label"
        start = end
    frame.budget.asked_cost = float(before[-1])
    return choices


def simulate(
    model: str, frames: Sequence[FramePairs], options: SwapOptions, progress: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Return the row of a cheaper model, with a row for each frame. progress: called after each run."""
    rows: list[dict[str, Any]] = []
    every: list[SwapRun] = []
    for number, pairs in enumerate(frames):
        runs = []
        for repeat in range(options.repeats):
            runs.append(simulate_run(pairs, options, repeat, number))
            if progress:
                progress()
        rows.append(frame_row(pairs, runs, options))
        every += runs
    return {
        "model": model,
        **shares(every, options),
        "wrongly_certified": sum(row["certified"] for row in rows if row["true_loss"] > options.loss),
        "frames": rows,
        "runs": len(every),
        "loss_of_swapped": ratio(sum(run.lost for run in every), sum(run.swapped for run in every)),
    }


def frame_row(pairs: FramePairs, runs: Sequence[SwapRun], options: SwapOptions) -> dict[str, Any]:
    states = Counter(run.state for run in runs)
    return {
        "frame": pairs.frame,
        **shares(runs, options),
        "lines": len(pairs.losses),
        "true_loss": float(pairs.losses.mean()),
        "label_count": sum(run.labels for run in runs) / len(runs),
        "beyond_budget": max(labels_beyond_budget(run, options.budget) for run in runs),
        "certified": states["certified"],
        "learning": states["learning"],
        "hopeless": states["hopeless"],
    }


def shares(runs: Sequence[SwapRun], options: SwapOptions) -> dict[str, float | None]:
    """Return the bill and the cost of labels by what the asked model alone costs, and the means over all requests."""
    asked = sum(run.asked_cost for run in runs)
    labels = sum(run.label_cost for run in runs)
    requests = len(runs) * options.requests
    return {
        "bill": ratio(sum(run.spent for run in runs) + labels, asked),
        "labels": ratio(labels, asked),
        "swapped": sum(run.swapped for run in runs) / requests,
        "loss": sum(run.lost for run in runs) / requests,
    }


def labels_beyond_budget(run: SwapRun, budget: float) -> float:
    """Return how many labels of the run's mean cost are not covered by the budget; 0 if all are."""
    over = run.label_cost - budget * run.asked_cost
    return over / run.label_cost * run.labels if over > 0.0 else 0.0


def ratio(part: float, whole: float) -> float | None:
    """Return part ÷ whole; None if there is nothing to compare with."""
    return part / whole if whole else None
