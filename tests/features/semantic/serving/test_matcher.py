"""The matcher: what is found for a question, and what follows from the log, a restart, an eviction and a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from knapcache import Cache, Reply
from knapcache.cache.cache import internal_of
from knapcache.cache.internal import InternalCache
from knapcache.cache.purging import purge_conditions
from knapcache.cache.values import DEFAULT_OPTIONS
from knapcache.errors import StoreError
from knapcache.features.semantic import matcher as module
from knapcache.features.semantic.certificate import LEVELS
from knapcache.features.semantic.event import SemanticEvent
from knapcache.features.semantic.learner import Label, SemanticLearner
from knapcache.features.semantic.log import START
from knapcache.features.semantic.matcher import Asked, Found, Matcher
from knapcache.features.semantic.question import Question, read_question
from knapcache.features.semantic.shared_state import SharedState
from knapcache.features.semantic.sqlite_log import SqliteLog
from knapcache.keys import KeyedRequest
from knapcache.keys.parse import ParsedBody
from knapcache.model import Endpoint
from knapcache.store.sqlite.rows import Sealer
from tests.features.semantic.word_vectors import WordVectors

POISON = "plutonium"
STORED, SAME, OTHER = "How do I bake bread?", "Hi, how do I bake the bread?", "Who painted the night watch?"


class FailingVectors(WordVectors):
    """Vectors of words, unless the model is broken or a text causes a fault."""

    broken = False

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.broken:
            raise OSError("no model")
        if any(POISON in text for text in texts):
            raise ValueError(f"not a number: {texts}")
        return super().embed(texts)


@pytest.fixture
def cache() -> Iterator[InternalCache]:
    with Cache("1MB", policy="lru", shadows=()) as cache:
        yield internal_of(cache)


@pytest.fixture(autouse=True)
def _no_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "draw", lambda: 0.99)


def memory_log() -> SqliteLog:
    return SqliteLog(None, Sealer(b"secret"), 100)


def matcher(
    cache: InternalCache,
    log: SqliteLog | None = None,
    file: Path | None = None,
    clock: Callable[[], float] = time.time,
) -> Matcher:
    embedder = FailingVectors()
    return Matcher(cache, embedder, SharedState(embedder, log or memory_log(), {"": 0.1}, 100, file), clock)


def ask(cache: InternalCache, text: str, *, mode: str = "on", max_age: float | None = None, system: str = "") -> Asked:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    body = ParsedBody({"model": "m", "messages": messages})
    question, request = read_question(Endpoint.CHAT, body), cache.keyed_request(Endpoint.CHAT, body)
    assert isinstance(question, Question)
    assert isinstance(request, KeyedRequest)
    return Asked("", mode, Endpoint.CHAT, question, request, None, {}, max_age)


def store(cache: InternalCache, tier: Matcher, asked: Asked) -> Found:
    """Answer a question upstream, and add it."""
    found = tier.find(asked)
    cache.engine.fetch(asked.request, lambda: Reply(b"answer", cost=1.0, meta={"form": "json"}), DEFAULT_OPTIONS)
    tier.add_question(found.frame, asked.request.key.digest, found.vector)
    return found


def certify(tier: Matcher, labels: int = 100) -> None:
    for k in range(labels):
        tier.state.add_label("", f"m{k}", "equal", Label(b"%d" % k, (0.0,) * 14, 0.01, LEVELS[0] / 2, False, "shadow"))


@pytest.fixture
def _certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every match have the least risk."""
    monkeypatch.setattr("knapcache.features.semantic.learner.SemanticLearner._risk", lambda *_: 0.001)


def certified(cache: InternalCache, **options: Any) -> Matcher:
    """Return a matcher that has stored a question, and serves matches of the least risk."""
    tier = matcher(cache, **options)
    store(cache, tier, ask(cache, STORED))
    certify(tier)
    return tier


@pytest.fixture
def tier(cache: InternalCache, _certain: None) -> Matcher:
    return certified(cache)


@pytest.mark.usefixtures("_certain")
def test_a_match_is_served_only_when_it_is_certified(cache: InternalCache) -> None:
    tier = matcher(cache)
    stored = ask(cache, STORED)
    found = store(cache, tier, stored)
    assert (found.kind, found.match, found.entry) == ("none", None, None)
    assert found.vector
    found = tier.find(ask(cache, SAME))
    assert (found.kind, found.similar) == ("shadow", None)
    certify(tier)
    assert tier.state.levels[""] >= 0
    found = tier.find(ask(cache, SAME))
    assert found.kind == "served"
    assert found.entry is not None
    assert found.similar is not None
    assert (found.entry.key, found.similar.key) == (stored.request.key.digest,) * 2
    assert 0.0 < found.similar.bound <= 0.1
    assert tier.find(ask(cache, SAME, mode="shadow")).kind == "shadow"
    assert tier.find(ask(cache, OTHER)).kind == "none"
    assert tier.find(ask(cache, SAME, system="Be brief.")).kind == "none", "another frame"


def test_some_matches_are_audited(cache: InternalCache, tier: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SemanticLearner, "is_audit", lambda *_: True)
    found = tier.find(ask(cache, SAME))
    assert found.kind == "audit"
    assert found.similar is not None, "it is served if the upstream fails"
    assert found.entry is not None


@pytest.mark.usefixtures("_certain")
def test_an_index_that_names_the_entry_of_another_frame_is_not_believed(cache: InternalCache) -> None:
    tier = matcher(cache)
    other = ask(cache, STORED, system="Be brief.")
    frame = store(cache, tier, ask(cache, OTHER)).frame
    found = store(cache, tier, other)
    tier.add_question(frame, other.request.key.digest, found.vector)  # a log with a wrong record
    certify(tier)
    found = tier.find(ask(cache, SAME))
    assert (found.kind, found.reason, found.entry) == ("none", "other frame", None)
    assert tier.find(ask(cache, SAME)).reason == ""


@pytest.mark.usefixtures("_certain")
def test_an_answer_that_is_too_old_for_the_caller_is_not_served(cache: InternalCache) -> None:
    tier = certified(cache, clock=lambda: 4e9)
    assert tier.find(ask(cache, SAME, max_age=60.0)).kind == "shadow"
    assert tier.find(ask(cache, SAME)).kind == "served"


@pytest.mark.usefixtures("_certain")
def test_the_answer_that_replaces_an_evicted_one_starts_with_its_count() -> None:
    with Cache("1MB", policy="gdsf-cost-history", shadows=()) as opened:
        cache = internal_of(opened)
        tier, stored, new = certified(cache), ask(cache, STORED), ask(cache, SAME)
        for _ in range(5):
            cache.engine.fetch(stored.request, lambda: Reply(b"answer"), DEFAULT_OPTIONS)
        assert tier.find(new).kind == "served"  # its text is in memory now
        assert cache.lookup(Endpoint.CHAT, new.request).hit is None
        cache.coordinator.role.admission.forget([stored.request.key.digest])  # type: ignore[union-attr]
        assert tier.find(new).reason == "evicted"
        store(cache, tier, new)
        (row,) = cache.entries()["rows"]
        assert row["requests"] >= 6


def test_processes_with_the_same_log_decide_alike(cache: InternalCache) -> None:
    log = memory_log()
    one, other = matcher(cache, log), matcher(cache, log)
    store(cache, one, ask(cache, STORED))
    certify(one)
    assert other.state.levels == {"": -1}
    other.maintain(sweep=False)
    assert one.state.levels == other.state.levels
    assert one.state.report() == other.state.report()
    assert other.find(ask(cache, SAME)).match is not None


@pytest.mark.usefixtures("_certain")
def test_a_restart_keeps_questions_and_certificates(cache: InternalCache, tmp_path: Path) -> None:
    log, file = memory_log(), tmp_path / "index"
    certified(cache, log=log, file=file).state.save()
    assert matcher(cache, log, file=file).find(ask(cache, SAME)).kind == "served"
    file.write_bytes(b"damaged")
    assert matcher(cache, log, file=file).find(ask(cache, SAME)).kind == "served"


def test_other_errors_are_applied_to_all_labels(cache: InternalCache) -> None:
    tier = matcher(cache)
    certify(tier, 100)
    assert tier.state.levels[""] >= 0
    tier.state.configure({"": 0.001})
    assert tier.state.levels[""] == -1
    tier.state.configure({"": 0.1, "team": 0.1})
    assert tier.state.levels[""] >= 0
    assert tier.state.levels["team"] == -1


def test_labels_of_another_model_or_with_other_features_do_not_count(cache: InternalCache) -> None:
    log = memory_log()
    certify(matcher(cache, log))
    other = FailingVectors()
    other.build = "other words"
    assert SharedState(other, log, {"": 0.1}, 100).levels == {"": -1}
    log = memory_log()
    tier = matcher(cache, log)
    tier.state.add_label("", "m", "equal", Label(b"k", (0.5, 0.5), 0.01, 0.001, False, "shadow"))
    assert tier.state.report()[""]["labels"] == {}
    assert matcher(cache, log).state.report()[""]["labels"] == {}


def test_a_log_that_was_begun_again_forgets_the_old_one(tier: Matcher) -> None:
    tier.state._log = memory_log()
    tier.state._log.append(labels=[])
    certify(tier, 1)
    assert tier.state.levels == {"": -1}
    assert tier.state.report()[""]["labels"] == {"shadow": 1}


def test_a_sweep_removes_questions_of_entries_that_are_gone(cache: InternalCache) -> None:
    log = memory_log()
    tier, other = matcher(cache, log), matcher(cache, log)
    store(cache, tier, ask(cache, STORED))
    store(cache, tier, ask(cache, OTHER))
    other.state.follow()
    cache.purge(purge_conditions(key=ask(cache, STORED).request.key.digest))
    tier.sweep()
    other.state.follow()
    assert (
        tier.state.report()[""]["questions"],
        other.state.report()[""]["questions"],
        len(log.read_questions()[0]),
    ) == (1, 1, 1)


def events_after(tier: Matcher, call: Callable[[], object]) -> list[str]:
    """Return the events that a call adds to the log."""
    _, position = tier.state._log.read_labels(START)
    call()
    return [each.label.source for each in tier.state._log.read_labels(position)[0]]


def test_a_purge_restarts_what_labels_weigh_on_and_only_where_answers_are_gone(cache: InternalCache) -> None:
    tier = matcher(cache)
    stored = [ask(cache, STORED), ask(cache, OTHER)]
    for asked in stored:
        store(cache, tier, asked)
    tier.state.add_label("", "m", "veto", Label(b"k", (0.0,) * 14, 0.01, LEVELS[0] / 2, True, "shadow"))
    assert tier.state.learner("").labels_weigh
    assert events_after(tier, tier.purged) == [], "the purge has matched nothing"
    cache.purge(purge_conditions(key=stored[0].request.key.digest))
    assert events_after(tier, tier.purged) == ["partial restart"]
    tier.state.add_label("", "m", "veto", Label(b"new", (0.0,) * 14, 0.01, LEVELS[0] / 2, True, "shadow"))
    cache.purge(purge_conditions(key=stored[1].request.key.digest))
    assert events_after(tier, tier.purged) == ["restart"]


def test_the_label_of_a_match_from_before_a_restart_is_dropped(cache: InternalCache, tier: Matcher) -> None:
    before = tier.find(ask(cache, SAME))
    assert before.match is not None
    tier.state.restart([""])
    after = tier.find(ask(cache, SAME))
    labels = [before.match.label(True, "shadow"), before.match.label(False, "shadow")]
    assert events_after(tier, lambda: tier.add_label("", before, labels[0], "equal")) == []
    assert events_after(tier, lambda: tier.add_label("", after, labels[1], "equal")) == ["shadow"]
    tier.state.reset("")
    assert events_after(tier, lambda: tier.add_label("", after, labels[1], "equal")) == []


def test_feedback_counts_as_a_wrong_label(cache: InternalCache, tier: Matcher) -> None:
    found = tier.find(ask(cache, SAME))
    assert found.match is not None
    event = SemanticEvent(
        "served", match_id="m", matched_key=found.match.key.hex(), features=found.match.features, risk=found.match.risk
    )
    tier.state.feedback(event)
    (report,) = tier.state.report().values()
    assert report["labels"] == {"shadow": 100, "feedback": 1}
    assert report["levels"][0]["wrong"] == 1


def test_a_broken_model_fails_no_request(cache: InternalCache, caplog: pytest.LogCaptureFixture) -> None:
    tier = matcher(cache)
    tier.embedder.broken = True  # type: ignore[attr-defined]
    for _ in range(2):
        assert tier.find(ask(cache, STORED)).kind == "failed"
        tier.state.follow()
    assert caplog.text.count("serves nothing now") == 1
    tier.embedder.broken = False  # type: ignore[attr-defined]
    assert tier.find(ask(cache, STORED)).kind == "none"


def test_a_question_that_causes_a_fault_fails_alone(cache: InternalCache, caplog: pytest.LogCaptureFixture) -> None:
    tier = matcher(cache)
    for _ in range(3):
        found = tier.find(ask(cache, f"How do I bake {POISON} bread?"))
        assert (found.kind, found.reason) == ("failed", "fault")
        assert not tier.state.failure
        assert tier.find(ask(cache, STORED)).kind == "none"
    assert [record.levelname for record in caplog.records] == ["ERROR"], "a fault is logged once"
    assert POISON not in caplog.records[0].getMessage()


def test_a_log_that_cannot_be_read_ends_serving(cache: InternalCache, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = matcher(cache)

    monkeypatch.setattr(tier.state._log, "append", Mock(side_effect=StoreError("the server does not answer")))
    tier.add_question(b"f", b"k", b"\1" * 64)
    assert "the server does not answer" in tier.state.failure
    assert tier.find(ask(cache, STORED)).kind == "failed"
    tier.state.follow()
    assert tier.find(ask(cache, STORED)).kind == "none"
