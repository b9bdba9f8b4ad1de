"""`make run` and `make demo` end on Ctrl-C without an error, and install what they need and no more.

Where an extra is missing, the program prints the make target that installs it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from knapcache import errors
from knapcache.errors import MAKE_TARGETS, install_command
from tests.support.programs import find_program
from tests.support.timing import wait_until

ROOT = Path(__file__).resolve().parents[1]
TERMINAL = """
import os, pty, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts background jobs with Ctrl-C ignored
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])) & 255)
"""
"""Runs a command on a terminal of its own. What is written to stdin is typed there: \\x03 is Ctrl-C."""


class OnTerminal:
    """A command on a terminal."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", TERMINAL, *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while more := self._process.stdout.read1(4096):  # type: ignore[attr-defined]
            self.shown += more

    def wait_for(self, text: bytes) -> None:
        wait_until(lambda: text in self.shown, lambda: f"{text!r}: {self.shown.decode()}")

    def type_ctrl_c(self) -> str:
        """Press Ctrl-C, wait for the end, and return everything that was shown."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\x03")
        self._process.stdin.flush()
        self._process.wait(60)
        self._reader.join(60)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return self.shown.decode()


def test_ctrl_c_ends_make_run_and_make_demo_without_an_error(tmp_path: Path) -> None:
    find_program("make", "make")
    ready = tmp_path / "ready"
    ready.touch()
    make = ["make", "--no-print-directory", f"BIN={Path(sys.executable).parent}", f"READY_RUN={ready}"]
    options = f"--port 0 --upstream local --path {tmp_path} --policy lru --set shadows=lru"
    proxy = OnTerminal(*make, "run", f"ARGS={options}")
    proxy.wait_for(b"try it:")
    match = re.search(rb"is running at (\S+)", proxy.shown)
    assert match
    demo = OnTerminal(*make, "demo", f"ARGS=--url {match[1].decode()}/v1 --rate 20 --max-tokens 1 --requests 100000")
    demo.wait_for(b"from the cache")
    for shown in (demo.type_ctrl_c(), proxy.type_ctrl_c()):
        assert "***" not in shown, shown
        assert "Traceback" not in shown, shown
        assert "interrupted" not in shown, shown


def pins(lock: str) -> set[tuple[str, str]]:
    """Return name and version of each package; a package may have a version for each Python."""
    return set(re.findall(r"^([\w.-]+)==([^ ;\\]+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_all_locks_have_the_same_versions() -> None:
    for lock in ("run", "lab", "redis", "semantic"):
        assert pins(f"requirements-{lock}.lock") <= pins("requirements.lock"), "run `make lock`"


def test_make_run_installs_at_most_45_packages() -> None:
    packages = {name for lock in ("requirements-run.lock", "requirements-model.lock") for name, _ in pins(lock)}
    assert len(packages | {"knapcache", "pip", "setuptools"}) <= 45
    assert {"uvicorn", "xllamacpp", "numba", "hatchling", "shtab"} <= packages
    assert not packages & {"pytest", "matplotlib", "polars", "litellm"}


def test_the_command_for_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    pip = [f"pip install 'knapcache[{extra}]'" for extra in extras]
    checkout = tmp_path / "my checkout"
    environment = checkout / ".venv"
    environment.mkdir(parents=True)
    monkeypatch.setattr(errors, "__file__", str(checkout / "src" / "knapcache" / "errors.py"))
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert [install_command(extra) for extra in extras] == pip, "make would clear a .venv that it did not build"

    (environment / ".ready-run").touch()
    recipes = dict(re.findall(r"^([a-z-]+):.*## .*\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.M))
    for extra, packages in extras.items():
        target = install_command(extra).removeprefix("make ")
        lock = "requirements.lock" if target == "setup" else f"requirements-{target}.lock"
        assert target in recipes
        assert target == "setup" or lock in recipes[target]
        assert {re.split(r"[^\w.-]", package)[0] for package in packages} <= {name for name, _ in pins(lock)}
    assert install_command("semantic", "pip install weights") == "make semantic"
    monkeypatch.chdir(tmp_path)
    assert install_command("redis") == f"make -C '{checkout}' redis"

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert [install_command(extra) for extra in extras] == pip, "the program runs in another environment"
    assert install_command("semantic", "pip install weights") == "pip install weights"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("lab") == f"{shlex.quote(sys.executable)} -m pip install 'knapcache[lab]'", "not active"


def test_extras_with_a_make_target_have_a_dependency_group() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for extra in MAKE_TARGETS:
        assert project["dependency-groups"][extra] == project["project"]["optional-dependencies"][extra]
