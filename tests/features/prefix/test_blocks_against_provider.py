"""Block ids and marks of the proxy against the fake provider's reading of the same bodies, which shares no code."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knapcache.features.prefix.blocks import read_blocks
from knapcache.features.prefix.marks import with_marks, with_ttl
from knapcache.keys.parse import parse_body
from knapcache.model import Endpoint
from knapcache.testing.prefix_provider.prompt import PromptBlock, anthropic_prompt, openai_prompt
from tests.support.examples import examples
from tests.support.marked_bodies import BODIES, without_marks

Body = dict[str, Any]


def provider_blocks(shape: str, body: Body) -> list[PromptBlock]:
    prompt = anthropic_prompt if shape == Endpoint.MESSAGES else openai_prompt
    return prompt(body, len)


def check_same_prefixes(shape: str, first: Body, second: Body) -> None:
    """Two prefixes have equal ids if and only if they are the same for the provider."""
    ours = [read_blocks(shape, body, "seed") for body in (first, second)]
    theirs = [provider_blocks(shape, body) for body in (first, second)]
    assert ours[0] is not None
    assert ours[1] is not None
    assert [len(each.ids) for each in ours if each] == [len(each) for each in theirs]
    for ours_id, their in zip(ours[0].ids, theirs[0], strict=True):
        same = [their.digest == other.digest for other in theirs[1]]
        assert [ours_id == other for other in ours[1].ids] == same


def check_marks(shape: str, body: Body, chosen: list[int], ttls: list[float]) -> None:
    """The provider accepts marks on blocks that can carry one, finds them there, and sees the same prefixes."""
    found = read_blocks(shape, body, "seed")
    assert found is not None
    places = [at for at in sorted(set(chosen)) if at < len(found.ids) and found.markable[at]][:4]
    before = copy.deepcopy(body)
    marks = dict(zip(places, sorted(ttls, reverse=True), strict=False))
    marked = provider_blocks(shape, with_marks(shape, body, marks.items()))
    assert body == before
    assert [at for at, each in enumerate(marked) if each.ttl] == places
    if shape == Endpoint.MESSAGES:
        assert {at: each.ttl for at, each in enumerate(marked) if each.ttl} == marks
    assert [each.digest for each in marked] == [each.digest for each in provider_blocks(shape, body)]


TTLS = st.lists(st.sampled_from([300.0, 3600.0]), min_size=4, max_size=4)
CHOSEN = st.lists(st.integers(0, 9), max_size=6)
FEW = settings(max_examples=examples(30, 100), suppress_health_check=[HealthCheck.too_slow])


@given(BODIES[Endpoint.MESSAGES], BODIES[Endpoint.MESSAGES], CHOSEN, TTLS)
@FEW
def test_messages(first: Body, second: Body, chosen: list[int], ttls: list[float]) -> None:
    check_same_prefixes(Endpoint.MESSAGES, first, second)
    check_same_prefixes(
        Endpoint.MESSAGES, first, {**second, **{k: first[k] for k in ("tools", "system") if k in first}}
    )
    check_same_prefixes(Endpoint.MESSAGES, first, {**first, "messages": first["messages"] + second["messages"]})
    check_marks(Endpoint.MESSAGES, first, chosen, ttls)


@given(BODIES[Endpoint.CHAT], BODIES[Endpoint.CHAT], CHOSEN, TTLS)
@FEW
def test_chat(first: Body, second: Body, chosen: list[int], ttls: list[float]) -> None:
    check_same_prefixes(Endpoint.CHAT, first, second)
    check_same_prefixes(Endpoint.CHAT, first, {**first, "messages": first["messages"] + second["messages"]})
    check_marks(Endpoint.CHAT, first, chosen, ttls)


def test_marks_of_a_parsed_body_are_changed_and_removed() -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    body = {"model": "claude-sonnet-4-6", "messages": [{"role": "user", "content": [marked]}]}
    parsed = parse_body(json.dumps(body).encode())
    assert [each.ttl for each in anthropic_prompt(with_ttl(Endpoint.MESSAGES, parsed, 3600.0), len)] == [3600.0]
    assert [each.ttl for each in anthropic_prompt(without_marks(Endpoint.MESSAGES, parsed), len)] == [0.0]
    assert parsed == body
