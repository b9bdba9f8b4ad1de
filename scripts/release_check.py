"""Run what has to pass before a release is tagged, and print one line for each step. `make release-check` runs it.

    .venv/bin/python scripts/release_check.py [--long] [--skip STEP,…] [--only STEP,…]

The output of a step is in out/release/STEP.log. Exit code 1 if a step fails. Environments that are not built yet need
a package index; nothing else needs the internet.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "out" / "release"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
Step = Callable[[], str]
"""Returns what the line says. Raises StepError."""


class StepError(Exception):
    """A step that did not pass, with the reason."""


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def clean_tree() -> str:
    changed = git("status", "--porcelain").splitlines()
    if changed:
        raise StepError(f"{len(changed)} files differ from the last commit, such as {changed[0][3:]}")
    return f"commit {git('rev-parse', '--short', 'HEAD')}"


def version() -> str:
    """Compare the version with the newest section of the changelog. Tests compare the other places."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+) - (\d{4}-\d{2}-\d{2})$", text, re.MULTILINE)
    if newest is None or newest[1] != VERSION:
        raise StepError(f"pyproject.toml has {VERSION}, CHANGELOG.md {newest and newest[1]}")
    if f"v{VERSION}" in git("tag").splitlines():
        raise StepError(f"the tag v{VERSION} exists")
    if not (ROOT / "tests" / "releases" / VERSION).is_dir() and VERSION.endswith(".0"):
        raise StepError("tests/releases lacks this version: python -m tests.support.release_files")
    return f"{VERSION} of {newest[2]}"


def make(target: str, shown: str = "") -> Step:
    """Return a step that runs a make target. shown: expression for the part of its output that the line says."""

    def run() -> str:
        log = LOGS / f"{target}.log"
        with log.open("w", encoding="utf-8") as file:
            done = subprocess.run(["make", target], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
        text = log.read_text(encoding="utf-8")
        if done.returncode:
            raise StepError(f"see {log.relative_to(ROOT)}")
        return ", ".join(dict.fromkeys(re.findall(shown, text, re.MULTILINE))) if shown else "passed"

    return run


PASSED = r"^\d+ passed.*$"
STEPS: dict[str, Step] = {
    "tree": clean_tree,
    "version": version,
    "test": make("test", PASSED),
    "test-tools": make("test-tools", PASSED),
    "test-pythons": make("test-pythons", r"^Python .*$"),
    "dist": make("dist", r"SHA-256 \w{12}"),
    "docs": make("docs"),
    "sbom": make("sbom"),
    "test-long": make("test-long", PASSED),
}
OPTIONAL = {"test-long"}


def names(text: str) -> list[str]:
    """Parse a list of steps."""
    found = text.split(",")
    if unknown := [name for name in found if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"unknown step {unknown[0]}; the steps are {', '.join(STEPS)}")
    return found


def main() -> None:
    """Run the chosen steps, all of them also after a failure."""
    parser = argparse.ArgumentParser(description="Check that a release can be tagged.")
    parser.add_argument("--long", action="store_true", help="run the long tests, too")
    parser.add_argument("--skip", type=names, default=[], metavar="STEPS", help="steps to leave out")
    parser.add_argument("--only", type=names, metavar="STEPS", help="run only these steps")
    args = parser.parse_args()
    chosen = args.only or [name for name in STEPS if args.long or name not in OPTIONAL]
    LOGS.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for name in STEPS:
        if name not in chosen or name in args.skip:
            print(f"{name:13} left out", flush=True)
            continue
        start = time.monotonic()
        try:
            result = STEPS[name]()
        except StepError as error:
            result, failed = f"FAILED: {error}", [*failed, name]
        print(f"{name:13} {result} ({time.monotonic() - start:.0f} s)", flush=True)
    sys.exit(f"not ready: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
