"""Install the packages of lock files, and this checkout, into the environment of the Python that runs this script.

    .venv/bin/python scripts/install.py PURPOSE TIME LOCK [LOCK …]

Prints what is installed for which purpose and how long that takes; on a terminal also the progress. pip's own messages
are shown only if it fails: on machines with a package mirror they are warnings, page after page.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement  # installed with every environment

PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off")
SHOWN_ON_FAILURE = 30
"""Lines of pip's output."""
REFRESH = 0.5
"""Seconds between two updates of the progress."""


def locked_packages(lock: Path) -> dict[str, str]:
    """Return the version of each package that a lock has for this machine, by normalised name."""
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line.partition(" --hash")[0].strip() for line in text.splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        normalised(package.name): str(package.specifier).removeprefix("==")
        for package in found
        if package.marker is None or package.marker.evaluate()
    }


def installed_packages() -> set[tuple[str, str]]:
    """Return name and version of each installed package."""
    folder = Path(sysconfig.get_path("purelib"))
    stems = (path.name.removesuffix(".dist-info") for path in folder.glob("*.dist-info"))
    return {(normalised(name), version) for name, _, version in (stem.rpartition("-") for stem in stems)}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class ProgressLine:
    """One line on a terminal: what pip does now, and how many of the packages it has finished."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = set(wanted.items())
        self._collected = 0
        self._now = "reading the lock"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw_until_done, daemon=True)
        if sys.stdout.isatty():
            self._thread.start()

    def read(self, line: str) -> None:
        """Take a line of pip's output."""
        if match := re.match(r"\s*(Collecting|Downloading|Using cached) (\S+)(.*)", line):
            self._collected += match[1] == "Collecting"
            size = re.search(r"\([\d.]+ [kMG]?B\)", match[3])
            name = match[2].split("==")[0].split("/")[-1].split("-")[0]
            self._now = f"downloading {self._collected} of {len(self._wanted)}: {name} {size[0] if size else ''}"
        elif line.startswith("Installing collected"):
            self._now = ""

    def _draw_until_done(self) -> None:
        while not self._done.wait(REFRESH):
            count = len(self._wanted & installed_packages())
            text = self._now or f"unpacking: {count} of {len(self._wanted)} packages"
            print(f"\r\x1b[2K  {text}"[: 5 + shutil.get_terminal_size().columns], end="", flush=True)

    def close(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
            print("\r\x1b[2K", end="", flush=True)


def run_pip(*arguments: str) -> Iterator[str]:
    """Run `pip install` and yield its lines; on failure print the last ones and exit."""
    lines = []
    with subprocess.Popen((*PIP, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            lines.append(line)
            yield line
    if process.returncode:
        sys.stdout.flush()
        kept = [line for line in lines if not line.startswith("WARNING: Location")]
        sys.exit("".join(kept[-SHOWN_ON_FAILURE:]) + "knapcache: the installation failed; see pip's messages above")


def main(purpose: str, expected: str, *locks: str) -> None:
    """Install the locks, then the checkout in place."""
    wanted = {name: version for lock in locks for name, version in locked_packages(Path(lock)).items()}
    missing = len(set(wanted.items()) - installed_packages())
    if missing:
        print(f"knapcache: installing {missing} package{'s' * (missing != 1)} {purpose} ({expected})", flush=True)
    begin, progress = time.monotonic(), ProgressLine(wanted)
    try:
        # A lock is complete, so pip need not look for dependencies.
        for line in run_pip("--no-deps", "--require-hashes", *(part for lock in locks for part in ("-r", lock))):
            progress.read(line)
        for _ in run_pip("--no-deps", "--no-build-isolation", "-e", "."):
            pass
    finally:
        progress.close()
    if missing:
        print(f"knapcache: installed in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
