"""Logs for the trace readers, and the errors of reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.traces import ColumnRules, read_trace


def write_lines(path: Path, *lines: Any) -> Path:
    """Write lines: texts as they are, everything else as JSON."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def error_of(path: Any, rules: ColumnRules = ColumnRules(), **options: Any) -> str:  # noqa: B008 - frozen
    """Read a log that cannot be read, and return the error, which is one line."""
    with pytest.raises(InvalidInput) as caught:
        read_trace(path, rules, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
