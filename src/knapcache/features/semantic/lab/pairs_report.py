"""The report of `knapcache semantic LOG --report FILE`: what a team would gain, and what it should beware of.

valuable    stored questions that were asked in other words, were not answered by similarity, and could have been
dangerous   near questions with different answers, the least risk first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from knapcache.features.semantic.lab.replay import LabelledPair, ReplayOutcome, SemanticReplay
from knapcache.units import counted

ROWS = 10
OBSTACLES = {
    "": "its level of risk was not certified",
    "word": "no label had judged the words that differ",
    "entry": "the stored answer was wrong in its last label",
    "principal": "labels of the caller were wrong",
}
"""Why a match was not served, by `Match.obstacle`."""


def pairs_report(found: SemanticReplay, title: str) -> str:
    """Return the report as Markdown."""
    right = [pair for pair in found.pairs if not pair.wrong and pair.outcome == ReplayOutcome.SHADOW]
    wrong = [pair for pair in found.pairs if pair.wrong]
    has_cost = any(pair.asked.cost is not None for pair in right)
    return "\n".join(
        (
            f"# Other wordings in {title}",
            "",
            "## The most valuable that were not matched",
            "",
            "Stored questions that were asked in other words. Their answers were right, and were not served.",
            "",
            *table(
                ("stored question", "in other words", "cost" if has_cost else "", "for example", "not served because"),
                valuable(right, has_cost=has_cost),
            ),
            "",
            "## The most dangerous that were near",
            "",
            "Questions that look alike and have different answers, those with the least estimated risk first.",
            "",
            *table(("asked", "stored", "similarity", "risk", "result"), dangerous(wrong)),
            "",
        )
    )


def valuable(pairs: Sequence[LabelledPair], *, has_cost: bool) -> list[tuple[str, ...]]:
    """Return the stored questions whose other wordings cost the most, or are the most if there are no costs."""
    groups: dict[str, list[LabelledPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.stored.text, []).append(pair)
    costs = {text: sum(pair.asked.cost or 0.0 for pair in group) for text, group in groups.items()}
    ranked = sorted(groups, key=lambda text: (-costs[text], -len(groups[text]), text))[:ROWS]
    return [
        (
            text,
            counted(len(groups[text]), "time"),
            f"{costs[text]:.4g}" if has_cost else "",
            groups[text][0].asked.text,
            OBSTACLES[Counter(pair.match.obstacle for pair in groups[text]).most_common(1)[0][0]],
        )
        for text in ranked
    ]


def dangerous(pairs: Sequence[LabelledPair]) -> list[tuple[str, ...]]:
    """Return the pairs with different answers that the tier took for the least risky."""
    ranked = sorted(pairs, key=lambda pair: (pair.match.risk, -pair.match.cosine))[:ROWS]
    return [
        (
            pair.asked.text,
            pair.stored.text,
            f"{pair.match.cosine:.3f}",
            f"{100 * pair.match.risk:.2g} %",
            "served" if pair.outcome == ReplayOutcome.SERVED else f"not served: {reason(pair)}",
        )
        for pair in ranked
    ]


def reason(pair: LabelledPair) -> str:
    return "drawn for an audit" if pair.outcome == ReplayOutcome.AUDIT else OBSTACLES[pair.match.obstacle]


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, without columns that have no title."""
    if not rows:
        return ["None."]
    shown = [at for at, title in enumerate(titles) if title]
    lines = [[titles[at] for at in shown], ["---"] * len(shown), *([row[at] for at in shown] for row in rows)]
    return [f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
