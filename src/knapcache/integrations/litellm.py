"""LiteLLM's cache.

    litellm.cache = litellm.Cache()
    litellm.cache.cache = KnapcacheLiteLLM(cache)

LiteLLM makes the keys. Provider-specific parameters are not part of them unless
`litellm.enable_caching_on_provider_specific_optional_params` is set, and all API keys share them unless a namespace is
given. It also makes the calls, so concurrent requests for the same key are all sent. Where that matters, let it send
through the cache instead, with knapcache's keys, single flight and streams:

    litellm.client_session = httpx.Client(transport=CacheTransport(cache))         for models that OpenAI's SDK calls

Costs are dollars if the answer has its usage, and otherwise follow from the time between the two calls
(`two_phase.py`).

LiteLLM 1.106 imports parts of its proxy on every hit of any cache, so hits fail without FastAPI.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from knapcache.cache import Cache
from knapcache.errors import MissingExtra, install_command
from knapcache.integrations.two_phase import TwoPhaseCache
from knapcache.wire.cache_control import parse_seconds

try:
    from litellm.caching.base_cache import BaseCache
except ImportError:
    raise MissingExtra(f"LiteLLM is not installed: {install_command('litellm')}") from None

log = logging.getLogger("knapcache.integrations")


class KnapcacheLiteLLM(BaseCache):  # type: ignore[misc]
    """A `BaseCache`. `flush_cache` removes the answers of this namespace and no others.

    The ttl is that of the call (`cache={"ttl": …}`), of `litellm.Cache(ttl=…)`, or of `Cache(ttl=…)`, in this order.
    """

    def __init__(self, cache: Cache, namespace: str = "litellm") -> None:
        super().__init__()
        self._cache = TwoPhaseCache(cache, "litellm", namespace)

    def get_cache(self, key: str, **_: Any) -> Any:
        """Return a copy of the stored value, or None."""
        hit = self._cache.find({"key": key})
        return None if hit is None else orjson.loads(hit.payload)

    def set_cache(self, key: str, value: Any, **options: Any) -> None:
        """Store a value. Values that JSON cannot represent are not stored."""
        try:
            payload = orjson.dumps(value)
        except TypeError as error:
            log.debug("a LiteLLM value is not stored: %.200s", error)
            return
        model, usage, tier = model_usage_tier(value)
        self._cache.settle({"key": key}, payload, model, usage, parse_seconds(options.get("ttl")), tier)

    async def async_get_cache(self, key: str, **options: Any) -> Any:
        """Return a copy of the stored value, or None. Takes microseconds, so it needs no thread."""
        return self.get_cache(key, **options)

    async def async_set_cache(self, key: str, value: Any, **options: Any) -> None:
        self.set_cache(key, value, **options)

    async def async_set_cache_pipeline(self, cache_list: Iterable[tuple[str, Any]], **options: Any) -> None:
        """Store several values: embeddings."""
        for key, value in cache_list:
            self.set_cache(key, value, **options)

    async def batch_cache_write(self, key: str, value: Any, **options: Any) -> None:
        self.set_cache(key, value, **options)

    def flush_cache(self) -> None:
        """Remove all values of this namespace."""
        self._cache.clear()

    async def disconnect(self) -> None:
        """Do nothing: the cache belongs to the caller."""

    async def test_connection(self) -> dict[str, Any]:
        """Report success: there is no connection that could fail."""
        return {"status": "success", "message": "knapcache runs in this process"}


def model_usage_tier(value: Any) -> tuple[str, Mapping[str, Any] | None, str | None]:
    """Return model, usage and service tier of {"timestamp", "response"}: an answer as JSON text, or one embedding."""
    answer = value.get("response") if isinstance(value, dict) else None
    if isinstance(answer, str):
        try:
            answer = orjson.loads(answer)
        except ValueError:
            return "", None, None
    if not isinstance(answer, dict):
        return "", None, None
    model, usage, tier = (answer.get(name) for name in ("model", "usage", "service_tier"))
    if usage is None and isinstance(answer.get("prompt_tokens"), int):  # an embedding, with its share of the tokens
        tokens = answer["prompt_tokens"]
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    if not isinstance(usage, dict) or not usage.get(
        "total_tokens"
    ):  # LiteLLM does not always count the tokens of streams
        usage = None
    return model if isinstance(model, str) else "", usage, tier if isinstance(tier, str) else None
