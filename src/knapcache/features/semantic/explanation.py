"""Sentences that explain how the semantic tier handled a request."""

from __future__ import annotations

from knapcache.cache.internal import InternalCache
from knapcache.features.semantic.event import FAILURES, RecentMatches, SemanticEvent
from knapcache.features.semantic.reasons import EXCLUSIONS
from knapcache.proxy.admin.models import Explanation, FieldDifference, SimilarEntry
from knapcache.proxy.admin_routes import FeatureExplanation
from knapcache.proxy.events.events import Event

NOT_MATCHED = {
    "": "No stored question was near.",
    "veto": "Stored questions were near, but differ in a number, a name, a negation or the like, so none was taken.",
    "evicted": "The answer to the nearest question is no longer stored.",
    "other frame": "The nearest question belongs to a request that differs in more than its text.",
}

OBSTACLES = {
    "word": "no label has shown yet that the words that differ may be exchanged",
    "entry": "the stored answer was wrong in its last label, or has had none since an alarm",
    "principal": "too many of the caller's own labels are wrong",
}
"""Why a match is not served whatever its risk, by `Match.obstacle`."""


def explained(event: Event, matches: RecentMatches, cache: InternalCache, *, content: bool) -> FeatureExplanation:
    """Return what the tier did with a request, with the verdict that followed. May wait for the disk."""
    match: SemanticEvent | None = event.parts.get("semantic")
    if match is None:
        return FeatureExplanation()
    known = matches.find(match.match_id)
    match = match if known is None else known.match
    why = None
    if event.outcome == "similar":
        entry = cache.browser.entry(match.matched_key)
        why = similar_answer(event, match, None if entry is None else entry["created"], content=content)
    return FeatureExplanation(tier_text(match), why, match.question or None)


def similar_answer(event: Event, match: SemanticEvent, created: float | None, *, content: bool) -> Explanation:
    """Explain an answer by similarity. created: when the entry was stored that answered; None: it is gone since."""
    text = (
        f"No identical request was stored, but one in another wording. The similarity of the questions is "
        f"{match.similarity:.3f}, and the estimated risk of a wrong answer {percent(match.risk)}, which was certified. "
        f"The match is {match.match_id}."
    )
    if match.verdict in ("different", "undecided"):
        text += " It was marked as wrong since."
    here, there = (text or None if content else None for text in (match.question, match.matched_question))
    difference = FieldDifference(field="question", text="another wording", here=here, there=there)
    nearest = SimilarEntry(
        key=match.matched_key,
        endpoint=event.endpoint,
        model=event.model,
        tenant=event.tenant,
        created=created or 0.0,
        stored=created is not None,
        words=there,
        differences=[difference],
    )
    title = "The answer to a similar question"
    return Explanation(kind="similar", title=title, text=text, at=created, nearest=nearest)


def tier_text(match: SemanticEvent | None) -> str:
    """Return what the tier did with a request that it did not answer; empty if it did, or was not asked."""
    if match is None or match.kind == "served":
        return ""
    near = (
        f"A question of similarity {match.similarity:.3f} was stored, with an estimated risk of {percent(match.risk)}."
    )
    judged = {
        "same": " Its answer was the same.",
        "different": " Its answer would have been wrong.",
        "undecided": " Whether its answer was the same is undecided, which counts as wrong.",
    }.get(match.verdict, "")
    if match.kind == "shadow":
        why = OBSTACLES.get(match.reason, "such a risk is not certified, or the tier only observes")
        return f"{near} It was not served: {why}.{judged}"
    if match.kind == "audit":
        return f"{near} It could be served, but was drawn at random for a check.{judged}"
    if match.kind == "excluded":
        return f"Never matched: {EXCLUSIONS.get(match.reason, match.reason)}."
    if match.kind == "refused":
        return "Not matched: the client asked for that (no-transform, or x-knapcache-semantic: off)."
    if match.kind == "failed":
        return f"Not looked up: {FAILURES.get(match.reason, 'the tier did not answer')}."
    return NOT_MATCHED.get(match.reason, NOT_MATCHED["veto"])


def percent(share: float) -> str:
    """Return a share with two significant digits."""
    return f"{float(f'{100 * share:.2g}'):g} %"
