"""`knapcache completion`: the scripts, and completion in real shells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from knapcache.cli.completion import SHELLS
from knapcache.cli.main import main
from tests.support.programs import find_module, find_program, run_program

find_module("shtab", "the extra completion")

CASES = {
    "knapcache do": ["doctor"],
    "knapcache serve --po": ["--policy", "--port"],
    "knapcache plan --format he": ["helicone"],
    "knapcache experiment figure": ["figure-1", "figure-2"],
    "knapcache completion ": sorted(SHELLS),
    "knapcache doctor --config {folder}/se": ["{folder}/settings.toml"],
    "knapcache replay trace.csv -o {folder}/re": ["{folder}/reports"],
}
"""Beginnings of command lines, and all completions of their last words."""
BASH = """source "$1"; shift
for line; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    $(complete -p knapcache | sed "s/.*-F \\([^ ]*\\) .*/\\1/") knapcache "${COMP_WORDS[-1]}"
    echo "${COMPREPLY[@]}"
done"""
FISH = 'source $argv[1]; for line in $argv[2..]; echo (complete -C "$line" | string replace -r "\\t.*" ""); end'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "settings.toml").touch()
    (tmp_path / "reports").mkdir()
    return tmp_path


def script_of(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    file = folder / f"script.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.parametrize(
    ("shell", "command"), [("bash", ["--norc", "-c", BASH, "bash"]), ("fish", ["--no-config", "-c", FISH])]
)
def test_completion(shell: str, command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = find_program(shell, shell)
    lines = [line.format(folder=folder) for line in CASES]
    script = script_of(shell, folder, capsys)
    found = run_program(program, *command, script, *lines, HOME=str(folder)).splitlines()
    expected = [[word.format(folder=folder) for word in words] for words in CASES.values()]
    assert [sorted(word.rstrip("/") for word in line.split()) for line in found] == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_program(find_program(shell, shell), "-n", script_of(shell, folder, capsys))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err.startswith("knapcache: error: completion needs shtab: ")
