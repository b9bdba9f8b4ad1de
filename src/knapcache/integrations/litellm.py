"""LiteLLM's cache.

    litellm.cache = litellm.Cache()
    litellm.cache.cache = KnapcacheLiteLLM(cache)

LiteLLM makes the keys, and they are what they are: provider-specific parameters are not part of them unless
`litellm.enable_caching_on_provider_specific_optional_params` is set, and all API keys share them unless a namespace is
given. It also makes the calls, so it cannot be kept from making the same one twice at a time. Where that matters, let
it send through the cache instead, with our keys, single flight and whole streams:

    litellm.client_session = httpx.Client(transport=CacheTransport(cache))         for models that OpenAI's SDK calls

Costs are dollars where the answer has its usage, and otherwise come from the time between question and answer
(`halves.py`).

LiteLLM 1.106 imports parts of its proxy on every hit of any cache: without FastAPI its hits fail.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from knapcache.cache import Cache
from knapcache.errors import MissingExtra
from knapcache.integrations.two_phase import Halves
from knapcache.wire.cache_control import number

try:
    from litellm.caching.base_cache import BaseCache
except ImportError:
    raise MissingExtra("LiteLLM is not installed: pip install 'knapcache[litellm]'") from None

log = logging.getLogger("knapcache.integrations")


class KnapcacheLiteLLM(BaseCache):
    """A `BaseCache`. namespace: whose answers they are; `flush_cache` removes those of this namespace and no others.

    Answers expire as the call says (`cache={"ttl": …}`) or as `litellm.Cache(ttl=…)` does, else as `Cache(ttl=…)`.
    """

    def __init__(self, cache: Cache, namespace: str = "litellm") -> None:
        super().__init__()
        self._halves = Halves(cache, "litellm", namespace)

    def get_cache(self, key: str, **_: Any) -> Any:
        """What was set, in a fresh copy, or None."""
        hit = self._halves.find({"key": key})
        return None if hit is None else orjson.loads(hit.payload)

    def set_cache(self, key: str, value: Any, **options: Any) -> None:
        """Keep a value, which JSON must be able to say; another is not kept."""
        try:
            spelled = orjson.dumps(value)
        except TypeError as error:
            log.debug("a value of LiteLLM's is not kept: %.200s", error)
            return
        model, usage, tier = facts(value)
        self._halves.settle({"key": key}, spelled, model, usage, number(options.get("ttl")), tier)

    async def async_get_cache(self, key: str, **options: Any) -> Any:
        """As `get_cache`, in microseconds."""
        return self.get_cache(key, **options)

    async def async_set_cache(self, key: str, value: Any, **options: Any) -> None:
        """As `set_cache`."""
        self.set_cache(key, value, **options)

    async def async_set_cache_pipeline(self, cache_list: Iterable[tuple[str, Any]], **options: Any) -> None:
        """Several at once: embeddings."""
        for key, value in cache_list:
            self.set_cache(key, value, **options)

    async def batch_cache_write(self, key: str, value: Any, **options: Any) -> None:
        """As `set_cache`."""
        self.set_cache(key, value, **options)

    def flush_cache(self) -> None:
        """Remove all that LiteLLM has kept here."""
        self._halves.clear()

    async def disconnect(self) -> None:
        """Nothing to let go: the cache is the caller's."""

    async def test_connection(self) -> dict[str, Any]:
        """There is no connection that could fail."""
        return {"status": "success", "message": "knapcache is in this process"}


def facts(value: Any) -> tuple[str, Mapping[str, Any] | None, str | None]:
    """Model, usage and tier of {"timestamp", "response"}: an answer as JSON text, or a single embedding."""
    answer = value.get("response") if isinstance(value, dict) else None
    if isinstance(answer, str):
        try:
            answer = orjson.loads(answer)
        except ValueError:
            return "", None, None
    if not isinstance(answer, dict):
        return "", None, None
    model, usage, tier = (answer.get(name) for name in ("model", "usage", "service_tier"))
    if usage is None and isinstance(answer.get("prompt_tokens"), int):  # an embedding: its share of the call
        tokens = answer["prompt_tokens"]
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    if not isinstance(usage, dict) or not usage.get("total_tokens"):  # of streams it does not always count the tokens
        usage = None
    return model if isinstance(model, str) else "", usage, tier if isinstance(tier, str) else None
