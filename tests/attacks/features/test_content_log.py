"""Attacks on the content log: requests that remove lines of others, evade redaction, or control a terminal."""

from __future__ import annotations

import contextlib
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from knapcache import InvalidInput
from knapcache.cli.main import main
from knapcache.features.content_log.file import FILE_NAME, ContentFile, LogFilter
from knapcache.features.content_log.log import BATCH, ContentLog
from knapcache.features.content_log.record import MAX_CHARACTERS, MAX_JSON, MAX_REDACTED
from knapcache.features.content_log.redaction import LinearRegex
from tests.support.content_lines import chat as content
from tests.support.content_lines import logged, write
from tests.support.raw_client import CHAT, chat, exchange, message
from tests.support.running_proxy import RunningProxy
from tests.support.timing import check_linear, check_seconds, cpu_seconds, wait_until

MESSAGES = '"messages": [{"role": "user", "content": "attack"}]'
HOSTILE = {
    "an integer of 26 digits": f'{{"model": "m", {MESSAGES}, "seed": {"9" * 26}}}',
    "a negative one, nested": f'{{"model": "m", {MESSAGES}, "metadata": {{"a": [-{"9" * 26}]}}}}',
    "a number that no double holds": f'{{"model": "m", {MESSAGES}, "x": 0.1{"3" * 30}}}',
    "a model that is a number": f'{{"model": {"1" * 26}, {MESSAGES}}}',
    "4,000 digits": f'{{"model": "m", {MESSAGES}, "x": {"9" * 4000}}}',
    "300 lists": f'{{"model": "m", {MESSAGES}, "x": {"[" * 300}{"]" * 300}}}',
    "a lone surrogate": f'{{"model": "m", {MESSAGES}, "x\\ud800": "\\udfff"}}',
    "no messages": '{"model": "m", "messages": [true, [], {"role": 5, "content": [1, [2]]}]}',
}
PRIVATE_KEY = "sk-proj-" + "Ab3" * 12
CONTROL = "\x1b]0;owned\x07 \x9b31m \u202e \x7f"


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"content_log": True, "redact": ["emails", "keys", "cards"]}


def lines(proxy: RunningProxy) -> list[dict[str, Any]]:
    return logged(proxy.proxy.settings.path / FILE_NAME)


def post(body: str) -> bytes:
    headers = "Authorization: Bearer k", "Content-Type: application/json"
    return message(f"POST {CHAT} HTTP/1.1", *headers, body=body.encode())


@pytest.mark.parametrize("name", HOSTILE)
def test_no_request_removes_the_lines_of_others(proxy: RunningProxy, name: str) -> None:
    exchange(proxy.url, post(HOSTILE[name]))
    exchange(proxy.url, chat(f"beside {name}"))
    wait_until(lambda: f"beside {name}" in {line["prompt"] for line in lines(proxy)})
    prompts = [line["prompt"] for line in lines(proxy)]
    own = prompts[prompts.index(f"beside {name}") - 1]
    assert not own.startswith(("still serving", "beside"))  # the request itself has a line, too


def test_numbers_of_any_length_are_redacted(proxy: RunningProxy) -> None:
    numbers = ["4111111111111111", "4111111111111111.0", "4.111111111111111e15", f"0.{'1' * 40}", "9" * 40]
    for number in numbers:
        exchange(proxy.url, post(f'{{"model": "m", {MESSAGES}, "x": {number}}}'))
    exchange(proxy.url, chat("after the numbers"))
    wait_until(lambda: lines(proxy)[-1]["prompt"] == "after the numbers")
    logged = [line["request"].get("x") for line in lines(proxy)[-1 - len(numbers) : -1]]
    assert logged[:3] == ["[card]"] * 3
    assert isinstance(logged[4], str)


def test_requests_that_cannot_be_read_do_not_count_as_waiting_for_ever(tmp_path: Path) -> None:
    log = ContentLog(tmp_path / FILE_NAME, 10_000_000, 1.0, ["emails"])
    unreadable = content("unreadable")._replace(body={"x": object()})
    for k in range(3 * BATCH):
        log.append(unreadable if k % 2 else content(f"readable {k}"), 100)
    wait_until(lambda: not log._waiting)
    assert not log._waiting_bytes
    log.close()
    assert log.dropped == 3 * BATCH // 2
    assert len(logged(tmp_path / FILE_NAME)) == 3 * BATCH // 2


def test_what_is_cut_is_redacted_however_short_the_rest_becomes(tmp_path: Path) -> None:
    """Addresses become shorter, so that the place of the cut moves into what is kept."""
    address = "somebody.with.a.long.name@example.org "
    for shift in range(0, 40, 3):
        start = (address * 2000)[: MAX_CHARACTERS + 1000 + shift].rsplit(" ", 1)[0]
        text = (start + " " * 40)[: MAX_CHARACTERS + 1000 + shift - 1] + " " + PRIVATE_KEY + " x" * 2000
        log = ContentLog(tmp_path / f"{shift}.sqlite", 10_000_000, 1.0, ["emails", "keys"])
        log.append(content(text), len(text))
        log.close()
        (line,) = logged(tmp_path / f"{shift}.sqlite")
        assert PRIVATE_KEY[:6] not in json.dumps(line["request"])
        assert line["cut"]


def test_a_long_request_is_redacted_up_to_a_bound(tmp_path: Path) -> None:
    counted = 0
    log = ContentLog(tmp_path / FILE_NAME, 10_000_000, 1.0, ["emails"])
    rule = log._redactor.text

    def count(text: str) -> str:
        nonlocal counted
        counted += len(text)
        return rule(text)

    log._redactor.text = count  # type: ignore[method-assign]
    parts = [{"role": "user", "content": f"{k} {'a@b.org ' * 500}"} for k in range(1000)]
    log.append(content("long")._replace(body={"model": "m", "messages": parts}), 4_000_000)
    log.close()
    assert counted < 2 * MAX_REDACTED
    (line,) = logged(tmp_path / FILE_NAME)
    assert line["cut"]
    assert "@" not in json.dumps(line["request"])
    assert len(json.dumps(line["request"])) <= 2 * MAX_JSON


def test_no_text_makes_a_pattern_slow() -> None:
    """A character that the pattern has not seen costs about as much as one that it has."""
    choose = random.Random(1).randrange
    plain, strange = "ordinary text " * 4000, "".join(chr(choose(0x100, 0xD000)) for _ in range(56_000))
    for pattern in (r"\bEMP-[0-9]{4,6}\b", r"(a?){60}a{60}", r"(?i)[a-z]{100}z"):
        ordinary, unusual = (
            min(cpu_seconds(partial(LinearRegex(pattern).spans, text)) for _ in range(3)) for text in (plain, strange)
        )
        check_seconds(unusual, 30 * ordinary, f"{pattern} on unusual characters")


def test_no_line_makes_a_search_slow(tmp_path: Path) -> None:
    """A line in which every word is found takes time in proportion to its length."""
    with contextlib.ExitStack() as stack:

        def searching(words: int) -> partial[list[dict[str, Any]]]:
            file = stack.enter_context(contextlib.closing(ContentFile(tmp_path / f"{words}.sqlite")))
            write(file, content("a " * words))
            (row,) = file.search(LogFilter(text="a*"), 9)
            assert len(row["excerpt"]) < 200
            with pytest.raises(InvalidInput, match="may have 20 different words, not 30"):
                file.search(LogFilter(text=" ".join(f"a{k}*" for k in range(30))), 9)
            return partial(file.search, LogFilter(text="a"), 9)

        check_linear(searching, 2000, "a search in a line", MAX_CHARACTERS // 2)


@pytest.mark.parametrize("arguments", [["search"], ["search", "--full"], ["search", "--json"]])
def test_nothing_that_a_caller_sends_reaches_the_terminal_as_a_control_character(
    proxy: RunningProxy, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    exchange(proxy.url, chat(f"control {arguments} {CONTROL}", model=f"m {CONTROL}"))
    wait_until(lambda: any(f"control {arguments}" in line["prompt"] for line in lines(proxy)))
    capsys.readouterr()
    main(["log", *arguments, "--path", str(proxy.proxy.settings.path)])
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert all(line.isprintable() for line in shown.split("\n"))
    if "--json" in arguments:
        assert any(CONTROL in json.loads(line)["model"] for line in shown.splitlines())


@pytest.mark.parametrize("command", ["inspect", "why"])
def test_other_commands_print_no_control_characters(
    proxy: RunningProxy, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (response,) = exchange(proxy.url, chat(f"inspected {CONTROL}", model=f"m {CONTROL}"))
    assert response.status == 200
    wait_until(lambda: any("inspected" in line["prompt"] for line in lines(proxy)))  # the answer is stored then
    path = str(proxy.proxy.settings.path)
    nearly = tmp_path / "request.json"
    sent = {"model": f"m {CONTROL}", "messages": [{"role": "user", "content": f"other {CONTROL}"}]}
    nearly.write_text(json.dumps(sent))
    proxy.proxy.cache.coordinator.store.flush()
    options = {"inspect": [path, "--top", "1000"], "why": [str(nearly), path]}  # the order depends on seconds
    capsys.readouterr()
    main([command, *options[command]])
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert all(line.isprintable() for line in shown.split("\n"))
