"""What events say about the semantic tier: bounded, and restored from JSON."""

from __future__ import annotations

from knapcache.features.semantic.event import MAX_QUESTION, SemanticEvent, VerdictEvent
from knapcache.proxy.workers.owner_link import WorkerMessage, decode_message, encode_message
from tests.features.semantic.semantic_events import semantic_event, verdict_event
from tests.support.events import event


def test_questions_are_cut_off() -> None:
    found = semantic_event(question="q" * 10**6, matched_question="m" * 10**6).shortened(0)
    assert (found.question, found.matched_question) == ("q" * MAX_QUESTION, "m" * MAX_QUESTION)


def test_matches_and_verdicts_cross_processes() -> None:
    events = [event("similar", semantic=semantic_event(question="é")), event("miss", semantic=semantic_event())]
    notes = [("semantic", verdict_event()), ("semantic", verdict_event(verdict="different", judge_usd=0.25))]
    message = WorkerMessage(events, notes, [], 7)
    assert decode_message(encode_message(message), {"semantic": SemanticEvent}, {"semantic": VerdictEvent}) == message
