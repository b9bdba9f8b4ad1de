"""The check of log probabilities: beside another feature that edits requests, and with a model without the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from knapcache.features.swap import frame, tier
from tests.features.swap.two_models import ASKED, CHEAPER, SwapClient, TwoModels, swapping

CHECK: dict[str, Any] = {"swap_escalate": ["logprob:-0.3"]}
"""The provider gives each token a log probability of −0.25."""


def asked_for_logprobs(client: SwapClient) -> list[bool]:
    """Return whether each request to the cheaper model asks for log probabilities."""
    return ["logprobs" in call.body for call in client.upstream.calls if call.body["model"] == CHEAPER]


@pytest.mark.parametrize("prefix", ["observe", "on"])
@pytest.mark.parametrize("stream", [False, True])
def test_they_are_asked_for_where_requests_are_edited_for_a_prompt_cache_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, stream: bool
) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.0)
    with TwoModels() as upstream:
        fake = {"name": "fake", "url": upstream.openai_url, "headers": {"authorization": "Bearer own"}}
        upstreams = [fake | {"prompt_cache": "openai"}]
        with swapping(tmp_path, upstream, route_fields=CHECK, upstreams=upstreams, prefix=prefix) as client:
            client.learn(system="Be brief.")
            upstream.calls.clear()
            assert client.ask(system="Be brief.", stream=stream).swapped
            assert asked_for_logprobs(client) == [True]
            assert not client.ask(system="Be brief.", stream=stream, headers={"x-knapcache-swap": "off"}).swapped
            (asked,) = (call.body for call in upstream.calls if call.body["model"] == ASKED)
            assert "logprobs" not in asked
            assert ("prompt_cache_key" in asked) == (prefix == "on")


@pytest.fixture
def without_logprobs(monkeypatch: pytest.MonkeyPatch) -> TwoModels:
    """A provider whose cheaper model refuses requests for log probabilities."""
    monkeypatch.setattr("knapcache.testing.upstream.ERROR_STATUSES", ("400",))
    found = TwoModels()
    found.failing, found.fault = CHEAPER, "no-logprobs"
    return found


def test_a_model_that_refuses_them_while_it_learns_is_certified(tmp_path: Path, without_logprobs: TwoModels) -> None:
    with without_logprobs as upstream, swapping(tmp_path, upstream, route_fields=CHECK) as client:
        while not asked_for_logprobs(client):
            client.ask()
            client.settle_labels()  # another label that is begun meanwhile would ask for them, too
        client.learn()
        assert client.frames()[0]["mean_loss"] == 0.0
        assert asked_for_logprobs(client).count(True) == 1


def test_a_refusal_is_remembered_for_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knapcache.testing.upstream.ERROR_STATUSES", ("400",))
    with swapping(tmp_path, route_fields=CHECK) as client:
        client.learn()
        client.upstream.failing, client.upstream.fault = CHEAPER, "no-logprobs"
        client.upstream.calls.clear()
        assert sum(client.ask().swapped for _ in range(20)) >= 10
        client.settle_labels()
        assert asked_for_logprobs(client).count(True) <= 2
        client.running.proxy.features.get("swap").tier.routes["cheap"]._asks_logprobs_from -= tier.REFUSED_SECONDS
        client.upstream.failing = ""
        client.upstream.calls.clear()
        assert any(client.ask().swapped for _ in range(10))
        assert set(asked_for_logprobs(client)) == {True}
