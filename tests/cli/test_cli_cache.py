"""`knapcache inspect` and `knapcache purge`, on files in use and not in use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, Reply
from knapcache.cli.main import main
from knapcache.serve.settings.secrets import server_secret


def cache_at(path: Path, policy: str = "gdsf-cost", **options: Any) -> Cache:
    return Cache("2MiB", path=path, cost="seconds", policy=policy, shadows=(), **options)


def fill(cache: Cache) -> list[str]:
    """Add ten entries. Entry k costs k + 1, has k + 1 requests, and model m0 or m1."""
    keys = []
    for k in range(10):
        for _ in range(k + 1):
            request = {"model": "m", "messages": [f"question {k}"]}
            call = lambda k=k: Reply(b"x" * 3000, f"m{k % 2}", cost=k + 1.0)  # noqa: E731
            answer = cache.fetch("chat/completions", request, call, namespace="me" if k < 5 else "you")
        keys.append(answer.key)
    return keys


def inspect(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> Any:
    assert main(["inspect", str(path), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("policy", ["gdsf-cost", "adaptive"])
def test_inspect_lists_entries_by_value(policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.db"
    with cache_at(path, policy) as cache:
        keys = fill(cache)
        cache.maintain()
        cache._coordinator.store.flush()
        assert inspect(capsys, path)["entries"] == 10, "the file is in use"
        cache.check()
    found = inspect(capsys, path)
    assert found["rows"] == sorted(found["rows"], key=lambda row: -row["value"])
    assert [row["key"] for row in found["rows"]] == keys[::-1]
    assert [row["requests"] for row in found["rows"]] == pytest.approx(list(range(10, 0, -1)), rel=1e-3)
    assert found["value"] == pytest.approx(sum((k + 1) ** 2 for k in range(10)), rel=1e-3)
    assert found["policy"] == policy
    assert found["price_per_mb"] == pytest.approx(1e6 / found["rows"][-1]["size"], rel=1e-3)
    assert len(inspect(capsys, path, "--top", "3")["rows"]) == 3
    assert main(["inspect", str(path), "--top", "3"]) == 0
    text = capsys.readouterr().out
    assert "7 more entries" in text
    assert keys[-1][:12] in text
    assert keys[0][:12] not in text
    assert "price of a megabyte" in text


def test_inspect_an_empty_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.db"
    cache_at(path).close()
    assert inspect(capsys, path)["entries"] == 0
    assert main(["inspect", str(path)]) == 0
    assert capsys.readouterr().out.startswith("0 entries")


def test_purge_removes_matching_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.db"
    with cache_at(path) as cache:
        keys = fill(cache)
        cache._coordinator.store.flush()
        assert main(["purge", str(path), "--all"]) == 2
        assert "is in use by a running process" in capsys.readouterr().err
    size = path.stat().st_size

    def purge(*words: str) -> str:
        assert main(["purge", str(path), *words]) == 0
        return capsys.readouterr().out.split()[0]

    assert purge("--key", keys[3], "--tenant", "you") == "0"
    assert purge("--key", keys[3]) == "1"
    assert purge("--model", "m0", "--tenant", "me") == "3"
    assert purge("--older-than", "1h") == "0"
    with cache_at(path) as cache:
        assert cache.stats()["entries"] == 6
        cache.check()
    assert purge("--older-than", "0s", "--tenant", "you") == "5"
    assert purge("--all") == "1"
    assert path.stat().st_size <= size
    with cache_at(path) as cache:
        assert cache.stats()["entries"] == 0
        cache.check()


def test_the_wrong_secret_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, secret = tmp_path / "answers.db", tmp_path / "secret"
    secret.write_bytes(b"sixteen bytes or more\n")
    with cache_at(path, secret=b"sixteen bytes or more") as cache:
        fill(cache)
        cache._coordinator.store.flush()
        assert main(["inspect", str(path)]) == 2  # in use or not
        assert capsys.readouterr() == ("", f"knapcache: error: {path} was written under a secret, and none was given\n")
    before, wrong = path.read_bytes(), tmp_path / "wrong"
    wrong.write_bytes(b"another secret, as long\n")
    for words in (["inspect", str(path)], ["purge", str(path), "--all"]):
        for more, why in (
            ([], "a secret, and none was given"),
            (["--secret-file", str(wrong)], "another secret than the one given"),
        ):
            assert main([*words, *more]) == 2
            assert capsys.readouterr() == ("", f"knapcache: error: {path} was written under {why}\n")
    assert path.read_bytes() == before
    assert inspect(capsys, path, "--secret-file", str(secret))["entries"] == 10
    assert main(["purge", str(path), "--all", "--secret-file", str(secret)]) == 0
    assert capsys.readouterr().out == "10 entries removed\n"


def test_a_secret_for_a_cache_without_one_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, secret = tmp_path / "answers.db", tmp_path / "secret"
    secret.write_bytes(b"sixteen bytes or more\n")
    with cache_at(path) as cache:
        fill(cache)
    assert main(["inspect", str(path), "--secret-file", str(secret)]) == 2
    assert "another secret than the one given" in capsys.readouterr().err
    assert inspect(capsys, path)["entries"] == 10


def test_the_secret_file_of_the_proxy_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.db"
    with cache_at(path, secret=server_secret(tmp_path)) as cache:
        fill(cache)
    assert inspect(capsys, path, "--secret-file", str(tmp_path / "secret"))["entries"] == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "missing.db"], "no such file"),
        (["inspect", ".", "--top", "3"], "no such file"),
        (["inspect", "missing.db", "--top", "-1"], "must not be negative"),
        (["purge", "missing.db", "--all"], "no such file"),
        (["purge", "missing.db"], "give --all, or at least one of"),
        (["purge", "missing.db", "--all", "--model", "m"], "give --all, or at least one of"),
        (["purge", "missing.db", "--key", "xyz"], "64 hex digits"),
        (["purge", "missing.db", "--all", "--secret-file", "missing"], "no such file|cannot read"),
    ],
)
def test_bad_input(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("age", ["soon", "-1", "1y", ""])
def test_bad_ages(age: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["purge", "x.db", f"--older-than={age}"])
    assert end.value.code == 2
    assert "an age is a number" in capsys.readouterr().err


def test_inspect_rejects_a_file_that_is_not_a_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 500)
    before = path.read_bytes()
    assert main(["inspect", str(path)]) == 2
    assert "is not recognisable as a file of knapcache" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
