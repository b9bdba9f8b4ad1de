"""Two proxies on one store behind HAProxy, as deploy/cluster has them, and what its compose file says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from knapcache.proxy.settings import Settings
from knapcache.testing import FakeUpstream
from knapcache.units import parse_amount
from tests.support.cluster_load import SdkLoad
from tests.support.load_balancer import Balancer
from tests.support.programs import find_module
from tests.support.redis_servers import RedisProcess
from tests.support.running_proxy import RunningProxy
from tests.support.timing import TooSlow

pytestmark = pytest.mark.tools

find_module("redis", "the extra redis")

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "cluster"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SECRET, PASSWORD = "ab" * 32, "hunter2"
GIVEN = {"VALKEY_PASSWORD": PASSWORD, "KNAPCACHE_SECRET": SECRET}
KEY = {"authorization": "Bearer any"}
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


def ask(url: str, text: str) -> str:
    """Send a request, and return how it was answered: hit, miss or coalesced."""
    answer = httpx.post(f"{url}/v1/chat/completions", json=chat(text), headers=KEY, timeout=60)
    assert text in answer.text
    return answer.headers["x-knapcache"]


def chat(text: str, *, stream: bool = False) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}


def test_two_proxies_behind_haproxy_share_a_cache_and_one_may_stop(
    engine: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNAPCACHE_STORE_PASSWORD", PASSWORD)
    settings: dict[str, Any] = proxy_settings("knapcache-1")
    assert settings["store"] == "redis://valkey:6379"
    settings |= {"store": f"redis://127.0.0.1:{engine.port}", "capacity": "20MB", "trusted_proxies": "127.0.0.1"}
    with ExitStack() as stack:
        upstream = stack.enter_context(FakeUpstream())
        proxies = [
            stack.enter_context(RunningProxy(tmp_path / name, upstream.openai_url, **settings | more))
            for name, more in (("a", {}), ("b", {"drain": 0.0}))
        ]
        ports = [int(proxy.url.rpartition(":")[2]) for proxy in proxies]
        site = (FOLDER / "haproxy.cfg").read_text(encoding="utf-8")
        balancer = stack.enter_context(Balancer(tmp_path / "balancer", site, ports))
        first, *others = (ask(url, "same") for url in (*(proxy.url for proxy in proxies), balancer.url))
        assert first == "miss"
        assert set(others) <= {"hit", "coalesced"}
        upstream.pace = 0.1
        asked, times = chat("one two three four five", stream=True), []
        with httpx.stream("POST", f"{balancer.url}/v1/chat/completions", json=asked, headers=KEY) as response:
            times += [time.monotonic() for line in response.iter_lines() if line.startswith("data: {")]
        if times[-1] - times[0] <= 0.2:
            raise TooSlow("the events did not arrive one by one, or were not read as they came")
        upstream.pace = 0.0
        with SdkLoad([balancer.url], clients=4) as load:
            load.wait_for(50)
            proxies[0].stop()
            load.wait_for(50)
        assert load.failed == load.wrong == [], "a request failed while a proxy stopped"


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
