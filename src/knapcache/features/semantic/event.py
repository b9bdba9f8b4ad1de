"""What an event says about the semantic tier, and the verdicts that follow."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

MAX_QUESTION = 512
"""Characters of `question` and `matched_question`. They are cut off; what the tier matches is shorter, as a rule."""
MatchKind = Literal["served", "shadow", "audit", "none", "excluded", "refused", "failed"]
MATCH_KINDS: tuple[MatchKind, ...] = ("served", "shadow", "audit", "none", "excluded", "refused", "failed")
"""What the semantic tier did with a request:

served     a stored answer to a similar question was sent
shadow     there was a match, but its level is not certified: the request went upstream
audit      the match could have been served, but was drawn to be checked: the request went upstream
none       no stored question came near, or vetoes excluded those that did
excluded   requests of its form are never matched
refused    the client asked not to be served by similarity
failed     the tier could not look the question up; `reason` says why (features/semantic/reasons.py)
"""
MatchVerdict = Literal["", "same", "different", "undecided"]


class SemanticEvent(NamedTuple):
    """What the semantic tier did with one request, after an exact miss. Built with keywords.

    None of it is a prompt, unless the setting `show_content` is on.
    """

    kind: MatchKind
    match_id: str = ""
    """Id of the match, as in `x-knapcache-match`; empty: there was none."""
    reason: str = ""
    """Name of the exclusion, the veto or the failure; empty if there is none to name."""
    scope: str = ""
    """The tenant whose labels decide; empty without tenants."""
    key: str = ""
    """The request's own key, in hex."""
    matched_key: str = ""
    """Key of the entry that matched, in hex."""
    similarity: float = 0.0
    """Cosine of the two questions."""
    risk: float = 1.0
    """Estimated probability that the stored answer is wrong for this request."""
    level: int = -1
    """Index of the level that the risk falls into (features/semantic/certificate.py); -1: none."""
    features: tuple[float, ...] = ()
    """Features of the match, from which a label is made."""
    seconds: float = 0.0
    """Time that the tier took before the request went on."""
    question: str = ""
    """The request's question; empty unless `show_content`."""
    matched_question: str = ""
    """The question of the entry that matched; empty unless `show_content`."""
    verdict: MatchVerdict = ""
    """Whether both answers say the same. Set when the match is judged, which is later than the request."""
    rung: str = ""
    """What decided the verdict: a rung of the judge, or `feedback`."""
    judge_usd: float = 0.0
    """Dollars paid for the verdict."""

    def shortened(self, waiting: int) -> SemanticEvent:  # noqa: ARG002
        """Return it with short texts."""
        question, matched = self.question[:MAX_QUESTION], self.matched_question[:MAX_QUESTION]
        return self._replace(question=question, matched_question=matched) if question or matched else self

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> SemanticEvent:
        """Return the event of its fields, as JSON has them."""
        return cls(**fields | {"features": tuple(fields["features"])})


class VerdictEvent(NamedTuple):
    """The verdict on a match, known after the request has finished."""

    match_id: str
    scope: str
    kind: MatchKind
    """That of the match: shadow, audit or served."""
    verdict: MatchVerdict
    rung: str
    """What decided: a rung of the judge, or `feedback`."""
    judge_usd: float
    time: float
    """When it was decided, Unix time."""
