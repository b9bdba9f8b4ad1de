"""For hosts that ask a cache twice: first "have you got it?", and after the call "here it is".

The host tells of two moments and not of the call between them, so three things are made up for:

    seconds   from a question to its answer, where both were heard of; else estimated from the length of the answer,
              at `CHARACTERS_PER_SECOND`: an answer of no cost would never be kept
    pairing   a miss is remembered until its answer comes, so that a request is counted once; at most `MOST`, for the
              answers of failed calls never come
    dollars   from the usage in the answer, where the host passes it on

Who asks the same at the same time calls twice: the host makes the calls, and only it could wait.
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
"""20 tokens of 4 characters: the speed at which the price of an unknown model is reckoned, too."""
MOST = 4096


class Halves:
    """A cache for one host. Requests are whatever JSON says them; no request of one host is one of another's."""

    def __init__(self, cache: Cache, host: str, namespace: str) -> None:
        self._cache, self._namespace = cache, namespace
        self._whose: dict[str, Any] = {"namespace": namespace, "context": {"host": host}}
        self._pending: OrderedDict[bytes, list[Lookup]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, request: dict[str, Any], max_age: float | None = None) -> Answer | None:
        """The kept answer, if there is one."""
        found = self._cache.lookup(Endpoint.CHAT, request, max_age=max_age, **self._whose)
        if found.hit is None and found.bypass is None:
            with self._lock:
                self._pending.setdefault(name_of(request), []).append(found)
                if len(self._pending) > MOST:
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
        """The answer has come."""
        name = name_of(request)
        with self._lock:
            waiting = self._pending.get(name, [])
            found = waiting.pop(0) if waiting else None
            if not waiting:
                self._pending.pop(name, None)
        if found is not None:
            self._cache.settle(found, Reply(payload, model, usage, ttl=ttl, tier=tier))
            return
        # Never asked for, or forgotten: a request that wanted a fresh answer, and not one that was served a kept one.
        reply = Reply(payload, model, usage, len(payload) / CHARACTERS_PER_SECOND, ttl=ttl, tier=tier)
        self._cache.fetch(Endpoint.CHAT, request, lambda: reply, refresh=True, **self._whose)

    def clear(self) -> int:
        """Remove all that this host has kept."""
        return self._cache.purge(tenant=self._namespace)


def name_of(request: dict[str, Any]) -> bytes:
    """What a miss is remembered by: a full digest, for a mistaken pair would be a wrong answer."""
    try:
        spelled = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half a character: such a request has no key either
        return b""
    return hashlib.blake2b(spelled, digest_size=32).digest()
