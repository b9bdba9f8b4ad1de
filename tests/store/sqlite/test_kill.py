"""Processes killed with SIGKILL at random moments: the laws are in tests/support/store_kills.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.store_kills import kill_repeatedly


def test_a_killed_writer_loses_no_acknowledged_change(tmp_path: Path) -> None:
    assert kill_repeatedly(tmp_path, 20, 1)["acknowledged"] > 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_killed_writer_loses_no_acknowledged_change_for_long(tmp_path: Path, seed: int) -> None:
    assert kill_repeatedly(tmp_path, 250, seed)["acknowledged"] > 1000
