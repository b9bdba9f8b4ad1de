"""Reads a Dockerfile, and executes its steps in a folder in place of a container's file system.

Executed are WORKDIR, ENV, COPY and RUN, with the paths of the image below the folder. All stages share the folder.
USER, owners of files, the base image and its packages are not reproduced: commands run as the user of the test, with
its Python and the libraries of this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

IMAGE_PATHS = re.compile(r"(?<![\w./-])/(?=(?:app|build|var/lib/knapcache|var/cache/knapcache)\b)")
"""The first slash of the paths that the image creates."""


class Instruction(NamedTuple):
    """A keyword in capitals, and the rest of its lines, joined."""

    keyword: str
    argument: str

    @property
    def words(self) -> list[str]:
        """The argument's words without options, for COPY."""
        return [word for word in self.argument.split() if not word.startswith("--")]

    @property
    def installs_packages(self) -> bool:
        """Whether it is a RUN that installs packages of the system."""
        return self.keyword == "RUN" and self.argument.startswith("apt-get ")

    @property
    def command(self) -> list[str]:
        """The JSON form of a command, for CMD, ENTRYPOINT and HEALTHCHECK."""
        found: list[str] = json.loads(self.argument[self.argument.index("[") :])
        return found


def parse(text: str) -> list[Instruction]:
    """Split a Dockerfile into instructions."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(keyword.upper(), rest) for keyword, rest in re.findall(r"^(\w+)\s+(.*)$", joined, re.MULTILINE)]


class ImageFolder:
    """The file system of an image, in a folder."""

    def __init__(self, root: Path, context: Path) -> None:
        self.root, self.context = root, context
        self._directory = root
        tools = root / "base-image"
        tools.mkdir(parents=True)
        python = (
            tools / "python"
        )  # a script, because a virtual environment made by a link would look for its library here
        python.write_text(
            f'#!/bin/sh\nexec "{getattr(sys, "_base_executable", sys.executable)}" "$@"\n', encoding="utf-8"
        )
        python.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KNAPCACHE_"))}
        self.variables = {**kept, "PATH": f"{tools}:/usr/bin:/bin"}

    def path(self, text: str) -> str:
        """Move the image's paths in a text below the folder."""
        return IMAGE_PATHS.sub(f"{self.root}/", text)

    def execute(self, instruction: Instruction) -> None:
        """Execute a step. A RUN that fails raises CalledProcessError."""
        keyword, argument = instruction
        if keyword == "WORKDIR":
            self._directory = Path(self.path(argument))
            self._directory.mkdir(parents=True, exist_ok=True)
        elif keyword == "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", argument):
                self.variables[name] = self.path(value).replace("$PATH", self.variables["PATH"])
        elif keyword == "COPY":
            self._copy(instruction)
        elif keyword == "RUN" and not instruction.installs_packages:
            subprocess.run(["/bin/sh", "-c", self.path(argument)], cwd=self._directory, env=self.variables, check=True)

    def _copy(self, instruction: Instruction) -> None:
        *sources, target = instruction.words
        from_stage = "--from=" in instruction.argument
        for source in sources:
            found = Path(self.path(source)) if from_stage else self.context / source
            place = Path(self.path(target)) if target.startswith("/") else self._directory / target
            if found.is_dir():
                if found != place:
                    shutil.copytree(found, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(found, place / found.name if target.endswith("/") else place)
