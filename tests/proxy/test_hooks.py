"""The hooks of a request: in which order they are called, and that `end` is the last, whatever came of the request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from knapcache.proxy.features import Feature
from knapcache.proxy.hooks import CallContext, CallHooks, CallRefused
from knapcache.testing import FakeUpstream
from tests.support.proxy_fixtures import Start
from tests.support.running_proxy import RunningProxy

NAMES = ("before_call", "forwarding", "forwarded", "charge", "answered", "event_part", "recorded", "end")
UNCACHEABLE = b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "seed": 1e999}'
FETCHED = "before_call charge answered event_part recorded end"
FAILED = "before_call charge event_part recorded end"


class RecordingHooks(CallHooks):
    """Records the names of the hooks that are called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in NAMES and name not in self.called[-1:]:  # `forwarded` is called for each piece
            self.called.append(name)
        return super().__getattribute__(name)


class Recorder(Feature):
    """Keeps the hooks of all requests."""

    def begin(self, call: CallContext) -> CallHooks:  # noqa: ARG002
        self.hooks.append(RecordingHooks())
        return self.hooks[-1]

    hooks: list[RecordingHooks]


class RefusingHooks(CallHooks):
    async def before_call(self, size: int) -> None:  # noqa: ARG002
        raise CallRefused(429, "no more calls")


class Refuser(Feature):
    """Refuses each call of the upstream."""

    def begin(self, call: CallContext) -> CallHooks:  # noqa: ARG002
        return RefusingHooks()


def chat(proxy: RunningProxy, content: bytes = UNCACHEABLE.replace(b"1e999", b"1")) -> int:
    return httpx.post(f"{proxy.openai_url}/chat/completions", content=content, timeout=60).status_code


def recorder_of(proxy: RunningProxy, *more: type[Feature]) -> Recorder:
    """Let the proxy have these features and no other."""
    features = proxy.proxy.features
    found = Recorder(features.context)
    found.hooks = []
    features._activate([found, *(feature(features.context) for feature in more)])
    return found


def check_calls(proxy: RunningProxy, recorder: Recorder, *expected: str) -> None:
    proxy.stop()
    assert [" ".join(hooks.called) for hooks in recorder.hooks] == list(expected)


def test_hooks_of_answered_requests(start: Start) -> None:
    proxy = start()
    recorder = recorder_of(proxy)
    assert [chat(proxy), chat(proxy), chat(proxy, UNCACHEABLE)] == [200] * 3
    httpx.post(f"{proxy.openai_url}/files", content=b"x")
    check_calls(
        proxy,
        recorder,
        FETCHED,
        "answered event_part recorded end",
        "before_call forwarding forwarded charge event_part recorded end",
        "before_call end",
    )


@pytest.mark.parametrize(
    ("fault", "status", "expected"), [("401", 401, FETCHED), ("500", 500, FETCHED), ("cut", 502, FAILED)]
)
def test_hooks_of_failed_requests(start: Start, upstream: FakeUpstream, fault: str, status: int, expected: str) -> None:
    proxy = start()
    recorder = recorder_of(proxy)
    upstream.fail(fault, fault)
    assert chat(proxy) == status
    check_calls(proxy, recorder, expected)


def test_hooks_of_requests_that_another_feature_refuses(start: Start) -> None:
    proxy = start()
    recorder = recorder_of(proxy, Refuser)
    assert [chat(proxy), chat(proxy, UNCACHEABLE)] == [429, 429]
    assert httpx.post(f"{proxy.openai_url}/files", content=b"x").status_code == 429
    refused = "before_call event_part recorded end"
    check_calls(proxy, recorder, refused, refused, "before_call end")


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ([], "answered event_part before_call charge event_part recorded end"),
        ([Refuser], "answered event_part before_call recorded end"),
    ],
)
def test_hooks_of_a_refresh_in_the_background(start: Start, features: list[type[Feature]], expected: str) -> None:
    proxy = start(ttl=0.001, stale_while_revalidate=60)
    assert chat(proxy) == 200
    recorder = recorder_of(proxy, *features)
    assert chat(proxy) == 200
    check_calls(proxy, recorder, expected)
