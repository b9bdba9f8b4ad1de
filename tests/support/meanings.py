"""A provider that answers by meaning, and a client of a proxy with a semantic tier in front of it.

Every question is one of WORDINGS about one of TASKS. Two questions have the same answer if and only if the task is the
same. So the test knows which answers are right, and needs no judge of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import httpx
import openai

from knapcache.testing import FakeUpstream
from knapcache.testing.provider_answers import last_text
from tests.support.timing import wait_until

TASKS = (
    "bake sourdough bread", "change a bicycle tyre", "prune rose bushes", "tune a guitar", "descale a kettle",
    "iron a linen shirt", "sharpen a kitchen knife", "unclog a bathroom sink", "grow tomatoes indoors",
    "paint a wooden fence", "pack a suitcase", "make cold brew coffee", "knit a scarf", "wash a wool sweater",
    "plant tulip bulbs", "build a bird house",
)  # fmt: skip
WORDINGS = (
    "How do I {}?", "How can I {}?", "What is the best way to {}?", "Tell me how to {}.", "How should I {}?",
    "What is a good way to {}?", "Explain how to {}.", "How does one {}?", "Please tell me how I can {}.",
    "Give me instructions to {}.", "What are the steps to {}?", "I want to {}, how do I do it?", "How would you {}?",
    "Can you explain how to {}?", "Show me how to {}.", "What do I need to do to {}?",
)  # fmt: skip
SPARE = 5
"""Wordings at the end that `certify` does not use. Tests ask them."""
MODEL = "gpt-4o-mini"


def task_of(text: str) -> str:
    """Return the task that a question is about, or the text itself."""
    return next((task for task in TASKS if task in text), text)


class MeaningUpstream(FakeUpstream):
    """Answers a question with the name of its task, until `drift`."""

    def __init__(self) -> None:
        super().__init__()
        self.drifted = False
        """Every wording now has an answer of its own, so that all stored answers to other wordings are wrong."""
        self.answer = self.answer_by_meaning

    def answer_by_meaning(self, body: dict[str, Any]) -> str:
        text = last_text(body)
        return f"This is another matter: {text}" if self.drifted else self.right_answer(text)

    @staticmethod
    def right_answer(text: str) -> str:
        return f"Follow the guide named {task_of(text)}."


class Asked(NamedTuple):
    """A question, its answer and the headers of its response."""

    question: str
    text: str
    headers: httpx.Headers

    @property
    def outcome(self) -> str:
        return self.headers["x-knapcache"]

    @property
    def right(self) -> bool:
        """Whether the answer is that of the question's task."""
        return self.text == MeaningUpstream.right_answer(self.question)


class SemanticClient:
    """OpenAI's SDK and the admin API at one proxy.

    key     the caller's credential
    token   of the admin API
    """

    def __init__(self, url: str, token: str, key: str = "any") -> None:
        self.sdk = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)
        self.admin = httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60)

    def close(self) -> None:
        self.sdk.close()
        self.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, question: str, *, system: str = "", stream: bool = False, **fields: Any) -> Asked:
        """Ask a question; system: a system prompt."""
        messages: Any = [{"role": "system", "content": system}] if system else []
        messages += [{"role": "user", "content": question}]
        fields = {"model": MODEL, **fields}
        create = self.sdk.chat.completions.with_raw_response.create
        if stream:
            raw = create(messages=messages, stream=True, **fields)
            pieces = [chunk.choices[0].delta.content or "" for chunk in raw.parse() if chunk.choices]
            return Asked(question, "".join(pieces), raw.headers)
        raw = create(messages=messages, **fields)
        return Asked(question, raw.parse().choices[0].message.content or "", raw.headers)

    def status(self) -> Any:
        """Return the response of the admin API about the tier."""
        response = self.admin.get("/admin/api/semantic", params={"limit": 500})
        assert response.status_code == 200, response.text
        return response.json()

    def scope(self, name: str = "") -> Any:
        """Return the state of one tenant, or of the proxy."""
        return next(scope for scope in self.status()["scopes"] if scope["scope"] == name)

    def ready(self) -> bool:
        """Return whether the embedding model is loaded."""
        return bool(self.status()["embedding"])

    def labels(self, scope: str = "") -> int:
        """Return how many labels count for a scope."""
        return sum(self.scope(scope)["labels"].values())

    def serving(self, scope: str = "") -> bool:
        return bool(self.scope(scope)["state"] == "serving")

    def wait_ready(self) -> None:
        wait_until(self.ready)

    def certify(self, scope: str = "", wordings: int = len(WORDINGS) - SPARE, **fields: Any) -> list[Asked]:
        """Ask until the tier serves by similarity. Return all that was asked."""
        self.wait_ready()
        asked = []
        for wording, task in itertools.product(WORDINGS[:wordings], TASKS):
            asked.append(self.ask(wording.format(task), **fields))
            if len(asked) % 16 == 0 and self.serving(scope):
                return asked
        wait_until(lambda: self.serving(scope))
        return asked

    def mark_wrong(self, match: str) -> httpx.Response:
        """Tell the proxy that a match was wrong."""
        return self.admin.post("/admin/api/semantic/feedback", json={"match": match, "verdict": "different"})


def spare_questions() -> Iterator[str]:
    """Yield wordings that `certify` does not use, of all tasks."""
    for wording, task in itertools.product(WORDINGS[-SPARE:], TASKS):
        yield wording.format(task)
