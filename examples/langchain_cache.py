"""LangChain with knapcache as its LLM cache. The model is LangChain's own fake: no key and no network are needed.

python examples/langchain_cache.py
"""

from __future__ import annotations

from langchain_core.globals import set_llm_cache
from langchain_core.language_models import FakeListChatModel

from knapcache import Cache
from knapcache.integrations.langchain import KnapcacheLangChain


def main() -> None:
    """Send the same prompt twice to a model whose answers differ; the second answer comes from the cache."""
    with Cache("64MB") as cache:
        set_llm_cache(KnapcacheLangChain(cache))
        model = FakeListChatModel(responses=["A bag.", "Another bag."])
        for _ in range(2):
            print(model.invoke("What is a knapsack?").content)
        stats = cache.stats()
        print(f"{stats.hits} of {stats.requests} from the cache")
        set_llm_cache(None)


if __name__ == "__main__":
    main()
