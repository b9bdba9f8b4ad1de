"""Proxies under load while a primary is killed, and while the proxies restart one by one behind HAProxy."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.cluster_scenarios import (
    MAX_DEGRADED_SECONDS,
    check_counts,
    kill_primaries_repeatedly,
    kill_primary_under_load,
    restart_proxies,
)
from tests.support.programs import find_module
from tests.support.redis_servers import ClusterProcesses, RedisProcess, SentinelGroup
from tests.support.timing import check_seconds

pytestmark = pytest.mark.long
find_module("redis", "the extra redis")


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_no_request_fails_when_a_primary_is_killed(tmp_path: Path, kind: str) -> None:
    engine = SentinelGroup(tmp_path, 3) if kind == "sentinel" else ClusterProcesses(tmp_path, replicas=1)
    with closing(engine):
        counts = kill_primary_under_load(tmp_path, engine, shards=12)
    check_counts(counts)
    for kind in ("reads", "writes"):
        check_seconds(counts[f"{kind}_degraded_seconds"], MAX_DEGRADED_SECONDS, f"degraded {kind}")


def test_primaries_are_killed_and_cut_off_repeatedly(tmp_path: Path) -> None:
    with closing(ClusterProcesses(tmp_path, replicas=1)) as cluster:
        counts = kill_primaries_repeatedly(tmp_path, cluster, 3)
    check_counts(counts, failed=0.001)


def test_no_request_fails_when_proxies_restart_one_by_one(tmp_path: Path) -> None:
    site = (ROOT / "deploy" / "cluster" / "haproxy.cfg").read_text(encoding="utf-8")
    with RedisProcess(tmp_path) as server:
        check_counts(restart_proxies(tmp_path, f"{server.url}?near=100kB", site))
