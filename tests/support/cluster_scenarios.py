"""What happens to proxies that share a store: a primary is killed, the server freezes, proxies restart one by one.

Each scenario verifies every answer, asserts what is promised, and returns what it counted. Tests run it at a small
scale, bench/cluster.py and bench/reliability.py at full scale.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from knapcache.errors import CorruptState
from knapcache.testing import FakeUpstream
from tests.support.cluster_load import (
    HOT,
    BooksSampler,
    SdkAnswer,
    SdkClient,
    SdkLoad,
    fill_store,
    open_proxies_store,
    proxies_on,
    start_proxy,
)
from tests.support.load_balancer import Balancer
from tests.support.proxy_process import ProxyProcess
from tests.support.redis_servers import ClusterProcesses, RedisProcess, SentinelGroup, free_port
from tests.support.timing import TooSlow, wait_until

Progress = Callable[[int], object]
MAX_DEGRADED_SECONDS = 8.0
UPSTREAM_SECONDS = 0.02


def store_hot_prompts(urls: Sequence[str]) -> None:
    """Send every hot prompt until all proxies have it as a hit."""
    clients = [SdkClient(url) for url in urls]

    def all_hits() -> bool:
        return all(client.send(f"hot {k}").outcome == "hit" for k in range(HOT) for client in clients)

    wait_until(all_hits)
    for client in clients:
        client.close()


def primaries(engine: ClusterProcesses | SentinelGroup) -> list[RedisProcess]:
    """Return the servers that are primaries now, in the view of the servers themselves."""
    servers = engine.servers if isinstance(engine, ClusterProcesses) else [engine.primary, engine.replica]
    return [server for server in servers if server.process.poll() is None and _has_role(server, "master")]


def _has_role(server: RedisProcess, role: str) -> bool:
    with server.client() as client:
        found = client.info("replication")
    return bool(found["role"] == role and (role == "master" or found["master_link_status"] == "up"))


def primary_of(engine: ClusterProcesses | SentinelGroup, key: str) -> RedisProcess:
    """Return the primary that has a key."""
    (first, *others) = primaries(engine)
    if not others:
        return first
    with first.client() as client:
        slot = client.execute_command("CLUSTER KEYSLOT", key)
        slots = client.execute_command("CLUSTER SLOTS")
    port = next(int(node[1]) for low, high, node, *_ in slots if low <= slot <= high)
    return next(server for server in (first, *others) if server.port == port)


# A primary is killed under load.


def kill_primary_under_load(
    folder: Path,
    engine: ClusterProcesses | SentinelGroup,
    *,
    proxies: int = 3,
    clients: int = 6,
    seconds_before: float = 3.0,
    seconds_after: float = 14.0,
    shards: int = 12,
    **settings: Any,
) -> dict[str, Any]:
    """Kill the primary that has the owner's lease, with proxies under load. No request may fail.

    Return how long stored prompts were misses (`reads_degraded_seconds`) and new ones were not stored.
    """
    url = f"{engine.url}?prefix=kill&near=0&shards={shards}"
    fill_store(url)
    with ExitStack() as stack:
        upstream = stack.enter_context(FakeUpstream(delay=UPSTREAM_SECONDS))
        urls = [proxy.url for proxy in stack.enter_context(proxies_on(folder, upstream, url, proxies, **settings))]
        store_hot_prompts(urls)
        sampler = stack.enter_context(BooksSampler(open_proxies_store(url, own=False)))
        load = stack.enter_context(SdkLoad(urls, clients))
        time.sleep(seconds_before)
        victim = primary_of(engine, "{kill:o}")
        lost = [primary_of(engine, f"{{kill:{shard}}}") is victim for shard in range(shards)]
        victim.kill()
        killed = time.monotonic()
        time.sleep(seconds_after)
    reads, writes = load.degraded_seconds(killed, lambda key: lost[int.from_bytes(key[:4], "big") % shards])
    counts = count_load(load, sampler)
    return {
        **counts, "inconsistent": inconsistent(url),
        "reads_degraded_seconds": reads, "writes_degraded_seconds": writes,
    }  # fmt: skip


def count_load(load: SdkLoad, sampler: BooksSampler) -> dict[str, Any]:
    outcomes = Counter(answer.outcome for answer in load.answers)
    return {
        "requests": load.sent, "failed": len(load.failed), "wrong": len(load.wrong), "hits": outcomes["hit"],
        "samples": sampler.samples, "consistent_samples": sampler.consistent_samples,
        "over_limit": len(sampler.violations), "most_used_bytes": sampler.most_used,
        "most_limit_bytes": sampler.most_limits, "capacity_bytes": sampler.capacity,
        "slowest_seconds": max((answer.seconds for answer in load.answers), default=0.0),
        "problems": [*load.wrong[:3], *load.failed[:3], *sampler.violations[:3]],
    }  # fmt: skip


def inconsistent(url: str) -> str:
    """Return why the totals of a store that is not in use are inconsistent; empty: they are consistent."""
    with open_proxies_store(url, own=False) as store:
        try:
            store.check()
        except CorruptState as error:
            return str(error)
    return ""


def check_counts(counts: dict[str, Any], *, failed: float = 0.0) -> None:
    """No wrong answer, nothing over the limit, consistent totals, and no more failed requests than this share."""
    assert counts["wrong"] == 0, counts["problems"]
    assert counts["failed"] <= failed * counts["requests"], counts["problems"]
    assert counts["over_limit"] == 0, counts["problems"]
    assert counts["inconsistent"] == ""
    assert counts["consistent_samples"] > 0, "nothing was sampled"


# Many failures under load.


def kill_primaries_repeatedly(
    folder: Path,
    cluster: ClusterProcesses,
    rounds: int,
    seconds: float = 10.0,
    progress: Progress = lambda _: None,
    **settings: Any,
) -> dict[str, Any]:
    """Every `seconds`, kill a primary with -9, or in every third round cut it off (SIGSTOP) and let it return.

    A server that was killed starts again, without data, before the next round.
    """
    url = f"{cluster.url}?prefix=rounds&near=0&shards=12"
    fill_store(url)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        upstream = stack.enter_context(FakeUpstream(delay=UPSTREAM_SECONDS))
        urls = [proxy.url for proxy in stack.enter_context(proxies_on(folder, upstream, url, **settings))]
        store_hot_prompts(urls)
        sampler = stack.enter_context(BooksSampler(open_proxies_store(url, own=False)))
        load = stack.enter_context(SdkLoad(urls))
        for round_ in range(rounds):
            time.sleep(seconds / 2)
            tag = "{rounds:o}" if round_ % 2 == 0 else f"{{rounds:{round_ % 12}}}"
            victim = primary_of(cluster, tag)
            if round_ % 3 == 2:
                counts["partitions"] += 1
                victim.signal(signal.SIGSTOP)
                time.sleep(seconds / 2)
                victim.signal(signal.SIGCONT)
            else:
                counts["kills"] += 1
                victim.kill()
                time.sleep(seconds / 2)
                victim.start()
            wait_until(lambda: len(primaries(cluster)) == 3 and all(map(_is_ready, cluster.servers)))
            progress(round_ + 1)
        time.sleep(seconds / 2)
    return {**counts, **count_load(load, sampler), "inconsistent": inconsistent(url)}


def _is_ready(server: RedisProcess) -> bool:
    return _has_role(server, "master") or _has_role(server, "slave")


# The same new request at several proxies at once.


def send_bursts(urls: Sequence[str], upstream: FakeUpstream, bursts: int, label: str = "burst") -> dict[str, Any]:
    """Send a new prompt to all proxies at the same moment, `bursts` times. Return the upstream calls per prompt."""
    clients = [SdkClient(url) for url in urls]
    barrier = threading.Barrier(len(urls))

    def send(client: SdkClient, name: str) -> str:
        barrier.wait()
        return client.send(name).outcome

    before, outcomes = len(upstream.calls), Counter[str]()
    with ThreadPoolExecutor(len(urls)) as pool:
        for k in range(bursts):
            outcomes.update(pool.map(send, clients, [f"{label} {k}"] * len(urls)))
    for client in clients:
        client.close()
    calls = Counter(call.body["messages"][0]["content"] for call in upstream.calls[before:])
    assert len(calls) == bursts
    return {
        "bursts": bursts, "proxies": len(urls), "bills_per_key": sum(calls.values()) / bursts,
        "most_bills": max(calls.values()), **outcomes,
    }  # fmt: skip


# The server freezes.


@contextmanager
def frozen(server: RedisProcess) -> Any:
    """Stop a server within the block (SIGSTOP)."""
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


def freeze_engine(url: str, server: RedisProcess, requests: int, stored: int = HOT) -> dict[str, Any]:
    """Send stored and new prompts one after the other before, while and after the server is frozen.

    Return the median seconds of a miss before, and the seconds that requests took longer while it was frozen: then all
    of them are misses.
    """
    client = SdkClient(url)
    wait_until(lambda: all(client.send(f"hot {k}").outcome == "hit" for k in range(stored)))

    def send_all(label: str) -> list[SdkAnswer]:
        names = [f"hot {k % stored}" if k % 2 else f"{label} {k}" for k in range(requests)]
        return [client.send(name) for name in names]

    healthy = statistics.median(answer.seconds for answer in send_all("healthy") if answer.outcome == "miss")
    with frozen(server):
        answers = send_all("frozen")
    assert {answer.outcome for answer in answers} == {"miss"}
    added = [answer.seconds - healthy for answer in answers]
    wait_until(lambda: client.send("hot 0").outcome == "hit")
    client.close()
    rest = sorted(added)[:-1]
    return {
        "requests": requests, "healthy_p50_seconds": healthy, "first_added_seconds": added[0],
        "longest_added_seconds": max(added), "second_longest_added_seconds": rest[-1],
        "others_added_p50_seconds": statistics.median(rest), "others_added_p99_seconds": rest[int(0.99 * len(rest))],
    }  # fmt: skip


# The server is disturbed under load.


def pause_clients(server: RedisProcess) -> None:
    """Let the server answer no command for a second."""
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 1000, "ALL")


def freeze_shortly(server: RedisProcess) -> None:
    with frozen(server):
        time.sleep(1.0)


def freeze_beyond_the_lease(server: RedisProcess) -> None:
    with frozen(server):
        time.sleep(6.0)


def run_out_of_memory(server: RedisProcess) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 1)
        time.sleep(1.0)
        client.config_set("maxmemory", 0)


def remove_everything(server: RedisProcess) -> None:
    with server.client() as client:
        client.flushall()


DISTURBANCES: dict[str, Callable[[RedisProcess], None]] = {
    "clients are paused": pause_clients,
    "frozen": freeze_shortly,
    "out of memory": run_out_of_memory,
    "emptied": remove_everything,
}


def disturb_engine(
    urls: Sequence[str], store_url: str, server: RedisProcess, disturb: Callable[[RedisProcess], None], *, label: str
) -> dict[str, Any]:
    """Disturb the server of proxies under load. After it, new prompts must be stored again."""
    with BooksSampler(open_proxies_store(store_url, own=False)) as sampler, SdkLoad(urls, 4, label=label) as load:
        load.wait_for(20)
        disturb(server)
        load.wait_for(20)
    client = SdkClient(urls[0])
    numbers = iter(range(10_000))

    def is_stored() -> bool:
        name = f"{label} after {next(numbers)}"
        return [client.send(name).outcome for _ in range(2)] == ["miss", "hit"]

    wait_until(is_stored)
    client.close()
    counts = count_load(load, sampler)
    return {**counts, "inconsistent": _inconsistent_in_the_end(store_url)}


def _inconsistent_in_the_end(url: str) -> str:
    """Return why the totals are inconsistent, also after the last writes of the load."""
    with suppress(TooSlow):
        wait_until(lambda: not inconsistent(url))
    return inconsistent(url)


# Proxies are restarted one by one.


def restart_proxies(folder: Path, url: str, site: str, *, proxies: int = 3, clients: int = 4) -> dict[str, Any]:
    """Restart every proxy behind HAProxy, one after the other, under load. `site`: HAProxy's configuration.

    A proxy serves for 3 seconds more after SIGTERM. HAProxy notices within 1 second that it is no longer ready.
    """
    ports = [free_port() for _ in range(proxies)]
    with ExitStack() as stack:
        upstream = stack.enter_context(FakeUpstream(delay=UPSTREAM_SECONDS))

        def start(k: int) -> ProxyProcess:
            return start_proxy(folder / f"proxy{k}", upstream, url, port=ports[k], grace=10, drain=3)

        with ThreadPoolExecutor(proxies) as pool:
            running = list(pool.map(start, range(proxies)))
        for k in range(proxies):
            stack.callback(lambda k=k: running[k].stop())  # type: ignore[misc]
        front = stack.enter_context(Balancer(folder / "front", site, ports))
        load = stack.enter_context(SdkLoad([front.url], clients))
        sampler = stack.enter_context(BooksSampler(open_proxies_store(url, own=False)))
        for k in range(proxies):
            load.wait_for(20)
            running[k].stop()
            running[k] = start(k)
            wait_until(partial(front.is_up, k))
    return {"restarts": proxies, **count_load(load, sampler), "inconsistent": inconsistent(url)}
