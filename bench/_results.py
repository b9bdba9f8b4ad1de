"""Results of benchmarks, as JSON with one row of a table per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAX_LINE = 400
"""Characters of a value that is written on one line although it contains objects or lists."""


def write_result(file: Path, record: Any) -> None:
    """Write a record to a file, and make its directory."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(format_value(record) + "\n", encoding="utf-8")


def format_value(value: Any, margin: str = "\n") -> str:
    """Return a value as JSON. margin: a line break and the spaces in front of the value."""
    text, inner = json.dumps(value, ensure_ascii=False), margin + " "
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(text) <= MAX_LINE or not any(isinstance(child, (dict, list)) for child in children):
        return text
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
    items = [name + format_value(child, inner) for name, child in zip(names, children, strict=True)]
    return text[0] + inner + f",{inner}".join(items) + margin + text[-1]
