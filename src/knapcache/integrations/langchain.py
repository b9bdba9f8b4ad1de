"""LangChain's cache.

    set_llm_cache(KnapcacheLangChain(cache))        or ChatModel(cache=…)

LangChain's key is the prompt and a string with the model's settings; both are part of ours. Answers are stored as
LangChain's own JSON. Loading allows only the classes of answers, so that a file that was tampered with can create
messages and nothing else. An answer that does not survive that JSON unchanged (it holds an object of the caller's) is
not stored.

Costs are dollars if the model reports its usage (`usage_metadata`), and otherwise follow from the time between lookup
and update (`two_phase.py`). LangChain makes the calls, so concurrent requests for the same key are all sent.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

from knapcache.cache import Cache
from knapcache.errors import MissingExtra, install_command
from knapcache.integrations.two_phase import TwoPhaseCache

try:
    from langchain_core._api import LangChainBetaWarning
    from langchain_core.caches import BaseCache
    from langchain_core.load import dumps, loads
    from langchain_core.messages import AIMessage, AIMessageChunk, ChatMessage, ChatMessageChunk
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, Generation, GenerationChunk
except ImportError:
    raise MissingExtra(f"LangChain is not installed: {install_command('langchain')}") from None

log = logging.getLogger("knapcache.integrations")

ALLOWED = (
    Generation,
    GenerationChunk,
    ChatGeneration,
    ChatGenerationChunk,
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    ChatMessageChunk,
)
"""The classes that a stored answer may contain."""
UNREADABLE = (ValueError, TypeError, KeyError, NotImplementedError, ImportError, RecursionError)


class KnapcacheLangChain(BaseCache):
    """A `BaseCache`. `clear` removes the answers of this namespace and no others."""

    def __init__(self, cache: Cache, namespace: str = "langchain") -> None:
        self._cache = TwoPhaseCache(cache, "langchain", namespace)
        with warnings.catch_warnings():  # `loads` warns once that it is beta; LangChain's own caches use it
            warnings.simplefilter("ignore", LangChainBetaWarning)
            load_generations("[]")

    def lookup(self, prompt: str, llm_string: str) -> list[Generation] | None:
        """Return copies of the stored answers, because LangChain changes them."""
        hit = self._cache.find(request_of(prompt, llm_string))
        if hit is None:
            return None
        try:
            return load_generations(hit.payload.decode())
        except UNREADABLE as error:
            log.warning("a stored LangChain answer cannot be read, and is fetched again: %.200s", error)
            return None

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """Store the answers of a call."""
        answers = list(return_val)
        try:
            text = dumps(answers)
            same = load_generations(text) == answers
        except UNREADABLE as error:
            log.debug("a LangChain answer is not stored: %.200s", error)
            return
        if same:
            model, usage, tier = model_usage_tier(answers)
            self._cache.settle(request_of(prompt, llm_string), text.encode(), model, usage, tier=tier)

    def clear(self, **_: Any) -> None:
        """Remove all answers of this namespace."""
        self._cache.clear()

    # Not in an executor: these take microseconds.

    async def alookup(self, prompt: str, llm_string: str) -> list[Generation] | None:
        return self.lookup(prompt, llm_string)

    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        self.update(prompt, llm_string, return_val)

    async def aclear(self, **_: Any) -> None:
        self.clear()


def request_of(prompt: str, llm_string: str) -> dict[str, Any]:
    """Return the request from which the key is made."""
    return {"prompt": prompt, "llm_string": llm_string}


def load_generations(text: str) -> list[Generation]:
    """Load answers from LangChain's JSON. Raises one of UNREADABLE, also for classes that are not allowed."""
    found = loads(text, allowed_objects=ALLOWED)
    if not isinstance(found, list) or not all(isinstance(one, Generation) for one in found):
        raise ValueError("not a list of generations")
    return found


def model_usage_tier(answers: list[Generation]) -> tuple[str, dict[str, Any] | None, str | None]:
    """Return model, usage and service tier of a call. Each of several answers has the usage of the whole call."""
    for answer in answers:
        message = answer.message if isinstance(answer, ChatGeneration) else None
        if not isinstance(message, AIMessage):
            continue
        metadata = message.response_metadata
        model = metadata.get("model_name") or metadata.get("model") or ""
        tier = metadata.get("service_tier")
        tier = tier if isinstance(tier, str) else None
        used = message.usage_metadata
        if used is None:
            return str(model), None, tier
        usage: dict[str, Any] = {
            "prompt_tokens": used["input_tokens"],
            "completion_tokens": used["output_tokens"],
            "total_tokens": used["total_tokens"],
        }
        if cached := (used.get("input_token_details") or {}).get("cache_read"):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return str(model), usage, tier
    return "", None, None
