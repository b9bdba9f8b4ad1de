"""Which stored answers of the cheaper model are served, and which conversations go on with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from knapcache.features.swap import frame
from knapcache.proxy.settings.secrets import digest_of
from tests.features.swap.two_models import ASKED, CHEAPER, JUDGE, SwapClient, TwoModels, new_question, swapping
from tests.features.webhooks.test_webhooks import Receiver
from tests.support.timing import wait_until


@pytest.fixture(autouse=True)
def no_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.0)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwapClient]:
    """A proxy whose cheaper model is certified. Tests do not change that."""
    with swapping(tmp_path_factory.mktemp("certified")) as client:
        client.learn()
        yield client


def begin(client: SwapClient, **fields: Any) -> list[dict[str, str]]:
    """Ask a new question until its answer is stored. Return the messages of the second turn."""
    question = new_question()
    wait_until(lambda: client.ask(question, **fields).headers["x-knapcache"] == "hit")
    texts = ("user", question), ("assistant", "right"), ("user", new_question())
    return [{"role": role, "content": text} for role, text in texts]


def test_a_conversation_that_the_cheaper_model_has_begun_goes_on_with_it(certified: SwapClient) -> None:
    assert certified.ask(messages=begin(certified)).swapped


@pytest.mark.parametrize(
    "fields",
    [{"headers": {"x-knapcache-swap": "off"}}, {"max_tokens": 100}, {"temperature": 0.5}, {"logprobs": True}],
    ids=str,
)
def test_a_conversation_with_another_first_turn_goes_on_with_the_asked_model(
    certified: SwapClient, fields: dict[str, Any]
) -> None:
    assert not certified.ask(messages=begin(certified, **fields)).swapped


def test_a_conversation_whose_first_turn_is_unknown_goes_on_with_the_asked_model(certified: SwapClient) -> None:
    texts = ("user", new_question()), ("assistant", "right"), ("user", new_question())
    assert not certified.ask(messages=[{"role": role, "content": text} for role, text in texts]).swapped


def test_the_cheaper_model_is_not_replaced_by_itself(tmp_path: Path) -> None:
    with swapping(tmp_path, route_fields={"model": [ASKED, CHEAPER]}) as client:
        for _ in range(10):
            client.ask(model=CHEAPER)
        client.settle_labels()
        wait_until(lambda: client.running.admin("/swap")["all"]["excluded"] == {"the cheaper model": 10})
        assert client.frames() == []
        assert len(client.upstream.answered) == 10


def refused_question(client: SwapClient) -> str:
    """Return a question with a stored answer of the cheaper model that is a refusal."""
    client.upstream.refuses = True
    question = new_question()
    assert client.ask(question).swapped
    wait_until(lambda: client.ask(question).headers["x-knapcache"] == "hit")
    client.upstream.refuses = False
    return question


def test_an_answer_that_was_stored_without_checks_is_no_hit_under_checks(tmp_path: Path) -> None:
    with TwoModels() as upstream:
        with swapping(tmp_path, upstream) as client:
            client.learn()
            question = refused_question(client)
        with swapping(tmp_path, upstream, route_fields={"swap_escalate": ["refusal"]}) as client:
            client.learn()
            reply = client.ask(question)
            assert reply.headers["x-knapcache"] == "miss"
            assert reply.text.startswith("right")


def test_an_answer_of_one_tenant_is_no_hit_under_the_certificate_of_another(tmp_path: Path) -> None:
    """Tenants of a group share their entries."""
    keys = {name: f"kc-{name}-xxxxxxxxxxxxxxxxxxxxxxxx" for name in ("team", "other")}
    tenants = [{"name": name, "keys": [digest_of(key)], "group": "all"} for name, key in keys.items()]
    with (
        swapping(tmp_path, tenants=tenants, key=keys["team"]) as team,
        SwapClient(team.running, team.upstream, keys["other"]) as other,
    ):
        team.learn()
        question = refused_question(team)
        for _ in range(400):
            other.ask()
            other.settle_labels()
            if [each["state"] for each in other.frames()] == ["certified"] * 2:
                break
        reply = other.ask(question)
        assert reply.swapped
        assert reply.headers["x-knapcache"] == "miss"


def test_an_answer_from_before_an_alarm_is_no_hit_after_the_next_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with swapping(tmp_path) as client:
        client.learn()
        question = refused_question(client)
        monkeypatch.setattr(frame, "AUDIT", 0.5)
        client.upstream.wrong_every = 1
        client.learn("learning")
        client.upstream.wrong_every = 0
        monkeypatch.setattr(frame, "AUDIT", 0.0)
        client.learn()
        reply = client.ask(question)
        assert reply.swapped
        assert reply.headers["x-knapcache"] == "miss"


def test_a_webhook_gets_the_end_of_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.5)
    with Receiver() as receiver:
        hook = {"name": "ops", "url": receiver.hook, "events": ["swap_stopped"]}
        with swapping(tmp_path, webhook=[hook]) as client:
            client.learn()
            assert receiver.events() == []
            client.upstream.wrong_every = 1
            client.learn("learning")
            assert receiver.wait_for_event("swap_stopped")["route"] == "cheap"
            assert receiver.events() == ["swap_stopped"]


def test_a_judge_that_always_says_tie_certifies_a_bad_model(tmp_path: Path) -> None:
    """A certificate is about the verdicts: the guide says to read some pairs before the mode `on`."""
    with swapping(tmp_path, route_fields={"swap_judge": JUDGE}) as client:
        client.upstream.verdict, client.upstream.wrong_every = "TIE", 1
        client.learn()
        status = client.frames()[0]
        assert (status["mean_loss"], status["rungs"]) == (0.0, {"model": status["labels"]})
        assert client.ask().text.startswith("wrong")


def test_an_answer_of_another_upstream_is_no_hit(tmp_path: Path) -> None:
    """The cheaper model has the same name at both."""
    with TwoModels() as large, TwoModels() as first, TwoModels() as second:

        def settings(small: TwoModels) -> dict[str, Any]:
            upstreams = [
                {"name": name, "url": each.openai_url, "models": [model], "headers": {"authorization": "Bearer own"}}
                for name, model, each in (("large", ASKED, large), ("small", CHEAPER, small))
            ]
            return {"upstreams": upstreams}

        with swapping(tmp_path, first, **settings(first)) as client:
            client.learn()
            question = refused_question(client)
        with swapping(tmp_path, second, **settings(second)) as client:
            client.learn()
            reply = client.ask(question)
            assert reply.swapped
            assert reply.headers["x-knapcache"] == "miss"
