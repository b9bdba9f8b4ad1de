"""`knapcache why`: a stored request, one that differs in a field, a new one, and bad input."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, Reply
from knapcache.cli.main import main
from knapcache.features.explain import cli
from knapcache.proxy.feature_list import FeatureSpec

CHAT = {"model": "gpt-4o", "temperature": 0, "messages": [{"role": "user", "content": "Where do swordfish live?"}]}
ANTHROPIC = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Say hello to the world"}]}
KEY = secrets.token_hex(32)

Why = Callable[..., Any]


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp(request.param) / "answers.db"
    key = KEY if request.param == "encrypted" else None
    with Cache("2MiB", path=found, cost="seconds", policy="lru", shadows=(), encryption_key=key) as cache:
        for endpoint, body in (
            ("chat/completions", CHAT),
            ("messages", ANTHROPIC),
            ("embeddings", {"model": "e", "input": "a fishing boat"}),
        ):
            cache.fetch(endpoint, body, lambda: Reply(b"{}", "m", cost=1.0), namespace="me", context={"upstream": "u"})
    return found


@pytest.fixture
def why(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Why:
    monkeypatch.setenv("CACHE_KEY", KEY)
    keys = [] if path.parent.name.startswith("plain") else ["--encryption-key-env", "CACHE_KEY"]

    def run(body: Any, *more: str) -> Any:
        file = tmp_path / "request.json"
        file.write_text(body if isinstance(body, str) else json.dumps(body))
        code = main(["why", str(file), str(path), *keys, *more])
        out = capsys.readouterr()
        assert code == (2 if out.err else 0)
        return out.err or (json.loads(out.out) if "--json" in more else " ".join(out.out.split()))

    return run


def test_a_stored_request_is_found(why: Why) -> None:
    for body in (CHAT, ANTHROPIC, {"model": "e", "input": ["a fishing boat"]}, {"url": "/v1/x", "body": CHAT}):
        assert why(body).startswith("Stored: key ")
    assert "tenant me" in why(CHAT)
    assert why(CHAT | {"stream": True, "user": "someone"}).startswith("Stored: "), "these fields are not in the key"


def test_the_difference_is_named(why: Why) -> None:
    text = why(CHAT | {"temperature": 0.2})
    assert text.startswith("Not stored. The nearest entry (key ")
    assert "temperature" in text
    assert "0.2 instead of 0" in text
    found = why(ANTHROPIC | {"max_tokens": 10}, "--json")
    assert (found["stored"], found["row"]["endpoint"], found["entries"]) == (False, "messages", 3)
    (each,) = found["differences"]
    assert (each["field"], each["here"], each["there"]) == ("max_tokens", "10", "9")
    moved = why(CHAT, "--endpoint", "messages", "--json")
    assert moved["row"] is None, "another endpoint is not similar"


def test_features_say_whether_they_may_serve_the_answer(why: Why, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = FeatureSpec(name="guess", title="Guesses", feature="", is_on=bool, compare=f"{__name__}:compared")
    monkeypatch.setattr(cli, "feature_specs", lambda: (spec,))
    assert why(CHAT | {"temperature": 0.2}).endswith("Guesses: 2 compared with a stored one.")
    assert why(CHAT | {"temperature": 0.2}, "--json")["guess"] == "2 compared with a stored one."
    assert why(CHAT, "--json")["guess"] == "", "it is stored"


def compared(requests: list[bytes], stored: bytes) -> str:
    assert b"swordfish" in stored
    assert stored not in requests
    return f"{len(requests)} compared with a stored one."


def test_a_new_request_is_called_new(why: Why) -> None:
    assert why({"model": "gpt-4o", "prompt": "Compose a poem"}) == (
        "New: no entry is similar to this request. Compared with 3 entries."
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "cannot read the request"),
        ("[]", "a request must be a JSON object"),
        ({"model": "m"}, "its endpoint must be given"),
        ({"model": "m", "input": [], "conversation": "c"}, "the request has no key, so it is never stored"),
    ],
)
def test_bad_input_is_named(why: Why, body: Any, message: str) -> None:
    assert message in why(body)


def test_a_request_is_read_from_standard_input(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(CHAT)))
    monkeypatch.setenv("CACHE_KEY", KEY)
    keys = [] if path.parent.name.startswith("plain") else ["--encryption-key-env", "CACHE_KEY"]
    assert main(["why", "-", str(path), *keys]) == 0
    assert capsys.readouterr().out.startswith("Stored: ")
