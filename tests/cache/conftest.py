"""Where files of tests lie that are opened often."""

from __future__ import annotations

from tests.store.conftest import quick_path

__all__ = ["quick_path"]
