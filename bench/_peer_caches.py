"""Other caches with a common interface for bench/library.py: a hit, and a miss whose answer is then stored.

Each cache gets a request in the form that it is made for. GPTCache looks up the text of the prompt in its map. LiteLLM
hashes the arguments of a completion. LangChain looks up (prompt, model name). diskcache and cachetools use the bytes of
the request as key and do not parse it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from knapcache import Cache, Reply

CHAT = "chat/completions"
MAX_ENTRIES = 100_000
"""For caches that count entries: more than the benchmark stores."""


class BenchRequest(NamedTuple):
    """One request in the form of each cache, and its answer."""

    raw: bytes
    """JSON as sent over HTTP."""
    arguments: dict[str, Any]
    prompt: str
    answer: bytes


class CacheAdapter(NamedTuple):
    """A cache as the benchmark calls it."""

    name: str
    version: str
    storage: str
    """memory or disk."""
    hit: Callable[[BenchRequest], Any]
    """Return the stored answer, or None."""
    miss_and_store: Callable[[BenchRequest], Any]
    """Look up a request that is not stored, then store its answer."""


def make_request(number: int, size: int = 2048, answer_size: int = 2048) -> BenchRequest:
    """Return a chat request of several turns and about `size` bytes, with an answer of `answer_size` bytes."""
    turn = "How many ways are there to fill a knapsack, and which of them is worth most? "
    messages = [{"role": "system", "content": "You are a helpful assistant that answers briefly."}]
    body = {"model": "gpt-4o", "messages": messages, "temperature": 0.7, "max_tokens": 512}
    while len(json.dumps(body)) < size - 80:
        repeats = min(5, -(-(size - len(json.dumps(body)) - 80) // len(turn)))
        messages.append({"role": ("user", "assistant")[len(messages) % 2 == 0], "content": turn * repeats})
    messages[-1]["content"] += f" ({number})"
    answer = {"id": f"chatcmpl-{number}", "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}}]}
    answer["choices"][0]["message"]["content"] = "x" * (answer_size - len(json.dumps(answer)))  # type: ignore[index]
    raw = json.dumps(body, separators=(",", ":")).encode()
    return BenchRequest(raw, body, json.dumps(messages), json.dumps(answer).encode())


def knapcache_adapter(name: str, path: Path | None) -> tuple[CacheAdapter, Cache]:
    """Return knapcache with the default policy and shadows."""
    cache = Cache("512MB", path=path, cost="seconds")

    def hit(request: BenchRequest) -> bytes:
        return cache.fetch(CHAT, request.raw, fail).payload

    def miss_and_store(request: BenchRequest) -> bytes:
        return cache.fetch(CHAT, request.raw, lambda: Reply(request.answer, "gpt-4o", seconds=1.0)).payload

    return CacheAdapter(
        name, importlib.metadata.version("knapcache"), "disk" if path else "memory", hit, miss_and_store
    ), cache


def fail() -> Reply:
    raise AssertionError("a hit must not call the provider")


def adapter(
    name: str,
    package: str,
    storage: str,
    get: Callable[[BenchRequest], Any],
    put: Callable[[BenchRequest], Any],
) -> CacheAdapter:
    """Return a peer from the functions that look up a request and that store its answer."""

    def miss_and_store(request: BenchRequest) -> None:
        if get(request) is None:
            put(request)

    return CacheAdapter(name, importlib.metadata.version(package), storage, get, miss_and_store)


def cachetools(_: Path) -> CacheAdapter:
    cache = importlib.import_module("cachetools").LRUCache(MAX_ENTRIES)

    def put(request: BenchRequest) -> None:
        cache[request.raw] = request.answer

    return adapter("cachetools.LRUCache", "cachetools", "memory", lambda request: cache.get(request.raw), put)


def langchain_adapter(name: str, package: str, storage: str, cache: Any) -> CacheAdapter:
    generation = importlib.import_module("langchain_core.outputs").Generation

    def put(request: BenchRequest) -> None:
        cache.update(request.prompt, "gpt-4o", [generation(text=request.answer.decode())])

    return adapter(name, package, storage, lambda request: cache.lookup(request.prompt, "gpt-4o"), put)


def langchain(_: Path) -> CacheAdapter:
    cache = importlib.import_module("langchain_core.caches").InMemoryCache(maxsize=MAX_ENTRIES)
    return langchain_adapter("LangChain InMemoryCache", "langchain-core", "memory", cache)


def langchain_sqlite(folder: Path) -> CacheAdapter:
    cache = importlib.import_module("langchain_community.cache").SQLiteCache(str(folder / "langchain.db"))
    return langchain_adapter("LangChain SQLiteCache", "langchain-community", "disk", cache)


def litellm(_: Path) -> CacheAdapter:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # do not fetch prices from the network
    cache = importlib.import_module("litellm.caching.caching").Cache(type="local")
    cache.cache.max_size_in_memory = MAX_ENTRIES
    cache.max_messages = None  # by default chats of more than four messages are not cached

    def put(request: BenchRequest) -> None:
        cache.add_cache(request.answer.decode(), **request.arguments)

    return adapter(
        "LiteLLM Cache(local)", "litellm", "memory", lambda request: cache.get_cache(**request.arguments), put
    )


def gptcache(folder: Path) -> CacheAdapter:
    """GPTCache with its exact-match map."""
    api = importlib.import_module("gptcache.adapter.api")
    cache = importlib.import_module("gptcache").Cache()
    cache.init(
        pre_embedding_func=importlib.import_module("gptcache.processor.pre").get_prompt,
        data_manager=importlib.import_module("gptcache.manager").get_data_manager(
            data_path=str(folder / "gptcache"), max_size=MAX_ENTRIES
        ),
    )

    def put(request: BenchRequest) -> None:
        api.put(request.prompt, request.answer.decode(), cache_obj=cache)

    return adapter("GPTCache, map", "gptcache", "memory", lambda request: api.get(request.prompt, cache_obj=cache), put)


def diskcache(folder: Path) -> CacheAdapter:
    """With default settings."""
    cache = importlib.import_module("diskcache").Cache(folder / "diskcache", size_limit=1 << 32)

    def put(request: BenchRequest) -> None:
        cache.set(request.raw, request.answer)

    return adapter("diskcache.Cache", "diskcache", "disk", lambda request: cache.get(request.raw), put)


def installed_peers(folder: Path) -> tuple[list[CacheAdapter], list[str]]:
    """Return the installed caches, and the reasons why others are missing."""
    found, missing = [], []
    for make in (cachetools, langchain, litellm, gptcache, diskcache, langchain_sqlite):
        try:
            found.append(make(folder))
        except ImportError as error:
            missing.append(f"{make.__name__}: {error}")
    return found, missing
