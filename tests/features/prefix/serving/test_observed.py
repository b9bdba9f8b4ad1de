"""What the prefix tier does is counted: summary, metrics and prefix log agree with the bills of the provider."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from knapcache.features.prefix.lab.read import read_prefix_trace
from knapcache.features.prefix.tariff import ANTHROPIC
from knapcache.testing.prefix_provider import PrefixCharge
from tests.features.prefix.serving.conftest import StartTier, TieredProxy
from tests.features.prefix.serving.test_modes import conversation, talk
from tests.support.timing import wait_until

TURNS = 8


def summary(tier: TieredProxy) -> dict[str, Any]:
    """Return the section of the summary, after all requests are counted."""
    tier.prefix_events()
    found: dict[str, Any] = tier.proxy.admin("/summary")["prefix"]
    return found


def charged(tier: TieredProxy) -> PrefixCharge:
    """Return what the provider has charged in all."""
    return PrefixCharge(
        *(sum(amounts) for amounts in zip(*(each.charge for each in tier.provider.ledger), strict=True))
    )


def test_a_watching_tier_counts_what_the_provider_billed_and_what_it_would_have_saved(start_tier: StartTier) -> None:
    tier = start_tier("observe")
    talk(tier, TURNS)
    found = summary(tier)
    assert (found["mode"], found["today"]) == ("observe", found["all"])
    (upstream,) = found["all"]["upstreams"]
    charge = charged(tier)
    assert (upstream["requests"], upstream["unknown"]) == (TURNS, 0)
    assert (upstream["read"], upstream["short_written"], upstream["long_written"], upstream["plain"]) == (
        charge.read, charge.short_written, charge.long_written, charge.plain
    )  # fmt: skip
    (tariff,) = found["all"]["tariffs"]
    assert (tariff["name"], tariff["mode"], tariff["marked"], tariff["own_marks"]) == ("anthropic", "observe", 0, 0)
    (bills,) = tariff["bills"]
    assert (bills["kind"], bills["requests"], bills["priced"]) == ("observed", TURNS, TURNS)
    paid = bills["tokens"]["paid"]
    assert paid == pytest.approx(sum(each.cost for each in tier.provider.ledger))
    assert paid == pytest.approx(bills["tokens"]["none"], rel=0.01), "nothing was marked, so nothing was saved"
    assert bills["tokens"]["learned"] < 0.8 * paid
    assert bills["usd"]["paid"] == pytest.approx(3e-6 * paid)

    trace = read_prefix_trace(log_of(tier), ANTHROPIC.minimum_of)
    assert [request.tokens for request in trace.requests] == [sum(each.charge) for each in tier.provider.ledger]
    for earlier, later in zip(trace.requests, trace.requests[1:], strict=False):
        assert {each.id for each in earlier.positions} & {each.id for each in later.positions}


def log_of(tier: TieredProxy) -> Any:
    """Return the folder of the prefix log, after all requests are written."""
    folder = tier.proxy.proxy.storage.folder
    assert folder is not None
    log = folder / "prefixes" / "requests.csv"
    wait_until(lambda: log.read_bytes().count(b"\n") > TURNS, "the lines of all requests")
    return log.parent


def test_a_tier_that_marks_counts_its_marks_and_the_reads_that_came(start_tier: StartTier) -> None:
    tier = start_tier("on")
    talk(tier, TURNS)
    assert tier.post(conversation(1)).outcome == "hit", "an answer of the cache is not counted"
    found = summary(tier)
    (tariff,) = found["all"]["tariffs"]
    (bills,) = tariff["bills"]
    charge = charged(tier)
    assert (bills["kind"], bills["requests"]) == ("placed", TURNS)
    assert bills["tokens"]["paid"] == pytest.approx(sum(each.cost for each in tier.provider.ledger))
    assert bills["tokens"]["paid"] < 0.8 * bills["tokens"]["none"]
    assert tariff["marked"] == sum(bool(each.marks) for each in tier.provider.ledger) > 0
    assert tariff["reported"] == charge.read > 0
    assert tariff["predicted"] == pytest.approx(charge.read, rel=0.05)

    families = text_string_to_metric_families(httpx.get(f"{tier.proxy.url}/metrics").text)
    samples = {
        (sample.name, frozenset(sample.labels.values())): sample.value for each in families for sample in each.samples
    }
    assert samples["knapcache_prefix_tokens_total", frozenset({"first", "read"})] == charge.read
    assert samples["knapcache_prefix_marked_total", frozenset({"anthropic"})] == tariff["marked"]
    paid = samples["knapcache_prefix_bill_tokens_total", frozenset({"anthropic", "placed", "paid"})]
    assert paid == pytest.approx(bills["tokens"]["paid"])


def test_without_a_tier_reads_are_still_counted(start_tier: StartTier) -> None:
    tier = start_tier("observe")
    tier.proxy.proxy.features.get("prefix").tiers.clear()
    mark = {"cache_control": {"type": "ephemeral"}}
    for _ in range(2):
        body = conversation(1, max_tokens=5 + len(tier.provider.ledger))
        body["messages"][0]["content"][0] |= mark
        assert tier.post(body).status == 200
        tier.clock.advance(10.0)
    found = summary(tier)
    assert found["all"]["tariffs"] == []
    (upstream,) = found["all"]["upstreams"]
    assert upstream["read"] == charged(tier).read > 0
