"""What a certificate is bound to, and models of different providers, which have different names there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.features.swap import labelling
from knapcache.features.swap.tier import frame_name
from knapcache.model import Endpoint
from tests.features.swap.two_models import ASKED, CHEAPER, JUDGE, ROUTE, SwapClient, TwoModels, new_question, swapping
from tests.support.timing import wait_until

SMALL, DEPLOYMENT = "small-1", "our-deployment"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bound")


@pytest.fixture(scope="module")
def upstream() -> Iterator[TwoModels]:
    with TwoModels() as found:
        yield found


@pytest.fixture(scope="module")
def certified(folder: Path, upstream: TwoModels) -> Iterator[SwapClient]:
    """A proxy whose cheaper model is certified for chats with one model."""
    with swapping(folder, upstream, route_fields={"model": [ASKED, "gpt-4.1"]}) as client:
        client.learn()
        assert any(client.ask().swapped for _ in range(10))
        yield client


def test_another_model_is_not_swapped(certified: SwapClient) -> None:
    assert not any(certified.ask(model="gpt-4.1").swapped for _ in range(10))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "What is number 1"}),
        ("responses", {"input": "What is number 1"}),
    ],
)
def test_another_endpoint_is_not_swapped(certified: SwapClient, path: str, body: dict[str, Any]) -> None:
    with httpx.Client(base_url=f"{certified.running.openai_url}/", timeout=60) as http:
        for k in range(8):
            response = http.post(path, json={"model": ASKED, "user": str(k), **body}).raise_for_status()
            assert "x-knapcache-loss-bound" not in response.headers
            assert "x-knapcache-model" not in response.headers


@pytest.mark.parametrize(
    "changes",
    [{"swap_judge": JUDGE}, {"swap_escalate": ["empty"]}, {"swap_model": SMALL}, {"name": "other"}],
    ids=["judge", "checks", "cheaper model", "route"],
)
def test_other_settings_begin_without_labels(
    certified: SwapClient, folder: Path, upstream: TwoModels, changes: dict[str, Any]
) -> None:
    """A second process on the same log, with other settings."""
    assert certified.state() == "certified"
    with swapping(folder, upstream, route_fields=changes) as client:
        wait_until(lambda: not client.running.admin("/swap")["problem"])
        assert all(frame["labels"] == 0 for frame in client.frames())
        for _ in range(5):
            reply = client.ask(new_question())
            assert "x-knapcache-loss-bound" not in reply.headers


def test_every_part_changes_the_name_of_a_frame(certified: SwapClient) -> None:
    route = certified.running.proxy.features.get("swap").tier.routes["cheap"]
    parts: dict[str, Any] = {"tenant": "a", "endpoint": Endpoint.CHAT, "model": ASKED, "frame": b"1"}
    changes = {"tenant": "b", "endpoint": Endpoint.MESSAGES, "model": CHEAPER, "frame": b"2"}
    names = [frame_name(route, **parts | dict([change])) for change in changes.items()]
    assert len({*names, frame_name(route, **parts)}) == 5


@pytest.fixture
def providers() -> Iterator[tuple[TwoModels, TwoModels]]:
    """That of the asked model, and that of the cheaper one."""
    with TwoModels() as large, TwoModels() as small:
        yield large, small


def of_two_providers(large: TwoModels, small: TwoModels) -> dict[str, Any]:
    """Settings with the asked model at one provider, by its name there, and the cheaper one at another."""
    upstreams = [
        {"name": "large", "url": large.openai_url, "models": ["gpt-*"], "headers": {"authorization": "Bearer l"}},
        {"name": "small", "url": small.openai_url, "models": ["small-*"], "headers": {"authorization": "Bearer s"}},
    ]
    members = [{"name": "large", "model": DEPLOYMENT}]
    return {"upstreams": upstreams, "route": [ROUTE | {"swap_model": SMALL, "upstreams": members}]}


def test_models_of_two_providers(
    tmp_path: Path, providers: tuple[TwoModels, TwoModels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelling, "ASKED_TWICE", 0.5)
    large, small = providers
    with swapping(tmp_path, large, **of_two_providers(large, small)) as client:
        client.learn()
        assert client.frames()[0]["asked_twice"] > 0
        swapped = [reply for reply in (client.ask() for _ in range(20)) if "x-knapcache-loss-bound" in reply.headers]
        assert len(swapped) >= 10
        assert {reply.headers["x-knapcache-upstream"] for reply in swapped} == {"small"}
        assert {reply.headers["x-knapcache-model"] for reply in swapped} == {SMALL}
        small.failing = SMALL
        question = new_question()
        reply = client.ask(question)
        assert reply.headers["x-knapcache-upstream"] == "large"
        assert client.ask(question).headers["x-knapcache"] == "hit"
        client.settle_labels()
    assert {(call.body["model"], call.headers["authorization"]) for call in large.calls} == {(DEPLOYMENT, "Bearer l")}
    assert {(call.body["model"], call.headers["authorization"]) for call in small.calls} == {(SMALL, "Bearer s")}
