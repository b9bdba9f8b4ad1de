"""Anthropic's SDK with a cache.

    client = knapcache.integrations.anthropic.client(cache, api_key=…)     anything else that `Anthropic` takes
    client.messages.create(…)                                              as without it

To pass your own HTTP client: `Anthropic(http_client=httpx2.Client(transport=CacheTransport(cache)))`, with httpx or
httpx2, whichever the SDK uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knapcache.cache import Cache
from knapcache.errors import MissingExtra, install_command
from knapcache.integrations.transport import CacheTransport
from knapcache.integrations.transport_async import AsyncCacheTransport

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic

__all__ = ["AsyncCacheTransport", "CacheTransport", "async_client", "client"]


def client(cache: Cache, *, tenant: str | None = None, finish_abandoned: bool = True, **options: Any) -> Anthropic:
    """Return an `Anthropic` client that caches its answers. options: of the client. The others: see `TransportBase`."""
    anthropic = sdk()
    transport = CacheTransport(cache, tenant=tenant, finish_abandoned=finish_abandoned)
    return anthropic.Anthropic(http_client=anthropic.DefaultHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def async_client(
    cache: Cache, *, tenant: str | None = None, finish_abandoned: bool = True, **options: Any
) -> AsyncAnthropic:
    """Return an `AsyncAnthropic` client that caches its answers."""
    anthropic = sdk()
    transport = AsyncCacheTransport(cache, tenant=tenant, finish_abandoned=finish_abandoned)
    return anthropic.AsyncAnthropic(http_client=anthropic.DefaultAsyncHttpxClient(transport=transport), **options)  # type: ignore[no-any-return]


def sdk() -> Any:
    """Import the SDK. Raises MissingExtra if it is not installed."""
    try:
        import anthropic
    except ImportError:
        raise MissingExtra(f"Anthropic's SDK is not installed: {install_command('anthropic')}") from None
    return anthropic
