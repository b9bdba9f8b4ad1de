"""Simulated power cuts at random moments: the simulation and the law are in tests/support/power_cuts.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from knapcache.store.sqlite.recovery import SqliteOptions
from knapcache.store.sqlite.store import SqliteStore
from tests.support.power_cuts import PowerCutVFS, PowerSupply, Workload, cut_power_repeatedly
from tests.support.store_changes import Change, prefixes_to
from tests.support.stores import stored_versions


@pytest.fixture
def disk() -> Iterator[PowerCutVFS]:
    disk = PowerCutVFS()
    yield disk
    disk.unregister()


def test_full_loses_no_acknowledged_change(tmp_path: Path, disk: PowerCutVFS) -> None:
    counts = cut_power_repeatedly(tmp_path, disk, 15, 1, "full")
    assert counts["torn"] > 0  # how many depends on thread scheduling
    assert counts["lost"] == 0


def test_normal_loses_only_the_youngest_changes(tmp_path: Path, disk: PowerCutVFS) -> None:
    for seed in range(2, 10):  # whether a cut finds something to lose depends on thread scheduling
        folder = tmp_path / str(seed)
        folder.mkdir()
        counts = cut_power_repeatedly(folder, disk, 15, seed, "normal")
        assert counts["torn"] > 0  # how many depends on thread scheduling
        if counts["lost"] > 0:
            return
    pytest.fail("no cut lost anything: the simulation has no effect")


@pytest.mark.parametrize("syncs_work", [True, False])
def test_the_simulation_detects_a_disk_that_ignores_syncs(tmp_path: Path, disk: PowerCutVFS, syncs_work: bool) -> None:
    """One late cut that keeps nothing unsynced. Every change is awaited, so threads cannot change what is lost."""
    path, rng, workload = tmp_path / "answers.db", random.Random(3), Workload()
    disk.power = power = PowerSupply(300, rng, workload.on_cut, syncs_work=syncs_work)
    with SqliteStore(path, 1 << 20, SqliteOptions(synchronous="full", vfs=disk.name, memory_tier=0)) as store:
        workload.run(store, power, rng, 0, awaited=1.0)
    assert workload.at_cut[1] >= 10
    power.content_after = {
        name: None if file.durable is None else bytes(file.durable) for name, file in power.files.items()
    }
    power.restore(path)
    disk.power = PowerSupply(0, rng, workload.on_cut, syncs_work=True)
    with SqliteStore(path, 1 << 20, SqliteOptions(synchronous="full", vfs=disk.name, memory_tier=0)) as store:
        found = stored_versions(store), store.load_snapshot()
    kept = prefixes_to(found, ({}, None), workload.begun[: workload.at_cut[0]], 1 << 20)[-1]
    assert kept >= workload.at_cut[1] if syncs_work else kept == 0


def test_the_law_allows_early_evictions_only_where_the_log_is_too_short() -> None:
    changes = [Change(1, 10, []), Change(2, 11, []), Change(3, 12, []), Change(4, 13, [1, 2, 3])]
    early = ({2: 11, 3: 12}, b"12")
    assert prefixes_to(early, ({}, None), changes, 1 << 20) == [3]
    assert prefixes_to(early, ({}, None), changes, 4 << 20) == []
    for wrong in (({1: 10, 3: 12}, b"12"), ({2: 11, 3: 12}, b"13"), ({4: 13}, b"12")):
        assert prefixes_to(wrong, ({}, None), changes, 1 << 20) == []
    assert prefixes_to(({4: 13}, b"13"), ({}, None), changes, 1 << 20) == [4]


@pytest.mark.long
@pytest.mark.parametrize("synchronous", ["normal", "full"])
@pytest.mark.parametrize("seed", range(10, 15))
def test_a_thousand_power_cuts(tmp_path: Path, disk: PowerCutVFS, seed: int, synchronous: str) -> None:
    assert cut_power_repeatedly(tmp_path, disk, 100, seed, synchronous)["torn"] > 50
