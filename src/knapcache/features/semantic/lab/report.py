"""Results of a replay of questions: JSON, sentences, tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from knapcache.features.semantic.lab.read import LoggedQuestion
from knapcache.features.semantic.lab.replay import AnswersDiffer, ReplayOutcome, SemanticReplay
from knapcache.lab.figures import as_png, new_figure
from knapcache.units import counted

POINTS = 400
"""Points of a curve."""
SERVED_COLOUR, WRONG_COLOUR, LIMIT_COLOUR = "#0072B2", "#C1121F", "#444444"


def summary(
    found: SemanticReplay, questions: Sequence[LoggedQuestion], compare: Any = None, left_out: int = 0
) -> dict[str, Any]:
    """Return the result as JSON. left_out: lines that a proxy had answered by similarity."""
    served = found.outcomes == ReplayOutcome.SERVED
    requests, hits = len(questions), int(served.sum())
    first = int(np.argmax(served)) if hits else requests
    costs = np.array([question.cost or 0.0 for question in questions])
    has_cost = any(question.cost is not None for question in questions)
    rest = found.outcomes != ReplayOutcome.EXACT
    return {
        "requests": requests,
        "served": hits,
        "wrong": found.wrong_served if found.compared else None,
        "labels": found.count(ReplayOutcome.SHADOW, ReplayOutcome.AUDIT) if found.compared else 0,
        "certified": found.learned["bound"],
        "seconds": round(found.seconds, 3),
        "allowed_error": found.error,
        "error": found.wrong_served / hits if hits else None,
        "served_rate": hits / requests,
        "running_rate": hits / (requests - first) if hits else 0.0,
        "saved": float(costs[served].sum()) if has_cost else None,
        "saved_rate": float(costs[served].sum() / max(costs[rest].sum(), 1e-300)) if has_cost else None,
        "exact": found.count(ReplayOutcome.EXACT),
        "frames": len({question.frame for question in questions if not question.excluded}),
        "candidates": found.count(ReplayOutcome.SHADOW, ReplayOutcome.AUDIT, ReplayOutcome.SERVED),
        "audits": found.count(ReplayOutcome.AUDIT),
        "left_out": left_out,
        "excluded": dict(found.excluded.most_common()),
        "vetoed": dict(found.vetoed.most_common()),
        "verdicts": dict(compare.verdicts.most_common()) if isinstance(compare, AnswersDiffer) else {},
        "alarms": found.learned["alarms"],
        "levels": found.learned["levels"],
        "other_errors": found.learned["others"],
    }


def facts(result: dict[str, Any], found: SemanticReplay) -> list[str]:
    requests, exact, excluded = result["requests"], result["exact"], sum(result["excluded"].values())
    frames = counted(result["frames"], "frame")
    text = [
        f"{counted(requests, 'request')} in {frames}: {counted(exact, 'exact repeat')}, {excluded:,} that are never "
        f"matched, and {result['candidates']:,} with a match among the stored questions."
    ]
    if result["left_out"]:
        text.append(
            f"{counted(result['left_out'], 'line was', 'lines were')} left out: a proxy answered by similarity, so "
            "the answer is that of another question."
        )
    if not found.compared:
        text.append(
            "The log has neither a truth (--truth FIELD) nor answers. So no match can be labelled, nothing is "
            "certified, and nothing would be served."
        )
        return text
    limit = percent(found.error)
    if not result["served"]:
        text.append(
            f"Served by similarity: none. {counted(result['labels'], 'label')} did not certify an error of {limit}."
        )
        return text
    text.append(
        f"Served by similarity: {result['served']:,}, {percent(result['served_rate'])} of all requests and "
        f"{percent(result['running_rate'])} of those from the first one on. Wrong: {result['wrong']:,}, "
        f"{percent(result['error'])} of those served; allowed are {limit}."
    )
    if result["saved"] is not None:
        text.append(
            f"Saved: {result['saved']:,.4g} in the unit of the log's costs, {percent(result['saved_rate'])} of the "
            "cost of all requests that are not exact repeats."
        )
    state = "The tier is back in shadow at the end" if result["certified"] is None else "At the end"
    state += (
        "." if result["certified"] is None else f" an error of at most {percent(result['certified'])} is certified."
    )
    text.append(f"{state} Labels: {result['labels']:,}, of which {result['audits']:,} are audits.")
    return text


def percent(share: float) -> str:
    return f"{100.0 * share:.3g} %"


def level_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the levels of risk as rows of a table."""
    return [
        {
            "risk up to": level["threshold"],
            "labels": level["labels"],
            "wrong": level["wrong"],
            "e-value": level["e_value"],
            "certified error": percent(level["bound"]) if level["bound"] < 1.0 else "",
            "serves": "yes" if level["serves"] else "no",
        }
        for level in result["levels"]
    ]


def reason_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return why requests were not matched, as rows of a table."""
    return [
        {"not matched": what, "reason": reason, "requests": count}
        for what, counts in (("excluded", result["excluded"]), ("vetoed", result["vetoed"]))
        for reason, count in counts.items()
    ]


def wrong_rows(found: SemanticReplay, count: int) -> list[dict[str, Any]]:
    """Return the first answers that were served and wrong, as rows of a table."""
    return [
        {
            "asked": wrong.asked.text,
            "answered as": wrong.stored.text,
            "place": wrong.asked.place,
            "cosine": wrong.match.cosine,
            "risk": wrong.match.risk,
        }
        for wrong in found.served_wrong[:count]
    ]


def figure_png(found: SemanticReplay, title: str) -> bytes:
    """Return a figure: the share of requests that is served, and the share of these that is wrong, over the log."""
    served = found.outcomes == ReplayOutcome.SERVED
    requests = np.arange(1, len(served) + 1)
    shown = np.unique(np.linspace(0, len(served) - 1, POINTS).astype(int))
    hits, wrong = np.cumsum(served), np.cumsum(served & found.wrong)
    window = max(1, len(served) // 20)
    recent = (hits - np.concatenate((np.zeros(window, dtype=hits.dtype), hits[:-window]))) / np.minimum(
        requests, window
    )
    figure, (left, right) = new_figure(2, width=4.6, height=3.6)
    left.plot(requests[shown], recent[shown], color=SERVED_COLOUR, label=f"of the last {window:,} requests")
    left.plot(requests[shown], (hits / requests)[shown], color=SERVED_COLOUR, linestyle=":", label="of all so far")
    left.set_ylim(0.0, 1.0)
    left.set_xlabel("requests")
    left.set_ylabel("share served by similarity")
    left.legend()
    errors = wrong / np.maximum(hits, 1)
    right.plot(requests[shown], errors[shown], color=WRONG_COLOUR, label="of all so far", clip_on=False)
    right.axhline(found.error, color=LIMIT_COLOUR, linestyle="--", label="allowed")
    right.set_ylim(0.0, max(2.0 * found.error, 1.1 * float(errors.max())))
    right.set_xlabel("requests")
    right.set_ylabel("share wrong among those served")
    right.legend()
    figure.suptitle(title)
    return as_png(figure)
