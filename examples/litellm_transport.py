"""LiteLLM sending through knapcache. Without OPENAI_API_KEY it talks to a fake provider, and needs no network.

python examples/litellm_transport.py
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download of prices when it is imported

import httpx
import litellm

from knapcache import Cache
from knapcache.integrations.transport import CacheTransport
from knapcache.testing import FakeUpstream


def main() -> None:
    """Ask the same twice, plain and streamed."""
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        if not os.environ.get("OPENAI_API_KEY"):
            upstream = stack.enter_context(FakeUpstream(delay=0.2))
            options = {"api_base": upstream.openai, "api_key": "any"}
        cache = stack.enter_context(Cache("64MB"))
        transport: Any = CacheTransport(cache)
        litellm.client_session = stack.enter_context(httpx.Client(transport=transport))

        messages = [{"role": "user", "content": "What is a knapsack?"}]
        question: Any = {"model": "openai/gpt-4o-mini", "messages": messages, **options}
        for _ in range(2):
            print(litellm.completion(**question).choices[0].message.content)
        stream = litellm.completion(**question, stream=True)
        print("stream -", "".join(chunk.choices[0].delta.content or "" for chunk in stream))

        stats = cache.stats()
        print(f"{stats['hits']} of {stats['requests']} from the cache, {stats['usd_saved']:.6f} dollars saved")


if __name__ == "__main__":
    main()
