"""`knapcache doctor`: what it finds in a real environment, and that it changes nothing."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from knapcache.cli import doctor_checks
from knapcache.cli.main import main
from knapcache.proxy.settings import Settings
from knapcache.testing import FakeUpstream
from tests.support.certificates import make_certificate
from tests.support.programs import find_module
from tests.support.redis_servers import RedisProcess, free_port
from tests.support.running_proxy import RunningProxy

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY") or name.lower()[10:] in Settings.model_fields:
            monkeypatch.delenv(name)
    monkeypatch.delenv("KNAPCACHE_CONFIG", raising=False)


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture
def folder(tmp_path: Path, upstream: FakeUpstream) -> Path:
    """A data directory that a proxy has used."""
    with RunningProxy(tmp_path / "data", upstream.openai_url):
        return tmp_path / "data"


def findings(capsys: Captured, *options: object) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit code, and level and message of each check; of several findings, the last one."""
    code = main(["doctor", "--json", *map(str, options)])
    return code, {row["check"]: (row["level"], row["message"]) for row in json.loads(capsys.readouterr().out)}


def found(capsys: Captured, check: str, *options: object) -> tuple[str, str]:
    """Return level and message of one check, with a free port and an upstream that is not there."""
    code, rows = findings(capsys, "--port", 0, "--upstream", "http://127.0.0.1:9/v1", *options)
    assert code == 1  # of the upstream
    return rows[check]


def test_an_embedded_model_that_cannot_be_loaded(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--path", tmp_path / "data", "--port", 0, "--upstream", "local")
    assert findings(capsys, *options)[0] == 0
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, rows = findings(capsys, *options)
    level, message = rows["upstream local"]
    assert (code, level) == (1, "problem")
    assert "install Debian's package libgomp1" in message


def files_in(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, size and time of change of all files."""
    states = {path: path.stat() for path in (folder, *folder.rglob("*"))}
    return {str(path): (state.st_mode, state.st_size, state.st_mtime_ns) for path, state in states.items()}


def test_a_first_start(
    tmp_path: Path, upstream: FakeUpstream, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path, port = tmp_path / "data", free_port()
    assert main(["doctor", "--path", str(path), "--port", str(port), "--upstream", upstream.openai_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 problems, 0 warnings"
    assert {line[:8].strip() for line in lines[:-1]} <= {"ok", ""}
    assert [line for line in lines if len(line) > 80 and str(path.parent) not in line] == []
    assert f"ok       port                127.0.0.1, port {port} is free" in lines
    assert not path.exists()
    assert upstream.count() == 0


def test_nothing_is_changed(folder: Path, capsys: Captured) -> None:
    before = files_in(folder)
    assert found(capsys, "formats", "--path", folder) == ("ok", "cache.sqlite 3")
    assert files_in(folder) == before


def test_a_running_proxy(tmp_path: Path, upstream: FakeUpstream, capsys: Captured) -> None:
    made = make_certificate(tmp_path / "tls", "IP:127.0.0.1")
    tls = {"tls_cert": made.cert, "tls_key": made.key}
    with RunningProxy(tmp_path / "data", upstream.openai_url, **tls) as proxy:
        options = ["--path", tmp_path / "data", "--upstream", upstream.openai_url]
        options += [word for name, file in tls.items() for word in (f"--{name.replace('_', '-')}", file)]
        url = proxy.url
        code, rows = findings(capsys, *options, "--port", url.rpartition(":")[2])
    assert code == 0
    assert rows["port"] == ("ok", f"a proxy runs at {url} and is ready")
    assert rows["tls"] == ("ok", f"{made.cert} fits its key")


def test_a_certificate_with_the_key_of_another(tmp_path: Path, capsys: Captured) -> None:
    made, other = (make_certificate(tmp_path / name, "IP:127.0.0.1") for name in ("one", "other"))
    kind, message = found(capsys, "tls", "--path", tmp_path / "data", "--tls-cert", made.cert, "--tls-key", other.key)
    assert kind == "problem"
    assert "key" in message


def test_a_port_of_another_program(tmp_path: Path, upstream: FakeUpstream, capsys: Captured) -> None:
    port = int(upstream.url.rpartition(":")[2])
    code, rows = findings(capsys, "--path", tmp_path / "data", "--port", port, "--upstream", upstream.openai_url)
    assert code == 1
    assert rows["port"][0] == "problem"
    assert rows["port"][1].endswith(f"Address already in use; choose another port, such as --port {port + 1}")


def test_wrong_settings_end_the_checks(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "knapcache.toml"
    file.write_text("capcity = 3\nworkers = 0\n")
    assert main(["doctor", "--config", str(file)]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines[:4]] == [
        ["ok", "packages"], ["ok", "python"], ["problem", "settings"], ["problem", "settings"]
    ]  # fmt: skip
    assert " ".join(lines[-1]) == "2 problems, 0 warnings; the other checks were not possible"


@pytest.mark.parametrize(
    ("mode", "level", "text"),
    [(0o700, "ok", "not in use"), (0o770, "warning", "run chmod g-w"), (0o777, "problem", "run chmod go-w")],
)
def test_modes_of_the_data_directory(tmp_path: Path, capsys: Captured, mode: int, level: str, text: str) -> None:
    tmp_path.chmod(mode)
    assert found(capsys, "directory", "--path", tmp_path)[0] == level
    assert text in found(capsys, "directory", "--path", tmp_path)[1]


def test_a_secret_that_others_can_read(folder: Path, capsys: Captured) -> None:
    (folder / "secret").chmod(0o644)
    assert found(capsys, "directory", "--path", folder) == (
        "warning",
        f"{folder / 'secret'} can be read by other users: run chmod 600",
    )
    assert (folder / "secret").stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_created(tmp_path: Path, capsys: Captured) -> None:
    tmp_path.chmod(0o500)
    level, text = found(capsys, "directory", "--path", tmp_path / "a" / "b")
    tmp_path.chmod(0o700)
    assert (level, f"this user cannot create it in {tmp_path}" in text) == ("problem", True)


def test_files_of_a_newer_version(folder: Path, capsys: Captured) -> None:
    cache = folder / "cache.sqlite"
    content = bytearray(cache.read_bytes())
    content[60:64] = (9).to_bytes(4)
    cache.write_bytes(content)
    level, text = found(capsys, "formats", "--path", folder)
    assert level == "problem"
    assert text.startswith(f"{cache} was written by a newer version of knapcache (format 9, known: 3)")


@pytest.mark.features
def test_a_feature_s_file_of_a_newer_version(tmp_path: Path, capsys: Captured) -> None:
    from knapcache.features.limits.sqlite_counts import KIND

    file = tmp_path / "limits.sqlite"
    connection = apsw.Connection(str(file))
    KIND.create(connection)
    assert found(capsys, "formats", "--path", tmp_path) == ("ok", "limits.sqlite 1")
    connection.pragma("user_version", 2)
    connection.close()
    assert "was written by a newer version" in found(capsys, "formats", "--path", tmp_path)[1]


def test_a_cache_of_another_secret(folder: Path, capsys: Captured) -> None:
    (folder / "secret").write_text("5ec2e7" + "0" * 58 + "\n")
    level, text = found(capsys, "formats", "--path", folder)
    assert (level, "was written under another secret" in text) == ("problem", True)


def test_a_damaged_history(folder: Path, capsys: Captured) -> None:
    (folder / "history.json").write_text('{"version": 99}')
    level, text = found(capsys, "formats", "--path", folder)
    assert level == "warning"
    assert "not a history of version 1 or 2 or 3 or 4 or 5. The next start renames it" in text


def test_disk(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(capsys, "disk", "--path", tmp_path, "--capacity", "1MiB")[0] == "ok"
    level, text = found(capsys, "disk", "--path", tmp_path, "--capacity", "900000TB")
    assert (level, "set a smaller capacity" in text) == ("warning", True)
    monkeypatch.setattr(doctor_checks, "MIN_FREE", 1 << 60)
    assert found(capsys, "disk", "--path", tmp_path)[0] == "problem"


def test_a_clock_that_is_behind_the_files(folder: Path, capsys: Captured) -> None:
    assert found(capsys, "clock", "--path", folder)[0] == "ok"
    os.utime(folder / "secret", (time.time() + 7260,) * 2)
    level, text = found(capsys, "clock", "--path", folder)
    assert (level, "were changed 2 h in the future" in text) == ("warning", True)


def test_upstreams(upstream: FakeUpstream, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-0123456789")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        closed = silent.getsockname()[1]
        upstreams = [
            {"name": "there", "url": upstream.openai_url, "key_env": "PROVIDER_KEY", "models": ["a*"]},
            {"name": "closed", "url": f"http://127.0.0.1:{closed}/v1", "models": ["b*"]},
            {"name": "unknown", "url": "http://host.invalid/v1"},
        ]
        options = ["--set", "memory_only=true", "--port", 0]
        options += ["--set", f"upstreams={json.dumps(upstreams)}"]
        code, rows = findings(capsys, *options)
        assert code == 1
        assert rows["upstream there"][0] == "ok"
        assert rows["upstream there"][1].startswith("connected in ")
        assert rows["upstream closed"] == ("problem", "connection refused: check url, proxy and firewall")
        assert rows["upstream unknown"][0] == "problem"
        assert upstream.count() == 0
        _, rows = findings(capsys, *options, "--call-upstreams")
        assert rows["upstream there"][1].startswith("answers a request for its models, status 200")
        assert [call.path for call in upstream.calls] == ["/v1/models"]
        upstream.fail("401")
        _, rows = findings(capsys, *options, "--call-upstreams")
        assert rows["upstream there"][0] == "problem"
        assert rows["upstream there"][1].endswith(": check PROVIDER_KEY")
        upstream.fail("500")
        _, rows = findings(capsys, *options, "--call-upstreams")
        assert rows["upstream there"][1].startswith("does not serve now, status 500")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    find_module("redis", "the extra redis")
    with RedisProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


def test_a_shared_store(tmp_path: Path, server: RedisProcess, capsys: Captured) -> None:
    options = ["--path", tmp_path, "--store", server.url, "--set", f"secret={'5e' * 32}", "--capacity", "2MB"]
    with server.client() as client:
        level, text = found(capsys, "store", *options)
        assert level == "ok"
        assert text.endswith("answers, and has no cache yet with prefix knapcache")
        assert client.keys() == []
        meta = {"format": 1, "shards": 1, "secret": "00", "encrypted": 0, "since": 1}
        client.hset("{knapcache:o}:meta", mapping=meta)
        assert "was written with another secret" in found(capsys, "store", *options)[1]
        client.hset("{knapcache:o}:meta", "format", 2)
        assert "has format 2; this version of knapcache reads format 1" in found(capsys, "store", *options)[1]
        client.flushall()
        client.config_set("maxmemory", "1mb")
        assert found(capsys, "store", *options)[0] == "warning"
        client.config_set("maxmemory-policy", "allkeys-lru")
        level, text = found(capsys, "store", *options)
        assert (level, "must be noeviction, not allkeys-lru" in text) == ("problem", True)


def test_a_shared_store_that_does_not_answer(tmp_path: Path, capsys: Captured) -> None:
    find_module("redis", "the extra redis")
    url = f"redis://u:hunter2@127.0.0.1:{free_port()}"
    level, text = found(capsys, "store", "--path", tmp_path, "--store", url)
    assert (level, text.startswith("redis://127.0.0.1:")) == ("problem", True)
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("needed", "level", "text"),
    [
        ("rich>=999", "problem", "does not fit, >=999 is needed: "),
        ("not-there; extra == 'serve'", "problem", "not-there is not installed: "),
        ("rich>=999; extra == 'lab'", "warning", "does not fit, >=999 is needed: "),
        ("not-there; extra == 'lab'", "ok", "complete: core, serve; not installed: lab"),
        ("not-there; extra == 'lab' and sys_platform == 'other'", "ok", "complete: core, serve, lab"),
    ],
)
def test_packages(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, needed: str, level: str, text: str
) -> None:
    information = tmp_path / "knapcache-0.2.0.dist-info"
    information.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: knapcache", "Version: 0.2.0", "Requires-Python: >=3.11"]
    lines += ["Provides-Extra: serve", "Provides-Extra: lab", f"Requires-Dist: {needed}"]
    (information / "METADATA").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    rows: dict[str, Any] = findings(capsys, "--set", "memory_only=true", "--port", 0)[1]
    assert rows["packages"][0] == level
    assert text in rows["packages"][1]
