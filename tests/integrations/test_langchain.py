"""LangChain's own test-suites for caches, a chat model of its own, and answers that must not be kept."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult, Generation
from langchain_core.prompts import PromptTemplate
from langchain_tests.integration_tests import AsyncCacheTestSuite, SyncCacheTestSuite

from knapcache import Cache
from knapcache.integrations.langchain import KnapcacheLangChain
from knapcache.integrations.two_phase import MAX_PENDING, TwoPhaseCache


class TestSync(SyncCacheTestSuite):
    """Theirs."""

    @pytest.fixture
    def cache(self, request: pytest.FixtureRequest) -> Any:
        return KnapcacheLangChain(make(request))


class TestAsync(AsyncCacheTestSuite):
    """Theirs."""

    @pytest.fixture
    async def cache(self, request: pytest.FixtureRequest) -> Any:
        return KnapcacheLangChain(make(request))


def make(request: pytest.FixtureRequest) -> Cache:
    """An empty cache."""
    cache = Cache("4MB", policy="lru", shadows=())
    request.addfinalizer(cache.close)
    return cache


class Model(BaseChatModel):
    """A model that counts its calls."""

    calls: list[str] = []  # noqa: RUF012 - pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "counting"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> ChatResult:
        self.calls.append(str(messages[-1].content))
        message = AIMessage(
            f"You said: {messages[-1].content}",
            usage_metadata={"input_tokens": 1000, "output_tokens": 1000, "total_tokens": 2000},
            response_metadata={"model_name": "gpt-4o"},
            tool_calls=[{"name": "f", "args": {"a": [1, None]}, "id": "1"}],
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_a_chat_model_calls_once(cache: Cache) -> None:
    model = Model(cache=KnapcacheLangChain(cache))
    first, again = (model.invoke([HumanMessage("Hi")]) for _ in range(2))
    assert model.calls == ["Hi"]
    assert (again.content, again.tool_calls) == (first.content, first.tool_calls)
    model.invoke("Another")
    model.invoke("Hi", stop=["x"])
    assert len(model.calls) == 3
    stats = cache.stats()
    assert (stats["requests"], stats["hits"], stats["admitted"]) == (4, 1, 3)
    assert stats["by_model"]["gpt-4o"]["usd_saved"] == pytest.approx((1000 * 2.5 + 1000 * 10) / 1e6)


async def test_a_chat_model_calls_once_async(cache: Cache) -> None:
    model = Model(cache=KnapcacheLangChain(cache))
    for _ in range(2):
        await model.ainvoke("Hi")
    assert model.calls == ["Hi"]


def test_copies_are_fresh(cache: Cache) -> None:
    ours = KnapcacheLangChain(cache)
    ours.update("p", "l", [Generation(text="right")])
    spoiled = ours.lookup("p", "l")
    assert spoiled
    spoiled[0].text = "wrong"
    spoiled.clear()
    assert ours.lookup("p", "l") == [Generation(text="right")]


def test_prompt_and_settings_do_not_run_into_each_other(cache: Cache) -> None:
    ours = KnapcacheLangChain(cache)
    ours.update("ab", "c", [Generation(text="1")])
    assert ours.lookup("a", "bc") is None
    assert ours.lookup("ab", "c ") is None


def test_namespaces_are_apart_and_clear_is_of_ones_own(cache: Cache) -> None:
    one, two = KnapcacheLangChain(cache, "one"), KnapcacheLangChain(cache, "two")
    one.update("p", "l", [Generation(text="1")])
    assert two.lookup("p", "l") is None
    two.update("p", "l", [Generation(text="2")])
    one.clear()
    assert one.lookup("p", "l") is None
    assert two.lookup("p", "l") == [Generation(text="2")]


class Own:
    """Something JSON cannot say."""


@pytest.mark.parametrize(
    "answer",
    [
        ChatGeneration(message=AIMessage("a", additional_kwargs={"parsed": Own()})),
        Generation(text="a", generation_info={"when": Own()}),
        ChatGeneration(message=HumanMessage("not an answer")),
        Generation(text="a", generation_info={"tuple": (1, 2)}),
    ],
)
def test_what_would_not_come_back_the_same_is_not_kept(cache: Cache, answer: Generation) -> None:
    ours = KnapcacheLangChain(cache)
    ours.update("p", "l", [answer])
    assert ours.lookup("p", "l") is None


def test_a_half_character_is_no_key(cache: Cache) -> None:
    ours = KnapcacheLangChain(cache)
    for _ in range(2):
        assert ours.lookup("\ud800", "l") is None
        ours.update("\ud800", "l", [Generation(text="a")])


@pytest.mark.parametrize(
    "payload", [b"no JSON", b'{"a": 1}', b"[1]", dumps([PromptTemplate.from_template("{x}")]).encode()]
)
def test_a_file_that_was_tampered_with_makes_no_objects(
    cache: Cache, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    ours = KnapcacheLangChain(cache)
    TwoPhaseCache(cache, "langchain", "langchain").settle({"prompt": "p", "llm_string": "l"}, payload)
    with caplog.at_level(logging.WARNING, "knapcache.integrations"):
        assert ours.lookup("p", "l") is None
    assert "cannot be read" in caplog.text


def test_answers_nobody_asked_for_save_nothing(cache: Cache) -> None:
    ours = KnapcacheLangChain(cache)
    for text in ("old", "new"):
        ours.update("p", "l", [Generation(text=text)])
    assert cache.stats()["hits"] == 0
    assert ours.lookup("p", "l") == [Generation(text="new")]


def test_misses_whose_answers_never_come_are_forgotten(cache: Cache) -> None:
    two_phase = TwoPhaseCache(cache, "h", "n")
    for k in range(MAX_PENDING + 100):
        assert two_phase.find({"k": k}) is None
    assert len(two_phase._pending) == MAX_PENDING
    two_phase.settle({"k": 0}, b"late")
    assert two_phase.find({"k": 0})
