"""Question logs: where the question, the answer, the truth and the cost of a line are found, and broken lines."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.features.semantic.lab.read import STDIN, LoggedQuestion, QuestionFields, read_questions

TEXT = "What is the capital of France?"
CHAT = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]}


def read(tmp_path: Path, *rows: Any, **fields: Any) -> list[LoggedQuestion]:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_questions(path, QuestionFields(**fields))


@pytest.mark.parametrize(
    "row",
    [
        CHAT,
        {"request": CHAT},
        {"request": json.dumps(CHAT)},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
        {**CHAT, "answer": "Paris", "time": 3.0, "label": 7, "topic": "geography", "user_id": 4},
    ],
)
def test_a_body_is_found_wherever_logs_have_it(tmp_path: Path, row: dict[str, Any]) -> None:
    (question,) = read(tmp_path, row)
    (reference,) = read(tmp_path, CHAT)
    assert (question.text, question.excluded, question.place) == (TEXT, "", "line 1")
    assert (question.key, question.frame) == (reference.key, reference.frame)


@pytest.mark.parametrize(
    ("row", "excluded"),
    [
        ({"model": "m", "input": TEXT}, ""),
        ({"model": "claude", "system": "Be brief.", "messages": [{"role": "user", "content": TEXT}]}, ""),
        ({"model": "m", "prompt": TEXT}, "endpoint"),
        ({**CHAT, "temperature": 0.7}, "temperature"),
        ({**CHAT, "n": 2}, "n"),
        ({"model": "m", "input": TEXT, "conversation": "c"}, "no cache key"),
        ({"text": "What does this mean?"}, "deixis"),
    ],
)
def test_requests_of_other_endpoints_and_options(tmp_path: Path, row: dict[str, Any], excluded: str) -> None:
    (question,) = read(tmp_path, row)
    assert question.excluded == excluded
    assert question.text == ("" if excluded else TEXT)


def test_a_temperature_can_be_allowed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps({**CHAT, "temperature": 0.7}))
    assert read_questions(path, max_temperature=0.7)[0].text == TEXT


def test_plain_texts_share_a_frame_and_other_system_prompts_do_not(tmp_path: Path) -> None:
    other = {**CHAT, "messages": [{"role": "system", "content": "Be kind."}, CHAT["messages"][1]]}
    one, two, same, chat, kind = read(
        tmp_path, {"text": TEXT}, {"text": "Name the capital of Peru."}, {"text": TEXT, "id": 9}, CHAT, other
    )
    assert one.frame == two.frame
    assert one.key == same.key != two.key
    assert len({one.frame, chat.frame, kind.frame}) == 3


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"answer": " Paris "}, "Paris"),
        ({"response": "{Paris}"}, "{Paris}"),
        ({"response": {"choices": [{"finish_reason": "stop", "message": {"content": "Paris"}}]}}, "Paris"),
        ({"response": {"status_code": 200, "body": {"object": "text_completion", "choices": [
            {"finish_reason": "stop", "text": "Paris"}]}}}, "Paris"),
        ({"response": json.dumps({"type": "message", "stop_reason": "end_turn", "content": [
            {"type": "text", "text": "Paris"}]})}, "Paris"),
        ({"response": {"choices": []}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_answers(tmp_path: Path, row: dict[str, Any], answer: str | None) -> None:
    assert read(tmp_path, {"text": TEXT, **row})[0].answer == answer


def test_truth_and_cost(tmp_path: Path) -> None:
    rows = [{"text": TEXT, "meta": {"intent": value}, "usd": 0.5, "cost": 3} for value in (1, "1", [1, 2], [1, 2])]
    found = read(tmp_path, *rows, truth="meta.intent", cost="usd")
    assert [question.truth for question in found] == ["1", '"1"', "[1,2]", "[1,2]"]
    assert {question.cost for question in found} == {0.5}
    assert read(tmp_path, *rows)[0].cost == 3.0
    assert read(tmp_path, {"text": TEXT, "cost": "much"})[0].cost is None


@pytest.mark.parametrize(
    ("line", "fields", "message"),
    [
        ("{", {}, "line 2: not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("[1]", {}, "line 2: must be an object, not [1]"),
        ('{"question": 1}', {}, "line 2: has no question: expected text, or a request with messages, input or prompt"),
        ('{"text": " "}', {}, "line 2: text is empty"),
        ('{"text": "a"}', {"truth": "intent"}, "line 2: intent is missing"),
        ('{"text": "a", "intent": 1}', {"truth": "intent", "cost": "usd"}, "line 2: usd is missing"),
        ('{"text": "a", "intent": 1, "usd": -1}', {"truth": "intent", "cost": "usd"}, "line 2: usd must not be negat"),
        ('{"text": "a", "answer": 7}', {}, "line 2: answer must be a text or an object, not 7"),
        ('{"request": "{"}', {}, "line 2: request is not JSON"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, fields: dict[str, str], message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"text": "a", "intent": 1, "usd": 1}) + f"\n{line}\n")
    with pytest.raises(InvalidInput) as raised:
        read_questions(path, QuestionFields(**fields))
    assert str(raised.value).startswith(f"{path}, {message}")


def test_files_that_are_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*/none: No such file"):
        read_questions(tmp_path / "none")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(InvalidInput, match="/empty contains no requests"):
        read_questions(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="truth must name a field, not an empty text"):
        QuestionFields(truth="")


def test_compressed_files_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"text": TEXT}).encode()
    (tmp_path / "log.gz").write_bytes(gzip.compress(line))
    assert read_questions(tmp_path / "log.gz")[0].text == TEXT
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line + b"\n")))
    assert read_questions(STDIN)[0].text == TEXT
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{")))
    with pytest.raises(InvalidInput, match=r"^stdin, line 1: not JSON"):
        read_questions(STDIN)


def test_lines_that_a_proxy_answered_by_similarity_are_no_truth(tmp_path: Path) -> None:
    rows = [{"text": TEXT, "answer": "a", "outcome": outcome} for outcome in ("miss", "similar", "hit", "similar")]
    path, left_out = tmp_path / "log.jsonl", Counter[str]()
    path.write_text("".join(json.dumps(row | {"intent": 1}) + "\n" for row in rows))
    assert [question.place for question in read_questions(path, left_out=left_out)] == ["line 1", "line 3"]
    assert left_out == {"similar": 2}
    assert len(read_questions(path, QuestionFields(truth="intent"), left_out=left_out)) == 4
    path.write_text(json.dumps(rows[1]))
    with pytest.raises(InvalidInput, match="contains no requests: all of them were answered by similarity"):
        read_questions(path)


def test_a_directory_means_its_files(tmp_path: Path) -> None:
    for name, text in (("b.jsonl", "Second?"), ("a.jsonl", "First?")):
        (tmp_path / name).write_text(json.dumps({"text": text}) + "\n")
    found = read_questions(tmp_path)
    assert [(question.place, question.text) for question in found] == [
        ("a.jsonl, line 1", "First?"),
        ("b.jsonl, line 1", "Second?"),
    ]
    (tmp_path / "b.jsonl").write_text("{")
    with pytest.raises(InvalidInput, match=r"b\.jsonl, line 1: not JSON"):
        read_questions(tmp_path)
