"""Requests to several upstreams through a running proxy: who gets them, what a fallback is sent, what is stored."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from knapcache.exchange.exchange import make_exchange, parse_request
from knapcache.model import Endpoint
from knapcache.proxy.events.events import Event
from knapcache.proxy.http.access import RequestHead
from knapcache.proxy.http.auth import Principal
from knapcache.proxy.http.sending import UpstreamSender
from knapcache.proxy.http.substitution import SubstituteSender
from knapcache.proxy.settings.endpoints import UpstreamSettings
from knapcache.proxy.upstream.upstream import HealthState, PassiveHealth, Upstream
from knapcache.proxy.upstream.upstreams import Balance, GroupMember, UpstreamGroup, group_of_one
from knapcache.testing import FakeUpstream
from tests.support.running_proxy import RunningProxy
from tests.support.timing import async_wait_until

FIRST, SECOND = "first", "zweitér"
BODY = b'{"model": "large", "messages": [{"role": "user", "content": "hi"}]}'
questions = itertools.count()


class Events:
    """The events of a proxy."""

    def __init__(self) -> None:
        self.all: list[Event] = []

    def consume(self, events: list[Event]) -> None:
        self.all += events


class Pair:
    """A proxy with two upstreams, of which the first serves all models."""

    def __init__(self, folder: Path, first: FakeUpstream, second: FakeUpstream) -> None:
        self.upstreams = first, second
        fields = {"retries": 1, "timeout": 5.0, "proxy": ""}
        settings = [
            {"name": name, "url": fake.openai_url, "headers": {"authorization": f"Bearer key-{k}"}, **fields}
            for k, (name, fake) in enumerate(((FIRST, first), (SECOND, second)))
        ]
        self.running = RunningProxy(folder, "", upstreams=settings, cost="seconds")
        self.client = httpx.Client(timeout=60)
        self.events = Events()
        self.asked = 0.0
        self.running.proxy.events.add_consumer(self.events)  # type: ignore[arg-type]
        self.group()

    def group(self, balance: Balance = "order", model: str | None = None, *, keep: bool = False) -> UpstreamGroup:
        """Send all requests to a group of both. model: that of the second one."""
        first, second = self.running.proxy.upstreams.all
        for each in (first, second):
            each.health = PassiveHealth()
        members = [GroupMember(first), GroupMember(second, 3.0, model)]
        first.alone = group = UpstreamGroup(members, balance, fallback_cache=keep)
        for fake in self.upstreams:
            fake.calls.clear()
            fake._faults.clear()
        self.events.all.clear()
        return group

    def ask(self, path: str = "/chat/completions", **fields: Any) -> httpx.Response:
        self.asked = time.time()
        body = {"model": "large", "messages": [{"role": "user", "content": f"question {next(questions)}"}], **fields}
        return self.client.post(self.running.openai_url + path, json=body)

    def counts(self) -> tuple[int, int]:
        return self.upstreams[0].count(), self.upstreams[1].count()

    def event(self) -> Event:
        """Return the event of the last request, which is recorded after the response."""
        for _ in range(5000):
            found = [*self.events.all, *self.running.proxy.events._events]
            if found and found[-1].time >= self.asked:
                return found[-1]
            time.sleep(0.002)
        raise AssertionError("no event was recorded")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with FakeUpstream(stall=0.5) as first, FakeUpstream() as second:
        pair = Pair(tmp_path_factory.mktemp("proxy"), first, second)
        with pair.running, pair.client:
            yield pair


@pytest.fixture
def pair(running: Pair) -> Pair:
    running.group()
    return running


@pytest.mark.parametrize(
    ("fault", "attempts", "error"),
    [
        ("429", (429,), ""),
        ("stream-429", (429,), ""),
        ("stream-500", (500,), ""),
        ("stream-html", (200,), "an HTML page instead of an answer"),
        ("500", (500,), ""),
        ("529", (529,), ""),
        ("html", (200,), "an HTML page instead of an answer"),
        ("reset", (200,), "connection (reset|closed before the answer was complete)"),
        ("cut", (200,), "connection closed before the answer was complete"),
        ("stall", (200,), "connection closed before the answer was complete"),
    ],
)
def test_a_fault_before_the_first_byte_leads_to_the_fallback(
    pair: Pair, fault: str, attempts: tuple[int, ...], error: str
) -> None:
    """Streams without the last three faults, which come after their first bytes."""
    stream = fault.startswith("stream-")
    fault = fault.removeprefix("stream-")
    pair.upstreams[0].fail(fault)
    answer = pair.ask(stream=stream)
    assert answer.status_code == 200
    assert (answer.headers["x-knapcache"], answer.headers["x-knapcache-upstream"]) == ("miss", "zweit%C3%A9r")
    assert "x-knapcache-model" not in answer.headers
    assert "data: [DONE]" in answer.text if stream else answer.json()["choices"]
    assert pair.counts() == (1, 1), "the first upstream is not sent the request again: the other one is healthy"
    event = pair.event()
    assert (event.upstream, event.attempts, event.error) == (SECOND, (200,), "")
    ((name, statuses, reason, open_until),) = event.tried
    assert (name, statuses, open_until > 0) == (FIRST, attempts, fault == "429")
    assert re.fullmatch(error, reason)
    assert [call.headers["authorization"] for fake in pair.upstreams for call in fake.calls] == [
        "Bearer key-0",
        "Bearer key-1",
    ]


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_a_stream_that_has_begun_is_not_sent_again(pair: Pair, fault: str) -> None:
    pair.upstreams[0].fail(fault)
    answer = pair.ask(stream=True)
    assert answer.headers["x-knapcache-upstream"] == FIRST
    assert "[DONE]" not in answer.text
    assert pair.counts() == (1, 0)
    event = pair.event()
    assert (event.upstream, event.outcome, event.tried) == (FIRST, "failed", ())


def test_errors_of_the_caller_are_not_sent_to_another_upstream(pair: Pair) -> None:
    answer = pair.ask("/embeddings", input={})
    assert (answer.status_code, pair.counts()) == (400, (1, 0))
    assert answer.headers["x-knapcache-upstream"] == FIRST


def test_the_last_error_is_the_callers_when_all_fail(pair: Pair) -> None:
    pair.upstreams[0].fail("500")
    pair.upstreams[1].fail("529", "529")
    answer = pair.ask()
    assert (answer.status_code, pair.counts()) == (529, (1, 2)), "the last one is sent the request again"
    event = pair.event()
    assert (event.upstream, event.attempts, event.outcome) == (SECOND, (529, 529), "failed")


def test_an_open_upstream_gets_no_requests_until_its_probe(pair: Pair) -> None:
    health = pair.running.proxy.upstreams.all[0].health
    for _ in range(3):
        pair.upstreams[0].fail("500")
        assert pair.ask().status_code == 200
    assert pair.counts() == (3, 3)
    health.open_until += 100.0
    for _ in range(5):
        assert pair.ask().headers["x-knapcache-upstream"] != FIRST
    assert pair.counts() == (3, 8)
    health.open_until = 1.0
    assert pair.ask().headers["x-knapcache-upstream"] == FIRST
    assert pair.event().open_until == 0.0
    assert pair.ask().headers["x-knapcache-upstream"] == FIRST


async def test_a_probe_whose_caller_leaves_says_nothing_about_the_upstream() -> None:
    """The next request is the probe then. Otherwise the upstream would get none for a minute."""
    with FakeUpstream(delay=60.0) as fake:
        upstream = Upstream(UpstreamSettings.model_validate({"name": FIRST, "url": fake.openai_url, "proxy": ""}))
        upstream.health.open_until = 1.0
        head = RequestHead({}, Principal("anonymous", "", None))
        exchange = make_exchange(Endpoint.CHAT, {}, BODY, parse_request(BODY), None, {})
        sender = UpstreamSender(group_of_one(upstream), head, exchange, "large", b"")
        sending = asyncio.create_task(sender.send(BODY))
        await async_wait_until(lambda: fake.calls)
        assert not upstream.health.available(time.monotonic())
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert upstream.health.state(time.monotonic()) is HealthState.HALF_OPEN
        assert upstream.health.available(time.monotonic())
        upstream.client.close()
        fake.stop_stalling()


async def test_a_substitute_may_answer_a_request_for_a_stream_without_one() -> None:
    with FakeUpstream() as fake:
        upstream = Upstream(UpstreamSettings.model_validate({"name": FIRST, "url": fake.openai_url, "proxy": ""}))
        exchange = make_exchange(Endpoint.CHAT, {}, BODY, parse_request(BODY), None, {})._replace(stream=True)
        head = RequestHead({}, Principal("anonymous", "", None))
        sender = SubstituteSender(group_of_one(upstream), head, exchange, "large", b"")
        sender.accepts = lambda answer: answer is not None
        response = await sender.send(BODY)
        assert json.loads(await response.read())["choices"]
        upstream.client.close()


def test_hits_do_not_name_an_upstream(pair: Pair) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "the same"}]}
    assert pair.ask(**body).headers["x-knapcache-upstream"] == FIRST
    for _ in range(3):
        hit = pair.ask(**body)
        assert hit.headers["x-knapcache"] == "hit"
        assert "x-knapcache-upstream" not in hit.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_the_model_of_a_fallback(pair: Pair, keep: bool, stream: bool) -> None:
    pair.group(model="small", keep=keep)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": f"kept {keep} {stream}"}], "stream": stream}
    pair.upstreams[0].fail("500")
    answer = pair.ask(**body)
    assert answer.headers["x-knapcache-model"] == "small"
    first, second = (fake.calls[0].raw for fake in pair.upstreams)
    assert first.count(b'"large"') == 1
    assert first.replace(b'"large"', b'"small"') == second
    assert pair.event().model == "large"
    for _ in range(3):
        again = pair.ask(**body)
        if keep:
            assert (again.headers["x-knapcache"], again.headers["x-knapcache-model"]) == ("hit", "small")
        else:
            assert "x-knapcache-model" not in again.headers
    assert pair.counts() == ((1, 1) if keep else (2, 1)), "the next request is answered by the first upstream"


@pytest.mark.parametrize("keep", [False, True])
def test_embeddings_of_another_model_are_used_only_if_they_may_be_stored(pair: Pair, keep: bool) -> None:
    pair.group(model="small", keep=keep)
    pair.upstreams[0].fail("500", "500")
    answer = pair.ask("/embeddings", input=[f"text {k} {keep}" for k in range(3)])
    assert answer.status_code == (200 if keep else 500)
    assert pair.counts() == ((1, 1) if keep else (2, 0))


def test_weights_are_counted_exactly(pair: Pair) -> None:
    pair.group("weights")
    for _ in range(40):
        assert pair.ask().status_code == 200
    assert pair.counts() == (10, 30)


def test_options_that_a_fallback_refuses_are_still_sent_to_the_first_upstream(pair: Pair) -> None:
    pair.upstreams[0].fail("500")
    pair.upstreams[1].fail("no-options")
    assert pair.ask(stream=True).status_code == 200
    assert pair.counts() == (1, 2), "the request without the option goes to the same upstream"
    assert pair.ask(stream=True).status_code == 200
    assert "stream_options" in json.loads(pair.upstreams[0].calls[-1].raw)


def test_a_body_that_is_not_json_is_sent_as_it_is(pair: Pair) -> None:
    pair.group(model="small")
    pair.upstreams[0].fail("500")
    answer = pair.client.post(f"{pair.running.openai_url}/chat/completions", content=b"{")
    assert answer.status_code == 400
    assert pair.upstreams[1].calls[0].raw == b"{"
    assert Counter(answer.headers.get_list("x-knapcache")) == {"bypass": 1}
