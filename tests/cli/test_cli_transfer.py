"""`knapcache export` and `knapcache import`: between files, secrets, tenants, and into caches that are in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache import Cache, Reply
from knapcache.cli.main import main
from knapcache.proxy.settings.secrets import principal_namespace, server_secret
from knapcache.testing import FakeUpstream
from tests.support.proxy_process import ADMIN_TOKEN
from tests.support.running_proxy import RunningProxy
from tests.support.timing import check_seconds

SECRET, OTHER = b"the secret of the source", b"the secret of the target"


def cache_at(path: Path, capacity: str = "2MiB", secret: bytes | None = None) -> Cache:
    return Cache(capacity, path=path, cost="seconds", policy="gdsf-cost", shadows=(), secret=secret)


def request_of(k: int) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "system", "content": "Clerk"}, {"role": "user", "content": f"é {k}"}]}


def reply_of(k: int, size: int = 3000) -> Reply:
    tags = ("even",) if k % 2 == 0 else ("odd", "rare")
    return Reply(bytes([200 + k]) * size if k % 3 else f"ü{k}".encode() * size, f"m{k % 2}", cost=k + 1.0, tags=tags)


def fill(cache: Cache, entries: int = 10, size: int = 3000) -> None:
    """Add entries; the k-th has k + 1 requests."""
    for k in range(entries):
        for _ in range(k + 1):
            cache.fetch("chat/completions", request_of(k), partial(reply_of, k, size), namespace="ab"[k > 4])
    cache.maintain()


def exported(path: Path, capsys: pytest.CaptureFixture[str], out: Path, *options: str) -> list[Any]:
    """Export a cache into a file; return its lines."""
    assert main(["export", str(path), *options]) == 0
    text = capsys.readouterr().out
    assert main(["export", str(path), *options, "-o", str(out)]) == 0
    assert (capsys.readouterr().out, out.stat().st_mode & 0o777) == ("", 0o600)
    assert out.read_text("utf-8").splitlines()[1:] == text.splitlines()[1:], "the header has the time"
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def secrets(tmp_path: Path) -> tuple[str, str]:
    for name, secret in (("one", SECRET), ("two", OTHER)):
        (tmp_path / name).write_bytes(secret)
    return str(tmp_path / "one"), str(tmp_path / "two")


def test_entries_move_to_a_cache_with_another_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], secrets: tuple[str, str]
) -> None:
    source, target, file = tmp_path / "source.db", tmp_path / "target.db", tmp_path / "entries.jsonl"
    with cache_at(source, secret=SECRET) as cache:
        fill(cache)
        cache._internal.coordinator.store.flush()
        lines = exported(source, capsys, file, "--secret-file", secrets[0])  # while it is in use
        rows = {(row.tenant, row.cost): row for row in cache.entries().rows}
    assert lines[0]["format"] == "knapcache entries"
    assert len(lines) == 11
    with cache_at(target, "4MiB", secret=OTHER) as cache:
        cache.fetch("chat/completions", request_of(3), lambda: Reply(b"newer", "m1", cost=1.0), namespace="a")
    words = ["import", str(file), str(target), "--secret-file", secrets[1]]
    assert main(words) == 0
    assert "9 entries imported; left out: 1 as new or newer in the cache." in capsys.readouterr().out
    with cache_at(target, "4MiB", secret=OTHER) as cache:
        cache.check()
        found = {(row.tenant, row.cost): row for row in cache.entries().rows}
        for name, row in found.items():
            if row.cost != 1.0 or row.tags:
                same = ("model", "tags", "system", "requests", "seconds")
                assert [getattr(row, each) for each in same] == [getattr(rows[name], each) for each in same]
        for k in range(10):
            only = cache.fetch(
                "chat/completions", request_of(k), partial(reply_of, k), namespace="ab"[k > 4], only_cached=True
            )
            assert only.payload == (b"newer" if k == 3 else reply_of(k).payload)
    assert main(words) == 0
    assert "0 entries imported; left out: 10 as new or newer in the cache." in capsys.readouterr().out


def test_filters_and_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, file = tmp_path / "source.db", tmp_path / "target.db", tmp_path / "entries.jsonl"
    with cache_at(source) as cache:
        fill(cache)
    for options, count in ((["--tag", "rare"], 5), (["--model", "m0", "--tenant", "a"], 3), (["--tag", "none"], 0)):
        assert len(exported(source, capsys, file, *options)) == 1 + count
    exported(source, capsys, file)
    lines = file.read_bytes().splitlines(keepends=True)
    old = json.dumps({"format": "knapcache entries", "version": 1, "created": 1.0}).encode()  # of an older version
    (tmp_path / "old.jsonl").write_bytes(b"".join([old + b"\n", *lines[1:]]))
    assert main(["import", str(tmp_path / "old.jsonl"), str(target)]) == 2
    assert "give --capacity" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "old.jsonl"), str(tmp_path / "new.db"), "--capacity", "2MiB"]) == 0
    assert "10 entries imported." in capsys.readouterr().out
    new = ["import", str(file), str(target), "--tag", "odd", "--tenant", "b", "--to-tenant", "c"]
    assert main([*new, "--capacity", "2MiB"]) == 0
    assert "3 entries imported." in capsys.readouterr().out
    assert main([*new, "--capacity", "2MiB"]) == 2
    with Cache("2MiB", path=target, cost="seconds", shadows=()) as cache:
        cache.check()
        assert {row.tenant for row in cache.entries().rows} == {"c"}
        answer = cache.fetch("chat/completions", request_of(5), partial(reply_of, 5), namespace="c", only_cached=True)
        assert answer.payload == reply_of(5).payload


def test_the_capacity_of_the_target_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, file = tmp_path / "source.db", tmp_path / "target.db", tmp_path / "entries.jsonl"
    with cache_at(source, "8MiB") as cache:
        fill(cache, 20, 30_000)
        assert cache.stats().entries == 20
    exported(source, capsys, file)
    with cache_at(target, "1MiB"):
        pass
    assert main(["import", str(file), str(target)]) == 0
    with cache_at(target, "1MiB") as cache:
        cache.check()
        stats = cache.stats()
        assert 0 < stats.bytes <= stats.capacity
        kept = [row.cost for row in cache.entries().rows]
        assert max(kept) == 20.0, "the most valuable entries are kept"
        assert 1.0 not in kept


def test_damaged_lines_are_refused_with_their_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, file = tmp_path / "source.db", tmp_path / "target.db", tmp_path / "entries.jsonl"
    with cache_at(source) as cache:
        fill(cache, 6)
    exported(source, capsys, file)
    lines = file.read_text("utf-8").splitlines()
    lines[2] = lines[2][:-40]
    lines[3] = lines[3].replace("user", "uses", 1)
    lines[4] = "[]"
    file.write_text("\n".join([*lines, "", ""]), "utf-8")
    words = ["import", str(file), str(target)]
    assert main([*words, "--capacity", "2MiB"]) == 2
    found = capsys.readouterr()
    assert f"{file}, line 3: it is not JSON; --skip-errors leaves such lines out" in found.err
    assert "1 entry imported." in found.out
    assert main([*words, "--skip-errors"]) == 0
    found = capsys.readouterr()
    assert "2 entries imported; left out: 1 as new or newer in the cache." in found.out
    assert "3 damaged lines were left out." in found.out
    assert [line.split(", ")[1].split(":")[0] for line in found.err.splitlines()] == ["line 3", "line 4", "line 5"]
    assert main([*words, "--skip-errors", "--json"]) == 0
    counts = {"stored": 0, "present": 3, "expired": 0, "rejected": 0, "failed": 0, "damaged": 3, "handed_over": False}
    assert json.loads(capsys.readouterr().out) == counts
    other = json.dumps({"format": "knapcache entries", "version": 2})
    for content, message in (("{}", "not a file of `knapcache export`"), (other, "version 2")):
        file.write_text(content, "utf-8")
        assert main(words) == 2
        assert message in capsys.readouterr().err


def test_a_cache_is_copied_through_a_pipe_to_a_new_data_directory(tmp_path: Path) -> None:
    """The new cache has the capacity, the policy and the request counts of the old one, and a secret of its own."""
    source, target = tmp_path / "source.db", tmp_path / "new"
    with Cache("4MiB", path=source, cost="seconds", shadows=()) as cache:
        fill(cache)
        rows = {row.cost: row.requests for row in cache.entries().rows}
    target.mkdir(mode=0o700)
    command = f"{sys.executable} -m knapcache"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} export {source} | {command} import {target}"],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"KNAPCACHE_CONFIG": ""},
    )  # fmt: skip
    assert done.stdout == "10 entries imported.\n", done.stderr
    assert (target / "secret").stat().st_mode & 0o777 == 0o600
    with Cache("4MiB", path=target / "cache.sqlite", cost="seconds", shadows=(), secret=server_secret(target)) as cache:
        assert {row.cost: row.requests for row in cache.entries().rows} == pytest.approx(rows, rel=1e-3)
        cache.check()


def test_migrate_names_the_commands_that_replace_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["migrate", "a", "b"])
    assert "`knapcache export FROM | knapcache import - TO` copies a cache" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--config"], ["--tenant", "alice"]])
def test_entries_go_to_the_tenant_of_the_same_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    first, second, config = tmp_path / "first", tmp_path / "second", tmp_path / "knapcache.toml"
    secrets = []
    for folder in (first, second):
        folder.mkdir()
        secrets.append(server_secret(folder))
        with cache_at(folder / "cache.sqlite", secret=secrets[-1]) as cache:
            if folder is first:
                alice = principal_namespace(secrets[0], "tenant", "alice")
                for k, namespace in enumerate((alice, alice, "0" * 32)):
                    cache.fetch("chat/completions", request_of(k), partial(reply_of, k), namespace=namespace)
    config.write_text(f'[[tenants]]\nname = "alice"\nkeys = ["sha256:{"0" * 64}"]\n')
    exported(first, capsys, tmp_path / "entries.jsonl", *options, *([str(config)] if options == ["--config"] else []))
    assert main(["import", str(tmp_path / "entries.jsonl"), str(second)]) == 0
    alice = principal_namespace(secrets[1], "tenant", "alice")
    with cache_at(second / "cache.sqlite", secret=secrets[1]) as cache:
        found = sorted(row.tenant for row in cache.entries().rows)
        assert found == sorted([alice, alice] + (["0" * 32] if options == ["--config"] else []))
        assert cache.get("chat/completions", request_of(1), namespace=alice) is not None


def test_entries_are_handed_over_to_a_running_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "entries.jsonl"

    def outcome(proxy: RunningProxy) -> str:
        return httpx.post(f"{proxy.openai_url}/chat/completions", json=body).raise_for_status().headers["x-knapcache"]

    with FakeUpstream() as upstream:
        with RunningProxy(first, upstream.openai_url) as proxy:
            assert outcome(proxy) == "miss"
        assert len(exported(first, capsys, file)) == 2
        with RunningProxy(second, upstream.openai_url) as proxy:
            assert (first / "secret").read_bytes() != (second / "secret").read_bytes()
            assert main(["import", str(file), str(second)]) == 0
            assert "1 entry imported through the process that uses the cache." in capsys.readouterr().out
            assert proxy.proxy.cache.entries()["total"] == 1
            assert outcome(proxy) == "hit"
            proxy.proxy.cache.check()


def test_imported_requests_are_neither_savings_nor_requests_of_today(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in a running proxy, whose policy counts them, nor in one that opens the file later."""
    source, file = tmp_path / "source.db", tmp_path / "entries.jsonl"
    with cache_at(source) as cache:
        fill(cache, 4)
    exported(source, capsys, file)
    shadows = ("lru", "gdsf-cost", "lru@2x")
    later, admin = tmp_path / "later", {"authorization": f"Bearer {ADMIN_TOKEN}"}
    settings = {"policy": "gdsf-cost", "shadows": shadows, "admin_token": ADMIN_TOKEN}
    with FakeUpstream() as upstream:
        with RunningProxy(later, upstream.openai_url, **settings):
            pass
        assert main(["import", str(file), str(later)]) == 0
        for folder in (tmp_path / "running", later):
            with RunningProxy(folder, upstream.openai_url, **settings) as running:
                live = running.proxy.cache
                if folder != later:
                    assert main(["import", str(file), str(folder)]) == 0
                    live.maintain()
                    assert sorted(row["requests"] for row in live.entries()["rows"]) == [1, 2, 3, 4]
                assert live.stats()["entries"] == 4
                assert live.stats()["shadows"] == dict.fromkeys(("none", *shadows), 0.0)
                assert "reported_hits" not in live.stats()
                summary = httpx.get(f"{running.url}/admin/v1/summary", headers=admin).raise_for_status().json()
                today = summary["today"]
                assert (today["requests"], today["cost_saved"], today["would"]) == (0, 0.0, {"none": 0.0})
                live.check()


def test_an_import_beside_the_owner_is_fast_and_counts_what_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is still empty, so a share of what it takes would be a spool of four entries."""
    with cache_at(tmp_path / "source.db", "16MiB") as cache:
        for k in range(400):
            cache.fetch("chat/completions", request_of(k), partial(reply_of, k % 50))
    exported(tmp_path / "source.db", capsys, tmp_path / "entries.jsonl")
    with cache_at(tmp_path / "target.db", "64MB") as owner:
        start = time.monotonic()
        assert main(["import", str(tmp_path / "entries.jsonl"), str(tmp_path / "target.db")]) == 0
        check_seconds(time.monotonic() - start, 30.0, "an import of 400 entries")
        assert "400 entries imported through the process that uses the cache." in capsys.readouterr().out
        assert owner.stats().entries == 400
        owner.check()
