"""Metrics as docs/reference/observability.md lists them, and as families have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tests.support import ROOT

PAGE = ROOT / "docs" / "reference" / "observability.md"


def documented(prefix: str = "knapcache_") -> dict[str, frozenset[str]]:
    """Return the labels of the documented metrics whose names begin so."""
    table = PAGE.read_text(encoding="utf-8").split("## Metrics")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(knapcache_\w+)`(?: `\{([\w,]+)\}`)? \|", table, re.MULTILINE)
    return {name: frozenset(filter(None, labels.split(","))) for name, labels in rows if name.startswith(prefix)}


def labels_of(families: Iterable[Any]) -> dict[str, frozenset[str]]:
    """Return the labels of the project's families."""
    return {
        family.name + "_total" if family.type == "counter" else family.name: frozenset(
            label for sample in family.samples for label in sample.labels if label != "le"
        )
        for family in families
        if family.name.startswith("knapcache_")
    }
