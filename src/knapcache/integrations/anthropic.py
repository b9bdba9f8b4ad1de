"""Anthropic's SDK with a cache in it.

    client = knapcache.integrations.anthropic.client(cache, api_key=…)     anything else that `Anthropic` takes
    client.messages.create(…)                                              as ever

For a client of your own: `Anthropic(http_client=httpx2.Client(transport=CacheTransport(cache)))`, with httpx or httpx2,
whichever your SDK takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knapcache.cache import Cache
from knapcache.errors import MissingExtra
from knapcache.integrations.transport import CacheTransport
from knapcache.integrations.transport_async import AsyncCacheTransport

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic

__all__ = ["AsyncCacheTransport", "CacheTransport", "async_client", "client"]


def client(cache: Cache, *, tenant: str | None = None, finish: bool = True, **options: Any) -> Anthropic:
    """An `Anthropic` whose answers are kept. options: its own. The others: see `Transport`."""
    anthropic = sdk()
    transport = CacheTransport(cache, tenant=tenant, finish=finish)
    return anthropic.Anthropic(http_client=anthropic.DefaultHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def async_client(cache: Cache, *, tenant: str | None = None, finish: bool = True, **options: Any) -> AsyncAnthropic:
    """An `AsyncAnthropic` whose answers are kept."""
    anthropic = sdk()
    transport = AsyncCacheTransport(cache, tenant=tenant, finish=finish)
    return anthropic.AsyncAnthropic(http_client=anthropic.DefaultAsyncHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def sdk() -> Any:
    """The SDK, or a word on how to get it."""
    try:
        import anthropic
    except ImportError:
        raise MissingExtra("Anthropic's SDK is not installed: pip install 'knapcache[anthropic]'") from None
    return anthropic
