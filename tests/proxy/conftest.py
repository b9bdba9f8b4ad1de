"""A fake upstream, and running proxies in front of it."""

from __future__ import annotations

from tests.support.proxy_fixtures import Start, proxy, start, upstream

__all__ = ["Start", "proxy", "start", "upstream"]
