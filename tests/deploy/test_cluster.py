"""Two proxies on one store behind HAProxy, as deploy/cluster has them, and what its compose file says."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from knapcache.proxy.settings import Settings
from knapcache.testing import FakeUpstream
from knapcache.units import parse_amount
from tests.support.front_proxies import find, free_port, is_serving
from tests.support.programs import find_module
from tests.support.proxy_process import ProxyProcess
from tests.support.redis_servers import RedisProcess
from tests.support.running_proxy import RunningProxy
from tests.support.timing import TooSlow, wait_until

find_module("redis", "the extra redis")

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "cluster"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SECRET, PASSWORD = "ab" * 32, "hunter2"
GIVEN = {"VALKEY_PASSWORD": PASSWORD, "KNAPCACHE_SECRET": SECRET}
GRACE = Settings.model_fields["grace"].get_default()


def interpolated(text: str) -> str:
    """Return a value of the compose file with variables replaced, as compose does it."""
    return re.sub(r"\$\{(\w+):[-?]([^}]*)\}", lambda found: GIVEN.get(found[1], found[2]), text)


def proxy_settings(name: str) -> dict[str, str]:
    """Return the settings in the environment of a service. The password of the store is not one of them."""
    found = {key: interpolated(value) for key, value in COMPOSE["services"][name]["environment"].items()}
    names = {key: key.removeprefix("KNAPCACHE_").lower() for key in found if key.startswith("KNAPCACHE_")}
    return {name: found[key] for key, name in names.items() if name in Settings.model_fields}


def engine_options() -> list[str]:
    """Return the options of the server in the compose file, without those that the test server sets."""
    program, *options = map(interpolated, COMPOSE["services"]["valkey"]["command"])
    assert program == "valkey-server"
    return options


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("engine"), *engine_options(), password=PASSWORD) as server:
        yield server


class Balancer:
    """HAProxy with the configuration of deploy/cluster and other addresses."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.port = free_port()
        text = (FOLDER / "haproxy.cfg").read_text(encoding="utf-8")
        text = text.replace("bind :8080", f"bind 127.0.0.1:{self.port}")
        for k, port in enumerate(ports, 1):
            text = text.replace(f" knapcache-{k}:8080", f" 127.0.0.1:{port}")
        config = folder / "haproxy.cfg"
        config.write_text(text, encoding="utf-8")
        self._log = (folder / "haproxy.log").open("wb")
        self.process = subprocess.Popen([find("haproxy"), "-db", "-f", str(config)], stderr=self._log)
        wait_until(lambda: is_serving(self.process, self.port, folder / "haproxy.log"), "HAProxy")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self._log.close()


class Client:
    """A client with one connection, which it keeps open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def send(self, text: str, *, stream: bool = False) -> http.client.HTTPResponse:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}
        headers = {"content-type": "application/json", "authorization": "Bearer any", "host": "localhost"}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return self._connection.getresponse()

    def outcome(self, text: str) -> str:
        """Return how a request was answered: hit, miss or coalesced."""
        response = self.send(text)
        assert text.encode() in response.read()
        return response.getheader("x-knapcache") or ""

    def close(self) -> None:
        self._connection.close()


class Load:
    """Clients that send requests one after the other until they are stopped."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.port, self.outcomes, self._stopped = port, Counter[str](), threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(k,)) for k in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        client = Client(self.port)
        for k in itertools.count():
            if self._stopped.is_set():
                break
            text, stream = f"<{number}-{k}>" if k % 4 == 0 else f"<shared {k % 7}>", k % 3 == 0
            try:
                response = client.send(text, stream=stream)
                content = response.read()
                if stream:
                    parts = re.findall(rb'"content":"([^"]*)"', content)
                    content = b"".join(parts) if content.endswith(b"data: [DONE]\n\n") else b"cut"
                right = response.status == 200 and text.encode() in content
                self.outcomes["right" if right else f"{response.status} {content[:200]!r}"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.outcomes[repr(error)] += 1
                client.close()
        client.close()

    def stop(self) -> Counter[str]:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return self.outcomes


def common_settings(engine: RedisProcess, prefix: str) -> dict[str, Any]:
    """Return the settings of a proxy of the compose file, on a server of the test."""
    settings: dict[str, Any] = proxy_settings("knapcache-1")
    assert settings["store"] == "redis://valkey:6379"
    settings["store"] = f"redis://127.0.0.1:{engine.port}?prefix={prefix}"
    return settings | {"capacity": "20MB", "trusted_proxies": "127.0.0.1"}


def test_two_proxies_behind_haproxy_share_a_cache_and_one_may_stop(
    engine: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNAPCACHE_STORE_PASSWORD", PASSWORD)
    settings = {**common_settings(engine, "stop"), "policy": "lru", "shadows": ()}
    with ExitStack() as stack:
        upstream = stack.enter_context(FakeUpstream())
        proxies = [
            stack.enter_context(RunningProxy(tmp_path / name, upstream.openai_url, **{**settings, "drain": drain}))
            for name, drain in (("a", 2.0), ("b", 0.0))
        ]
        ports = [int(proxy.url.rpartition(":")[2]) for proxy in proxies]
        balancer = Balancer(tmp_path, ports)
        stack.callback(balancer.close)
        clients = [Client(port) for port in (*ports, balancer.port)]
        first, *others = (client.outcome("same") for client in clients)
        assert first == "miss"
        assert set(others) <= {"hit", "coalesced"}
        upstream.pace = 0.1
        response, times = clients[2].send("one two three four five", stream=True), []
        while response.readline().startswith(b"data: {"):
            times.append(time.monotonic())
            response.readline()
        response.read()
        if times[-1] - times[0] <= 0.2:
            raise TooSlow("the events did not arrive one by one, or were not read as they came")
        upstream.pace = 0.0
        for client in clients:
            client.close()
        load = Load(balancer.port)
        wait_until(lambda: load.outcomes["right"] > 50)
        proxies[0].stop()
        before = load.outcomes["right"]
        wait_until(lambda: load.outcomes["right"] > before + 50)
        assert set(load.stop()) == {"right"}, "a request failed while a proxy stopped"


@pytest.mark.long
def test_a_rolling_restart_drops_no_request(
    engine: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `docker compose up --force-recreate` does, one service after the other."""
    monkeypatch.setenv("KNAPCACHE_STORE_PASSWORD", PASSWORD)
    settings = common_settings(engine, "rolling")
    ports = [free_port(), free_port()]

    def start(k: int) -> ProxyProcess:
        return ProxyProcess(tmp_path / f"data{k}", upstream.openai_url, port=ports[k], **settings)

    with FakeUpstream() as upstream:
        proxies = [start(0), start(1)]
        balancer = Balancer(tmp_path, ports)
        load = Load(balancer.port)
        try:
            for k in (0, 1):
                seen = load.outcomes["right"]
                wait_until(lambda seen=seen: load.outcomes["right"] > seen + 100)  # type: ignore[misc]
                proxies[k].stop()
                proxies[k] = start(k)
                time.sleep(2.0)  # HAProxy's checks
        finally:
            outcomes = load.stop()
            balancer.close()
            for proxy in proxies:
                proxy.stop()
    assert set(outcomes) == {"right"}


def test_the_engine_of_compose_has_room_and_does_not_evict(engine: RedisProcess) -> None:
    with engine.client() as client:
        info = client.info("memory")
    capacity = parse_amount(proxy_settings("knapcache-1")["capacity"])
    assert capacity is not None
    assert info["maxmemory"] >= 1.3 * capacity[0]
    assert info["maxmemory_policy"] == "noeviction"


def test_both_proxies_of_compose_have_the_same_valid_settings() -> None:
    services = COMPOSE["services"]
    assert services["knapcache-1"]["environment"] == services["knapcache-2"]["environment"]
    settings = Settings(
        host="0.0.0.0", upstreams=[{"url": "http://llm.example.com/v1"}], **proxy_settings("knapcache-1")
    )
    assert settings.secret is not None
    assert settings.store_address is not None
    assert settings.store_address.hosts == (("valkey", 6379),)
    assert COMPOSE["services"]["balancer"]["networks"]["cluster"]["ipv4_address"] in str(settings.trusted_proxies)
    variables = services["knapcache-1"]["environment"].keys() - {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    assert {name.removeprefix("KNAPCACHE_").lower() for name in variables} == {
        *proxy_settings("knapcache-1"),
        "store_password",
    }
    assert float(services["knapcache-1"]["stop_grace_period"].removesuffix("s")) > GRACE + settings.drain


def test_the_volumes_of_compose_exist_and_only_the_balancer_publishes_a_port() -> None:
    declared, mounted = COMPOSE["volumes"].keys(), set()
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert ("ports" in service) == (name == "balancer")
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (FOLDER / source).exists() if source.startswith(".") else source in declared
            mounted |= {source} & declared
        build = service.get("build")
        assert (
            build is None or (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER.parent / "Dockerfile"
        )
    assert mounted == declared
