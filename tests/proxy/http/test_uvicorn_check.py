"""The start-up check of uvicorn's internals, and the fall-back to its own protocol."""

from __future__ import annotations

import inspect
import logging
import re
import tomllib
from importlib.metadata import version
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from uvicorn.protocols.http import httptools_impl

from knapcache.errors import InvalidInput
from knapcache.proxy.http.limited_protocol import LimitedProtocol
from knapcache.proxy.http.uvicorn_check import find_incompatibility, http_protocol
from knapcache.proxy.http.uvicorn_protocol import FastPathProtocol
from knapcache.testing import FakeUpstream
from tests.support import ROOT
from tests.support.events import EventList
from tests.support.proxy_fixtures import Start


def change_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    original = httptools_impl.HttpToolsProtocol.on_body

    def on_body(self: Any, body: bytes, more: bool = True) -> None:  # noqa: ARG001
        original(self, body)

    monkeypatch.setattr(httptools_impl.HttpToolsProtocol, "on_body", on_body)


def add_cycle_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    original = httptools_impl.RequestResponseCycle.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.shutting_down = False  # uvicorn 0.44 has it

    init.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    monkeypatch.setattr(httptools_impl.RequestResponseCycle, "__init__", init)


def remove_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(httptools_impl.RequestResponseCycle, "run_asgi")


def remove_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    original = httptools_impl.HttpToolsProtocol.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        del self.loop

    monkeypatch.setattr(httptools_impl.HttpToolsProtocol, "__init__", init)


def take_own_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httptools_impl.HttpToolsProtocol, "state", "taken", raising=False)


def take_own_attribute_of_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httptools_impl.HttpToolsProtocol, "_body", "taken", raising=False)


def remove_status_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(httptools_impl, "STATUS_LINE")


def remove_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(httptools_impl, "HttpToolsProtocol")


def test_the_installed_uvicorn_is_allowed_and_compatible() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (allowed,) = [each for each in map(Requirement, extras["serve"]) if each.name == "uvicorn"]
    assert any(each.operator == "<" for each in allowed.specifier), "later versions are not tested"
    assert version("uvicorn") in allowed.specifier
    assert find_incompatibility() is None
    assert http_protocol() is FastPathProtocol


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_parameters, "HttpToolsProtocol.on_body takes self, body, more"),
        (add_cycle_attribute, "RequestResponseCycle differs in shutting_down"),
        (remove_method, "'RequestResponseCycle' has no attribute 'run_asgi'"),
        (remove_attribute, "HttpToolsProtocol has no loop"),
        (take_own_attribute, "HttpToolsProtocol has state"),
        (take_own_attribute_of_the_fast_path, "HttpToolsProtocol has _body"),
        (remove_status_lines, "cannot import name 'STATUS_LINE'"),
        (remove_class, "cannot import name 'HttpToolsProtocol'"),
    ],
)
def test_other_internals_are_found(monkeypatch: pytest.MonkeyPatch, change: Any, problem: str) -> None:
    change(monkeypatch)
    assert problem in str(find_incompatibility())


@pytest.mark.parametrize("change", [change_parameters, take_own_attribute, remove_class, remove_status_lines])
def test_the_proxy_does_not_start_without_its_limits(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    change(monkeypatch)
    with pytest.raises(InvalidInput, match=r"uvicorn .* cannot be used, because its internals are different"):
        http_protocol()


@pytest.mark.parametrize("change", [take_own_attribute_of_the_fast_path, add_cycle_attribute])
def test_requests_are_served_without_the_fast_path_and_within_the_limits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: Start, change: Any
) -> None:
    change(monkeypatch)
    proxy = start()
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert re.match(r"Fast path disabled: uvicorn [\d.]+ has other internals \(.*\)", warning.getMessage())
    assert proxy._server.config.http_protocol_class is LimitedProtocol
    events = EventList()
    proxy.proxy.events.add_consumer(events)
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    with httpx.Client(base_url=proxy.openai_url) as client:
        outcomes = []
        for stream in (False, False, False, True):
            response = client.post("/chat/completions", json={**body, "stream": stream})
            assert response.status_code == 200
            outcomes.append(response.headers["x-knapcache"])
        assert "data: [DONE]" in response.text
        assert outcomes == ["miss", "hit", "hit", "hit"]
        missed = client.post("/chat/completions", json={**body, "stream": True, "n": 1})
        assert (missed.headers["x-knapcache"], "data: [DONE]" in missed.text) == ("miss", True)
        assert client.get("/models").status_code == 200
        assert client.get("/models", headers={"x-long": "x" * 70_000}).status_code == 431
    proxy.stop()
    assert [event.outcome for event in events] == ["miss", "hit", "hit", "hit", "miss", "passthrough", "rejected"]


def test_without_the_fast_path_the_idle_timeout_does_not_cut_a_slow_answer(
    monkeypatch: pytest.MonkeyPatch, start: Start, upstream: FakeUpstream
) -> None:
    take_own_attribute_of_the_fast_path(monkeypatch)
    proxy = start(idle_timeout=1)
    with httpx.Client(base_url=proxy.openai_url) as client:
        for text, delay in (("quick", 0.0), ("slow", 1.5)):
            upstream.delay = delay
            body = {"model": "m", "messages": [{"role": "user", "content": text}]}
            assert client.post("/chat/completions", json=body).headers["x-knapcache"] == "miss"
