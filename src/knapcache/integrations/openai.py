"""OpenAI's SDK with a cache in it.

    client = knapcache.integrations.openai.client(cache, api_key=…)        anything else that `OpenAI` takes
    client.chat.completions.create(…)                                      as ever

For a client of your own: `OpenAI(http_client=httpx.Client(transport=CacheTransport(cache)))`, with httpx or httpx2,
whichever your SDK takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knapcache.cache import Cache
from knapcache.errors import MissingExtra
from knapcache.integrations.transport import CacheTransport
from knapcache.integrations.transport_async import AsyncCacheTransport

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

__all__ = ["AsyncCacheTransport", "CacheTransport", "async_client", "client"]


def client(
    cache: Cache, *, tenant: str | None = None, ask_usage: bool = True, finish: bool = True, **options: Any
) -> OpenAI:
    """An `OpenAI` whose answers are kept. options: its own. The others: see `Transport`."""
    openai = sdk()
    transport = CacheTransport(cache, tenant=tenant, ask_usage=ask_usage, finish=finish)
    return openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def async_client(
    cache: Cache, *, tenant: str | None = None, ask_usage: bool = True, finish: bool = True, **options: Any
) -> AsyncOpenAI:
    """An `AsyncOpenAI` whose answers are kept."""
    openai = sdk()
    transport = AsyncCacheTransport(cache, tenant=tenant, ask_usage=ask_usage, finish=finish)
    return openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def sdk() -> Any:
    """The SDK, or a word on how to get it."""
    try:
        import openai
    except ImportError:
        raise MissingExtra("OpenAI's SDK is not installed: pip install 'knapcache[openai]'") from None
    return openai
