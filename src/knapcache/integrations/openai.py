"""OpenAI's SDK with a cache.

    client = knapcache.integrations.openai.client(cache, api_key=…)        anything else that `OpenAI` takes
    client.chat.completions.create(…)                                      as without it

To pass your own HTTP client: `OpenAI(http_client=httpx.Client(transport=CacheTransport(cache)))`, with httpx or httpx2,
whichever the SDK uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knapcache.cache import Cache
from knapcache.errors import MissingExtra, install_command
from knapcache.integrations.transport import CacheTransport
from knapcache.integrations.transport_async import AsyncCacheTransport

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

__all__ = ["AsyncCacheTransport", "CacheTransport", "async_client", "client"]


def client(
    cache: Cache, *, tenant: str | None = None, ask_usage: bool = True, finish_abandoned: bool = True, **options: Any
) -> OpenAI:
    """Return an `OpenAI` client that caches its answers. options: of the client. The others: see `TransportBase`."""
    openai = sdk()
    transport = CacheTransport(cache, tenant=tenant, ask_usage=ask_usage, finish_abandoned=finish_abandoned)
    return openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def async_client(
    cache: Cache, *, tenant: str | None = None, ask_usage: bool = True, finish_abandoned: bool = True, **options: Any
) -> AsyncOpenAI:
    """Return an `AsyncOpenAI` client that caches its answers."""
    openai = sdk()
    transport = AsyncCacheTransport(cache, tenant=tenant, ask_usage=ask_usage, finish_abandoned=finish_abandoned)
    return openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def sdk() -> Any:
    """Import the SDK. Raises MissingExtra if it is not installed."""
    try:
        import openai
    except ImportError:
        raise MissingExtra(f"OpenAI's SDK is not installed: {install_command('openai')}") from None
    return openai
