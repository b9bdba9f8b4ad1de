"""For hosts that call a cache twice: `find` before the call to the model, and `settle` after it (`Cache.get`, `put`).

Dollars come from the usage in the answer, if the host passes it on. There is no single flight: the host makes the
calls, so concurrent requests for the same key are all sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knapcache.cache import Answer, Cache, Reply
from knapcache.model import Endpoint


class TwoPhaseCache:
    """The cache of one host. Requests are JSON objects. Hosts never share entries."""

    def __init__(self, cache: Cache, host: str, namespace: str) -> None:
        self._cache, self._namespace = cache, namespace
        self._key_args: dict[str, Any] = {"namespace": namespace, "context": {"host": host}}

    def find(self, request: dict[str, Any]) -> Answer | None:
        """Return the stored answer, or None."""
        return self._cache.get(Endpoint.CHAT, request, **self._key_args)

    def settle(
        self,
        request: dict[str, Any],
        payload: bytes,
        model: str = "",
        usage: Mapping[str, Any] | None = None,
        ttl: float | None = None,
        tier: str | None = None,
    ) -> None:
        """Store an answer, if the policy admits it."""
        reply = Reply(payload, model, usage, ttl=ttl, tier=tier)
        self._cache.put(Endpoint.CHAT, request, reply, **self._key_args)

    def clear(self) -> int:
        """Remove all answers of this host's namespace. Return how many."""
        return self._cache.purge(tenant=self._namespace)
