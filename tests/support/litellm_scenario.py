"""What `test_litellm.py` runs in a process of its own: LiteLLM leaves connections open, which our tests call an error.

LiteLLM 1.106 imports parts of its proxy on every hit of any cache, its own included, and they need FastAPI. Where that
is not installed, the one name it wants there is given to it; nothing that is tested here is in that module.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import types
from collections.abc import Awaitable, Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices when imported

if importlib.util.find_spec("fastapi") is None:
    missing: Any = types.ModuleType("litellm.llms.anthropic.pass_through.messages.response_cache")
    missing.CachedAnthropicMessagesStreamIterator = type("CachedAnthropicMessagesStreamIterator", (), {})
    sys.modules[missing.__name__] = missing

import httpx
import litellm
from litellm.caching.caching import Cache as TheirCache

from knapcache import Cache
from knapcache.integrations.litellm import KnapcacheLiteLLM
from knapcache.integrations.transport import CacheTransport
from knapcache.testing import FakeUpstream

HELLO: Any = [{"role": "user", "content": "Hello there, all of you"}]


def spelled(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def completions(ask: dict[str, Any], upstream: FakeUpstream, cache: Cache) -> Any:
    told = [litellm.completion(**ask) for _ in range(2)]
    calls = [upstream.count()]
    litellm.completion(**{**ask, "temperature": 0.5})
    litellm.completion(**ask, cache={"no-cache": True})
    calls.append(upstream.count())
    same = told[0].choices[0].message.content == told[1].choices[0].message.content
    return {"same": same, "calls": calls, "hits": cache.stats()["hits"], "saved": cache.stats()["usd_saved"]}


def streams(ask: dict[str, Any], upstream: FakeUpstream, _: Cache) -> Any:
    return {"texts": [spelled(litellm.completion(**ask, stream=True)) for _ in range(2)], "calls": upstream.count()}


def coroutines(ask: dict[str, Any], upstream: FakeUpstream, _: Cache) -> Any:
    async def settled(call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        await asyncio.sleep(0.2)  # LiteLLM writes to its cache in a task that it does not wait for
        return answer

    async def run() -> Any:
        ids = [(await settled(lambda: litellm.acompletion(**ask))).id for _ in range(2)]
        calls = upstream.count()
        where = {name: value for name, value in ask.items() if name.startswith("api")}
        made = []
        for given in (["a", "b"], ["a", "b", "c"]):
            what: Any = {"model": "openai/text-embedding-3-small", "input": given, **where}
            made.append(await settled(lambda what=what: litellm.aembedding(**what)))  # type: ignore[misc]
        vectors = [[item["embedding"] for item in answer.data] for answer in made]
        return {"ids": ids, "calls": calls, "vectors": vectors, "asked": upstream.calls[-1].body["input"]}

    return asyncio.run(run())


def contract(_: dict[str, Any], __: FakeUpstream, cache: Cache) -> Any:
    ours = KnapcacheLiteLLM(cache, "contract")
    before = ours.get_cache("k")
    ours.set_cache("k", {"timestamp": 1.0, "response": '{"a": 1}'}, ttl=100)
    ours.get_cache("k")["response"] = "spoiled"
    ours.set_cache("own", object())
    ours.set_cache("gone", {"response": "not JSON"}, ttl=0)

    async def rest() -> list[Any]:
        await ours.async_set_cache_pipeline([("a", {"response": {"embedding": [1.0], "prompt_tokens": 3}}), ("b", 2)])
        await ours.batch_cache_write("c", [1])
        await ours.disconnect()
        return [await ours.async_get_cache(key) for key in "abc"] + [(await ours.test_connection())["status"]]

    found = [before, *(ours.get_cache(key) for key in ("k", "own", "gone")), *asyncio.run(rest())]
    ours.flush_cache()
    return {"found": found, "flushed": ours.get_cache("k")}


def through_the_transport(ask: dict[str, Any], upstream: FakeUpstream, cache: Cache) -> Any:
    litellm.cache = None
    clients: Any = litellm.in_memory_llm_clients_cache
    clients.flush_cache()  # LiteLLM keeps the clients it has made
    transport: Any = CacheTransport(cache)
    litellm.client_session = httpx.Client(transport=transport)
    told = [litellm.completion(**ask) for _ in range(2)]
    text = spelled(litellm.completion(**ask, stream=True))
    calls = [upstream.count()]
    litellm.completion(**ask, extra_body={"top_k": 3})
    return {"ids": [answer.id for answer in told], "text": text, "calls": [*calls, upstream.count()]}


def main() -> None:
    """Every scenario with a provider and a cache of its own."""
    found = {}
    for scenario in (completions, streams, coroutines, contract, through_the_transport):
        with FakeUpstream() as upstream, Cache("4MB", policy="lru", shadows=()) as cache:
            litellm.cache = TheirCache()
            litellm.cache.cache = KnapcacheLiteLLM(cache)
            where = {"api_base": upstream.openai, "api_key": "one", "max_retries": 0}
            found[scenario.__name__] = scenario({"model": "openai/gpt-4o", "messages": HELLO, **where}, upstream, cache)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
