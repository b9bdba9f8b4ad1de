"""A fake provider with the prefix caches of Anthropic and OpenAI, which bills what a real one would.

clock = VirtualClock()
with PrefixProvider(clock=clock) as provider:
    Anthropic(base_url=provider.url, api_key="a").messages.create(...)
    clock.advance(400)
    provider.forget()
    assert provider.ledger[-1].charge.read == 0
"""

from knapcache.testing.prefix_provider.billing import BilledRequest, PrefixBilling, PrefixProvider, VirtualClock
from knapcache.testing.prefix_provider.caches import PrefixCharge, PrefixPrices
from knapcache.testing.prefix_provider.prompt import tokens_by_length

__all__ = [
    "BilledRequest",
    "PrefixBilling",
    "PrefixCharge",
    "PrefixPrices",
    "PrefixProvider",
    "VirtualClock",
    "tokens_by_length",
]
