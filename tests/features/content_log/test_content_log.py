"""The content log: what is written, within which bounds, and what a search finds."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knapcache import InvalidInput, StoreError
from knapcache.features.content_log import file as content_file
from knapcache.features.content_log.export import input_messages
from knapcache.features.content_log.file import MAX_WORDS, ContentFile, LogFilter, match_expression
from knapcache.features.content_log.log import ContentLog
from knapcache.features.content_log.record import MAX_ANSWER, MAX_CHARACTERS, MAX_JSON, expanded, make_record
from knapcache.model import Endpoint
from knapcache.wire import FORMATS
from tests.support.content_lines import NOW, RULES, chat, logged, write
from tests.support.timing import async_wait_until


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ContentFile]:
    with contextlib.closing(ContentFile(tmp_path / "content.sqlite", 4_000_000, 86400.0)) as file:
        yield file
        file.check()


def test_a_search_finds_words_of_question_and_answer(file: ContentFile) -> None:
    write(file, chat("What is the answer?"), chat("Où est la gare?", "À droite.", model="claude-haiku", tenant="b"))

    def found(**wanted: Any) -> list[int]:
        return [row["id"] for row in file.search(LogFilter(**wanted), 10)]

    assert found() == [2, 1]
    assert found(text="answer what") == [1]
    assert found(text="forty") == [1]
    assert found(text="ou est") == [2]  # without accents
    assert found(text="droi*") == [2]
    assert found(text='"is the answer"') == [1]
    assert found(text='"the is answer"') == []
    assert found(text="brief") == [2, 1]  # the system prompt
    assert found(text="answer OR gare") == []  # OR is a word
    assert found(model="claude-*") == [2]
    assert found(tenant="acme") == [1]
    assert found(outcome="hit") == []
    assert found(since=NOW - 1, until=NOW) == []
    assert found(since=NOW, until=NOW + 1) == [2, 1]
    (row,) = file.search(LogFilter(text="gare"), 10)
    assert row["excerpt"] == "Be brief.\nOù est la \x02gare\x03?"
    assert [row["id"] for row in file.search(LogFilter(), 10, before=2)] == [1]


def test_a_text_has_none_of_the_marks_of_an_excerpt(file: ContentFile) -> None:
    write(file, chat("a\0b\x02c\x03d", "e\0f\x02g\x03h"))
    (line,) = file.lines(LogFilter())
    assert (line["prompt"], line["answer"]) == ("Be brief.\na b c d", "e f g h")


@given(
    words=st.lists(st.sampled_from(["tea", "Téa", "tea-pot", "pot", "milk", "a\n", "ü", "\u3042"]), max_size=80),
    wanted=st.sampled_from(["tea", "pot", '"tea pot"', "te* milk", "milk"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_excerpts_mark_what_sqlite_finds(file: ContentFile, words: list[str], wanted: str) -> None:
    """SQLite's own highlight(), which is too slow for hostile lines, is the reference."""
    write(file, chat(" ".join(words)))
    number = file.search(LogFilter(), 1)[0]["id"]
    query = "SELECT highlight(texts, 0, char(2), char(3)) FROM texts WHERE texts MATCH ? AND rowid = ?"
    expected = file._connection.execute(query, (match_expression(wanted), number)).fetchall()
    found = [row for row in file.search(LogFilter(text=wanted), 1) if row["id"] == number]
    assert len(found) == len(expected)
    for row, (highlighted,) in zip(found, expected, strict=True):
        excerpt, marked = row["excerpt"], str(highlighted)
        assert "\x02" in excerpt
        assert excerpt.strip("…") in marked
        assert marked.startswith(excerpt.strip("…")) is not excerpt.startswith("…")
        assert marked.rstrip().endswith(excerpt.strip("…")) is not excerpt.endswith("…")
        assert marked.index("\x02") == marked.index(excerpt.strip("…")) + excerpt.strip("…").index("\x02")


@pytest.mark.parametrize(
    "text", ['"', "NEAR(a b)", "a:b", "col : x", "(", "a AND", "'; DROP", "-a", "^a", "a*b", "é\0"]
)
def test_no_text_is_an_operator(file: ContentFile, text: str) -> None:
    if any(char.isalnum() for char in text):
        file.search(LogFilter(text=text), 1)
    else:
        with pytest.raises(InvalidInput, match="a search needs a letter or a digit"):
            match_expression(text)


def test_nothing_is_written_before_it_is_redacted(tmp_path: Path) -> None:
    path = tmp_path / "content.sqlite"
    secrets = ("jane.doe@example.org", "sk-proj-aaaaaaaaaaaaaaaaaaaaaaaa", "4111111111111111")
    content = chat(f"{secrets[0]} {secrets[1]}", f"card {secrets[2]}", model=secrets[0])
    body = {**content.body, "metadata": {secrets[0]: int(secrets[2])}, "user": secrets[0]}
    with contextlib.closing(ContentFile(path)) as file:
        write(file, content._replace(body=body))
        (line,) = file.lines(LogFilter())
        assert line["model"] == "[email]"
        assert line["request"]["metadata"] == {"[email]": "[card]"}
        assert line["prompt"] == "Be brief.\n[email] [key]"
        assert line["answer"] == "card [card]"
        assert not any(secret in str(line) for secret in secrets)
    assert not any(secret.encode() in each.read_bytes() for each in tmp_path.iterdir() for secret in secrets)


def test_an_address_at_the_cut_is_redacted_as_a_whole() -> None:
    for place in range(32_740, 32_768):
        record = make_record(chat("x" * place + " jane@example.org"), RULES)
        assert "jane" not in record.prompt
        assert "@" not in record.prompt
        assert "jane" not in str(expanded(record.request))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "word " * 100_000}]},
        {"messages": [{"role": "user", "content": f"turn {k} " * 50} for k in range(2000)]},
        {"messages": [{"role": "user", "content": [{"text": "é" * 500}] * 500}]},
        {f"field {k}": "x" * 30 for k in range(10_000)},
        {"deep": [[[[]]] * 30_000]},
    ],
)
def test_long_requests_are_cut_and_stay_json(body: dict[str, Any]) -> None:
    record = make_record(chat("")._replace(body=body), RULES)
    assert len(orjson.dumps(expanded(record.request))) <= MAX_JSON
    assert record.cut
    assert len(record.prompt) <= 32_768


@pytest.mark.parametrize("extra", [0, 1])
def test_the_longest_text_is_not_cut(extra: int) -> None:
    record = make_record(chat("x" * (MAX_CHARACTERS + extra)), RULES)
    assert (len(expanded(record.request)["messages"][1]["content"]), record.cut) == (MAX_CHARACTERS, bool(extra))
    parts = [{"text": "jane@"}, {"text": "example.org"}]  # redacted as one text
    filling = "x" * (MAX_CHARACTERS - len("[email] ") + extra)
    body = {"messages": [{"role": "user", "content": [{"text": f"{filling} "}, *parts]}]}
    record = make_record(chat("")._replace(body=body), RULES)
    assert (len(record.prompt), record.cut) == (MAX_CHARACTERS, bool(extra))


def test_what_is_not_text_is_left_out() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]}
    record = make_record(chat("")._replace(body=body), RULES)
    assert expanded(record.request)["messages"][0]["content"][1]["image_url"] == {"url": "[omitted]"}
    assert record.prompt == "What is this?"
    assert record.cut


def test_answers_that_are_too_long_or_no_json_have_no_text() -> None:
    for payload, cut in ((b"x" * (MAX_ANSWER + 1), True), (b"<html>", True), (b"\xff", True), (b"", False)):
        record = make_record(chat("a question")._replace(payload=payload), RULES)
        assert (record.answer, record.response, record.cut) == ("", b"", cut)
    embeddings = chat("a question")._replace(format=FORMATS[Endpoint.EMBEDDINGS])
    assert (make_record(embeddings, RULES).response, make_record(embeddings, RULES).cut) == (b"", False)


def test_the_oldest_lines_are_deleted_when_the_file_is_full(tmp_path: Path) -> None:
    path, capacity = tmp_path / "content.sqlite", 1_000_000
    with contextlib.closing(ContentFile(path, capacity)) as file:
        for k in range(20):
            texts = (random.Random(f"{k} {j}").randbytes(1500).hex(" ", 50) for j in range(20))
            write(file, *(chat(f"number{k} {text}") for text in texts))
            assert file.used() <= capacity
        rows = file.search(LogFilter(), 1000)
        assert rows[0]["id"] == 400
        assert 20 < len(rows) < 390
        assert [row["id"] for row in rows] == list(range(400, 400 - len(rows), -1))
        assert file.search(LogFilter(text="number19"), 10)
        assert not file.search(LogFilter(text="number0"), 10)
        file.check()
    assert path.stat().st_size <= capacity


def test_each_line_is_exported_once(file: ContentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_file, "EXPORT_PAGE", 3)
    write(file, *(chat(f"Question {k}") for k in range(7)))
    assert [line["id"] for line in file.lines(LogFilter())] == [1, 2, 3, 4, 5, 6, 7]


def test_old_lines_are_deleted(file: ContentFile) -> None:
    write(file, chat("old", time=NOW - 80_000))
    write(file, chat("older", time=NOW - 90_000))
    assert [row["excerpt"] for row in file.search(LogFilter(), 10)] == ["Be brief.\nold"]
    with contextlib.closing(ContentFile(file.path, None, 3600.0)) as other:
        other.expire()
    assert file.search(LogFilter(), 10) == []


def test_a_purge_leaves_no_byte_of_the_text(file: ContentFile) -> None:
    write(file, *(chat(f"keep this {k}") for k in range(20)), chat("remove zanzibar", tenant="b"))
    assert file.purge(LogFilter(text="zanzibar", tenant="acme")) == 0
    assert file.purge(LogFilter(text="zanzibar")) == 1
    assert file.count(LogFilter()) == 20
    assert not any(b"zanzibar" in each.read_bytes() for each in file.path.parent.iterdir())


def test_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "content.sqlite"

    def fill(tenant: str) -> None:
        with contextlib.closing(ContentFile(path, 10_000_000, 86400.0)) as file:
            for k in range(20):
                write(file, chat(f"question {k}", tenant=tenant))

    threads = [threading.Thread(target=fill, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with contextlib.closing(ContentFile(path, create=False)) as file:
        assert [file.count(LogFilter(tenant=name)) for name in "abc"] == [20, 20, 20]
        file.check()


def test_a_full_queue_drops_requests_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("knapcache.features.content_log.log.MAX_WAITING_BYTES", 50_000)
    log = ContentLog(tmp_path / "content.sqlite", 10_000_000, 30.0, ("emails",))
    for k in range(40):
        log.append(chat(f"question {k}"), 8_000)
    log.close()
    written = len(logged(log.path))
    assert 0 < written < 40
    assert written + log.dropped == 40
    assert caplog.text.count("Requests are missing in the content log") == 1


def test_a_request_that_just_fits_into_the_queue_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.features.content_log.log.MAX_WAITING_BYTES", 50_000)
    log, content = ContentLog(tmp_path / "content.sqlite", 10_000_000, 30.0, ("emails",)), chat("question")
    for size in (50_001, 50_000):
        log.append(content, size - content.size)
    log.close()
    assert (len(logged(log.path)), log.dropped) == (1, 1)


def test_a_request_that_cannot_be_written_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = ContentLog(tmp_path / "content.sqlite", 10_000_000, 30.0, ("emails",))
    part = [(chat("a question"), 1), (chat("unreadable")._replace(body=3), 1), (chat("another"), 1)]  # type: ignore[arg-type]
    for _ in range(2):
        log._write_part(part)
    assert (log.dropped, len(logged(log.path))) == (2, 4)
    assert [record.message for record in caplog.records] == ["A request is missing in the content log"]
    log._file.close()
    for _ in range(2):
        log._write_part(part[:1])
    assert log.dropped == 4
    assert [record.message.partition(":")[0] for record in caplog.records[1:]] == [
        "Requests are missing in the content log"
    ]
    log.close()


async def test_old_lines_are_deleted_while_no_requests_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.features.content_log.log.EXPIRE_INTERVAL", 0.01)
    path = tmp_path / "content.sqlite"
    with contextlib.closing(ContentFile(path)) as file:
        write(file, chat("old", time=NOW - 90_000))
        log = ContentLog(path, 10_000_000, 1.0, ())
        task = asyncio.create_task(log.expire_periodically())
        await async_wait_until(lambda: file.count(LogFilter()) == 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        log.close()


def test_a_search_has_a_bounded_number_of_words() -> None:
    words = [f"w{k}" for k in range(MAX_WORDS)]
    assert match_expression(" ".join(words + words)).count('"') == 2 * MAX_WORDS
    with pytest.raises(InvalidInput, match=f"may have {MAX_WORDS} different words, not {MAX_WORDS + 1}"):
        match_expression(" ".join([*words, "more"]))


@pytest.mark.parametrize(
    ("request_", "messages"),
    [
        ({"prompt": "Hello"}, [("user", "Hello")]),
        ({"input": ["Hello", "you"]}, [("user", "Hello\nyou")]),
        ({"instructions": "Be brief.", "input": "Hello"}, [("system", "Be brief."), ("user", "Hello")]),
        ({"messages": [{"role": "developer", "content": "a"}, {"content": "b"}]}, [("system", "a"), ("user", "b")]),
        ({"messages": [{"role": "user", "content": ""}]}, []),
        ({}, []),
    ],
)
def test_the_conversation_of_every_endpoint(request_: dict[str, Any], messages: list[tuple[str, str]]) -> None:
    assert [(each["role"], each["content"]) for each in input_messages(request_)] == messages


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "content.sqlite"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="cannot open the content log"):
        ContentFile(path, create=False)
    with contextlib.closing(ContentFile(path)) as file:
        write(file, chat("a question"))
        assert file.count(LogFilter()) == 1
    assert (tmp_path / "content.sqlite.damaged").read_bytes().startswith(b"no database")
    assert "is damaged" in caplog.text
