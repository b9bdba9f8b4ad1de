"""`knapcache route test`: which route applies, in a table and as JSON, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knapcache.cli.main import main

SETTINGS = """
[[upstreams]]
name = "one"
url = "http://127.0.0.1:9/v1"
[[route]]
name = "evals"
model = ["gpt-4o*"]
field = { "metadata.purpose" = "eval" }
cache = "refresh"
[[route]]
name = "search"
header = { x-feature = "search*" }
tenant = ["web"]
max_temperature = 0.3
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "knapcache.toml").write_text(SETTINGS)
    body = {"model": "gpt-4o-mini", "messages": [], "metadata": {"purpose": "eval"}}
    (tmp_path / "request.json").write_text(json.dumps(body))
    return [str(tmp_path / "request.json"), "--config", str(tmp_path / "knapcache.toml")]


def test_it_names_the_route_that_applies_and_its_rules(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "test", *files]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "evals field metadata.purpose eval eval yes" in shown
    assert 'The route evals applies: cache = "refresh".' in shown


def test_json_has_every_condition(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    request = Path(files[0])
    request.write_text(request.read_text().replace('"eval"', '"other"'))
    header = ["--header", "X-Feature: search-2", "--tenant", "web", "--json"]
    assert main(["route", "test", *files, *header]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["route"], found["rules"]["max_temperature"]) == ("search", 0.3)
    assert [check["applies"] for check in found["checks"]] == [False, True]
    assert found["checks"][0]["conditions"][1] == {
        "text": "field metadata.purpose eval",
        "found": "other",
        "holds": False,
    }


def test_it_says_so_if_none_applies(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "test", *files, "--endpoint", "chat/completions"]) == 0
    request = Path(files[0])
    request.write_text('{"model": "o3", "messages": []}')
    assert main(["route", "test", *files]) == 0
    assert "No route applies" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--header", "nothing"], "a header must be NAME:VALUE"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_bad_input_is_one_line(
    files: list[str], arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["route", "test", *files, *arguments]) == 2
    assert problem in capsys.readouterr().err
