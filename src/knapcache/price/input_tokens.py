"""Input tokens by what providers bill for them: plain, read from the provider's prompt cache, written to it.

| usage of | plain | read | written |
|---|---|---|---|
| Anthropic | `input_tokens` | `cache_read_input_tokens` | `cache_creation_input_tokens`, by TTL in `cache_creation` |
| OpenAI | the rest | `cached_tokens` of the details | `cache_write_tokens` of the details |
| DeepSeek | the rest | `prompt_cache_hit_tokens` | |

OpenAI and DeepSeek count all input in one total (`prompt_tokens`, `input_tokens`). Gemini's OpenAI-compatible usage has
OpenAI's fields. A usage that contradicts itself, for example with more tokens read than there are, is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from knapcache.model import Endpoint

MAX_TOKENS = 10**9
"""Tokens of one answer that are counted at most. Usages come from upstreams."""
INVALID = -(MAX_TOKENS**2)
"""Stands for what is not a number of tokens. Every sum with it is negative."""
HIT, MISS = "prompt_cache_hit_tokens", "prompt_cache_miss_tokens"
"""DeepSeek's parts of `prompt_tokens`."""


class InputTokens(NamedTuple):
    """Input tokens of one answer, as its provider reported them."""

    plain: int
    """Neither read nor written."""
    read: int
    """Read from the provider's prompt cache."""
    short_written: int
    """Written to it for the shorter TTL: 5 minutes at Anthropic, 30 minutes at OpenAI."""
    long_written: int
    """Written to it for the longer TTL: 1 hour at Anthropic."""

    @property
    def total(self) -> int:
        """All input tokens."""
        return self.plain + self.read + self.short_written + self.long_written


def input_tokens(endpoint: Endpoint, usage: Mapping[str, Any]) -> InputTokens | None:
    """Return the input tokens that a usage reports, or None if it does not say or contradicts itself."""
    if endpoint is Endpoint.MESSAGES:
        written, ttls = usage.get("cache_creation_input_tokens"), usage.get("cache_creation")
        short = long = 0
        if type(ttls) is dict:
            short, long = count(ttls.get("ephemeral_5m_input_tokens")), count(ttls.get("ephemeral_1h_input_tokens"))
        if written is not None:  # what no TTL names was written for 5 minutes, the default
            rest = count(written) - short - long
            short = short + rest if rest >= 0 else INVALID
        plain = usage.get("input_tokens")
        read = count(usage.get("cache_read_input_tokens"))
    else:
        total, details = usage.get("prompt_tokens"), usage.get("prompt_tokens_details")
        if total is None:
            total, details = usage.get("input_tokens"), usage.get("input_tokens_details")
        read = short = long = 0
        if type(details) is dict:
            read, short = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
        read = read or count(usage.get(HIT))
        plain = total - read - short if type(total) is int else None
    if type(plain) is int and min(plain, read, short, long) >= 0 and plain + read + short + long <= MAX_TOKENS:
        return InputTokens(plain, read, short, long)
    return None


def count(value: Any) -> int:
    """Return a number of tokens, 0 if there is none, or INVALID."""
    return value if type(value) is int else 0 if value is None else INVALID


def with_details(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return DeepSeek's usage with its cache hits as OpenAI reports them, which genai-prices knows."""
    hits, details = usage[HIT], usage.get("prompt_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    rest = {name: value for name, value in usage.items() if name not in (HIT, MISS)}
    if details.get("cached_tokens") is None:
        rest["prompt_tokens_details"] = {**details, "cached_tokens": hits}
    return rest
