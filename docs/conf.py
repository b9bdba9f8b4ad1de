"""Builds the pages of this folder as a site: `make docs`.

The pages are plain Markdown, so they also read well on a code host. On the site, links to
files outside this folder become plain text.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])+)\]\((?P<target>[^)\s]+)\)")

project = "knapcache"
author = "The knapcache authors"
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
myst_heading_anchors = 4  # links to headings, as code hosts make them
exclude_patterns = ["*.py"]
html_theme = "furo"
html_title = f"knapcache {version}"
html_static_path: list[str] = []
html_search_scorer = str(HERE / "search_scorer.js")
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def prepare(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace links to existing files outside the docs by their text. Other broken links fail the strict build.

    An index also gets its navigation.
    """
    folder = (HERE / docname).parent

    def replace(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / link["target"].partition("#")[0]))
        outside = "://" not in link["target"] and path.exists() and not path.is_relative_to(HERE)
        return link["text"] if outside else link[0]

    text = LINK.sub(replace, source[0])
    source[0] = with_navigation(text) if Path(docname).name == "index" else text


def with_navigation(index: str) -> str:
    """Add a table of contents for each section of an index, or one for all. The page itself stays plain Markdown."""
    sections = re.findall(r"^## (.+)\n((?:.*\n(?!## ))*.*)", index, re.MULTILINE) or [("Pages", index)]
    trees = [
        "\n".join(
            (
                "```{toctree}",
                ":hidden:",
                f":caption: {title}",
                "",
                *re.findall(r"^- \[.*?\]\((.+?)\)", body, re.M),
                "```",
            )
        )
        for title, body in sections
    ]
    return "\n\n".join((index, *trees))


def setup(app: Sphinx) -> None:
    """Connect the hook. Sphinx calls this."""
    app.connect("source-read", prepare)
