"""Other caches behind two calls, for bench/library.py: a hit, and a miss whose answer is then kept.

Each takes a request in the form that it is made for, and does of the work what it does: GPTCache is given the text of
the prompt and looks it up in its map; LiteLLM hashes the arguments of a completion; LangChain looks up (prompt, name of
the model); diskcache and cachetools are given the request's bytes as key, and know nothing of requests.
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
ROOM = 100_000  # entries, where a cache counts them: enough for all


class Asked(NamedTuple):
    """One request in every form."""

    text: bytes
    """As it comes over the wire."""
    arguments: dict[str, Any]
    prompt: str
    answer: bytes


class Peer(NamedTuple):
    """A cache as the benchmark sees it."""

    name: str
    version: str
    where: str
    """memory or disk."""
    hit: Callable[[Asked], Any]
    """What is kept, or None."""
    keep: Callable[[Asked], Any]
    """After a miss: look once more, find nothing, keep the answer."""


def request(number: int, bytes_: int = 2048, answer: int = 2048) -> Asked:
    """A chat of some turns, about so many bytes long, with an answer of so many."""
    turn = "How many ways are there to fill a knapsack, and which of them is worth most? "
    turns = [{"role": "system", "content": "You are a helpful assistant that answers briefly."}]
    body = {"model": "gpt-4o", "messages": turns, "temperature": 0.7, "max_tokens": 512}
    while len(json.dumps(body)) < bytes_ - 80:
        some = min(5, -(-(bytes_ - len(json.dumps(body)) - 80) // len(turn)))
        turns.append({"role": ("user", "assistant")[len(turns) % 2 == 0], "content": turn * some})
    turns[-1]["content"] += f" ({number})"
    frame = {"id": f"chatcmpl-{number}", "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}}]}
    frame["choices"][0]["message"]["content"] = "x" * (answer - len(json.dumps(frame)))  # type: ignore[index]
    text = json.dumps(body, separators=(",", ":")).encode()
    return Asked(text, body, json.dumps(turns), json.dumps(frame).encode())


def ours(name: str, path: Path | None) -> tuple[Peer, Cache]:
    """knapcache, with the default policy and shadows."""
    cache = Cache("512MB", path=path, cost="seconds")

    def hit(asked: Asked) -> bytes:
        return cache.fetch(CHAT, asked.text, never).payload

    def keep(asked: Asked) -> bytes:
        return cache.fetch(CHAT, asked.text, lambda: Reply(asked.answer, "gpt-4o", seconds=1.0)).payload

    return Peer(name, importlib.metadata.version("knapcache"), "disk" if path else "memory", hit, keep), cache


def never() -> Reply:
    """The call of a hit."""
    raise AssertionError("not a hit")


def cachetools(_: Path) -> Peer:
    """A dict with an order, and no more."""
    cache = importlib.import_module("cachetools").LRUCache(ROOM)

    def keep(asked: Asked) -> None:
        if cache.get(asked.text) is None:
            cache[asked.text] = asked.answer

    return Peer("cachetools.LRUCache", version("cachetools"), "memory", lambda asked: cache.get(asked.text), keep)


def langchain(_: Path) -> Peer:
    """LangChain's cache in memory."""
    cache = importlib.import_module("langchain_core.caches").InMemoryCache(maxsize=ROOM)
    generation = importlib.import_module("langchain_core.outputs").Generation

    def keep(asked: Asked) -> None:
        if cache.lookup(asked.prompt, "gpt-4o") is None:
            cache.update(asked.prompt, "gpt-4o", [generation(text=asked.answer.decode())])

    return Peer(
        "LangChain InMemoryCache", version("langchain_core"), "memory",
        lambda asked: cache.lookup(asked.prompt, "gpt-4o"), keep,
    )  # fmt: skip


def langchain_sqlite(folder: Path) -> Peer:
    """LangChain's cache in a file, which another package has."""
    module = importlib.import_module("langchain_community.cache")
    cache = module.SQLiteCache(str(folder / "langchain.db"))
    generation = importlib.import_module("langchain_core.outputs").Generation

    def keep(asked: Asked) -> None:
        if cache.lookup(asked.prompt, "gpt-4o") is None:
            cache.update(asked.prompt, "gpt-4o", [generation(text=asked.answer.decode())])

    return Peer(
        "LangChain SQLiteCache", version("langchain_community"), "disk",
        lambda asked: cache.lookup(asked.prompt, "gpt-4o"), keep,
    )  # fmt: skip


def litellm(_: Path) -> Peer:
    """LiteLLM's cache in memory."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices
    module = importlib.import_module("litellm.caching.caching")
    cache = module.Cache(type="local")
    cache.cache.max_size_in_memory = ROOM
    cache.max_messages = None  # or it leaves chats of more than four messages alone

    def keep(asked: Asked) -> None:
        if cache.get_cache(**asked.arguments) is None:
            cache.add_cache(asked.answer.decode(), **asked.arguments)

    return Peer(
        "LiteLLM Cache(local)", version("litellm"), "memory", lambda asked: cache.get_cache(**asked.arguments), keep
    )


def gptcache(folder: Path) -> Peer:
    """GPTCache with its map: exact matches."""
    package = importlib.import_module("gptcache")
    api = importlib.import_module("gptcache.adapter.api")
    cache = package.Cache()
    cache.init(
        pre_embedding_func=importlib.import_module("gptcache.processor.pre").get_prompt,
        data_manager=importlib.import_module("gptcache.manager").get_data_manager(
            data_path=str(folder / "gptcache"), max_size=ROOM
        ),
    )

    def keep(asked: Asked) -> None:
        if api.get(asked.prompt, cache_obj=cache) is None:
            api.put(asked.prompt, asked.answer.decode(), cache_obj=cache)

    return Peer(
        "GPTCache, map", version("gptcache"), "memory", lambda asked: api.get(asked.prompt, cache_obj=cache), keep
    )


def diskcache(folder: Path) -> Peer:
    """diskcache, as it comes."""
    cache = importlib.import_module("diskcache").Cache(folder / "diskcache", size_limit=1 << 32)

    def keep(asked: Asked) -> None:
        if cache.get(asked.text) is None:
            cache.set(asked.text, asked.answer)

    return Peer("diskcache.Cache", version("diskcache"), "disk", lambda asked: cache.get(asked.text), keep)


def version(package: str) -> str:
    """Of the distribution, by the name of its package."""
    return importlib.metadata.version(package.replace("_", "-"))


def peers(folder: Path) -> tuple[list[Peer], list[str]]:
    """All that are installed, and the names of those that are not."""
    found, missing = [], []
    for make in (cachetools, langchain, litellm, gptcache, diskcache, langchain_sqlite):
        try:
            found.append(make(folder))
        except ImportError as error:
            missing.append(f"{make.__name__}: {error}")
    return found, missing
