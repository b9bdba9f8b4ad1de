"""`knapcache serve`: flags, settings table, keys of tenants, start and stop."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from knapcache import Cache
from knapcache.cli import serve
from knapcache.cli.main import build_parser, main
from knapcache.errors import install_command
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import read_text
from knapcache.proxy.settings.secrets import digest_of
from tests.support.timing import wait_until


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY") or name.lower()[10:] in Settings.model_fields:
            monkeypatch.delenv(name)
    monkeypatch.delenv("KNAPCACHE_CONFIG", raising=False)


def shown_settings(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, Any]]:
    assert main(["serve", "--show-settings", "--json", *flags]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def error_of(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["serve", *flags]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith("knapcache: error: ")
    return captured.err.removeprefix("knapcache: error: ").rstrip("\n")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_flags_are_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pem = tmp_path / "any.pem"
    pem.touch()
    given = {"host": "::1", "port": "0", "path": str(tmp_path), "store": "unix:///s", "capacity": "1GB",
             "policy": "lru", "cost": "seconds", "ttl": "12h", "tls_cert": str(pem), "tls_key": str(pem),
             "workers": "2"}  # fmt: skip
    assert list(given) == list(serve.FLAGS)
    rows = shown_settings(capsys, *(word for name, value in given.items() for word in (_flag(name), value)))
    assert {name: rows[name]["value"] for name in given} == {
        "host": "::1", "port": 0, "path": str(tmp_path), "store": "(not shown)", "capacity": 10**9, "policy": "lru",
        "cost": "seconds", "ttl": 43200.0, "tls_cert": str(pem), "tls_key": str(pem),
        "workers": 2,
    }  # fmt: skip
    assert {rows[name]["source"] for name in given} == {"flag"}
    assert {row["source"] for name, row in rows.items() if name not in given} == {"default"}


def test_defaults_in_help_texts_are_the_defaults() -> None:
    for name, (_, text) in serve.flags().items():
        field = Settings.model_fields[name]
        if match := re.search(r"default: (\w[\w.]*)", text):
            assert getattr(Settings(**{name: read_text(match[1])}), name) == field.default


def test_upstream_and_set_override_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "k.toml"
    config.write_text('[[upstreams]]\nurl = "http://file"\nmodels = ["x"]\n')
    rows = shown_settings(
        capsys, "--config", str(config), "--upstream", "http://flag/v1", "--set", "wait=5", "--set", "shadows=lru"
    )
    (upstream,) = rows["upstreams"]["value"]
    assert (upstream["url"], upstream["models"]) == ("http://flag/v1", ["*"])
    assert (rows["wait"]["value"], rows["wait"]["source"], rows["shadows"]["value"]) == (5.0, "flag", ["lru"])


def test_show_settings_prints_a_table_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--show-settings", "--set", "admin_token=s3cret-s3cret-s3cret", "--set", "ttl=90"]) == 0
    text = capsys.readouterr().out
    assert "s3cret" not in text
    for name, field in Settings.model_fields.items():
        assert re.search(rf"^ *{name} .*{re.escape((field.description or '')[:20])}", text, re.M)
    assert re.search(r"^ *ttl +90 +flag\b", text, re.M)
    assert re.search(r"^ *dashboard +true +default\b", text, re.M)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--port", "http"], "port: must be an integer, not 'http' (from the command line)"),
        (
            ["--upstream", "h"],
            "upstreams[0].url: must be a URL that starts with http:// or https:// (from the comm",
        ),
        (["--set", "colour=red"], "unknown setting colour: `knapcache serve --show-settings` lists them"),
        (["--set", "port"], "--set takes name=value, not 'port'"),
        (["--port", "1", "--set", "port=2"], "port is given twice: by its flag and by --set"),
        (["--config", "/no/such/file"], "cannot read settings from /no/such/file: No such file or directory"),
        (["--json"], "--json requires --show-settings"),
        (["--new-key", "a b"], "a tenant's name has 1 to 64 characters from A-Z a-z 0-9 . _ @ -, not 'a b'"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], flags: list[str], line: str) -> None:
    error = error_of(capsys, *flags)
    assert error.startswith(line)
    assert "\n" not in error


def test_a_new_key_authenticates_its_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--new-key", "team-a"]) == 0
    key, _, toml = capsys.readouterr().out.partition("\n")
    assert re.fullmatch(r"kc-[\w-]{43}", key)
    authenticator = Authenticator(Settings(upstreams=[{"url": "local"}], **tomllib.loads(toml)), b"s" * 32)
    principal = authenticator.authenticate({"authorization": f"Bearer {key}"})
    assert principal is not None
    assert (principal.name, principal.credential) == ("team-a", None)
    assert main(["serve", "--new-key", "team-a"]) == 0
    assert key not in capsys.readouterr().out


def test_hash_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a-long-and-random-key\n"))
    assert main(["serve", "--hash-key"]) == 0
    assert capsys.readouterr().out == digest_of("a-long-and-random-key") + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("hunter2\n"))
    error = error_of(capsys, "--hash-key")
    assert error == "a tenant's key must have at least 20 characters, not 7; --new-key creates one"


def test_hash_key_and_show_settings_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser(["serve"]).parse_args(["serve", "--hash-key", "--show-settings"])
    assert "not allowed with" in capsys.readouterr().err


def test_missing_packages_name_the_extra() -> None:
    """In a separate process, because imported modules stay in sys.modules."""
    code = """
import sys
from importlib.machinery import PathFinder
class Missing(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("uvicorn", "httptools") else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Missing
from knapcache.cli.main import main
sys.exit(main(["serve"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    command = install_command("serve")
    assert done.stderr == f"knapcache: error: the proxy needs httptools, uvicorn: {command}\n"


@pytest.mark.features
def test_commands_about_a_proxy_name_the_extra(tmp_path: Path) -> None:
    """Also those that read a data directory or settings, which need the packages for names and validation."""
    (tmp_path / "request.json").write_text('{"model": "m", "messages": []}')
    (tmp_path / "secret").write_text("5" * 64)
    (tmp_path / "k.toml").write_text("port = 9000\n")
    with Cache("2MB", path=tmp_path / "cache.sqlite", policy="lru", shadows=(), secret=bytes.fromhex("5" * 64)):
        pass
    commands = [
        "inspect .", "inspect --config k.toml", "export .", "purge . --all --yes", "why request.json .",
        "route test request.json --config k.toml", "log search x --path .", "log purge --all --yes --path .",
        "webhook test --config k.toml", "swap swap.sqlite", "serve --new-key acme",
    ]  # fmt: skip
    code = """
import sys
from knapcache.cli.main import main
sys.modules["pydantic"] = None
sys.exit([line for line in sys.argv[1:] if main(line.split()) != 2] != [])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" packages of the proxy: ")[0] for line in done.stderr.splitlines()]
    assert lines == [f"knapcache: error: {line.split()[0]} needs the" for line in commands]


def test_other_commands_do_not_import_the_packages_of_the_proxy() -> None:
    code = (
        "import sys; from knapcache.cli.main import main; main(['policies', '--json']); "
        "sys.exit(any(name in sys.modules for name in ('pydantic', 'uvicorn', 'httptools', 'starlette')))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_serve_runs_until_sigterm(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from knapcache.cli.main import run; run()", "serve", "--port", str(port),
               "--path", str(tmp_path / "data"), "--upstream", "http://127.0.0.1:9/v1", "--cost", "seconds",
               "--policy", "lru", "--set", "shadows=[]"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:

        def is_ready() -> bool:
            assert process.poll() is None
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
                return bool(answer.status == 200)
            return False

        wait_until(is_ready, "readiness")
        assert (tmp_path / "data" / "secret").stat().st_mode & 0o777 == 0o600
        if (status := Path(f"/proc/{process.pid}/status")).exists():  # on Linux
            assert "THP_enabled:\t1" not in status.read_text(), "it uses no transparent huge pages"
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM), out


def test_a_new_token_is_read_only_and_its_lines_are_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--new-token", "grafana"]) == 0
    token, _, lines = capsys.readouterr().out.partition("\n\n")
    (entry,) = Settings(**tomllib.loads(lines)).admin_tokens
    assert (entry.name, entry.role, entry.digest) == ("grafana", "read-only", digest_of(token))
    assert main(["serve", "--new-token", "a b"]) == 2


def test_rotating_the_token_replaces_the_file_and_is_recorded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, flags = tmp_path / "admin-token", ["serve", "--rotate-token", "--path", str(tmp_path)]
    assert main(flags) == 0
    first = file.read_text().strip()
    assert capsys.readouterr().out == f"the new token is in {file}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(flags) == 0
    second = file.read_text().strip()
    assert capsys.readouterr().out == f"{second}\n"
    assert first != second
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["status"]) for line in lines] == [("rotate_token", None), ("rotate_token", 200)] * 2
    assert main([*flags, "--set", "admin_token=a-token-of-their-own"]) == 2
    assert "with admin_token or memory_only there is none" in capsys.readouterr().err
    assert file.read_text().strip() == second
