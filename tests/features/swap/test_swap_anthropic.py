"""Swapped answers with Anthropic's SDK: streams, refusal, checks and conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import pytest

from knapcache.features.swap import frame
from tests.features.swap.two_models import ASKED, CHEAPER, SwapClient, TwoModels, new_question, swapping
from tests.support.timing import wait_until


class AnthropicReply(NamedTuple):
    text: str
    headers: Mapping[str, str]

    @property
    def swapped(self) -> bool:
        return bool(self.headers.get("x-knapcache-model") == CHEAPER)


class AnthropicClient:
    """Anthropic's SDK at a proxy whose cheaper model is certified for messages."""

    def __init__(self, client: SwapClient, sdk: anthropic.Anthropic) -> None:
        self.client, self._sdk = client, sdk

    def ask(self, question: str = "", *, turns: Any = (), stream: bool = False, headers: Any = None) -> AnthropicReply:
        messages = [*turns, {"role": "user", "content": question or new_question()}]
        fields: dict[str, Any] = {"model": ASKED, "max_tokens": 50, "messages": messages, "extra_headers": headers}
        create = self._sdk.messages.with_raw_response.create
        if stream:
            raw = create(stream=True, **fields)
            events: list[Any] = list(raw.parse())
            deltas = [event.delta for event in events if event.type == "content_block_delta"]
            return AnthropicReply("".join(delta.text for delta in deltas), raw.headers)
        raw = create(**fields)
        message: Any = raw.parse()
        return AnthropicReply(message.content[0].text, raw.headers)

    def learn(self) -> None:
        for _ in range(200):
            self.ask()
            self.client.settle_labels()
            if self.client.state() == "certified":
                return
        raise AssertionError(self.client.frames())


@contextmanager
def swapping_messages(folder: Path, **route: Any) -> Iterator[AnthropicClient]:
    with TwoModels() as upstream:
        fake = {"name": "fake", "kind": "anthropic", "url": f"{upstream.url}/v1", "headers": {"x-api-key": "own"}}
        with (
            swapping(folder, upstream, upstreams=[fake], route_fields=route) as client,
            anthropic.Anthropic(base_url=client.running.url, api_key="any", max_retries=0, timeout=60) as sdk,
        ):
            found = AnthropicClient(client, sdk)
            found.learn()
            yield found


@pytest.fixture(autouse=True)
def no_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.0)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnthropicClient]:
    with swapping_messages(tmp_path_factory.mktemp("messages"), swap_escalate=["refusal"]) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True])
def test_the_caller_gets_the_answer_of_the_cheaper_model(certified: AnthropicClient, stream: bool) -> None:
    question = new_question()
    reply = certified.ask(question, stream=stream)
    assert reply.swapped
    assert reply.text == f"right {question.rpartition(' ')[2]}"
    assert reply.headers["x-knapcache-loss-bound"] == "0.2"


def test_a_caller_who_refuses_gets_the_asked_model(certified: AnthropicClient) -> None:
    reply = certified.ask(headers={"x-knapcache-swap": "off"})
    assert not reply.swapped
    assert "x-knapcache-loss-bound" not in reply.headers


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_replaced_before_the_caller_sees_it(certified: AnthropicClient, stream: bool) -> None:
    certified.client.upstream.refuses = True
    try:
        reply = certified.ask(stream=stream)
    finally:
        certified.client.upstream.refuses = False
    assert not reply.swapped
    assert reply.text.startswith("right")


@pytest.mark.parametrize("headers", [{}, {"x-knapcache-swap": "off"}], ids=["cheaper", "asked"])
def test_the_second_turn_stays_with_the_model_of_the_first(certified: AnthropicClient, headers: dict[str, str]) -> None:
    question = new_question()
    wait_until(lambda: certified.ask(question, headers=headers).headers["x-knapcache"] == "hit")
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "right"}]
    assert certified.ask(turns=turns).swapped is not bool(headers)
