"""Scenarios for `test_litellm.py`, in a process of their own: LiteLLM leaves connections open, which fails our tests.

LiteLLM 1.106 imports parts of its proxy on every hit of any cache, its own included, and they need FastAPI. If that is
not installed, the one name that it imports there is replaced by a stub. No test depends on that module.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import json
import os
import runpy
import sys
import types
from collections.abc import Awaitable, Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it downloads prices when it is imported

if importlib.util.find_spec("fastapi") is None:
    missing: Any = types.ModuleType("litellm.llms.anthropic.pass_through.messages.response_cache")
    missing.CachedAnthropicMessagesStreamIterator = type("CachedAnthropicMessagesStreamIterator", (), {})
    sys.modules[missing.__name__] = missing

import httpx
import litellm
from litellm.caching.caching import Cache as LiteLLMCache

from knapcache import Cache
from knapcache.integrations.litellm import KnapcacheLiteLLM, model_usage_tier
from knapcache.integrations.transport import CacheTransport
from knapcache.testing import FakeUpstream
from tests.support import ROOT
from tests.support.timing import async_wait_until

HELLO: Any = [{"role": "user", "content": "Hello there, all of you"}]


def text_of(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def completions(request: dict[str, Any], upstream: FakeUpstream, cache: Cache) -> Any:
    answers = [litellm.completion(**request) for _ in range(2)]
    calls = [upstream.count()]
    litellm.completion(**{**request, "temperature": 0.5})
    litellm.completion(**request, cache={"no-cache": True})
    calls.append(upstream.count())
    same = answers[0].choices[0].message.content == answers[1].choices[0].message.content
    return {"same": same, "calls": calls, "hits": cache.stats().hits, "saved": cache.stats().usd_saved}


def streams(request: dict[str, Any], upstream: FakeUpstream, _: Cache) -> Any:
    return {"texts": [text_of(litellm.completion(**request, stream=True)) for _ in range(2)], "calls": upstream.count()}


def coroutines(request: dict[str, Any], upstream: FakeUpstream, cache: Cache) -> Any:
    async def after_write(call: Callable[[], Awaitable[Any]], stored: int) -> Any:
        answer = await call()
        # LiteLLM writes to its cache in a task that it does not wait for.
        await async_wait_until(lambda: cache.stats().admitted == stored, lambda: f"{stored}: {cache.stats()}")
        return answer

    async def run() -> Any:
        ids = [(await after_write(lambda: litellm.acompletion(**request), 1)).id for _ in range(2)]
        calls = upstream.count()
        where = {name: value for name, value in request.items() if name.startswith("api")}
        made = []
        for texts in (["a", "b"], ["a", "b", "c"]):
            embed: Any = {"model": "openai/text-embedding-3-small", "input": texts, **where}
            made.append(await after_write(lambda embed=embed: litellm.aembedding(**embed), 1 + len(texts)))  # type: ignore[misc]
        vectors = [[item["embedding"] for item in answer.data] for answer in made]
        return {"ids": ids, "calls": calls, "vectors": vectors, "fetched": upstream.calls[-1].body["input"]}

    return asyncio.run(run())


def interface(_: dict[str, Any], __: FakeUpstream, cache: Cache) -> Any:
    adapter = KnapcacheLiteLLM(cache, "interface")
    before = adapter.get_cache("k")
    adapter.set_cache("k", {"timestamp": 1.0, "response": '{"a": 1}'}, ttl=100)
    adapter.get_cache("k")["response"] = "spoiled"
    adapter.set_cache("own", object())
    adapter.set_cache("gone", {"response": "not JSON"}, ttl=0)

    async def rest() -> list[Any]:
        await adapter.async_set_cache_pipeline(
            [("a", {"response": {"embedding": [1.0], "prompt_tokens": 3}}), ("b", 2)]
        )
        await adapter.batch_cache_write("c", [1])
        await adapter.disconnect()
        return [await adapter.async_get_cache(key) for key in "abc"] + [(await adapter.test_connection())["status"]]

    found = [before, *(adapter.get_cache(key) for key in ("k", "own", "gone")), *asyncio.run(rest())]
    adapter.flush_cache()
    answer = {"model": "m", "usage": {"total_tokens": 5}, "service_tier": "flex"}
    values = [{"response": {"embedding": [1.0], "prompt_tokens": 3}}, {"response": json.dumps(answer)}, [1]]
    read = [model_usage_tier(value) for value in values]
    return {"found": found, "flushed": adapter.get_cache("k"), "read": read}


def through_the_transport(request: dict[str, Any], upstream: FakeUpstream, cache: Cache) -> Any:
    litellm.cache = None
    clients: Any = litellm.in_memory_llm_clients_cache
    clients.flush_cache()  # LiteLLM keeps the clients it has made
    transport: Any = CacheTransport(cache)
    litellm.client_session = httpx.Client(transport=transport)
    answers = [litellm.completion(**request) for _ in range(2)]
    text = text_of(litellm.completion(**request, stream=True))
    calls = [upstream.count()]
    litellm.completion(**request, extra_body={"top_k": 3})
    return {"ids": [answer.id for answer in answers], "text": text, "calls": [*calls, upstream.count()]}


def example() -> list[str]:
    """Return the lines that the example prints."""
    litellm.cache = None
    clients: Any = litellm.in_memory_llm_clients_cache
    clients.flush_cache()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(str(ROOT / "examples" / "litellm_transport.py"), run_name="__main__")
    return output.getvalue().splitlines()


def main() -> None:
    """Run every scenario with its own provider and cache, then the example."""
    found: dict[str, Any] = {}
    for scenario in (completions, streams, coroutines, interface, through_the_transport):
        with FakeUpstream() as upstream, Cache("4MB", policy="lru", shadows=()) as cache:
            litellm.cache = LiteLLMCache()
            litellm.cache.cache = KnapcacheLiteLLM(cache)
            where = {"api_base": upstream.openai_url, "api_key": "one", "max_retries": 0}
            found[scenario.__name__] = scenario({"model": "openai/gpt-4o", "messages": HELLO, **where}, upstream, cache)
    found["example"] = example()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
