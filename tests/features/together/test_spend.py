"""Spend and requests: page, admin API, metrics, limits, webhooks and command line against the provider's own count.

One tenant sends requests with every outcome, some of them concurrent, streamed or broken. The provider adds up what it
bills, by the usage of its own answers. Every surface must say the same.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.cache.values import SimilarMatch
from knapcache.cli.main import main
from knapcache.exchange.exchange import Exchange
from knapcache.features.semantic.judging import Judge
from knapcache.keys.request import KeyedRequest
from knapcache.price import Meter
from knapcache.proxy.events.events import SAVED
from knapcache.proxy.http.call import Call
from knapcache.proxy.settings.secrets import digest_of
from knapcache.store.base import Entry
from knapcache.testing import FakeUpstream
from knapcache.testing.upstream import InputCharge, UpstreamCall
from tests.features.semantic.serving.test_judging import OPEN, one_vector
from tests.features.webhooks.test_webhooks import Receiver, receiver
from tests.support.browser import chromium, open_view, visit, wait_for_data
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

__all__ = ["receiver"]
MODEL, JUDGE, EMBEDDER = "gpt-4o-mini", "judge-model", "text-embedding-3-small"
PRICES = {
    MODEL: {"input": 1000.0, "output": 3000.0},
    JUDGE: {"input": 500.0, "output": 700.0},
    EMBEDDER: {"input": 90.0},
}
"""Dollars per million tokens: every call costs some cents."""
OUTCOMES = {"hit", "similar", "miss", "coalesced", "stale", "bypass", "passthrough", "failed", "rejected"}


class Charge(InputCharge):
    """Adds the usage of one answer to what the provider bills."""

    def __init__(self, provider: BillingUpstream, model: str) -> None:
        self._provider, self._model, self._usd = provider, model, 0.0

    def set_usage(self, data: dict[str, Any]) -> None:
        usage = data.get("usage") or (data.get("response") or {}).get("usage")
        if not usage:
            return
        sent = usage.get("prompt_tokens", usage.get("input_tokens"))
        received = usage.get("completion_tokens", usage.get("output_tokens", 0))
        price = PRICES[self._model]
        usd = (sent * price["input"] + received * price.get("output", 0.0)) / 1e6
        self._provider.add(usd - self._usd)
        self._usd = usd


class BillingUpstream(FakeUpstream):
    """A provider that adds up what it bills. hold: answers wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.usd, self._billing = 0.0, threading.Lock()
        self.hold: threading.Event | None = None
        self.answer = self._answer

    def _answer(self, body: dict[str, Any]) -> str:
        if self.hold is not None:
            assert self.hold.wait(60)
        return "same" if body["model"] == JUDGE else "An answer of five words."

    def charge(self, endpoint: str, call: UpstreamCall) -> InputCharge:  # noqa: ARG002
        return Charge(self, call.body["model"])

    def add(self, usd: float) -> None:
        with self._billing:
            self.usd += usd


class Client:
    """Sends requests of a tenant, and counts them."""

    def __init__(self, proxy: RunningProxy, tenant: str) -> None:
        self._http = httpx.Client(
            base_url=proxy.openai_url, headers={"authorization": f"Bearer key-{tenant}"}, timeout=60
        )
        self.outcomes: list[str] = []

    def post(self, path: str, body: dict[str, Any], outcome: str, requests: int = 1) -> httpx.Response:
        response = self._http.post(path, json=body)
        found = response.headers.get("x-knapcache", "")
        self.outcomes += [outcome or found] * requests
        return response

    def chat(self, prompt: str, outcome: str = "", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}
        return self.post("/chat/completions", body, outcome)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, outcome: str) -> None:
        self._http.get(path)
        self.outcomes.append(outcome)


class Finder:
    """In place of the semantic tier, which needs hundreds of labels before it serves: one match, and one judgement."""

    def __init__(self, proxy: RunningProxy, exchange: Exchange) -> None:
        self._proxy, self._prompt = proxy.proxy, str(exchange.body.get("messages"))

    async def find(self, _request: KeyedRequest) -> tuple[Entry, SimilarMatch] | None:
        proxy = self._proxy
        if "in other words" in self._prompt:
            (info,) = [info for info in proxy.cache.coordinator.store.scan() if info.model == MODEL][:1]
            entry = proxy.cache.similar.entry(info.key)
            assert entry is not None
            return entry, SimilarMatch(info.key, 0.9, 0.1, "match")
        if "judge this" in self._prompt:
            judge = Judge(
                one_vector,
                upstreams=proxy.upstreams,
                model=JUDGE,
                meter=Meter(prices=PRICES),
                spent=proxy.features.context.count_payment,
            )
            found = await judge.verdict(OPEN._replace(tenant="team"))
            assert found is not None
            assert found.usd > 0.0
            judge.close()
        return None


@pytest.fixture
def provider() -> Iterator[BillingUpstream]:
    with BillingUpstream() as upstream:
        yield upstream


@pytest.fixture
def proxy(
    provider: BillingUpstream, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningProxy]:
    tenants = [
        {"name": "team", "keys": [digest_of("key-team")], "limits": {"usd_per_day": 0.38}},
        {"name": "rich", "keys": [digest_of("key-rich")], "limits": {"usd_per_day": 1e6}},
        {"name": "slow", "keys": [digest_of("key-slow")], "limits": {"requests_per_minute": 1}},
    ]
    upstreams = [{"name": "fake", "url": provider.openai_url, "retries": 0, "key_env": "PROVIDER_KEY"}]
    monkeypatch.setenv("PROVIDER_KEY", "sk-any")
    settings = {"policy": "lru", "tenants": tenants, "upstreams": upstreams, "prices": PRICES, "passthrough": ["*"],
                "stale_while_revalidate": 3600.0, "content_log": True, "show_content": True,
                "webhook": [{"name": "ops", "url": receiver.hook}]}  # fmt: skip
    with RunningProxy(tmp_path / "data", "", **settings) as proxy:
        begin = Call.begin

        def with_finder(call: Call, *args: Any) -> Exchange:
            return begin(call, *args)._replace(finder=Finder(proxy, call.exchange))

        monkeypatch.setattr(Call, "begin", with_finder)
        yield proxy
        proxy.proxy.cache.check()


def send_everything(proxy: RunningProxy, provider: BillingUpstream, team: Client, slow: Client) -> None:
    """Send requests with every outcome."""
    for _ in range(2):
        team.chat("one two three")
    team.chat("one two three four", stream=True)
    team.chat("one two three four", stream=True)
    team.chat("asked in other words")
    team.chat("judge this question")
    team.post("/embeddings", {"model": EMBEDDER, "input": ["one two", "three"]}, "miss", requests=2)
    team.post("/embeddings", {"model": EMBEDDER, "input": ["one two", "four"]}, "", requests=0)
    team.outcomes += ["hit", "miss"]
    bypass = {"model": MODEL, "input": "one two three", "conversation": "conv_1"}
    team.post("/responses", bypass, "")
    team.post("/responses", {**bypass, "stream": True}, "")
    team.get("/models", "passthrough")
    provider.fail("500")
    team.chat("an error", "failed")
    provider.fail("no-finish")  # an error of the provider that it bills
    team.chat("billed all the same")
    provider.fail("no-finish")
    team.chat("billed all the same, as a stream", "failed", stream=True)
    team.chat("soon stale", cache={"ttl": 0.001})
    wait_until(lambda: team.chat("soon stale", cache={"ttl": 0.001}).headers["x-knapcache"] == "stale")
    send_together(team, proxy, provider)
    slow.chat("one two three five")
    slow.chat("one two three six", "rejected")
    wait_until(lambda: not proxy.proxy.features.get("limits").limits.counts._waiting)


def send_together(team: Client, proxy: RunningProxy, provider: BillingUpstream) -> None:
    """Send a request twice at the same time: one of them is coalesced."""
    provider.hold, calls = threading.Event(), provider.count()
    threads = [threading.Thread(target=team.chat, args=("at the same time",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: provider.count() > calls)
    calls_in_flight = proxy.proxy.cache.engine.single_flight._calls
    wait_until(lambda: any(call.future is not None for call in list(calls_in_flight.values())), "a waiting request")
    provider.hold.set()
    for thread in threads:
        thread.join()
    provider.hold = None


def metric(text: str, name: str, tenant: str) -> float:
    """Return the sum of a metric over all series of a tenant."""
    lines = re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in lines if f'tenant="{tenant}"' in labels)


def logged(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the lines of the content log, as the command line prints them."""
    capsys.readouterr()
    assert main(["log", "search", "--json", "--limit", "100", "--path", str(folder / "data")]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_surface_shows_what_the_provider_bills(
    proxy: RunningProxy,
    provider: BillingUpstream,
    receiver: Receiver,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ExitStack() as stack:
        team, slow = (Client(proxy, tenant) for tenant in ("team", "slow"))
        stack.callback(team.close)
        stack.callback(slow.close)
        send_everything(proxy, provider, team, slow)
    assert {*team.outcomes, *slow.outcomes} == OUTCOMES
    summary, limits = proxy.admin("/summary"), proxy.admin("/limits")["rows"]
    points, recent = proxy.admin("/history?span=hour")["points"], proxy.admin("/requests?limit=200")["rows"]
    metrics = proxy.metrics()
    paid = provider.usd
    assert paid > 0.1

    rows = {row["name"]: row for row in summary["tenants"]}
    requests = len(team.outcomes) + len(slow.outcomes)
    for row in (summary["today"], summary["all"]):
        assert row["usd_spent"] == pytest.approx(paid, rel=1e-9)
        assert row["requests"] == requests
        assert row["usd_estimated"] == 0.0
    for parts in (summary["models"], summary["tenants"], points):
        assert sum(row["usd_spent"] for row in parts) == pytest.approx(paid, rel=1e-9)
        assert sum(row["requests"] for row in parts) == requests
    assert rows["team"]["requests"] == len(team.outcomes)
    counted = {"hits": "hit", "misses": "miss", "bypasses": "bypass"} | {
        name: name for name in ("similar", "coalesced", "stale", "passthrough")
    }
    assert {name: rows["team"][name] for name in counted} == {
        name: team.outcomes.count(one) for name, one in counted.items()
    }
    assert summary["today"]["priced"] > 10
    assert summary["today"]["unpriced"] == 0

    (limit,) = [row for row in limits if row["name"] == "team"]
    assert limit["used"] == pytest.approx(rows["team"]["usd_spent"], rel=1e-9)
    warned = receiver.wait_for_event("limit_warning")  # at half of the limit, which the last call has passed
    assert (warned["percent"], warned["used"]) == (50, pytest.approx(limit["used"], rel=1e-9))

    for tenant, client in (("team", team), ("slow", slow)):
        assert metric(metrics, "knapcache_usd_spent_total", tenant) == pytest.approx(
            rows[tenant]["usd_spent"], rel=1e-9
        )
        assert metric(metrics, "knapcache_usd_saved_total", tenant) == pytest.approx(
            rows[tenant]["usd_saved"], rel=1e-9
        )
        assert metric(metrics, "knapcache_requests_total", tenant) == len(client.outcomes)

    judged = next(row for row in summary["models"] if row["name"] == JUDGE)["usd_spent"]
    background = judged + next(row["usd"] for row in recent if row["outcome"] == "stale")
    assert sum(row["usd"] or 0.0 for row in recent if not row["saved"]) + background == pytest.approx(paid, rel=1e-9)
    assert sum(row["usd"] or 0.0 for row in recent if row["saved"]) == pytest.approx(
        summary["all"]["usd_saved"], rel=1e-9
    )
    # The content log has no passthrough, and one line for a request for several embeddings.
    wait_until(lambda: len(logged(tmp_path, capsys)) == requests - 3, "the lines of the content log")
    for saved in (False, True):
        listed = sum(row["usd"] or 0.0 for row in recent if row["saved"] == saved and row["endpoint"] != "embeddings")
        lines = [line for line in logged(tmp_path, capsys) if line["endpoint"] != "embeddings"]
        assert sum(line["usd"] or 0.0 for line in lines if (line["outcome"] in SAVED) == saved) == pytest.approx(listed)
    check_page(proxy, summary, limit)


def check_page(proxy: RunningProxy, summary: dict[str, Any], limit: dict[str, Any]) -> None:
    """Compare what the dashboard shows."""

    def dollars(text: str) -> float:
        return float(re.search(r"\$([0-9.,]+)", text)[1].replace(",", ""))  # type: ignore[index]

    today = summary["today"]
    with chromium() as browser, visit(browser, f"{proxy.url}/dashboard#token={proxy.proxy.admin_token}") as page:
        wait_for_data(page)
        page.wait_for_selector("#spend-legend li")
        legend = page.inner_text("#spend-legend")
        spent, saved, cached = (f"{today[name]:.3g}" for name in ("usd_spent", "usd_saved", "requests"))
        assert f"{dollars(legend.split('With cache')[1]):.3g}" == spent
        assert f"{dollars(legend.split('Saved')[1]):.3g}" == saved
        from_cache = sum(today[name] for name in ("hits", "similar", "coalesced", "stale"))
        assert page.inner_text("#rate-sub") == f"{from_cache} of {cached} requests today"
        open_view(page, "savings")
        row = page.inner_text("#tenants-table tbody tr[data-key=team]")
        shown = [f"{float(one):.3g}" for one in re.findall(r"\$([0-9.]+)", row)]
        assert shown[0] == f"{limit['used']:.3g}"
        open_view(page, "limits")
        page.wait_for_selector("#limits-table tbody tr")
        limits = page.inner_text("#limits-table tbody").split("team")[1]
        assert f"{dollars(limits):.3g}" == shown[0]


UNBILLABLE: list[Any] = [
    {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 11}},
    {"prompt_tokens": 10, "completion_tokens": None},
    {"prompt_tokens": 10, "completion_tokens": "5"},
    {"prompt_tokens": 10, "completion_tokens": -5},
    {"prompt_tokens": 10, "completion_tokens": 5.0},
    {"prompt_tokens": 10, "completion_tokens": 10**30},
    {"total_tokens": 15},
    None,
]


def test_a_usage_that_cannot_be_billed_counts_at_least_its_length_for_a_spend_limit(
    proxy: RunningProxy, provider: BillingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = [None]

    def set_usage(_charge: Charge, data: dict[str, Any]) -> None:
        data["usage"] = reported[0]

    rich = Client(proxy, "rich")
    rich.chat("one two three", max_tokens=4)  # from now on, calls of this model are estimated by it
    wait_until(lambda: len(proxy.proxy.features.get("limits").limits.estimator._means) == 2)
    estimates, known = dict(proxy.proxy.features.get("limits").limits.estimator._means), provider.usd
    monkeypatch.setattr(Charge, "set_usage", set_usage)
    provider.answer = lambda _: "word " * 1000
    for k, reported[0] in enumerate(UNBILLABLE):
        rich.chat(f"a long answer {k}")
        rich.chat(f"a long answer as a stream {k}", stream=True)
    rich.close()
    wait_until(lambda: not proxy.proxy.features.get("limits").limits.counts._waiting)
    (row,) = proxy.admin("/summary")["tenants"]
    limits = proxy.admin("/limits")["rows"]
    assert (row["requests"], row["unpriced"]) == (1 + 2 * len(UNBILLABLE), 2 * len(UNBILLABLE))
    assert row["usd_spent"] == pytest.approx(known)
    assert row["usd_estimated"] > 2 * len(UNBILLABLE) * 1000 * PRICES[MODEL]["output"] / 1e6
    (used,) = [each["used"] for each in limits if each["name"] == "rich"]
    assert used == pytest.approx(row["usd_spent"] + row["usd_estimated"])
    assert proxy.proxy.features.get("limits").limits.estimator._means == estimates, (
        "nothing is learned from an estimate"
    )
