"""The replay of questions: outcomes by hand, and a long log whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from knapcache.errors import CorruptState, InvalidInput
from knapcache.features.semantic.lab import replay, truth_differs
from knapcache.features.semantic.lab.read import LoggedQuestion, QuestionFields, parse
from knapcache.features.semantic.lab.replay import (
    BATCH,
    AnswersDiffer,
    ReplayOutcome,
    SemanticReplay,
    comparison_for,
    embed_questions,
    exclude_long,
)
from knapcache.features.semantic.lab.report import facts, figure_png, summary, wrong_rows
from tests.features.semantic.word_vectors import WordVectors

NEW, SHADOW, AUDIT, SERVED = ReplayOutcome.NEW, ReplayOutcome.SHADOW, ReplayOutcome.AUDIT, ReplayOutcome.SERVED
WORDINGS = (
    "How can I save {} dollars a month?",
    "What is a good way to save {} dollars a month?",
    "I want to save {} dollars a month, how do I do it?",
)


def question(text: str, truth: object = None, **more: object) -> LoggedQuestion:
    fields = QuestionFields("truth") if truth is not None else QuestionFields()
    return parse("line 1", {"text": text, "truth": truth, **more}, fields, 0.0)


def word_vectors(questions: Sequence[LoggedQuestion]) -> npt.NDArray[np.float32]:
    """Return sums of random vectors, one for each word: texts with common words are near."""
    return WordVectors().embed([each.text for each in questions])


def run(questions: Sequence[LoggedQuestion], error: float, **options: Any) -> SemanticReplay:
    return replay(questions, word_vectors(questions), error=error, compare=truth_differs, **options)


@pytest.fixture(scope="module")
def log() -> list[LoggedQuestion]:
    """240 questions of 80 meanings in random order. Those that differ in the number are vetoed."""
    rows = [question(wording.format(n), n, cost=0.5) for n in range(100, 180) for wording in WORDINGS]
    random.Random(5).shuffle(rows)
    return rows


def test_outcomes_of_a_short_log() -> None:
    rows = [
        question("Where do otters sleep near rivers?", 1),
        question("Where do otters sleep near rivers?", 1),  # an exact repeat
        question("Tell me where otters sleep near rivers", 1),  # a match, not certified: a label
        question("What does this mean?", 2),
        question("Which bread goes with butter?", 3),
        question("Where do otters not sleep near rivers?", 4),  # vetoed
        question("What does this mean?", 2),
    ]
    found = run(rows, 0.05)
    found.check()
    exact, excluded = ReplayOutcome.EXACT, ReplayOutcome.EXCLUDED
    assert found.outcomes.tolist() == [NEW, exact, SHADOW, excluded, NEW, NEW, exact]
    assert (dict(found.excluded), dict(found.vetoed)) == ({"deixis": 1}, {"negation": 1})
    result = summary(found, rows)
    assert (result["requests"], result["served"], result["wrong"], result["labels"]) == (7, 0, 0, 1)
    assert result["certified"] is result["error"] is result["saved"] is None
    assert facts(result, found)[1] == "Served by similarity: none. 1 label did not certify an error of 5 %."
    found.excluded["deixis"] = 2
    with pytest.raises(CorruptState):
        found.check()


def test_frames_never_match() -> None:
    text = "Where do otters sleep near rivers?"
    rows = [
        parse("line 1", {"model": model, "messages": [{"role": "user", "content": text}]}, QuestionFields(), 0.0)
        for model in ("a", "b")
    ]
    found = replay(rows, word_vectors(rows), error=0.05, compare=None)
    assert found.outcomes.tolist() == [NEW, NEW]


def test_a_log_of_paraphrases_is_served_within_the_allowed_error(log: list[LoggedQuestion]) -> None:
    found = run(log, 0.1, seed=1)
    found.check()
    result = summary(found, log)
    assert result["served"] > 40
    assert result["wrong"] == 0
    assert result["certified"] <= 0.1
    assert result["labels"] == found.count(SHADOW) + found.count(AUDIT) == sum(found.learned["labels"].values())
    assert result["saved"] == pytest.approx(0.5 * result["served"])
    assert result["saved_rate"] == pytest.approx(result["served_rate"])
    assert any(level["certified"] for level in result["levels"])
    assert figure_png(found, "log").startswith(b"\x89PNG")
    text = " ".join(facts(result, found))
    assert f"Served by similarity: {result['served']:,}" in text
    assert "is certified." in text


def test_the_same_seed_gives_the_same_replay(log: list[LoggedQuestion]) -> None:
    runs = [run(log, 0.1, seed=seed) for seed in (2, 2, 3)]
    assert runs[0].outcomes.tolist() == runs[1].outcomes.tolist() != runs[2].outcomes.tolist()


def test_audits_follow_their_share(log: list[LoggedQuestion]) -> None:
    none = run(log, 0.1, audit=0.0)
    assert none.count(SERVED) > 0
    every = run(log, 0.1, audit=1.0)
    assert every.count(SERVED) == 0
    assert every.count(AUDIT) > 0
    with pytest.raises(InvalidInput, match=r"audit must be from 0 to 1, not 1\.5"):
        run(log, 0.1, audit=1.5)


def test_wrong_truths_are_never_certified(log: list[LoggedQuestion]) -> None:
    rows = [each._replace(truth=str(number)) for number, each in enumerate(log)]
    found = run(rows, 0.2)
    assert found.count(SERVED) == 0
    assert found.learned["bound"] is None


def test_wrong_answers_are_counted_and_end_the_serving(log: list[LoggedQuestion]) -> None:
    start = 180  # from here on, nothing means what it meant before
    rows = [each._replace(truth=f"{number >= start} {each.truth}") for number, each in enumerate(log)]
    found = run(rows, 0.1, audit=0.05)
    found.check()
    shown = wrong_rows(found, 1000)
    assert 0 < len(shown) == found.wrong_served < 60 - start // 60
    assert shown[0]["asked"] != shown[0]["answered as"]
    assert found.learned["bound"] is None
    assert "The tier is back in shadow at the end." in " ".join(facts(summary(found, rows), found))


def test_without_truth_and_answers_nothing_is_labelled(log: list[LoggedQuestion]) -> None:
    rows = [each._replace(truth=None) for each in log]
    compare = comparison_for(rows, WordVectors())
    assert compare is None
    found: SemanticReplay = replay(rows, word_vectors(rows), error=0.1, compare=compare)
    found.check()
    result = summary(found, rows)
    assert (result["served"], result["wrong"], result["labels"], result["certified"]) == (0, None, 0, None)
    assert result["candidates"] > 100
    assert "nothing is certified" in facts(result, found)[1]


def test_answers_stand_in_for_the_truth() -> None:
    rows = [
        question("Where do otters sleep near rivers?", answer="They sleep in holes."),
        question("Tell me where otters sleep near rivers", answer="they sleep in holes"),
        question("At which spot do otters sleep near rivers?", answer="Only 7 of them sleep."),
        question("Where near rivers do otters sleep at all?"),
    ]
    compare = comparison_for(rows, WordVectors())
    assert isinstance(compare, AnswersDiffer)
    assert [compare(rows[0], each) for each in rows[1:]] == [False, True, True]
    assert compare.verdicts["same (equal)"] == compare.verdicts["undecided (no text)"] == 1
    assert summary(replay(rows, word_vectors(rows), error=0.1, compare=compare), rows, compare)["verdicts"]


def test_each_text_is_embedded_once_and_long_ones_are_excluded(log: list[LoggedQuestion]) -> None:
    long = question("how " + "very " * 70 + "long is it", 1)
    rows = [*log[: BATCH + 1], *log[: BATCH + 1], long]
    embedder = WordVectors()
    rows = exclude_long(rows, embedder.tokens)
    assert rows[-1].excluded == "long text"
    vectors = embed_questions(rows, embedder)
    assert embedder.calls == 2
    assert np.allclose(vectors[:-1], word_vectors(rows[:-1]))
    assert not vectors[-1].any()
