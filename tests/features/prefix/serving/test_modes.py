"""What the prefix tier changes in requests, in each of its modes, and how it meets providers that behave otherwise."""

from __future__ import annotations

import base64
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import pytest

from knapcache.features.prefix.feature import BODY_DIGESTS
from knapcache.features.prefix.tier import KEY_PREFIX
from tests.features.prefix.serving.conftest import SONNET, StartTier, TieredProxy
from tests.support.timing import wait_until

SURE = 3
"""Requests of a conversation after which the tier has seen enough to mark."""
SYSTEM = 8000
"""Tokens of the system prompt that all conversations share."""
MARK = {"type": "ephemeral"}
TOOL = {"name": "look_up", "description": "d" * 100, "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}


def text(name: str, length: int, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": name.ljust(length, "."), **fields}


def body(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request with one user message for each block. A byte is 16 tokens."""
    messages = [{"role": "user", "content": [block]} for block in blocks]
    return {"model": SONNET, "max_tokens": 9, "messages": messages, **fields}


def conversation(turns: int, name: str = "turn", **fields: Any) -> dict[str, Any]:
    """A conversation of this many turns, of 1,600 tokens each, after a system prompt."""
    return body(*(text(f"{name} {turn}", 100) for turn in range(turns)), system="s" * (SYSTEM // 16), **fields)


def without_marks(value: Any) -> Any:
    """Return JSON without marks, with every content as a list of blocks."""
    if isinstance(value, dict):
        kept = {name: without_marks(item) for name, item in value.items() if name != "cache_control"}
        for field in ("content", "system"):
            if isinstance(kept.get(field), str) and kept.get("type") is None:
                kept[field] = [{"type": "text", "text": kept[field]}]
        return kept
    return [without_marks(item) for item in value] if isinstance(value, list) else value


def marks_of(value: Any) -> list[Any]:
    """Return all marks in a body, in its order."""
    if isinstance(value, list):
        return [mark for item in value for mark in marks_of(item)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if "cache_control" in value else []
    return own + [mark for name, item in value.items() if name != "cache_control" for mark in marks_of(item)]


def talk(tier: TieredProxy, turns: int, *, first: int = 1, **fields: Any) -> None:
    """Send the turns of a conversation one after the other, every 20 seconds."""
    for turn in range(first, turns + 1):
        assert tier.post(conversation(turn, **fields)).status == 200
        tier.clock.advance(20.0)


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_without_permission_no_byte_is_changed(start_tier: StartTier, mode: str) -> None:
    tier = start_tier(mode)
    tier.learn_length()
    for turn in range(1, 5):
        raw = json.dumps(conversation(turn), indent=turn).encode() + b"\n "
        assert tier.post(raw).status == 200
        assert tier.provider.calls[-1].raw == raw
        tier.clock.advance(20.0)
    assert ("knapcache_prefix" in httpx.get(f"{tier.proxy.url}/metrics").text) == (mode == "observe")


def test_a_body_with_a_digest_is_not_changed(tier: TieredProxy) -> None:
    talk(tier, SURE)
    for turn, name in enumerate(BODY_DIGESTS, SURE + 1):
        raw = json.dumps(body(text(f"turn {turn}", 100), system="s" * (SYSTEM // 16)), indent=1).encode()
        digest = base64.b64encode(hashlib.sha256(raw).digest()).decode()
        assert tier.post(raw, extra={name: f"sha-256=:{digest}:"}).status == 200
        assert tier.provider.calls[-1].raw == raw
        tier.clock.advance(20.0)
    assert tier.post(conversation(SURE + 1)).status == 200
    assert marks_of(json.loads(tier.provider.calls[-1].raw)), "the same caller's requests without a digest are marked"


def test_a_marked_body_is_the_callers_text_with_marks(tier: TieredProxy) -> None:
    for turn in range(1, 7):
        request = conversation(turn, tools=[TOOL], tool_choice={"type": "auto"}, metadata={"user_id": "u"})
        fields = ' "temperature" : 1.0,\r\n "top_p":0.10, "x": [18446744073709551616, -0.0, 1E5, "\\u0041\\/"] }\n'
        raw = json.dumps(request, indent=turn)[:-1].rstrip().encode() + b"," + fields.encode()
        assert tier.post(raw).status == 200
        got = tier.provider.calls[-1].raw
        plain = got.replace(b',"cache_control":{"type":"ephemeral"}', b"").replace(b'[{"type":"text","text":', b"")
        assert plain.replace(b'"}],', b'",') == raw
        assert len(marks_of(tier.provider.calls[-1].body)) in range(turn > SURE, 5)
        tier.clock.advance(20.0)
    assert all(request.charge.read > 0 for request in tier.provider.ledger[SURE + 1 :])


def test_streams_are_marked_and_their_usage_is_learned_from(tier: TieredProxy) -> None:
    with anthropic.Anthropic(base_url=tier.proxy.url, api_key="one", max_retries=0) as sdk:
        for turn in range(1, 7):
            request: Any = conversation(turn)
            with sdk.messages.stream(**request) as stream:
                usage = stream.get_final_message().usage
            charge = tier.provider.ledger[-1].charge
            assert usage.cache_read_input_tokens == charge.read
            assert usage.cache_creation_input_tokens == charge.short_written + charge.long_written
            tier.clock.advance(20.0)
    assert all(request.charge.read > 0 for request in tier.provider.ledger[SURE + 1 :])


def test_a_retried_request_writes_its_prefix_once(tier: TieredProxy) -> None:
    talk(tier, 3)
    tier.provider.fail("429")
    assert tier.post(conversation(4)).status == 200
    assert len(tier.provider.ledger) == 4
    assert tier.provider.ledger[-1].charge.read > 0
    first, second = (call.raw for call in tier.provider.calls[-2:])
    assert first == second
    tier.clock.advance(20.0)
    assert tier.post(conversation(5)).status == 200
    assert tier.provider.ledger[-1].charge.read == tier.provider.ledger[-2].charge.tokens


def test_a_caller_who_marks_is_left_alone(tier: TieredProxy) -> None:
    for turn in range(1, 5):
        request = conversation(turn)
        request["messages"][-1]["content"][0]["cache_control"] = MARK
        raw = json.dumps(request, indent=1).encode()
        assert tier.post(raw).status == 200
        assert tier.provider.calls[-1].raw == raw
        tier.clock.advance(20.0)
    request = {**conversation(5), "cache_control": MARK}
    raw = json.dumps(request).encode()
    tier.post(raw)
    assert tier.provider.calls[-1].raw == raw


def test_manage_changes_nothing_but_ttls(start_tier: StartTier) -> None:
    tier = start_tier("manage")
    tier.learn_length()
    changed = 0
    for turn in range(1, 40):
        request = conversation(turn)
        request["messages"][-1]["content"][0]["cache_control"] = MARK
        assert tier.post(request).status == 200
        got = tier.provider.calls[-1].body
        assert without_marks(got) == without_marks(request)
        assert [mark["type"] for mark in marks_of(got)] == ["ephemeral"]
        changed += marks_of(got) != [MARK]
        tier.clock.advance(20.0 if turn % 4 else 1500.0)  # an hour pays here
    assert changed > 0


def test_two_keys_have_prefixes_of_their_own(tier: TieredProxy) -> None:
    for turn in range(1, 5):
        for key in ("one", "two"):
            assert tier.post(conversation(turn), key=key).status == 200
        tier.clock.advance(20.0)
    reads = {
        key: [request.charge.read for request in tier.provider.ledger if request.credential == key]
        for key in ("one", "two")
    }
    assert reads["one"][-1] == reads["two"][-1] > 0


def test_a_prefix_is_live_at_one_upstream_only(start_tier: StartTier) -> None:
    tier = start_tier("on", upstreams={"first": [SONNET], "second": ["claude-opus-*"]})
    for model in (SONNET, "claude-opus-4-8"):
        tier.learn_length(model)
    talk(tier, 4)
    talk(tier, 4, model="claude-opus-4-8")
    first, second = ([request.charge for request in provider.ledger] for provider in tier.providers)
    assert first[-1].read == second[-1].read > 0
    assert second[0].read == 0


def test_a_provider_that_refuses_marks_gets_none(tier: TieredProxy) -> None:
    tier.provider.refused_fields.add("cache_control")
    talk(tier, 6)
    statuses = [request.status for request in tier.provider.ledger]
    assert statuses.count(400) <= 1
    assert statuses.count(200) == 6


def test_a_callers_error_does_not_end_marking(tier: TieredProxy) -> None:
    tier.provider.refused_fields.add("top_k")
    for turn in range(1, 12):
        expected = 400 if turn % 2 else 200
        fields: dict[str, Any] = {"top_k": 1} if turn % 2 else {}
        assert tier.post(conversation(turn, **fields)).status == expected
        tier.clock.advance(20.0)
    assert tier.provider.ledger[-2].charge.read > 0


def test_predictions_recover_when_the_provider_forgets(tier: TieredProxy) -> None:
    talk(tier, 4)
    tier.provider.forget()
    talk(tier, 8, first=5)
    events = tier.prefix_events()
    assert [event.read for event in events] == [request.charge.read for request in tier.provider.ledger]
    assert [event.predicted == event.read for event in events] == [True] * 4 + [False] + [True] * 3
    assert all(event.read > 0 for event in events[-2:])


def test_requests_at_the_same_time_do_not_expect_to_read_each_others_prefix(tier: TieredProxy) -> None:
    talk(tier, 5)
    tier.provider.delay = 0.3  # none of the answers begins before all three requests have arrived
    with ThreadPoolExecutor(3) as pool:
        same = [conversation(1, name="new", max_tokens=number) for number in (1, 2, 3)]
        assert [served.status for served in pool.map(tier.post_alone, same)] == [200] * 3
    reads = [request.charge.read for request in tier.provider.ledger[-3:]]
    assert max(reads) <= SYSTEM
    assert [event.predicted for event in tier.prefix_events()[-3:]] == reads


def test_the_ttl_counts_from_the_start_of_a_slow_request(tier: TieredProxy) -> None:
    talk(tier, 5)
    tier.provider.delay = 0.3
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(tier.post_alone, conversation(6))
        wait_until(lambda: len(tier.provider.ledger) >= 6)
        tier.clock.advance(100.0)  # the answer takes 100 s, and another request arrives meanwhile
        tier.provider.delay = 0.0
        assert tier.post(conversation(1, name="other")).status == 200
        assert slow.result().status == 200
    assert tier.provider.ledger[5].marks[-1][1] == 300.0
    tier.clock.advance(250.0)
    assert tier.post(conversation(7)).status == 200
    assert tier.provider.ledger[-1].charge.read <= SYSTEM
    assert tier.prefix_events()[-1].predicted == tier.provider.ledger[-1].charge.read


def test_a_stream_that_was_cut_has_written_its_prefix(tier: TieredProxy) -> None:
    talk(tier, 4)
    tier.provider.fail("cut")
    tier.post(conversation(5, stream=True))
    tier.clock.advance(20.0)
    talk(tier, 8, first=6)
    ledger = tier.provider.ledger
    assert [request.charge.read for request in ledger[4:]] == [request.charge.tokens for request in ledger[3:-1]]
    assert [event.predicted for event in tier.prefix_events()[-2:]] == [request.charge.read for request in ledger[-2:]]


def test_callers_share_prefixes_under_the_proxys_own_key(
    start_tier: StartTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", "shared")
    tier = start_tier("on", key_env="TEST_PROVIDER_KEY")
    tier.learn_length()
    for turn in range(1, 9):
        assert tier.post(conversation(turn), key=("one", "two")[turn % 2]).status == 200
        tier.clock.advance(20.0)
    assert {request.credential for request in tier.provider.ledger} == {"shared"}
    reads = [request.charge.read for request in tier.provider.ledger]
    assert all(reads[SURE + 1 :])
    assert [event.predicted for event in tier.prefix_events()] == reads


# OpenAI


def chat(turns: int, model: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "s" * 500}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"turn {turn}".ljust(100, ".")})
        messages.append({"role": "assistant", "content": f"answer {turn}"})
    return {"model": model, "messages": messages[:-1], **fields}


CHAT = "/v1/chat/completions"


def test_breakpoints_are_placed_where_the_next_request_reads_them(start_tier: StartTier) -> None:
    tier = start_tier("on", kind="openai")
    for turn in range(1, 9):
        assert tier.post(chat(turn, "gpt-5.6"), path=CHAT).status == 200
        tier.clock.advance(100.0)
    ledger = tier.provider.ledger
    assert [request.status for request in ledger] == [200] * 8
    assert all(request.charge.read > 0.8 * request.charge.tokens for request in ledger[SURE + 2 :])
    events = tier.prefix_events()
    assert [event.predicted for event in events[SURE:]] == [request.charge.read for request in ledger[SURE:]]


@pytest.mark.parametrize("families", [1, 4096])
def test_earlier_models_get_a_stable_cache_key(
    start_tier: StartTier, monkeypatch: pytest.MonkeyPatch, families: int
) -> None:
    monkeypatch.setattr("knapcache.features.prefix.tier.MAX_FAMILIES", families)
    tier = start_tier("on", kind="openai")
    for turn in range(1, 4):
        assert tier.post(chat(turn, "gpt-5"), path=CHAT).status == 200
    assert tier.post(chat(4, "gpt-5", prompt_cache_key="mine"), path=CHAT).status == 200
    for system in ("t", "s"):
        other = chat(1, "gpt-5")
        other["messages"][0]["content"] = system * 500
        other["temperature"] = 0.5  # it is no hit
        assert tier.post(other, path=CHAT).status == 200
    keys = [call.body["prompt_cache_key"] for call in tier.provider.calls]
    assert keys == [keys[0]] * 3 + ["mine", keys[4], keys[0]]
    assert keys[0].startswith(KEY_PREFIX)
    assert keys[4].startswith(KEY_PREFIX)
    assert keys[4] != keys[0]
    (found,) = tier.proxy.proxy.features.get("prefix").tiers.values()
    assert len(found._families) == min(2, families)
    assert [request.charge.read > 0 for request in tier.provider.ledger] == [False, True, True, False, False, True]


@pytest.mark.parametrize("fields", [{"prompt_cache_options": {"mode": "implicit"}}, {"prompt_cache_key": "mine"}])
def test_a_caller_with_cache_options_of_openai_keeps_them(start_tier: StartTier, fields: dict[str, Any]) -> None:
    tier = start_tier("on", kind="openai")
    for turn in range(1, 6):
        assert tier.post(chat(turn, "gpt-5.6", **fields), path=CHAT).status == 200
        tier.clock.advance(100.0)
    assert all(call.body | fields == call.body for call in tier.provider.calls)


def test_responses_are_marked_and_learned_from(start_tier: StartTier) -> None:
    tier = start_tier("on", kind="openai")
    items: list[Any] = [{"role": "developer", "content": "s" * 500}]
    for turn in range(8):
        items = [*items, {"role": "user", "content": [{"type": "input_text", "text": f"turn {turn}".ljust(100, ".")}]}]
        body = {"model": "gpt-5.6", "input": items, "stream": turn % 2 == 1}
        assert tier.post(body, path="/v1/responses").status == 200
        items = [*items, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]
        items = [*items, {"type": "function_call_output", "call_id": "1", "output": f"result {turn}"}]
        tier.clock.advance(100.0)
    ledger = tier.provider.ledger
    assert [request.status for request in ledger] == [200] * 8
    reads = [request.charge.read for request in ledger[SURE + 2 :]]
    assert all(read > 0 for read in reads)
    assert [event.predicted for event in tier.prefix_events()[SURE + 2 :]] == reads
