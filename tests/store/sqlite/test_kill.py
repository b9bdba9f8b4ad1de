"""Processes killed with SIGKILL at random moments: the laws are in tests/support/store_kills.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.store_kills import kill_repeatedly


@pytest.mark.parametrize(
    ("kills", "seed", "least"), [(20, 1, 100), *(pytest.param(250, k, 1000, marks=pytest.mark.long) for k in range(4))]
)
def test_a_killed_writer_loses_no_acknowledged_change(tmp_path: Path, kills: int, seed: int, least: int) -> None:
    assert kill_repeatedly(tmp_path, kills, seed)["acknowledged"] > least
