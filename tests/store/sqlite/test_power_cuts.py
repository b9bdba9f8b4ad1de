"""Simulated power cuts at random moments: the simulation and the law are in tests/support/power_cuts.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from knapcache.errors import StoreError
from tests.support.power_cuts import PowerCutVFS, cut_power_repeatedly


@pytest.fixture
def disk() -> Iterator[PowerCutVFS]:
    disk = PowerCutVFS()
    yield disk
    disk.unregister()


def test_full_loses_no_acknowledged_change(ram_path: Path, disk: PowerCutVFS) -> None:
    counts = cut_power_repeatedly(ram_path, disk, 15, 1, "full")
    assert counts["torn"] > 15
    assert counts["lost"] == 0


def test_normal_loses_only_the_youngest_changes(ram_path: Path, disk: PowerCutVFS) -> None:
    for seed in range(2, 10):  # whether a cut finds something to lose depends on thread scheduling
        folder = ram_path / str(seed)
        folder.mkdir()
        counts = cut_power_repeatedly(folder, disk, 15, seed, "normal")
        assert counts["torn"] > 15
        if counts["lost"] > 0:
            return
    pytest.fail("no cut lost anything: the simulation has no effect")


def test_the_simulation_detects_a_disk_that_ignores_syncs(ram_path: Path, disk: PowerCutVFS) -> None:
    for seed in range(3, 13):  # as above: not every series of cuts finds something to lose
        folder = ram_path / str(seed)
        folder.mkdir()
        try:
            cut_power_repeatedly(folder, disk, 15, seed, "full", syncs_work=False)
        except (AssertionError, StoreError):
            return
    pytest.fail("acknowledged changes survived without syncs")


@pytest.mark.long
@pytest.mark.parametrize("synchronous", ["normal", "full"])
@pytest.mark.parametrize("seed", range(10, 15))
def test_a_thousand_power_cuts(ram_path: Path, disk: PowerCutVFS, seed: int, synchronous: str) -> None:
    assert cut_power_repeatedly(ram_path, disk, 100, seed, synchronous)["torn"] > 100
