"""For hosts that call a cache twice: `find` before the call to the model, and `settle` after it.

The cache does not see the call between the two, so it makes up for three things:

    seconds   the time from `find` to `settle`; without a `find` it is estimated from the length of the answer, at
              CHARACTERS_PER_SECOND: an answer without cost would never be stored
    pairing   a miss is remembered until its answer comes, so that a request is counted once; at most MAX_PENDING,
              because the answers of failed calls never come
    dollars   from the usage in the answer, if the host passes it on

There is no single flight: the host makes the calls, so concurrent requests for the same key are all sent.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

from knapcache.cache import Answer, Cache, Reply
from knapcache.cache.values import Lookup
from knapcache.model import Endpoint

CHARACTERS_PER_SECOND = 80.0
"""20 tokens of 4 characters: the same speed at which the price of an unknown model is estimated."""
MAX_PENDING = 4096


class TwoPhaseCache:
    """The cache of one host. Requests are JSON objects. Hosts never share entries."""

    def __init__(self, cache: Cache, host: str, namespace: str) -> None:
        self._cache, self._namespace = cache, namespace
        self._key_args: dict[str, Any] = {"namespace": namespace, "context": {"host": host}}
        self._pending: OrderedDict[bytes, list[Lookup]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, request: dict[str, Any], max_age: float | None = None) -> Answer | None:
        """Return the stored answer, or None."""
        found = self._cache.lookup(Endpoint.CHAT, request, max_age=max_age, **self._key_args)
        if found.hit is None and found.bypass is None:
            with self._lock:
                self._pending.setdefault(request_digest(request), []).append(found)
                if len(self._pending) > MAX_PENDING:
                    self._pending.popitem(last=False)
        return found.hit

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
        digest = request_digest(request)
        with self._lock:
            lookups = self._pending.get(digest, [])
            found = lookups.pop(0) if lookups else None
            if not lookups:
                self._pending.pop(digest, None)
        if found is not None:
            self._cache.settle(found, Reply(payload, model, usage, ttl=ttl, tier=tier))
            return
        # Without a pending miss the host wanted a fresh answer, or the miss was dropped.
        reply = Reply(payload, model, usage, len(payload) / CHARACTERS_PER_SECOND, ttl=ttl, tier=tier)
        self._cache.fetch(Endpoint.CHAT, request, lambda: reply, refresh=True, **self._key_args)

    def clear(self) -> int:
        """Remove all answers of this host's namespace. Return how many."""
        return self._cache.purge(tenant=self._namespace)


def request_digest(request: dict[str, Any]) -> bytes:
    """Return the digest that pairs a miss with its answer. A collision would store a wrong answer, so it has 32
    bytes.
    """
    try:
        text = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate: such a request has no key either
        return b""
    return hashlib.blake2b(text, digest_size=32).digest()
