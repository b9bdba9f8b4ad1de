"""`knapcache inspect` and `knapcache purge`, on files in use and not in use."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache, Reply
from knapcache.cli.cache_file import FILE_NAME, SECRET_NAME, find_key, short_length
from knapcache.cli.main import main
from knapcache.errors import InvalidInput
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import load
from knapcache.proxy.settings.secrets import SECRET, server_secret


def cache_at(path: Path, policy: str = "gdsf-cost", **options: Any) -> Cache:
    return Cache("2MiB", path=path, cost="seconds", policy=policy, shadows=(), **options)


def fill(cache: Cache) -> list[str]:
    """Add ten entries. Entry k costs k + 1, has k + 1 requests, and model m0 or m1."""
    keys = []
    for k in range(10):
        for _ in range(k + 1):
            request = {"model": "m", "messages": [f"question {k}"]}
            tags = ("last", "odd" if k % 2 else "even") if k > 7 else ()
            call = lambda k=k, tags=tags: Reply(b"x" * 3000, f"m{k % 2}", cost=k + 1.0, tags=tags)  # noqa: E731
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
        cache._internal.coordinator.store.flush()
        assert inspect(capsys, path)["entries"] == 10, "the file is in use"
        cache.check()
    found = inspect(capsys, path)
    assert found["rows"] == sorted(found["rows"], key=lambda row: -row["value"])
    assert [row["key"] for row in found["rows"]] == keys[::-1]
    assert [row["requests"] for row in found["rows"]] == pytest.approx(list(range(10, 0, -1)), rel=1e-3)
    assert found["value"] == pytest.approx(sum((k + 1) ** 2 for k in range(10)), rel=1e-3)
    assert found["policy"] == policy
    assert found["least_value_per_mb"] == pytest.approx(1e6 / found["rows"][-1]["size"], rel=1e-3)
    assert len(inspect(capsys, path, "--top", "3")["rows"]) == 3
    mine = inspect(capsys, path, "--tenant", "me", "--model", "m1")
    assert ([row["key"] for row in mine["rows"]], mine["entries"]) == ([keys[3], keys[1]], 2)
    assert (mine["cost"], mine["bytes"]) == (6.0, sum(row["size"] for row in mine["rows"]))
    assert [row["key"] for row in inspect(capsys, path, "--tag", "odd", "--tag", "even")["rows"]] == [keys[9], keys[8]]
    assert main(["inspect", str(path), "--tag", "odd"]) == 0
    assert "1 entry of 10, " in capsys.readouterr().out
    assert main(["inspect", str(path), "--tenant", "nobody"]) == 0
    assert "10 entries, and none meets every condition" in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", str(path), "--top", "3"]) == 0
    text = capsys.readouterr().out
    assert "7 more entries" in " ".join(text.split())
    assert keys[-1][:12] in text
    assert keys[0][:12] not in text
    assert "least value per MB" in " ".join(text.split())
    assert re.search(r"\b\d+ s ago", text)


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
        cache._internal.coordinator.store.flush()
        assert main(["purge", str(path), "--all"]) == 2
        assert "use by a running process, which must remove the entries: call Cache.purge" in capsys.readouterr().err
    size = path.stat().st_size

    def purge(*words: str) -> str:
        assert main(["purge", str(path), *words]) == 0
        return capsys.readouterr().out.split()[0]

    assert purge("--key", keys[3], "--tenant", "you") == "0"
    assert purge("--key", keys[3]) == "1"
    assert purge("--model", "m0", "--tenant", "me") == "3"
    assert purge("--older-than", "1h") == "0"
    with cache_at(path) as cache:
        assert cache.stats().entries == 6
        cache.check()
    assert purge("--tag", "last", "--tenant", "me") == "0"
    assert purge("--tag", "odd", "--tag", "none") == "1"
    you = ["purge", str(path), "--older-than", "0s", "--tenant", "you", "--json"]
    assert main([*you, "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["entries"], {row["tenant"] for row in shown["rows"]}) == (4, {"you"})
    assert main(you) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": 4}
    assert purge("--all") == "1"
    assert path.stat().st_size <= size
    with cache_at(path) as cache:
        assert cache.stats().entries == 0
        cache.check()


def test_short_keys_are_accepted_when_unique(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.db"
    with cache_at(path) as cache:
        keys = fill(cache)
    assert main(["inspect", str(path)]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if " ago" in line}
    assert listed == {key[:12] for key in keys}, "what inspect lists is what purge accepts"
    assert main(["inspect", str(path), "--key", keys[3][:12]]) == 0
    text = capsys.readouterr().out
    assert keys[3] in text
    assert re.search(r"stored   \d+ s ago", text)
    assert inspect(capsys, path, "--key", keys[3][:12].upper())["key"] == keys[3]
    firsts = [key[0] for key in keys]
    common = next(first for first in firsts if firsts.count(first) > 1)
    for words in (["inspect", str(path), "--key", common], ["purge", str(path), "--key", common]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert f"{firsts.count(common)} keys begin with {common}: " in error
        assert all((key[:12] in error) == (key[0] == common) for key in keys)
    assert main(["purge", str(path), "--key", keys[3][:12] + "…"]) == 0
    assert capsys.readouterr().out == "1 entry removed\n"
    assert main(["purge", str(path), "--key", keys[3][:12]]) == 0
    assert capsys.readouterr().out == "0 entries removed: none meets every condition\n"
    assert main(["inspect", str(path), "--key", keys[3][:12]]) == 2
    assert "no entry has a key that begins with" in capsys.readouterr().err


def test_keys_are_as_long_as_needed_to_tell_them_apart() -> None:
    keys = ["a" * 64, "a" * 17 + "b" * 47, "c" * 64]
    assert short_length(keys) == 20
    assert short_length(keys[1:]) == 12
    assert short_length([]) == 12
    with pytest.raises(InvalidInput, match=f"2 keys begin with aaa: {'a' * 20}, {'a' * 17}bbb; give more digits"):
        find_key("aaa", keys)


def test_dry_run_shows_what_purge_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.db"
    with cache_at(path) as cache:
        keys = fill(cache)
        cache.maintain()
        cache._internal.coordinator.store.flush()
        assert main(["purge", str(path), "--model", "m0", "--dry-run"]) == 0, "works while the cache is in use"
        text = capsys.readouterr().out
    assert "5 entries would be removed" in text
    assert keys[8][:12] in text
    assert keys[9][:12] not in text
    assert main(["purge", str(path), "--model", "none", "--dry-run"]) == 0
    assert capsys.readouterr().out == "0 entries would be removed\n"
    assert main(["purge", str(path), "--all", "--dry-run"]) == 0
    assert "10 entries would be removed" in " ".join(capsys.readouterr().out.split())
    assert inspect(capsys, path)["entries"] == 10


@pytest.mark.parametrize(("answer", "left"), [("n", 10), ("", 10), ("y", 5), ("YES", 5)])
def test_purge_asks_on_a_terminal(
    answer: str, left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.db"
    with cache_at(path) as cache:
        fill(cache)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert main(["purge", str(path), "--model", "m0"]) == 0
    text = capsys.readouterr().out
    assert "5 entries would be removed" in text
    assert ("nothing removed" in text) == (left == 10)
    monkeypatch.setattr("builtins.input", None)
    assert main(["purge", str(path), "--key", "0" * 64, "--yes"]) == 0
    monkeypatch.undo()
    capsys.readouterr()
    assert inspect(capsys, path)["entries"] == left


def test_the_data_directory_of_a_proxy_and_names_of_tenants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory has the file and the secret; the settings have the names of the tenants."""
    digest = "sha256:" + "0" * 63
    config = tmp_path / "knapcache.toml"
    tenants = "".join(f'[[tenants]]\nname = "{n}"\nkeys = ["{digest}{k}"]\n' for k, n in enumerate(("alice", "bob")))
    upstream = '[[upstreams]]\nurl = "https://llm.example.com/v1"\nkey_env = "KEY_THAT_IS_NOT_SET"\n'
    config.write_text(f'path = "{tmp_path}"\n{tenants}{upstream}')
    secret = server_secret(tmp_path)
    authenticator = Authenticator(load(config, secrets=False).settings, secret)
    names = {"me": "alice", "you": "bob"}
    with cache_at(tmp_path / "cache.sqlite", secret=secret) as cache:
        for k in range(10):
            namespace = authenticator.namespace_of(names["me" if k < 4 else "you"])
            call = lambda: Reply(b"x", "m", cost=1.0)  # noqa: E731
            cache.fetch("chat/completions", {"model": "m", "messages": [k]}, call, namespace=namespace)
        cache._internal.coordinator.store.flush()
        assert main(["purge", "--config", str(config), "--tenant", "bob", "--model", "m"]) == 2
        call_of_the_api = """--json '{"model": "m", "tenant": "bob"}' http://127.0.0.1:8080/admin/v1/purge"""
        assert call_of_the_api in capsys.readouterr().err
    assert inspect(capsys, tmp_path)["entries"] == 10
    assert main(["inspect", "--config", str(config)]) == 0
    text = capsys.readouterr().out
    assert text.count("alice") == 4
    assert text.count("bob") == 6
    assert main(["inspect", str(tmp_path)]) == 0
    assert "caller-" in capsys.readouterr().out, "without the settings a namespace has no name"
    (tmp_path / "history.json").write_text('{"tenants": {"alice": {}, "bob": {}}}')
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert (text.count("alice"), text.count("bob")) == (4, 6), "the history of the proxy has the names"
    (tmp_path / "history.json").write_text("damaged")
    assert main(["inspect", str(tmp_path)]) == 0
    assert "caller-" in capsys.readouterr().out
    assert main(["purge", str(tmp_path), "--tenant", "carol"]) == 0
    out, error = capsys.readouterr()
    assert out == "0 entries removed: none meets every condition\n"
    assert "no entry is of tenant 'carol'" in error
    assert main(["purge", str(tmp_path), "--tenant", "alice"]) == 0, "the name suffices: its digest is computed"
    assert capsys.readouterr().out == "4 entries removed\n"
    assert main(["purge", "--config", str(config), "--tenant", "bob", "--older-than", "1w"]) == 0
    assert capsys.readouterr().out.startswith("0 entries removed")


def test_an_encrypted_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = tmp_path / "answers.db", "5" * 64
    with cache_at(path, encryption_key=key) as cache:
        keys = fill(cache)
    (tmp_path / "key").write_text(key)
    monkeypatch.setenv("CACHE_KEY", key)
    with_file = ["--encryption-key-file", str(tmp_path / "key")]
    assert inspect(capsys, path, *with_file)["entries"] == 10
    assert main(["purge", str(path), "--key", keys[0][:12], "--encryption-key-env", "CACHE_KEY"]) == 0
    assert capsys.readouterr().out == "1 entry removed\n"
    assert main(["inspect", str(path), "--key", keys[1][:12], *with_file]) == 0
    assert keys[1] in capsys.readouterr().out
    assert main(["inspect", str(path)]) == 2


def test_the_file_names_are_those_of_the_settings(tmp_path: Path) -> None:
    assert Settings(path=tmp_path).cache_file == tmp_path / FILE_NAME
    assert SECRET_NAME == SECRET


def test_the_wrong_secret_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, secret = tmp_path / "answers.db", tmp_path / "secret"
    secret.write_bytes(b"sixteen bytes or more\n")
    with cache_at(path, secret=b"sixteen bytes or more") as cache:
        fill(cache)
        cache._internal.coordinator.store.flush()
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
        (["inspect", ".", "--top", "3"], "is a directory without cache.sqlite"),
        (["inspect"], "give the path of a cache file or data directory, the URL of a cache, or --config"),
        (["inspect", "missing.db", "--key", "abc"], "no such file"),
        (["inspect", "missing.db", "--top", "-1"], "must not be negative"),
        (["purge", "missing.db", "--all"], "no such file"),
        (["purge", "missing.db"], "give --all, or at least one of"),
        (["purge", "missing.db", "--all", "--model", "m"], "give --all, or at least one of"),
        (["purge", "missing.db", "--key", "xyz"], "a key is 64 hex digits, or the first ones of them, not 'xyz'"),
        (["purge", "missing.db", "--key", ""], "a key is 64 hex digits"),
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


@pytest.mark.parametrize("command", [["inspect"], ["export"], ["purge", "--all"]])
def test_an_empty_file_is_not_a_cache(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    assert main([*command, str(path)]) == 2
    assert capsys.readouterr() == ("", f"knapcache: error: {path} is an empty file, not a cache\n")
    assert path.stat().st_size == 0


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"5" * 65])
def test_a_secret_of_the_wrong_length(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, secret = tmp_path / "answers.db", tmp_path / "secret"
    with cache_at(path) as cache:
        fill(cache)
    secret.write_bytes(content)
    assert main(["inspect", str(path), "--secret-file", str(secret)]) == 2
    size = len(content.strip())
    expected = f"{secret}: a secret must have 16 to 64 bytes, such as 64 hex digits; it has {size}"
    assert capsys.readouterr() == ("", f"knapcache: error: {expected}\n")


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
