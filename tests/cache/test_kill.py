"""A process that runs a cache under load is killed with -9: no answer is wrong, and no acknowledged one is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cache_kills import expected_after, kill_repeatedly


def test_killed_under_load(tmp_path: Path) -> None:
    counts = kill_repeatedly(tmp_path, 6)
    assert counts["written"] > 0
    assert counts["answers"] > 0


@pytest.mark.long
def test_killed_often(tmp_path: Path) -> None:
    assert kill_repeatedly(tmp_path, 200)["written"] > 100


def test_an_entry_must_be_there_unless_its_eviction_was_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("evict a 0\nput a 0 5\nevict b 1\nevict c 2\nput c 2 6\nevict c 3\nevict d 4\n")
    assert expected_after({"b": 1, "d": 1, "e": 1}, log) == ({"a": 5, "e": 1}, 1)
