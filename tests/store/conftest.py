from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a store's file, which does not exist yet."""
    return tmp_path / "answers.db"
