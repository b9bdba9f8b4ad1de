"""A provider with two models of known quality and a judge, and a client of a proxy that may swap them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import openai

from knapcache.testing import FakeUpstream
from knapcache.testing.provider_answers import last_text
from knapcache.testing.upstream import UpstreamCall
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

ASKED, CHEAPER, JUDGE = "gpt-4o", "gpt-4o-mini", "judge-1"
ROUTE: dict[str, Any] = {
    "name": "cheap", "model": [ASKED], "swap": "on", "swap_model": CHEAPER, "swap_loss": 0.2, "swap_budget": 1.0,
}  # fmt: skip
_numbers = itertools.count()


class TwoModels(FakeUpstream):
    """Answers question k with "right k"; the cheaper model answers every `wrong_every`-th question otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong_every = 0
        """0: the cheaper model is always right."""
        self.verdict = ""
        """What the judge always says; empty: the truth."""
        self.refuses = False
        """The cheaper model refuses every question."""
        self.unsure = False
        """The asked model gives another answer each time."""
        self.failing, self.fault = "", "500"
        """A model whose calls have this fault; `no-logprobs`: status 400 for requests for log probabilities."""
        self.answered: list[tuple[str, str]] = []
        """Model and question of every request but those to the judge."""
        self.answer = self.answer_by_model

    def record_call(self, call: UpstreamCall) -> tuple[int, str]:
        number, fault = super().record_call(call)
        if self.failing and call.body["model"] == self.failing:
            fault = self.fault
        if fault == "no-logprobs":
            fault = "400" if call.body.get("logprobs") else ""
        return number, fault

    def answer_by_model(self, body: dict[str, Any]) -> str:
        model, text = body["model"], last_text(body)
        if model == JUDGE:
            if self.verdict:
                return self.verdict
            pair = json.loads(text)
            right = ["right" in pair[f"{place}_answer"] for place in ("first", "second")]
            return "TIE" if right[0] == right[1] else "FIRST" if right[0] else "SECOND"
        self.answered.append((model, text))
        number = text.rpartition(" ")[2]
        if model != CHEAPER:
            return f"right {number}, answer {next(_numbers)}" if self.unsure else f"right {number}"
        if self.refuses:
            return "I'm sorry, but I can't help with that."
        if self.wrong_every and int(number) % self.wrong_every == 0:
            return f"wrong {number}"
        return f"It is right: {number}" if self.verdict else f"right {number}"


class Reply(NamedTuple):
    """An answer, and the headers of its response."""

    text: str
    headers: httpx.Headers

    @property
    def swapped(self) -> bool:
        return bool(self.headers.get("x-knapcache-model") == CHEAPER)


class SwapClient:
    """OpenAI's SDK at one proxy."""

    def __init__(self, running: RunningProxy, upstream: TwoModels, key: str = "any") -> None:
        self.running, self.upstream = running, upstream
        self._sdk = openai.OpenAI(base_url=running.openai_url, api_key=key, max_retries=0, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sdk.close()

    def ask(
        self, text: str = "", *, system: str = "", headers: Any = None, stream: bool = False, **fields: Any
    ) -> Reply:
        """Ask a question; without one, a new question. `messages` replaces both."""
        messages: Any = [{"role": "system", "content": system}] if system else []
        messages += [{"role": "user", "content": text or new_question()}]
        fields = {"model": ASKED, "messages": messages, **fields}
        create = self._sdk.chat.completions.with_raw_response.create
        if stream:
            raw = create(stream=True, extra_headers=headers, **fields)
            pieces = [chunk.choices[0].delta.content or "" for chunk in raw.parse() if chunk.choices]
            return Reply("".join(pieces), raw.headers)
        raw = create(extra_headers=headers, **fields)
        return Reply(raw.parse().choices[0].message.content or "", raw.headers)

    def frames(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.running.admin("/swap")["frames"]
        return found

    def state(self, at: int = 0) -> str:
        """Return the state of a frame; empty while the labels are read, when nothing is swapped yet."""
        swap = self.running.admin("/swap")
        frames = [] if swap["problem"] else swap["frames"]
        return str(frames[at]["state"]) if len(frames) > at else ""

    def learn(self, until: str = "certified", **fields: Any) -> int:
        """Ask new questions until the first frame has this state. Return how many."""
        for number in range(2000):
            self.ask(**fields)
            if number % 10 == 9:
                self.settle_labels()
                if self.state() == until:
                    return number + 1
        raise AssertionError(f"not {until}: {self.frames()}")

    def settle_labels(self) -> None:
        """Wait until all labels that were begun count."""
        feature = self.running.proxy.features.get("swap")
        wait_until(lambda: not feature.labeller._tasks)


def new_question() -> str:
    return f"What is number {next(_numbers)}"


@contextmanager
def swapping(
    folder: Path, upstream: TwoModels | None = None, *, key: str = "any", **settings: Any
) -> Iterator[SwapClient]:
    """Run a proxy in front of the two models. settings: of the proxy; `route_fields`: of its route."""
    route = ROUTE | settings.pop("route_fields", {})
    with TwoModels() if upstream is None else nullcontext(upstream) as provider:
        upstreams = [{"name": "fake", "url": provider.openai_url, "headers": {"authorization": "Bearer own"}}]
        with (
            RunningProxy(folder, "", **{"upstreams": upstreams, "route": [route], **settings}) as running,
            SwapClient(running, provider, key) as client,
        ):
            yield client
