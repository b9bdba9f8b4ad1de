"""OpenAI's SDK with a cache. Without OPENAI_API_KEY it uses a fake provider and needs no network.

python examples/openai_sdk.py
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from knapcache import Cache
from knapcache.integrations.openai import client
from knapcache.testing import FakeUpstream


def main() -> None:
    """Send the same request twice plain and once as a stream; the last two answers come from the cache."""
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        if not os.environ.get("OPENAI_API_KEY"):
            upstream = stack.enter_context(FakeUpstream(delay=0.2))
            options = {"base_url": upstream.openai_url, "api_key": "any"}
        cache = stack.enter_context(Cache("64MB"))
        openai = stack.enter_context(client(cache, **options))

        request: Any = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "What is a knapsack?"}]}
        for _ in range(2):
            answer = openai.chat.completions.with_raw_response.create(**request)
            print(answer.headers["x-knapcache"], "-", answer.parse().choices[0].message.content)
        stream = openai.chat.completions.create(**request, stream=True)
        print("stream -", "".join(chunk.choices[0].delta.content or "" for chunk in stream))

        stats = cache.stats()
        print(f"{stats.hits} of {stats.requests} from the cache, ${stats.usd_saved:.6f} saved")


if __name__ == "__main__":
    main()
