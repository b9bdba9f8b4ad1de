"""Three proxies on one server that pauses, freezes, runs out of memory, is emptied or is absent at the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from knapcache.store.redis.key_leases import LEASE_SECONDS
from knapcache.testing import FakeUpstream
from tests.support.cluster_load import CAPACITY, SECRET, SdkClient
from tests.support.cluster_scenarios import (
    DISTURBANCES,
    check_counts,
    disturb_engine,
    freeze_beyond_the_lease,
    freeze_engine,
    send_bursts,
)
from tests.support.programs import find_module
from tests.support.redis_servers import RedisProcess, free_port
from tests.support.running_proxy import RunningProxy
from tests.support.timing import check_seconds, wait_until

find_module("redis", "the extra redis")


class ProxiesOnOneServer:
    """A server, an upstream, and proxies in threads of this process."""

    def __init__(self, folder: Path, stack: ExitStack, count: int = 3) -> None:
        self.server = stack.enter_context(RedisProcess(folder))
        self.store_url = f"{self.server.url}?near=0&shards=4"
        self.upstream = stack.enter_context(FakeUpstream(delay=0.02))
        proxies = [
            stack.enter_context(running_proxy(folder / f"proxy{k}", self.upstream, self.store_url))
            for k in range(count)
        ]
        self.urls = [proxy.url for proxy in proxies]


def running_proxy(folder: Path, upstream: FakeUpstream, store_url: str) -> RunningProxy:
    return RunningProxy(folder, upstream.openai_url, store=store_url, secret=SECRET, capacity=CAPACITY, shadows=())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiesOnOneServer]:
    with ExitStack() as stack:
        yield ProxiesOnOneServer(tmp_path_factory.mktemp("cluster"), stack)


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_no_request_fails(cluster: ProxiesOnOneServer, kind: str) -> None:
    counts = disturb_engine(cluster.urls, cluster.store_url, cluster.server, DISTURBANCES[kind], label=f"{kind} ")
    check_counts(counts)
    check_seconds(counts["slowest_seconds"], LEASE_SECONDS, "a request that waits for no lease")


@pytest.mark.long
def test_no_request_fails_while_the_engine_is_frozen_for_longer_than_the_lease(cluster: ProxiesOnOneServer) -> None:
    counts = disturb_engine(
        cluster.urls, cluster.store_url, cluster.server, freeze_beyond_the_lease, label="long freeze "
    )
    check_counts(counts)


def test_a_burst_over_all_proxies_calls_the_upstream_once_for_each_key(cluster: ProxiesOnOneServer) -> None:
    assert send_bursts(cluster.urls, cluster.upstream, 8)["bills_per_key"] == 1.0


def test_a_frozen_engine_delays_few_requests(cluster: ProxiesOnOneServer) -> None:
    found = freeze_engine(cluster.urls[0], cluster.server, 24, stored=6)
    # Far less than each request would add that waits for the timeout of 250 ms.
    check_seconds(found["others_added_p50_seconds"], 0.1, "the median")


def test_a_proxy_that_starts_before_its_engine_uses_it_later(tmp_path: Path) -> None:
    port = free_port()
    with (
        FakeUpstream() as upstream,
        running_proxy(tmp_path / "proxy", upstream, f"redis://127.0.0.1:{port}?near=0") as proxy,
    ):
        client = SdkClient(proxy.url)
        assert [client.send("early").outcome for _ in range(2)] == ["miss", "miss"]
        with RedisProcess(tmp_path, port=port):
            wait_until(lambda: client.send("early").outcome == "hit")
        client.close()
