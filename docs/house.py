"""Draws `images/house.svg` from the layer contracts in pyproject.toml and the packages: `python docs/house.py`.

A row imports only from rows below it. A test compares the picture with the code.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "house.svg"
PACKAGE = ROOT / "src" / "knapcache"
WIDTH, HEIGHT, GAP, TEXT = 960, 34, 8, 13
EXPANDED = ("features", "proxy")
"""Packages whose parts are drawn, each in a row of their own inside a frame."""


def contracts() -> list[dict[str, object]]:
    """Return the layer contracts: of the whole package, and of the proxy."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]


def rows_of(contract: dict[str, object]) -> list[list[str]]:
    """Return the names of each layer, top first."""
    layers = contract["layers"]
    assert isinstance(layers, list)
    return [[name.strip().removeprefix("knapcache.") for name in layer.split("|")] for layer in layers]


def parts_of(package: str) -> list[list[str]]:
    """Return the rows that are drawn inside a package."""
    if package == "proxy":
        return rows_of(contracts()[1])
    names = sorted(path.name for path in (PACKAGE / package).iterdir() if (path / "__init__.py").exists())
    return [names]


def boxes(names: list[str], left: float, top: float, width: float, style: str) -> list[str]:
    """Return the boxes of one row."""
    each = (width - GAP * (len(names) - 1)) / len(names)
    found = []
    for k, name in enumerate(names):
        x = left + k * (each + GAP)
        found.append(f'<rect class="{style}" x="{x:.0f}" y="{top:.0f}" width="{each:.0f}" height="{HEIGHT}" rx="4"/>')
        found.append(f'<text x="{x + each / 2:.0f}" y="{top + HEIGHT / 2 + 5:.0f}">{name}</text>')
    return found


def picture() -> str:
    """Return the picture."""
    lines, top = [], float(GAP)
    for names in rows_of(contracts()[0]):
        for package in (name for name in names if name in EXPANDED):
            inner = parts_of(package)
            height = TEXT + 3 * GAP + len(inner) * (HEIGHT + GAP)
            frame = f'x="{GAP}" y="{top:.0f}" width="{WIDTH - 2 * GAP}" height="{height}"'
            lines.append(f'<rect class="frame" {frame} rx="6"/>')
            lines.append(f'<text class="title" x="{2 * GAP}" y="{top + TEXT + GAP:.0f}">{package}/</text>')
            y = top + TEXT + 2 * GAP
            for row in inner:
                lines += boxes(row, 2 * GAP, y, WIDTH - 4 * GAP, "part")
                y += HEIGHT + GAP
            top += height + GAP
        if whole := [name for name in names if name not in EXPANDED]:
            lines += boxes(whole, GAP, top, WIDTH - 2 * GAP, "layer")
            top += HEIGHT + GAP
    style = (
        "text{font:13px sans-serif;text-anchor:middle;fill:#1c2733}.title{text-anchor:start;font-weight:bold}"
        ".layer{fill:#e8eef5;stroke:#5b7a99}.part{fill:#fff;stroke:#5b7a99}.frame{fill:#f4f6f8;stroke:#9fb2c6}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" role="img">'
    title = "<title>Packages of knapcache in layers: a row imports only from rows below it</title>"
    return "\n".join([head, title, f"<style>{style}</style>", *lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
