"""Why a request was a hit or a miss: one test for each explanation, through the admin API."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from knapcache import Reply
from knapcache.cache.key_history import CAUSES
from knapcache.features.explain.explain import REMOVED, duration, join, ordinal
from knapcache.proxy.admin.models import Explanation
from knapcache.proxy.admin_routes import FeatureExplanation
from knapcache.proxy.events.events import Event
from knapcache.proxy.features import Feature
from knapcache.proxy.settings.secrets import digest_of
from tests.support.admin_context import CHAT, AdminHarness

API = "/admin/v1"
READER = "a token that may only read, of 32 characters"


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Which way to the swordfish market?"}]
    return {"model": "m", "temperature": 0, "messages": messages, **fields}


class Requests:
    """Sends requests as the proxy does, and reads their details."""

    def __init__(self, harness: AdminHarness) -> None:
        self.harness = harness
        self.client = harness.client()
        self.serial = 0

    def send(
        self, request: dict[str, Any], key: str = "", n: int = 100, cost: float = 2.0, reason: str = "", **options: Any
    ) -> dict[str, Any]:
        """Serve a request, and return its details."""
        principal = self.harness.authenticator.authenticate({"authorization": f"Bearer {key}"} if key else {})
        assert principal is not None
        began, ttl, size = time.time(), options.pop("ttl", None), options.pop("size", None)
        route = options.pop("route", "")
        reply = Reply(b"x" * n, model="m", cost=cost, seconds=0.5, ttl=ttl)
        answer = self.harness.cache.fetch(CHAT, request, lambda: reply, namespace=principal.namespace, **options)
        self.add(
            time=began, outcome=answer.outcome, tenant=principal.name, key=answer.key, reason=reason,
            route=route,
            size=answer.size if size is None else size, seconds=time.time() - began,
        )  # fmt: skip
        return self.detail(self.serial)

    def add(self, **fields: Any) -> None:
        made: dict[str, Any] = {
            "time": time.time(),
            "endpoint": CHAT,
            "model": "m",
            "tenant": "",
            "status": 200,
            "seconds": 0.1,
        }
        made |= {"ttfb": 0.1, "stream": False, "cost": 2.0}
        self.harness.events.append(Event(**made | fields))
        self.serial += 1

    def detail(self, serial: int) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"{API}/requests/{serial}").raise_for_status().json()
        return found


@pytest.fixture(params=["memory", "file"])
def requests(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Requests]:
    harness = AdminHarness(tmp_path / "data" if request.param == "file" else None, capacity="1MiB")
    yield Requests(harness)
    harness.close()


@pytest.fixture
def shown() -> Iterator[Requests]:
    tokens = [{"name": "reader", "role": "read-only", "digest": digest_of(READER)}]
    harness = AdminHarness(show_content=True, admin_tokens=tokens)
    yield Requests(harness)
    harness.close()


def test_a_new_request_and_its_hits(requests: Requests) -> None:
    first = requests.send(body())
    assert (first["outcome"], first["why"]["kind"], first["why"]["title"]) == ("miss", "new", "New request")
    assert "No similar request is stored now." in first["why"]["text"]
    assert re.search(r"record of keys began, (less than a second|\d+ s) earlier", first["why"]["text"])
    assert (first["stored"], first["answer"]) == (True, "stored")
    for nth in ("1st", "2nd"):
        hit = requests.send(body())
        assert hit["why"]["kind"] == "hit"
        assert f"The {nth} hit" in hit["why"]["text"]
        assert hit["why"]["at"] <= hit["time"]
    requests.send(body(), reason="no-cache", refresh=True)
    again = requests.detail(3)["why"]["at"]
    assert again == hit["why"]["at"], "the entry was replaced, and the time stays"
    assert requests.detail(1)["why"]["kind"] == "new", "what happens later does not change the explanation"


def test_a_route_explains_what_it_did(tmp_path: Path) -> None:
    routes = [{"name": "evals", "cache": "refresh"}, {"name": "no-store", "cache": "read-only"}]
    with AdminHarness(tmp_path, route=routes) as harness:
        requests = Requests(harness)
        requests.send(body())
        fresh = requests.send(body(), refresh=True, route="evals")
        assert fresh["outcome"] == "miss"
        assert fresh["why"]["text"] == "The route evals has cache = refresh, so a stored answer was not looked for."
        assert fresh["answer"] == "stored"
        other = body(seed=7)
        unstored = requests.send(other, store=False, route="no-store")
        assert unstored["answer"] == "not stored: the route no-store has cache = read-only"
        again = requests.send(other, store=False, route="no-store")["why"]
        assert again["kind"] == "not_stored"
        assert again["text"].endswith("was not stored: the route no-store has cache = read-only.")


def test_another_temperature_is_named(requests: Requests) -> None:
    requests.send(body())
    found = requests.send(body(temperature=0.2))["why"]
    assert found["kind"] == "different"
    assert found["text"] == "The nearest stored request differs in temperature (0.2 instead of 0)."
    assert found["nearest"]["differences"] == [
        {"field": "temperature", "text": "0.2 instead of 0", "here": "0.2", "there": "0"}
    ]
    assert (found["compared"], found["entries"]) == (2, 2)
    assert requests.detail(1)["why"]["kind"] == "new", "an entry that was stored later explains nothing"
    requests.harness.cache.purge()
    later = requests.detail(2)["why"]
    assert later["text"] == f"{found['text']} Its answer is no longer stored."
    assert later["nearest"]["stored"] is False


def test_content_is_shown_only_with_show_content_and_to_operators(requests: Requests, shown: Requests) -> None:
    other = body(messages=[{"role": "user", "content": "Which way to the fish market?"}])
    for each in (requests, shown):
        each.send(body())
        each.send(other)
    hidden = requests.client.get(f"{API}/requests/2").text
    assert "market" not in hidden
    assert "the text differs from character 18 on; 29 characters instead of 34" in hidden
    full = shown.detail(2)
    assert full["words"] == "Which way to the fish market?"
    assert full["why"]["nearest"]["words"] == "Which way to the swordfish market?"
    assert "swordfish" in full["why"]["nearest"]["differences"][0]["there"]
    with shown.harness.client(headers={"authorization": f"Bearer {READER}"}) as reader:
        assert "market" not in reader.get(f"{API}/requests/2").raise_for_status().text
    rows = [row for row in shown.client.get(f"{API}/audit").json()["rows"] if row["action"] == "request"]
    assert len(rows) == 3, "every reading of content is recorded, and no other"
    assert all(row["parameters"]["content"] for row in rows)


def test_another_tenant_is_named_to_operators_only(shown: Requests) -> None:
    shown.send(body(), key="sk-one")
    mine = shown.send(body(), key="sk-two")["why"]
    assert (mine["kind"], mine["title"]) == ("other_tenant", "Stored for another tenant")
    assert mine["nearest"]["tenant"].startswith("caller-")
    with shown.harness.client(headers={"authorization": f"Bearer {READER}"}) as reader:
        why = reader.get(f"{API}/requests/2").json()["why"]
    assert why["kind"] == "new"
    assert "nearest" not in why


def test_an_eviction_is_explained_by_worth(requests: Requests) -> None:
    requests.send(body(), n=15_000, cost=1.0)
    for k in range(70):
        requests.send(body(seed=k), n=15_000, cost=3.0)
    found = requests.send(body())["why"]
    assert (found["kind"], found["title"]) == ("evicted", "Evicted")
    assert "which was worth more per byte" in found["text"]
    assert found["rival"]["density"] == pytest.approx(3 * found["own"]["density"], rel=0.01)
    assert requests.detail(1)["time"] < found["at"] < requests.detail(72)["time"]
    assert requests.detail(1)["answer"] == "stored, and evicted since"


def test_an_eviction_for_an_answer_of_less_worth_is_explained(requests: Requests) -> None:
    requests.send(body(), n=15_000, cost=9.0)
    for k in range(70):  # the policy is lru
        requests.send(body(seed=k), n=15_000, cost=3.0)
    found = requests.send(body())["why"]
    assert "although that was not worth more per byte" in found["text"]
    assert found["rival"]["density"] < found["own"]["density"]


def test_a_stored_answer_that_could_not_be_used_is_explained(requests: Requests) -> None:
    requests.send(body())
    found = requests.send(body(), refresh=True)
    assert (found["outcome"], found["why"]["kind"]) == ("miss", "unusable")


def test_an_answer_that_was_not_admitted_is_explained() -> None:
    with AdminHarness(capacity="1MiB", policy="w-tinylfu", shadows=()) as harness:
        requests = Requests(harness)
        for k in range(12):
            for _ in range(3):
                requests.send(body(seed=k), n=100_000, cost=50.0)
        first = requests.send(body(), n=100_000, cost=1e-6)
        assert (first["stored"], first["answer"]) == (False, "not stored: the policy did not admit it")
        assert first["why"]["kind"] == "different", "its request is still known, and seed differs"
        again = requests.send(body(), n=100_000, cost=1e-6)["why"]
        assert (again["kind"], again["own"]["cost"]) == ("not_admitted", 1e-6)
        assert "the cache was full" in again["text"]
        free = requests.send(body(seed=-1), n=100_000, cost=0.0)
        assert free["answer"].startswith("not stored")
        assert "it cost nothing" in requests.send(body(seed=-1), cost=0.0)["why"]["text"]


def test_expired_purged_and_too_large_answers_are_explained(requests: Requests) -> None:
    key = requests.send(body(), ttl=0.02)["key"]
    time.sleep(0.03)
    expired = requests.send(body())
    assert (expired["why"]["kind"], expired["why"]["title"]) == ("expired", "Expired")
    assert expired["why"]["at"] <= expired["time"]
    requests.client.delete(f"{API}/entries/{key}").raise_for_status()
    assert requests.detail(2)["answer"] == "stored, and purged since"
    assert requests.send(body())["why"]["kind"] == "purged"
    large = requests.send(body(seed=1), n=2 << 20)
    assert large["answer"] == "not stored: larger than the largest entry"
    again = requests.send(body(seed=1))
    assert (again["why"]["kind"], again["why"]["title"]) == ("not_admitted", "Not stored")


def test_what_the_client_asked_for_is_explained(requests: Requests) -> None:
    requests.send(body())
    fresh = requests.send(body(), reason="no-cache", refresh=True)
    assert (fresh["outcome"], fresh["why"]["kind"]) == ("miss", "asked")
    assert requests.detail(1)["why"]["kind"] == "new", "what the refresh replaced was its own answer"
    time.sleep(0.02)
    old = requests.send(body(), reason="max-age=0.01", max_age=0.01)
    assert (old["outcome"], old["why"]["kind"]) == ("miss", "too_old")
    assert "at most 0.01 s (max-age)" in old["why"]["text"]
    unstored = requests.send(body(seed=1), reason="no-store", store=False, size=0)
    assert unstored["answer"] == "not stored: the client asked for that (no-store)"
    again = requests.send(body(seed=1))
    assert (again["why"]["kind"], again["why"]["at"]) == ("not_stored", unstored["time"])
    assert "no-store" in again["why"]["text"]


def test_two_workers_that_fetch_the_same_answer_are_explained() -> None:
    with AdminHarness() as harness:
        requests = Requests(harness)
        object.__setattr__(harness.settings, "workers", 2)
        now = time.time()
        for k in range(2):  # the workers' events, before the owner has collected their answers
            requests.add(time=now + k * 0.1, outcome="miss", key="ab" * 32, size=100, seconds=0.5)
        assert requests.detail(1)["why"]["kind"] == "new"
        assert "no longer known" in requests.detail(1)["why"]["text"]
        assert requests.detail(2)["why"]["kind"] == "other_worker"
        object.__setattr__(harness.settings, "workers", 1)
        assert requests.detail(2)["why"]["kind"] == "new"
        object.__setattr__(harness.settings, "store", SecretStr("redis://engine"))  # the other one is a proxy
        why = requests.detail(2)["why"]
        assert (why["kind"], why["title"]) == ("other_worker", "Not yet shared between proxies")


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"outcome": "coalesced", "key": "ab" * 32}, "coalesced", "paid for once"),
        ({"outcome": "stale", "key": "ab" * 32}, "stale", "past its time to live"),
        ({"outcome": "hit", "key": "ab" * 32}, "hit", "The answer was stored."),
        ({"outcome": "bypass", "reason": "not a JSON object"}, "bypass", "not a JSON object"),
        ({"outcome": "passthrough", "endpoint": ""}, "passthrough", "embeddings and messages only"),
        ({"outcome": "rejected", "status": 413, "reason": "Too long."}, "rejected", "status 413: Too long."),
        ({"outcome": "failed", "status": 502, "attempts": (0, 502)}, "failed", "no response and 502"),
        ({"outcome": "failed", "status": 504, "reason": "only-if-cached"}, "failed", "none was stored"),
        ({"outcome": "failed", "status": 499}, "failed", "client disconnected"),
        ({"outcome": "failed", "status": 502, "upstream": "o", "error": "no route"}, "failed", "o failed: no route."),
        ({"outcome": "miss"}, "not_stored", "max_answer"),
    ],
)
def test_every_outcome_has_an_explanation(fields: dict[str, Any], kind: str, text: str) -> None:
    with AdminHarness() as harness:
        requests = Requests(harness)
        requests.add(**fields)
        found = requests.detail(1)
        assert found["why"]["kind"] == kind
        assert text in found["why"]["text"] + found["why"]["title"]
        assert found["answer"] == ("not stored: it was incomplete, or too long" if fields["outcome"] == "miss" else "")


def test_an_unknown_request_is_404(requests: Requests) -> None:
    for serial in ("0", "7", "999999999999999"):
        assert requests.client.get(f"{API}/requests/{serial}").status_code == 404
    assert requests.client.get(f"{API}/requests/x").status_code == 400


def test_every_cause_has_a_text() -> None:
    assert {*REMOVED, "evicted", "not admitted", "replaced"} == set(CAUSES)


def test_durations_ordinals_and_lists_are_words() -> None:
    assert [duration(s) for s in (-1, 0.5, 59, 90, 7200, 90_000, 200_000)] == [
        "less than a second", "less than a second", "59 s", "2 min", "2 h", "25 h", "2 d",
    ]  # fmt: skip
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 21, 112)] == ["1st", "2nd", "3rd", "4th", "11th", "21st", "112th"]
    assert [join(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


def test_first_words_are_listed_and_searched_for_operators(shown: Requests) -> None:
    shown.send(body())
    shown.send(body(messages=[{"role": "user", "content": "Sing a song"}]))
    found = shown.client.get(f"{API}/entries", params={"search": "SWORDFISH"}).json()
    assert [row["words"] for row in found["rows"]] == ["Which way to the swordfish market?"]
    assert (found["content"], found["searched"], found["entries"]) == (True, 2, 2)
    preview = shown.client.post(f"{API}/purge", json={"all": True, "dry_run": True}).json()["preview"]
    assert {row["words"] for row in preview["rows"]} == {"Which way to the swordfish market?", "Sing a song"}
    with shown.harness.client(headers={"authorization": f"Bearer {READER}"}) as reader:
        page = reader.get(f"{API}/entries").json()
        assert page["content"] is False
        assert all("words" not in row and row["endpoint"] == CHAT for row in page["rows"])
        assert reader.get(f"{API}/entries", params={"search": "swordfish"}).json()["total"] == 0
    actions = [row["action"] for row in shown.client.get(f"{API}/audit").json()["rows"]]
    assert actions.count("entries") == 1, "the page polls: one record an hour"


class GuessFeature(Feature):
    """A feature that answers requests."""

    name = "guess"
    explains = "What it did."

    def explain(self, event: Event, *, content: bool) -> FeatureExplanation:
        if event.outcome != "similar":
            return FeatureExplanation("It knew nothing.", None, "Its words" if content else None)
        return FeatureExplanation("", Explanation(kind="similar", title="Guessed", text="By a guess."), "Its words")


def test_features_explain_what_they_did(shown: Requests) -> None:
    harness = shown.harness
    shown.add(outcome="similar", key="ab" * 32)
    assert shown.detail(1)["why"]["text"].startswith("The stored answer to a question in another wording was sent.")
    harness.features.active = (*harness.features.active, GuessFeature(harness.features.active[0].context))
    found = shown.detail(1)
    assert (found["why"]["title"], found["guess"], found["words"]) == ("Guessed", "", "Its words")
    missed = shown.send(body())
    assert (missed["why"]["kind"], missed["guess"]) == ("new", "It knew nothing.")
    assert missed["words"] == "Which way to the swordfish market?", "the stored request is known"
    described = shown.client.get(f"{API}/openapi.json").json()["components"]["schemas"]["RequestDetail"]
    assert described["properties"]["guess"]["description"] == "What it did."
