"""Proxies with a prefix tier, in front of a provider with prefix caches, on one virtual clock."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from knapcache.features.prefix.event import PrefixEvent
from knapcache.testing.prefix_provider import PrefixProvider, VirtualClock, tokens_by_length
from tests.support.events import EventList
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

SONNET = "claude-sonnet-4-6"


class Served(NamedTuple):
    """A response of the proxy."""

    status: int
    outcome: str | None
    body: bytes


class TieredProxy:
    """A running proxy, its first provider and their clock."""

    def __init__(self, proxy: RunningProxy, providers: list[PrefixProvider], clock: VirtualClock) -> None:
        self.proxy, self.providers, self.clock = proxy, providers, clock
        feature = proxy.proxy.features.get("prefix")
        for tier in () if feature is None else feature.tiers.values():
            tier.clock = clock
        self._events = EventList()
        proxy.proxy.events.add_consumer(self._events)
        self._sent = self._warm_up = 0
        self._connection = self.connect()

    @property
    def provider(self) -> PrefixProvider:
        return self.providers[0]

    def connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.proxy.url)
        return http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)

    def post_alone(self, body: Any) -> Served:
        """Send one request on a connection of its own."""
        with closing(self.connect()) as connection:
            return self.post(body, connection=connection)

    def post(
        self,
        body: Any,
        *,
        path: str = "/v1/messages",
        key: str = "one",
        connection: http.client.HTTPConnection | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> Served:
        """Send one request. Bytes are sent as they are. extra: further headers."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", "x-api-key": key, "authorization": f"Bearer {key}"}
        headers |= extra or {}
        connection = connection or self._connection
        connection.request("POST", path, raw, headers)
        response = connection.getresponse()
        self._sent += 1
        return Served(response.status, response.headers.get("x-knapcache"), response.read())

    def learn_length(self, model: str = SONNET) -> None:
        """Let the proxy learn from a short request how many tokens a byte has."""
        messages = [{"role": "user", "content": "." * 32}]
        assert self.post({"model": model, "max_tokens": 1, "messages": messages}).status == 200
        for provider in self.providers:
            provider.ledger.clear()
            provider.calls.clear()
        self._warm_up += 1

    def prefix_events(self) -> list[PrefixEvent]:
        """Return what was recorded of all requests after `learn_length`. Waits for the last one."""
        wait_until(lambda: len(self._events) >= self._sent, lambda: f"{self._sent} events")
        assert len(self._events) == self._sent
        return [event.parts["prefix"] for event in self._events[self._warm_up :] if "prefix" in event.parts]

    def close(self) -> None:
        self._connection.close()
        for provider in self.providers:
            provider.check()


StartTier = Callable[..., TieredProxy]


@pytest.fixture
def start_tier(tmp_path: Path) -> Iterator[StartTier]:
    """Start a proxy with this mode. Options are those of the provider; `upstreams` are names and model patterns."""
    with ExitStack() as stack:

        def start(
            mode: str = "on",
            *,
            kind: str = "anthropic",
            upstreams: dict[str, list[str]] | None = None,
            key_env: str | None = None,
            now: float = 1_800_000_000.0,
            tokens_per_byte: float = 16.0,
            **options: Any,
        ) -> TieredProxy:
            clock = VirtualClock(now)
            options = {"count_tokens": tokens_by_length(tokens_per_byte), **options}
            providers, endpoints = [], []
            for name, models in (upstreams or {"first": ["*"]}).items():
                provider = stack.enter_context(PrefixProvider(clock=clock, **options))
                providers.append(provider)
                url = provider.url if kind == "anthropic" else provider.openai_url
                endpoint = {"name": name, "url": url, "kind": kind, "models": models, "prompt_cache": kind}
                endpoints.append({**endpoint, "key_env": key_env} if key_env else endpoint)
            given = {"policy": "lru", "prefix": mode, "upstreams": endpoints}
            proxy = stack.enter_context(RunningProxy(tmp_path / f"data-{len(list(tmp_path.iterdir()))}", "", **given))
            tier = TieredProxy(proxy, providers, clock)
            stack.callback(tier.close)
            return tier

        yield start


@pytest.fixture
def tier(start_tier: StartTier) -> TieredProxy:
    """Start a proxy that marks requests, and knows how many tokens a byte has."""
    tier = start_tier("on")
    tier.learn_length()
    return tier
