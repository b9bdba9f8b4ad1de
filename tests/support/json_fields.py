"""The fields that commands print with --json, for the list of the public surfaces.

The commands of the labs (kv, prefix, semantic, swap) are left out: their pages and their tests have the fields.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from knapcache import Cache, Reply
from knapcache.cli.main import main

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
SETTINGS = '[[upstreams]]\nurl = "http://127.0.0.1:9/v1"\n[[route]]\nname = "r"\nmodel = ["m"]\n'
BY_NAME = {"knees", "oracle_prices"}
"""Fields whose own fields are policies or capacities of the run."""
COMMANDS = {
    "policies": "policies",
    "doctor": "doctor --config k.toml --path data --port 0",
    "inspect": "inspect cache.db",
    "inspect --key": "inspect cache.db --key KEY",
    "why": "why other.json cache.db",
    "route test": "route test request.json --config k.toml",
    "import": "import entries.jsonl copy.db",
    "purge --dry-run": "purge cache.db --all --dry-run",
    "purge": "purge cache.db --all --yes",
    "replay": "replay trace.csv --policy lru --capacity 50% --jobs 1",
    "plan": "plan trace.csv --policy lru --jobs 1",
}


def json_fields() -> Iterator[str]:
    """Yield each command with the fields of what it prints, in the order of the commands."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        key = write_files()
        for name, line in COMMANDS.items():
            printed = run(*line.replace("KEY", key).split(), "--json")
            yield from (f"{name} {field}" for field in sorted(set(fields(json.loads(printed)))))


def write_files() -> str:
    """Write the inputs into the current directory. Return the key of the entry."""
    with Cache("2MB", path="cache.db", policy="lru", shadows=(), cost="seconds") as cache:
        key = cache.fetch("chat/completions", REQUEST, lambda: Reply(b"answer", "m", cost=1.0, tags=("t",))).key
    run("export", "cache.db", "-o", "entries.jsonl")
    Path("request.json").write_text(json.dumps(REQUEST), encoding="utf-8")
    Path("other.json").write_text(json.dumps(REQUEST | {"temperature": 1}), encoding="utf-8")
    Path("k.toml").write_text(SETTINGS, encoding="utf-8")
    Path("trace.csv").write_text(
        "time,key,size,cost\n" + "".join(f"{k},{k * k % 7},100,1\n" for k in range(50)), encoding="utf-8"
    )
    return key


def run(*words: str) -> str:
    """Run a command, and return what it prints. The settings of the environment do not count."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KNAPCACHE_")}
    output = io.StringIO()
    with (
        mock.patch.dict(os.environ, kept, clear=True),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        main(list(words))
    return output.getvalue()


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field. [] stands for the elements of a list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            shown = "*" if path.rpartition(".")[2] in BY_NAME else name
            yield from fields(inner, f"{path}.{shown}" if path else shown)
    elif isinstance(value, list):
        yield from [f"{path}[]"] if not value else (field for one in value for field in fields(one, f"{path}[]"))
    else:
        yield path
