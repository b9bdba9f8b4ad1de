"""Marks in requests to a group of upstreams, and requests whose body must not be changed."""

from __future__ import annotations

import json

from knapcache.features.prefix.feature import is_signed
from knapcache.features.prefix.tier import PrefixTier
from knapcache.proxy.proxy import Proxy
from tests.proxy.http.test_sending import FIRST, SECOND, Pair, pair, running

__all__ = ["pair", "running"]


def test_marks_are_not_sent_to_an_upstream_that_has_not_accepted_them(pair: Pair) -> None:
    """The fallback's body has no `prompt_cache_key` of the first upstream, and still asks for the usage."""
    proxy = pair.running.proxy
    tiers = proxy.features.get("prefix").tiers
    tier = tiers[FIRST] = prefix_tier(proxy, FIRST)
    other = tiers[SECOND] = prefix_tier(proxy, SECOND)
    try:
        messages = [{"role": "system", "content": "Be brief. " * 50}, {"role": "user", "content": "one"}]
        pair.upstreams[0].fail("500")
        assert pair.ask(messages=messages, stream=True).status_code == 200
        sent = [json.loads(fake.calls[0].raw) for fake in pair.upstreams]
        assert "prompt_cache_key" in sent[0]
        assert "prompt_cache_key" not in sent[1]
        assert [body["stream_options"] for body in sent] == [{"include_usage": True}] * 2
        assert tier.refusable("large"), "an answer to a body without marks says nothing about marks"
        other.accept("large")
        pair.upstreams[0].fail("500")
        messages[1]["content"] = "two"
        assert pair.ask(messages=messages).status_code == 200
        assert "prompt_cache_key" in json.loads(pair.upstreams[1].calls[1].raw)
    finally:
        tiers.clear()


def prefix_tier(proxy: Proxy, name: str) -> PrefixTier:
    return PrefixTier(name, "openai", "on", proxy.storage.secret, input_price=lambda *_: None)


def test_what_counts_as_a_signature() -> None:
    assert is_signed({"authorization": "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=b"}, b"")
    assert is_signed({"authorization": "AWS4-ECDSA-P256-SHA256 Credential=a"}, b"")
    assert is_signed({}, b"a=1&X-Amz-Signature=b")
    assert is_signed({}, b"x-amz-signature=b")
    assert not is_signed({"authorization": "Bearer AWS4-", "content-type": "application/json"}, b"a=1")
