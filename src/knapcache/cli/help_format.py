"""Layout of help texts: paragraphs wrap to the terminal, indented blocks stay as written."""

from __future__ import annotations

import argparse
import re
import textwrap

MIN_ACTION_WIDTH = 15
"""Columns for names of subcommands. argparse ignores their indentation and would break the line after a long name."""


class HelpFormatter(argparse.HelpFormatter):
    """Wrap each paragraph of a description or epilog, and keep its indented lines."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = MIN_ACTION_WIDTH

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = []
        for block in re.split(r"\n\s*\n", text.strip("\n")):
            if re.search(r"^\s", block, re.MULTILINE):
                blocks.append(textwrap.indent(block, indent))
            else:
                blocks.append(textwrap.fill(" ".join(block.split()), width, initial_indent=indent))
        return "\n\n".join(blocks)
