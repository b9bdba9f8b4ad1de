"""LangChain's cache.

    set_llm_cache(KnapcacheLangChain(cache))        or ChatModel(cache=…)

LangChain's key is the prompt and the string of the model's settings; both go into ours, whole. Answers are kept as
LangChain's own JSON and read back with none but the classes of answers allowed, so that a file that was tampered with
can make messages and nothing else. An answer that does not come back from that JSON the same (it holds an object of
yours) is not kept.

Costs are dollars where the model reports its usage (`usage_metadata`), and otherwise come from the time between
question and answer (`halves.py`). LangChain makes the calls, so it cannot be kept from making the same one twice at a
time.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

from knapcache.cache import Cache
from knapcache.errors import MissingExtra
from knapcache.integrations.two_phase import Halves

try:
    from langchain_core._api import LangChainBetaWarning
    from langchain_core.caches import BaseCache
    from langchain_core.load import dumps, loads
    from langchain_core.messages import AIMessage, AIMessageChunk, ChatMessage, ChatMessageChunk
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, Generation, GenerationChunk
except ImportError:
    raise MissingExtra("LangChain is not installed: pip install 'knapcache[langchain]'") from None

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
"""What a kept answer may be made of."""
UNREADABLE = (ValueError, TypeError, KeyError, NotImplementedError, ImportError, RecursionError)


class KnapcacheLangChain(BaseCache):
    """A `BaseCache`. namespace: whose answers they are; `clear` removes those of this namespace and no others."""

    def __init__(self, cache: Cache, namespace: str = "langchain") -> None:
        self._halves = Halves(cache, "langchain", namespace)
        with warnings.catch_warnings():  # `loads` is called beta, once; it is LangChain's own way to keep answers
            warnings.simplefilter("ignore", LangChainBetaWarning)
            read("[]")

    def lookup(self, prompt: str, llm_string: str) -> list[Generation] | None:
        """Fresh copies of the kept answers: LangChain changes them."""
        hit = self._halves.find(request_of(prompt, llm_string))
        if hit is None:
            return None
        try:
            return read(hit.payload.decode())
        except UNREADABLE as error:
            log.warning("an answer kept for LangChain cannot be read (%.200s): it is fetched anew", error)
            return None

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """The answers have come."""
        answers = list(return_val)
        try:
            spelled = dumps(answers)
            same = read(spelled) == answers
        except UNREADABLE as error:
            log.debug("an answer of LangChain's is not kept: %.200s", error)
            return
        if same:
            model, usage, tier = facts(answers)
            self._halves.settle(request_of(prompt, llm_string), spelled.encode(), model, usage, tier=tier)

    def clear(self, **_: Any) -> None:
        """Remove all that LangChain has kept here."""
        self._halves.clear()

    # No executor: these take microseconds.

    async def alookup(self, prompt: str, llm_string: str) -> list[Generation] | None:
        """As `lookup`."""
        return self.lookup(prompt, llm_string)

    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """As `update`."""
        self.update(prompt, llm_string, return_val)

    async def aclear(self, **_: Any) -> None:
        """As `clear`."""
        self.clear()


def request_of(prompt: str, llm_string: str) -> dict[str, Any]:
    """The request that a key is made of."""
    return {"prompt": prompt, "llm_string": llm_string}


def read(spelled: str) -> list[Generation]:
    """Answers from LangChain's JSON; classes beyond the allowed are refused."""
    found = loads(spelled, allowed_objects=ALLOWED)
    if not isinstance(found, list) or not all(isinstance(one, Generation) for one in found):
        raise ValueError("not a list of generations")
    return found


def facts(answers: list[Generation]) -> tuple[str, dict[str, Any] | None, str | None]:
    """Model, usage and tier, as the message says. Each of several answers has the usage of the whole call."""
    for answer in answers:
        message = answer.message if isinstance(answer, ChatGeneration) else None
        if not isinstance(message, AIMessage):
            continue
        about = message.response_metadata
        model = about.get("model_name") or about.get("model") or ""
        tier = about.get("service_tier")
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
