"""Webhooks: what a real receiver gets from a running proxy, and from scripted states."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from pydantic import ValidationError

from knapcache.cli.main import main
from knapcache.errors import InvalidInput
from knapcache.features.webhooks import delivery as webhooks
from knapcache.features.webhooks import watch as webhook_watch
from knapcache.features.webhooks.delivery import Webhook, WebhookClient, message_of
from knapcache.features.webhooks.settings import WebhookSettings
from knapcache.features.webhooks.watch import HitRateWindow, StateWatcher
from knapcache.proxy.settings import Settings
from knapcache.testing import FakeUpstream
from tests.support.raw_client import chat_body
from tests.support.recording_upstream import RecordingUpstream, Script, plain, send
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until


def reply(status: int) -> Script:
    return send(plain(b"", "location: /elsewhere", status=f"{status} Status"))


class Receiver(RecordingUpstream):
    """Stores what it gets, and answers with success, or as scripts say."""

    def __init__(self) -> None:
        super().__init__()
        self.always(reply(200))
        self.hook = f"{self.url}/hook?team=a"

    def events(self) -> list[str]:
        return [request.json()["event"] for request in list(self.requests)]

    def wait_for_event(self, event: str) -> dict[str, Any]:
        wait_until(lambda: event in self.events(), lambda: f"{event}; {self.events()} have come")
        found: dict[str, Any] = self.requests[self.events().index(event)].json()
        return found


def webhook(url: str, **fields: Any) -> WebhookSettings:
    return WebhookSettings.model_validate({"name": "ops", "url": url, **fields})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def deliver(settings: WebhookSettings) -> tuple[list[float], Any]:
    """Send an event, wait for its delivery, and return the pauses and the last delivery."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> Any:
        with closing(WebhookClient()) as client:
            hook = Webhook(settings, client.post, pause)
            running = asyncio.create_task(hook.run())
            hook.put(message_of("upstream_down"))
            await hook._queue.join()
            running.cancel()
            return hook.last

    return pauses, asyncio.run(run())


def test_a_failed_attempt_is_shown_before_the_next_one() -> None:
    shown: list[Any] = []

    async def post(*_: Any) -> int:
        return 503

    async def pause(_: float) -> None:
        shown.append(hook.last)

    hook = Webhook(webhook("http://127.0.0.1:9"), post, pause)
    asyncio.run(hook.deliver(message_of("upstream_down")))
    assert [(one.event, one.delivered, one.error) for one in shown] == [("upstream_down", False, "status 503")] * 5


def test_a_receiver_that_is_down_is_named_in_plain_words() -> None:
    _, last = deliver(webhook("http://127.0.0.1:9"))
    assert (last.delivered, last.error) == (False, "connection refused")


def test_an_event_is_signed_and_retried(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    receiver.script(reply(500), reply(429))
    pauses, last = deliver(webhook(receiver.hook, secret_env="HOOK_SECRET"))
    assert last.delivered
    assert pauses == [1.0, 4.0]
    assert len({request.body for request in receiver.requests}) == 1
    last_request = receiver.requests[-1]
    signature = hmac.new(b"s3cret", last_request.body, hashlib.sha256).hexdigest()
    assert last_request.values("x-knapcache-signature") == [f"sha256={signature}"]
    assert last_request.values("x-knapcache-event") == ["upstream_down"]
    assert last_request.values("x-knapcache-delivery") == [last_request.json()["id"]]


@pytest.mark.parametrize(("status", "attempts"), [(300, 1), (302, 1), (400, 1), (503, webhooks.MAX_ATTEMPTS)])
def test_redirects_are_not_followed_and_errors_end(receiver: Receiver, status: int, attempts: int) -> None:
    receiver.always(reply(status))
    _, last = deliver(webhook(receiver.hook))
    assert (last.delivered, last.error) == (False, f"status {status}")
    assert len(receiver.requests) == attempts


def test_a_full_queue_drops_events_and_never_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        hook = Webhook(webhook("http://127.0.0.1:9/"), WebhookClient().post)
        for _ in range(webhooks.MAX_QUEUED + 3):
            hook.put(message_of("store_fallback"))

    asyncio.run(run())
    assert sum("dropped" in record.getMessage() for record in caplog.records) == 3


@pytest.mark.parametrize("url", ["ftp://a.test/x", "http://user:secret@a.test", "https://a.test/#part", "a.test"])
def test_a_url_with_a_user_or_a_fragment_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="without a user, a password and #"):
        webhook(url)


def test_the_url_of_a_webhook_is_not_shown() -> None:
    shown = webhook("https://a.test/secret?key=secret").shown()
    assert shown["name"] == "ops"
    assert "secret?" not in str(shown)


def test_a_webhook_gets_only_its_events(receiver: Receiver) -> None:
    hook = Webhook(webhook(receiver.hook, events=("limit_reached",)), Mock())
    for event in ("upstream_down", "limit_reached"):
        hook.put(message_of(event))
    assert hook._queue.get_nowait()["event"] == "limit_reached"
    assert hook._queue.empty()
    with pytest.raises(InvalidInput, match=r"webhook\[0\].events: must be some of limit_warning, limit_reached"):
        Settings(webhook=[{"name": "ops", "url": receiver.hook, "events": ["nothing"]}])
    with pytest.raises(InvalidInput, match="HOOK_NONE is not set"):
        assert webhook(receiver.hook, secret_env="HOOK_NONE").secret


def post(proxy: RunningProxy, text: str) -> int:
    headers = {"authorization": "Bearer k"}
    url = f"{proxy.openai_url}/chat/completions"
    return httpx.post(url, content=chat_body(text, model="gpt-4o"), headers=headers, timeout=60).status_code


@pytest.mark.features
def test_a_running_proxy_reports_limits_upstreams_and_its_store(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_watch, "CHECK_INTERVAL", 0.05)
    (tmp_path / "cache.sqlite").mkdir()  # the store cannot be opened
    with FakeUpstream() as upstream:
        settings: dict[str, Any] = {
            "upstreams": [{"name": "fake", "url": upstream.openai_url, "retries": 0}],
            "webhook": [{"name": "ops", "url": receiver.hook}],
            "limits": {"usd_per_day": 0.001},
            "prices": {"gpt-4o": {"input": 1000.0, "output": 1000.0}},
            "policy": "lru",
        }
        with RunningProxy(tmp_path, upstream.openai_url, **settings) as proxy:
            assert receiver.wait_for_event("store_fallback")["path"] == str(tmp_path / "cache.sqlite")
            upstream.fail("500")
            assert post(proxy, "one") == 500
            down = receiver.wait_for_event("upstream_down")
            assert (down["upstream"], down["reason"]) == ("fake", "status 500: internal server error")
            assert post(proxy, "two") == 200
            receiver.wait_for_event("upstream_recovered")
            reached = receiver.wait_for_event("limit_reached")
            assert (reached["limit"], reached["percent"], reached["allowed"]) == ("usd_per_day", 100, 0.001)
            assert post(proxy, "three") == 429
            (status,) = proxy.admin("/summary")["health"]["webhooks"]
            assert (status["name"], status["events"], status["error"]) == ("ops", [], "")
            assert status["event"] in ("limit_reached", "upstream_recovered")
    assert sorted(receiver.events()) == ["limit_reached", "store_fallback", "upstream_down", "upstream_recovered"]


def test_changes_of_an_upstream_are_reported_once() -> None:
    sent: list[tuple[Any, str]] = []
    row = {"name": "fake", "reason": "status 500", "failing_since": 1.0}
    watcher = StateWatcher(lambda event, **_: sent.append((row["state"], event)), lambda: [row])
    for state in ("ok", "failing", "failing", "ok", "ok", "failing"):
        row["state"] = state
        watcher.look()
    assert sent == [("failing", "upstream_down"), ("ok", "upstream_recovered"), ("failing", "upstream_down")]


def test_a_fallen_hit_rate_is_reported_once() -> None:
    sent: list[tuple[Any, ...]] = []
    now = [1_000_000.0]
    found = StateWatcher(lambda event, **values: sent.append((event, *values.values())), list, lambda: now[0])
    for hour in range(20):
        now[0] += 3600
        for k in range(100):
            found._hit_rate.add(now[0], k % 2 == 0)
        found.look()
        assert sent == [], hour
    for _ in range(3):
        now[0] += 3600
        for k in range(109):
            found._hit_rate.add(now[0], k % 10 == 0)
        found.look()
        found.look()
    assert sent == [("hit_rate_fallen", 0.1009, 0.4794)], "with four digits"
    assert HitRateWindow().rates(now[0]) is None


def test_the_test_command_says_whether_it_was_delivered(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "k.toml"
    config.write_text(f'[[webhook]]\nname = "ops"\nurl = "{receiver.hook}"\nevents = ["limit_reached"]\n')
    assert main(["webhook", "test", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["delivered"] == "yes"
    assert receiver.events() == ["test"]
    assert main(["webhook", "test", "--config", str(config), "--name", "other"]) == 2
    assert "the settings have no [[webhook]] named 'other'" in capsys.readouterr().err
    receiver.script(reply(404))
    assert main(["webhook", "test", "--config", str(config)]) == 2
    assert "not delivered: ops" in capsys.readouterr().err
