"""LiteLLM through a caching httpx transport. Without OPENAI_API_KEY it uses a fake provider and needs no network.

python examples/litellm_transport.py
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # LiteLLM must not download prices on import

import httpx
import litellm

from knapcache import Cache
from knapcache.integrations.transport import CacheTransport
from knapcache.testing import FakeUpstream


def main() -> None:
    """Send the same request twice plain and once as a stream; the last two answers come from the cache."""
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        if not os.environ.get("OPENAI_API_KEY"):
            upstream = stack.enter_context(FakeUpstream(delay=0.2))
            options = {"api_base": upstream.openai_url, "api_key": "any"}
        cache = stack.enter_context(Cache("64MB"))
        transport: Any = CacheTransport(cache)
        litellm.client_session = stack.enter_context(httpx.Client(transport=transport))

        messages = [{"role": "user", "content": "What is a knapsack?"}]
        request: Any = {"model": "openai/gpt-4o-mini", "messages": messages, **options}
        for _ in range(2):
            print(litellm.completion(**request).choices[0].message.content)
        stream = litellm.completion(**request, stream=True)
        print("stream -", "".join(chunk.choices[0].delta.content or "" for chunk in stream))

        stats = cache.stats()
        print(f"{stats.hits} of {stats.requests} from the cache, ${stats.usd_saved:.6f} saved")


if __name__ == "__main__":
    main()
