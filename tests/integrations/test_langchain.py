"""LangChain's own test suites for caches, a chat model, and answers that must not be stored."""

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
from knapcache.integrations.two_phase import TwoPhaseCache


class TestSync(SyncCacheTestSuite):
    @pytest.fixture
    def cache(self, request: pytest.FixtureRequest) -> Any:
        return KnapcacheLangChain(empty_cache(request))


class TestAsync(AsyncCacheTestSuite):
    @pytest.fixture
    async def cache(self, request: pytest.FixtureRequest) -> Any:
        return KnapcacheLangChain(empty_cache(request))


def empty_cache(request: pytest.FixtureRequest) -> Cache:
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
    assert (stats.requests, stats.hits, stats.admitted) == (4, 1, 3)
    assert stats.by_model["gpt-4o"].usd_saved == pytest.approx((1000 * 2.5 + 1000 * 10) / 1e6)


async def test_a_chat_model_calls_once_async(cache: Cache) -> None:
    model = Model(cache=KnapcacheLangChain(cache))
    for _ in range(2):
        await model.ainvoke("Hi")
    assert model.calls == ["Hi"]


def test_lookups_return_copies(cache: Cache) -> None:
    adapter = KnapcacheLangChain(cache)
    adapter.update("p", "l", [Generation(text="right")])
    changed = adapter.lookup("p", "l")
    assert changed
    changed[0].text = "wrong"
    changed.clear()
    assert adapter.lookup("p", "l") == [Generation(text="right")]


def test_prompt_and_settings_are_separate_parts_of_the_key(cache: Cache) -> None:
    adapter = KnapcacheLangChain(cache)
    adapter.update("ab", "c", [Generation(text="1")])
    assert adapter.lookup("a", "bc") is None
    assert adapter.lookup("ab", "c ") is None


def test_namespaces_share_nothing_and_are_cleared_alone(cache: Cache) -> None:
    one, two = KnapcacheLangChain(cache, "one"), KnapcacheLangChain(cache, "two")
    one.update("p", "l", [Generation(text="1")])
    assert two.lookup("p", "l") is None
    two.update("p", "l", [Generation(text="2")])
    one.clear()
    assert one.lookup("p", "l") is None
    assert two.lookup("p", "l") == [Generation(text="2")]


class Unserialisable:
    """JSON cannot represent it."""


@pytest.mark.parametrize(
    "answer",
    [
        ChatGeneration(message=AIMessage("a", additional_kwargs={"parsed": Unserialisable()})),
        Generation(text="a", generation_info={"when": Unserialisable()}),
        ChatGeneration(message=HumanMessage("not an answer")),
        Generation(text="a", generation_info={"tuple": (1, 2)}),
    ],
)
def test_an_answer_that_json_would_change_is_not_stored(cache: Cache, answer: Generation) -> None:
    adapter = KnapcacheLangChain(cache)
    adapter.update("p", "l", [answer])
    assert adapter.lookup("p", "l") is None


def test_a_lone_surrogate_has_no_key(cache: Cache) -> None:
    adapter = KnapcacheLangChain(cache)
    for _ in range(2):
        assert adapter.lookup("\ud800", "l") is None
        adapter.update("\ud800", "l", [Generation(text="a")])


@pytest.mark.parametrize(
    "payload", [b"no JSON", b'{"a": 1}', b"[1]", dumps([PromptTemplate.from_template("{x}")]).encode()]
)
def test_a_tampered_entry_creates_no_objects(cache: Cache, payload: bytes, caplog: pytest.LogCaptureFixture) -> None:
    adapter = KnapcacheLangChain(cache)
    TwoPhaseCache(cache, "langchain", "langchain").settle({"prompt": "p", "llm_string": "l"}, payload)
    with caplog.at_level(logging.WARNING, "knapcache.integrations"):
        assert adapter.lookup("p", "l") is None
    assert "cannot be read" in caplog.text


def test_updates_without_lookups_save_nothing(cache: Cache) -> None:
    adapter = KnapcacheLangChain(cache)
    for text in ("old", "new"):
        adapter.update("p", "l", [Generation(text=text)])
    assert cache.stats().hits == 0
    assert adapter.lookup("p", "l") == [Generation(text="new")]
