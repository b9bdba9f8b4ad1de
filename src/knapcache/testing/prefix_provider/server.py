"""The provider's HTTP server."""

from __future__ import annotations

from typing import Any

from knapcache.testing.prefix_provider.billing import PrefixBilling
from knapcache.testing.upstream import FakeUpstream


class PrefixProvider(PrefixBilling, FakeUpstream):
    """`FakeUpstream` with the caches and the options of `PrefixBilling`."""

    def __init__(self, *, delay: float = 0.0, pace: float = 0.0, **billing: Any) -> None:
        FakeUpstream.__init__(self, delay=delay, pace=pace)
        PrefixBilling.__init__(self, **billing)
