"""A proxy that swaps models, with real clients: learning, certificates, audits, and what is never swapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from knapcache.errors import InvalidInput
from knapcache.features.swap import frame, labelling
from knapcache.proxy.settings.secrets import digest_of
from tests.features.swap.two_models import ASKED, CHEAPER, JUDGE, SwapClient, TwoModels, new_question, swapping
from tests.support.redis_servers import RedisProcess
from tests.support.timing import wait_until


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwapClient]:
    """A proxy whose cheaper model is certified. Tests do not change that."""
    with swapping(tmp_path_factory.mktemp("certified")) as client:
        client.learn()
        yield client


def swapped_question(client: SwapClient) -> str:
    """Ask new questions until the cheaper model has answered one, and return it."""
    for _ in range(100):
        question = new_question()
        if client.ask(question).swapped:
            return question
    raise AssertionError("the cheaper model answers nothing")


def test_a_good_model_is_certified_and_answers(tmp_path: Path) -> None:
    with swapping(tmp_path) as client:
        assert not client.ask().swapped
        client.learn()
        status = client.frames()[0]
        assert status["labels"] >= 10
        assert status["mean_loss"] == 0.0
        assert status["evidence"] >= status["needed"]
        replies = [client.ask() for _ in range(60)]
        swapped = [reply for reply in replies if reply.swapped]
        assert len(swapped) >= 40  # 3 % are audits
        assert {reply.headers["x-knapcache-loss-bound"] for reply in swapped} == {"0.2"}
        wait_until(lambda: client.frames()[0]["swapped"] >= len(swapped))
        metrics = client.running.metrics()
        assert 'knapcache_swap_requests_total{kind="swap"}' in metrics
        assert 'knapcache_swap_frames{state="certified"} 1.0' in metrics


def test_a_bad_model_never_answers(tmp_path: Path) -> None:
    with swapping(tmp_path) as client:
        client.upstream.wrong_every = 2
        client.learn("hopeless")
        before = len(client.upstream.answered)
        assert not any(client.ask().swapped for _ in range(20))
        client.settle_labels()
        models = Counter(model for model, _ in client.upstream.answered[before:])
        assert models == {ASKED: 20}, "no label is paid for any more"


def test_a_model_that_becomes_bad_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "AUDIT", 0.3)
    with swapping(tmp_path) as client:
        client.learn()
        client.upstream.wrong_every = 1
        audited = 0
        while client.state() == "certified":
            audited += not client.ask().swapped
            client.settle_labels()
        assert audited <= 20
        assert not client.ask().swapped


def test_a_swapped_answer_is_an_entry_of_its_own(certified: SwapClient) -> None:
    repeated = [certified.ask(swapped_question(certified)) for _ in range(10)]
    hits = [reply.headers["x-knapcache"] == "hit" for reply in repeated if reply.swapped]  # 3 % are audits
    assert hits
    assert all(hits)
    question = swapped_question(certified)
    refused = certified.ask(question, headers={"x-knapcache-swap": "off"})
    assert not refused.swapped
    assert refused.headers["x-knapcache"] == "miss"
    assert "x-knapcache-loss-bound" not in refused.headers
    for _ in range(5):
        asked_first = certified.ask(question)
        assert asked_first.headers["x-knapcache"] == "hit"
        assert not asked_first.swapped, "the answer of the asked model comes first"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"n": 2},
        {"logprobs": True},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
        {"model": "gpt-4.1"},
    ],
    ids=["tools", "n", "logprobs", "image", "other model"],
)
def test_requests_that_are_never_swapped(fields: dict[str, Any], certified: SwapClient) -> None:
    upstream, model = certified.upstream, fields.get("model", ASKED)
    upstream.calls.clear()
    for number in range(10):
        certified.ask(f"What is number {number}", **fields | {"user": f"{model} {number}"})
    certified.settle_labels()
    assert {call.body["model"] for call in upstream.calls} == {model}


def test_a_request_to_an_azure_deployment_is_never_swapped(certified: SwapClient) -> None:
    certified.upstream.calls.clear()
    for _ in range(10):
        body = {"model": ASKED, "messages": [{"role": "user", "content": new_question()}]}
        url = f"{certified.running.url}/openai/deployments/{ASKED}/chat/completions?api-version=2024-10-21"
        assert "x-knapcache-loss-bound" not in httpx.post(url, json=body, timeout=60).headers
    certified.settle_labels()
    assert {call.path.partition("?")[0] for call in certified.upstream.calls} == {
        f"/v1/deployments/{ASKED}/chat/completions"
    }


def test_a_conversation_stays_with_the_model_of_its_first_turn(certified: SwapClient) -> None:
    question = swapped_question(certified)
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "right"}]
    assert certified.ask(messages=[*turns, {"role": "user", "content": new_question()}]).swapped


def test_streams_are_swapped(certified: SwapClient) -> None:
    replies = [certified.ask(stream=True) for _ in range(30)]
    assert sum(reply.swapped for reply in replies) >= 20
    assert all(reply.text.startswith("right") for reply in replies)


def test_a_cheaper_model_that_refuses_an_option_gets_the_stream_without_it(tmp_path: Path) -> None:
    with swapping(tmp_path) as client:
        client.learn()
        client.upstream.failing, client.upstream.fault = CHEAPER, "no-options"
        assert sum(client.ask(stream=True).swapped for _ in range(10)) >= 5


def test_the_shadow_swaps_nothing(tmp_path: Path) -> None:
    with swapping(tmp_path, route_fields={"swap": "shadow"}) as client:
        client.learn()
        assert not any(client.ask().swapped for _ in range(20))


def test_labels_outlive_a_restart_and_count_for_no_other_frame_or_judge(tmp_path: Path) -> None:
    with TwoModels() as upstream:
        with swapping(tmp_path, upstream) as client:
            client.learn()
        with swapping(tmp_path, upstream) as client:
            wait_until(lambda: client.state() == "certified")
            assert any(client.ask().swapped for _ in range(20))
            assert not any(client.ask(system="You are a poet.").swapped for _ in range(5))
        with swapping(tmp_path, upstream, route_fields={"swap_judge": JUDGE}) as client:
            wait_until(lambda: not client.running.admin("/swap")["problem"])
            assert not any(client.ask().swapped for _ in range(5)), "a certificate of another judge"


def test_a_judge_decides_what_differs(tmp_path: Path) -> None:
    with swapping(tmp_path, route_fields={"swap_judge": JUDGE}) as client:
        client.upstream.wrong_every = 2
        client.learn("hopeless")
        assert client.frames()[0]["rungs"]["model"] > 0


def test_a_judge_that_prefers_a_place_says_nothing(tmp_path: Path) -> None:
    with swapping(tmp_path, route_fields={"swap_judge": JUDGE}) as client:
        client.upstream.verdict = "FIRST"
        for _ in range(30):
            client.ask()
        client.settle_labels()
        status = client.frames()[0]
        assert status["rungs"] == {"model": status["labels"]}
        assert status["mean_loss"] == 0.0


@pytest.mark.parametrize("unsure", [False, True])
def test_the_asked_model_is_compared_with_itself(tmp_path: Path, unsure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling, "ASKED_TWICE", 1.0)
    monkeypatch.setattr(labelling, "MAX_TWICE", 3)
    with swapping(tmp_path, route_fields={"swap": "shadow"}) as client:
        client.upstream.unsure = unsure
        while not (frames := client.frames()) or frames[0]["labels"] < 4:  # half of the requests get a label
            client.ask()
            client.settle_labels()
        status = frames[0]
        assert status["asked_twice"] == 3
        assert status["floor"] == float(unsure)
        asked = [question for model, question in client.upstream.answered if model == ASKED]
        assert len(asked) - len(set(asked)) == 3, "one more call for each"
        paid = Counter(model for model, _ in client.upstream.answered)
        assert paid[CHEAPER] == status["labels"]
        summary = {row["name"]: row["usd_spent"] for row in client.running.admin("/summary")["models"]}
        second = 3 * summary[ASKED] / len(asked)
        assert status["usd_labels"] == pytest.approx(summary[CHEAPER] + second, rel=0.1), "counted as cost of labels"


def ask_escalated(client: SwapClient, stream: bool = False) -> list[str]:
    """Ask new questions while the cheaper model does not answer. Return them, after their answers are stored."""
    cheaper = entries_of(client, CHEAPER)
    questions = [new_question() for _ in range(10)]
    replies = [client.ask(question, stream=stream) for question in questions]
    assert all(reply.text.startswith("right") for reply in replies)
    assert not any(reply.swapped or "x-knapcache-loss-bound" in reply.headers for reply in replies)
    wait_until(lambda: 'kind="escalated"} 0.0' not in client.running.metrics())
    assert entries_of(client, CHEAPER) == cheaper
    return questions


def paid_for(client: SwapClient, model: str) -> dict[str, Any]:
    return next(row for row in client.running.admin("/summary")["models"] if row["name"] == model)


def usd_saved(client: SwapClient) -> float:
    return float(client.running.admin("/swap")["all"]["usd_saved"])


def entries_of(client: SwapClient, model: str) -> int:
    return int(client.running.admin(f"/entries?model={model}")["total"])


def check_stored_as_asked(client: SwapClient, questions: list[str]) -> None:
    """Check that answers are stored as those of the asked model."""
    for question in questions:
        for headers in ({}, {"x-knapcache-swap": "off"}):
            again = client.ask(question, headers=headers)
            assert again.headers["x-knapcache"] == "hit"
            assert not again.swapped


@pytest.mark.parametrize("fault", ["500", "400", "reset"])
def test_a_cheaper_model_that_fails_is_replaced_by_the_asked_one(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("knapcache.testing.upstream.ERROR_STATUSES", ("400", "500"))
    with swapping(tmp_path) as client:
        client.learn()
        client.upstream.failing, client.upstream.fault = CHEAPER, fault
        questions = ask_escalated(client)
        client.upstream.failing = ""
        check_stored_as_asked(client, questions)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_fails_a_check_is_replaced_before_the_caller_sees_it(tmp_path: Path, stream: bool) -> None:
    with swapping(tmp_path, route_fields={"swap_escalate": ["refusal"]}) as client:
        client.learn()
        assert any(client.ask(stream=stream).swapped for _ in range(10))
        client.upstream.refuses = True
        before, saved = paid_for(client, CHEAPER), usd_saved(client)
        questions = ask_escalated(client, stream)
        wait_until(lambda: paid_for(client, CHEAPER)["priced"] == before["priced"] + 10, "the payment of each answer")
        after = paid_for(client, CHEAPER)
        assert after["usd_spent"] > before["usd_spent"]
        lost = saved - usd_saved(client)
        assert 0.0 < lost <= 1.01 * (after["usd_spent"] - before["usd_spent"]), "the answers were paid for in vain"
        assert after["seconds_spent"] < before["seconds_spent"] + 5.0, "how long they took is not known"
        assert client.running.admin("/summary")["health"]["upstreams"][0]["state"] == "ok"
        client.upstream.refuses = False
        check_stored_as_asked(client, questions)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("bound", "swaps"), [("logprob:-0.3", True), ("logprob:-0.2", False)])
def test_an_answer_with_a_low_mean_log_probability_is_replaced(
    tmp_path: Path, bound: str, swaps: bool, stream: bool
) -> None:
    """The provider gives each token a log probability of −0.25."""
    with swapping(tmp_path, route_fields={"swap_escalate": [bound]}) as client:
        client.learn()
        replies = [client.ask(stream=stream) for _ in range(10)]
        assert any(reply.swapped for reply in replies) is swaps
        assert all(reply.text.startswith("right") for reply in replies)
        asked = {(call.body["model"], call.body.get("logprobs")) for call in client.upstream.calls}
        assert asked == {(ASKED, None), (CHEAPER, True)}


def test_a_cheaper_model_that_knows_no_log_probabilities_gets_the_request_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("knapcache.testing.upstream.ERROR_STATUSES", ("400",))
    with swapping(tmp_path, route_fields={"swap_escalate": ["logprob:-0.3"]}) as client:
        client.learn()
        client.upstream.failing, client.upstream.fault = CHEAPER, "no-logprobs"
        assert any(client.ask().swapped for _ in range(10))


def test_requests_that_wait_for_a_cheaper_model_that_fails_get_the_asked_one(tmp_path: Path) -> None:
    with swapping(tmp_path, route_fields={"swap_escalate": ["refusal"]}) as client:
        client.learn()
        client.upstream.refuses, client.upstream.delay = True, 0.2
        question = new_question()
        with ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(lambda _: client.ask(question), range(8)))
        assert all(reply.text.startswith("right") for reply in replies)
        assert not any(reply.swapped or "x-knapcache-loss-bound" in reply.headers for reply in replies)
        asked = [model for model, text in client.upstream.answered if text == question and model == ASKED]
        assert len(asked) <= 2, "requests share a call of the asked model"


def test_an_upstream_that_gets_the_callers_keys_is_refused(tmp_path: Path) -> None:
    upstreams = [{"name": "fake", "url": "http://127.0.0.1:9/v1"}]
    reason = "swap_model is 'gpt-4o-mini', and upstream fake has no key of its own"
    with pytest.raises(InvalidInput, match=reason), swapping(tmp_path, upstreams=upstreams):
        pass


def test_a_certificate_of_one_tenant_is_none_for_another(tmp_path: Path) -> None:
    keys = {name: f"kc-{name}-xxxxxxxxxxxxxxxxxxxxxxxx" for name in ("team", "other")}
    tenants = [{"name": name, "keys": [digest_of(key)]} for name, key in keys.items()]
    with swapping(tmp_path, tenants=tenants, key=keys["team"]) as team:
        team.learn()
        with SwapClient(team.running, team.upstream, keys["other"]) as other:
            assert not any(other.ask().swapped for _ in range(10))
        assert any(team.ask().swapped for _ in range(10))


def test_anthropic_messages_are_swapped(tmp_path: Path) -> None:
    with TwoModels() as upstream:
        fake = {"name": "fake", "kind": "anthropic", "url": f"{upstream.url}/v1", "headers": {"x-api-key": "own"}}
        with (
            swapping(tmp_path, upstream, upstreams=[fake]) as client,
            anthropic.Anthropic(base_url=client.running.url, api_key="any", max_retries=0, timeout=60) as sdk,
        ):

            def ask() -> str:
                message: Any = {"role": "user", "content": new_question()}
                raw = sdk.messages.with_raw_response.create(model=ASKED, max_tokens=50, messages=[message])
                return str(raw.headers.get("x-knapcache-model", ""))

            for _ in range(200):
                ask()
                client.settle_labels()
                if client.state() == "certified":
                    break
            assert CHEAPER in {ask() for _ in range(20)}


def test_two_proxies_on_one_server_share_labels(tmp_path: Path) -> None:
    with RedisProcess(tmp_path) as server, TwoModels() as upstream:
        shared: dict[str, Any] = {"store": server.url, "secret": "5a" * 32}
        with (
            swapping(tmp_path / "a", upstream, **shared) as first,
            swapping(tmp_path / "b", upstream, **shared) as second,
        ):
            first.learn()
            wait_until(lambda: second.state() == "certified")
            assert any(second.ask().swapped for _ in range(20))
