from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def ram_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in /dev/shm where that exists: these tests would spend most of their time on a real disk's syncs."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
