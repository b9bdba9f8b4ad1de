"""The part of an event about the semantic tier, verdicts, which are known later, and the most recent matches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

from knapcache.proxy.events.events import Event

MatchKind = Literal["served", "shadow", "audit", "none", "excluded", "refused", "failed"]
MATCH_KINDS: tuple[MatchKind, ...] = get_args(MatchKind)
"""Results of the semantic tier for a request:

served     a stored answer to a similar question was sent
shadow     there was a match, but its level is not certified: the request went upstream
audit      the match could have been served, but was drawn to be checked: the request went upstream
none       no stored question came near, or vetoes excluded those that did
excluded   requests of its form are never matched
refused    the client asked not to be served by similarity
failed     the tier could not look the question up; `reason` says why (FAILURES)
"""
FAILURES = {
    "not ready": "its embedding model was not loaded yet",
    "busy": "too many questions were waiting",
    "timeout": "the search took too long",
    "failure": "its store, its log or the embedding API failed",
    "fault": "the question caused an error, which is in the log",
    "closing": "the proxy was stopping",
}
"""Why the tier could not look a question up."""
MatchVerdict = Literal["", "same", "different", "undecided"]
MAX_MATCHES = 10_000
"""Matches that are known. One takes about 1 kB, and 1 kB more if the setting `show_content` is on."""


class SemanticEvent(NamedTuple):
    """The match that the semantic tier found after an exact miss, or why there is none. Built with keywords.

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
    """The request's question, which is short (MAX_CHARACTERS of question.py); empty unless `show_content`."""
    matched_question: str = ""
    """The question of the entry that matched; empty unless `show_content`."""
    verdict: MatchVerdict = ""
    """Whether both answers say the same. Set when the match is judged, which is later than the request."""
    rung: str = ""
    """What decided the verdict: a rung of the judge, or `feedback`."""
    judge_usd: float = 0.0
    """Dollars paid for the verdict."""

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


class RecentMatch(NamedTuple):
    """A match and when its request arrived, Unix time."""

    time: float
    match: SemanticEvent


class RecentMatches:
    """The last MAX_MATCHES matches of all processes of this proxy, by id: for the dashboard, and for feedback.

    A match becomes known with the event of its request. Its verdict follows when it is judged.
    """

    def __init__(self, limit: int = MAX_MATCHES) -> None:
        self._limit = limit
        self._matches: OrderedDict[str, RecentMatch] = OrderedDict()

    def consume(self, events: Sequence[Event]) -> None:
        for event in events:
            match = event.parts.get("semantic")
            if match is not None and match.match_id:
                self._matches[match.match_id] = RecentMatch(event.time, match)
                if len(self._matches) > self._limit:
                    self._matches.popitem(last=False)

    def consume_verdicts(self, verdicts: Sequence[VerdictEvent]) -> None:
        """Add the verdicts on matches that are known."""
        for verdict in verdicts:
            found = self._matches.get(verdict.match_id)
            if found is not None:
                judged = found.match._replace(verdict=verdict.verdict, rung=verdict.rung, judge_usd=verdict.judge_usd)
                self._matches[verdict.match_id] = found._replace(match=judged)

    def find(self, match_id: str) -> RecentMatch | None:
        return self._matches.get(match_id)

    def newest(self, limit: int, scope: str | None = None) -> list[RecentMatch]:
        """Return the newest matches, newest first, of one scope or of all."""
        found = (one for one in reversed(self._matches.values()) if scope in (None, one.match.scope))
        return list(islice(found, limit))

    def check(self) -> None:
        """Raise ValueError unless every match is under its id and the bound holds."""
        if len(self._matches) > self._limit or any(name != one.match.match_id for name, one in self._matches.items()):
            raise ValueError("recent matches are inconsistent")
