"""bench/semantic.py: its questions, its other rules, the counting of money, and its tables."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "semantic.py"
sys.path.append(str(BENCH.parent))

import _semantic_money  # noqa: E402 - after the change of sys.path
import _semantic_peers  # noqa: E402
import _semantic_questions  # noqa: E402

import semantic  # noqa: E402
from knapcache.sim.semantic.read import LoggedQuestion  # noqa: E402


def test_every_question_has_one_meaning_and_every_meaning_several_wordings() -> None:
    questions = _semantic_questions.questions()
    assert len({question.text for question in questions}) == len(questions) > 2000
    assert min(Counter(question.meaning for question in questions).values()) >= 3
    assert _semantic_questions.each_once(1) != _semantic_questions.each_once(2)
    assert sorted(_semantic_questions.each_once(1)) == sorted(questions)
    popular = Counter(question.meaning for question in _semantic_questions.popular(3000, 1))
    assert popular.most_common(1)[0][1] > 20


def vectors(cosines: Sequence[float]) -> np.ndarray:
    """Return unit vectors with these cosines to the first axis, and different otherwise."""
    found = np.zeros((len(cosines), 8), dtype=np.float32)
    for row, cosine in enumerate(cosines):
        found[row, 0], found[row, 1 + row % 7] = cosine, (1.0 - cosine**2) ** 0.5
    return found


@pytest.mark.parametrize(("threshold", "served", "wrong"), [(0.85, 2, 1), (0.95, 1, 0)])
def test_a_threshold_serves_what_is_near(threshold: float, served: int, wrong: int) -> None:
    questions = [
        LoggedQuestion(place=f"line {k}", key=b"", frame=b"", text=text, excluded="", truth=truth)
        for k, (text, truth) in enumerate([("a", "1"), ("b", "1"), ("c", "2"), ("d", "3"), ("a", "1")])
    ]
    row = _semantic_peers.run_peer(
        _semantic_peers.Threshold(threshold), questions, vectors([1.0, 0.97, 0.9, 0.1, 1.0]), ["a", "b", "c", "d", "a"]
    )
    assert (row["served"], row["wrong"]) == (served, wrong)


def test_gptcache_serves_from_a_cosine_of_three_fifths() -> None:
    rule = _semantic_peers.GptCacheEvaluation()
    assert [rule.serves(0, cosine) for cosine in (0.59, 0.61, 1.0)] == [False, True, True]


def test_the_guarantee_for_each_request_needs_observations() -> None:
    rule = _semantic_peers.PerRequestGuarantee(0.05, seed=1)
    assert not any(rule.serves(7, 0.9) for _ in range(50))
    for _ in range(60):
        rule.learn(7, 0.9, True)
        rule.learn(8, 0.9, False)
    assert sum(rule.serves(7, 0.9) for _ in range(100)) > 50
    assert sum(rule.serves(8, 0.9) for _ in range(100)) < 20
    assert not rule.serves(9, 0.99)


def test_answers_by_similarity_save_money_and_credit_saves_more() -> None:
    questions = _semantic_questions.popular(3000, 3)
    exact, without, credit = (_semantic_money.money_saved(questions, rule, 3) for rule in _semantic_money.RULES[:3])
    assert 0.0 < exact < without < credit < 1.0


def test_a_run_writes_json_and_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KNAPCACHE_TRACES", str(tmp_path))
    for name, small in {
        "NULL_RUNS": 3,
        "NULL_LABELS": 200,
        "CERTIFY_RUNS": 2,
        "MAX_LABELS": 700,
        "DRIFT_RUNS": 2,
    }.items():
        monkeypatch.setattr(semantic, name, small)
    monkeypatch.setattr(sys, "argv", ["semantic.py", "--parts", "certificate,vetoes", "--out", str(tmp_path)])
    semantic.main()
    record = json.loads((tmp_path / "semantic.json").read_text())
    assert [row["certified"] for row in record["null"]] == [0.0, 0.0]
    assert {row["change"] for row in record["vetoes"]} >= {"number", "negation", "swap", "swap, lower case"}
    assert all(row["met"] for row in record["targets"])
    monkeypatch.setattr(sys, "argv", ["semantic.py", "--markdown", str(tmp_path / "semantic.json")])
    capsys.readouterr()
    semantic.main()
    assert "| vetoed: number | 1 | ≥ 0.95 | yes |" in capsys.readouterr().out


def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["semantic.py", "--parts", "all"])
    with pytest.raises(SystemExit):
        semantic.main()
    assert "'all' is not one of serve, certificate" in capsys.readouterr().err
