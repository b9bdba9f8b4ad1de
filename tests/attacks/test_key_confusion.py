"""Two requests that mean different things never share an answer. Answers carry the number of their upstream request.

tests/keys compares the keys of all kinds of bodies. Here are a few of them, and all that is outside of the body.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from tests.attacks.conftest import Connect
from tests.support.raw_client import CHAT, message
from tests.support.recording_upstream import RecordingUpstream

NONCES = itertools.count(1)
GATEWAY_HEADERS = [
    "Api-Key", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "Cf-Aig-Authorization", "Helicone-Auth",
    "X-Portkey-Api-Key", "X-Portkey-Virtual-Key", "X-Litellm-Api-Key", "X-Amz-Security-Token", "Proxy-Authorization",
]  # fmt: skip
"""Credentials beside `Authorization`: of providers, and of gateways between callers and providers."""


class Variant(NamedTuple):
    """A request: its body after the opening brace, its headers and its target."""

    rest: str = '"messages":[{"role":"user","content":"$"}]}'
    headers: tuple[str, ...] = ()
    target: str = CHAT
    key: str = "k"

    def encoded(self, nonce: str) -> bytes:
        """Return its bytes. `$` in the body is replaced, so that no other test asks the same."""
        body = ('{"model":"m",' + self.rest.replace("$", nonce)).encode("utf-8", "surrogatepass")
        fixed = [f"Authorization: Bearer {self.key}"] if self.key else []
        fixed.append("Content-Type: application/json")
        return message(f"POST {self.target} HTTP/1.1", *fixed, *self.headers, body=body)


def content(value: str) -> Variant:
    return Variant(f'"messages":[{{"role":"user","content":{value}}}]}}')


def field(text: str) -> Variant:
    return Variant(f'"messages":[{{"role":"user","content":"$"}}],{text}}}')


def seed(number: str) -> Variant:
    return field(f'"seed":{number}')


def header(*lines: str) -> Variant:
    return Variant(headers=lines)


DIFFERENT: dict[str, tuple[Variant, Variant]] = {
    "composed and decomposed letters": (content('"$ \u00e9"'), content('"$ e\u0301"')),
    "zero-width space": (content('"$a"'), content('"$\u200ba"')),
    "byte order mark in text": (content('"$"'), content('"\ufeff$"')),
    "escaped NUL": (content('"$"'), content('"$\\u0000"')),
    "2^53 and 2^53 + 1": (seed("9007199254740992"), seed("9007199254740993")),
    "1 and true": (seed("1"), seed("true")),
    "null and absent": (seed("null"), field('"n":1')),
    "order of a list": (seed("[1,2]"), seed("[2,1]")),
    "a value that looks like the end of the body": (field('"a":"x\\",\\"b\\":\\"y"'), field('"a":"x","b":"y"')),
    "model in another case": (Variant('"messages":[{"role":"user","content":"$"}]}'), field('"model2":"M"')),
    "role": (content('"$"'), Variant('"messages":[{"role":"system","content":"$"}]}')),
    "one message or two": (
        content('"$"'),
        Variant('"messages":[{"role":"user","content":"x"},{"role":"user","content":"$"}]}'),
    ),
    "ignored name deeper in the body": (
        Variant('"messages":[{"role":"user","content":"$","user":"a"}]}'),
        Variant('"messages":[{"role":"user","content":"$","user":"b"}]}'),
    ),
    "query": (Variant(), Variant(target=CHAT + "?api-version=1")),
    "two queries": (Variant(target=CHAT + "?api-version=1"), Variant(target=CHAT + "?api-version=2")),
    "empty query": (Variant(target=CHAT + "?a"), Variant(target=CHAT + "?a=")),
    "encoded query": (Variant(target=CHAT + "?a=1%262"), Variant(target=CHAT + "?a=1&2")),
    "anthropic-version": (header("Anthropic-Version: 1"), header("Anthropic-Version: 2")),
    "anthropic-version and none": (Variant(), header("Anthropic-Version: 2")),
    "anthropic-beta": (header("Anthropic-Beta: a"), header("Anthropic-Beta: b")),
    "anthropic-beta twice": (header("Anthropic-Beta: b"), header("Anthropic-Beta: a", "Anthropic-Beta: b")),
    "openai-beta": (header("OpenAI-Beta: a"), header("OpenAI-Beta: b")),
    "API key": (Variant(), Variant(key="other")),
    "organisation": (header("OpenAI-Organization: a"), header("OpenAI-Organization: b")),
    "project": (header("OpenAI-Project: a"), header("OpenAI-Project: b")),
    "x-api-key": (header("X-Api-Key: a"), header("X-Api-Key: b")),
    **{name: (header(f"{name}: a"), header(f"{name}: b")) for name in GATEWAY_HEADERS},
    "a gateway's key and none": (Variant(), header("Ocp-Apim-Subscription-Key: a")),
    "a gateway's key alone": (
        Variant(headers=("Ocp-Apim-Subscription-Key: a",), key=""),
        Variant(headers=("Ocp-Apim-Subscription-Key: b",), key=""),
    ),
    "two gateways": (header("X-Portkey-Api-Key: a"), header("X-Portkey-Virtual-Key: a")),
    "key in the query": (Variant(target=CHAT + "?key=a"), Variant(target=CHAT + "?key=b")),
    "namespace in the body": (field('"cache":{"namespace":"a"}'), field('"cache":{"namespace":"b"}')),
    "endpoint": (Variant('"prompt":"$"}', target="/v1/completions"), Variant('"prompt":"$"}')),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_requests_get_different_answers(
    pair: tuple[Variant, Variant], connect: Connect, upstream: RecordingUpstream
) -> None:
    client, nonce = connect(), f"nonce-{next(NONCES)}"
    sent = [variant.encoded(nonce) for variant in pair]
    answers = client.send(*sent, *sent, *sent).responses(6)  # a miss each, then hits, then hits of the fast path
    assert [answer.status for answer in answers] == [200] * 6
    ids = [answer.json()["id"] if "id" in answer.json() else answer.json()["serial"] for answer in answers]
    assert set(ids[0::2]).isdisjoint(ids[1::2])
    assert len(upstream.requests) >= 2


SAME: dict[str, tuple[Variant, Variant]] = {
    "white space": (content('"$"'), content(' \t"$"\n')),
    "escapes": (content('"$ \u00e9"'), content('"$ \\u00e9"')),
    "order of fields": (field('"a":1,"b":2'), field('"b":2,"a":1')),
    "1 and 1.0": (seed("1"), seed("1.0")),
    "user": (field('"user":"a"'), field('"user":"b"')),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME.keys())
def test_equal_requests_share_an_answer(
    pair: tuple[Variant, Variant], connect: Connect, upstream: RecordingUpstream
) -> None:
    """The positive control: the test above would also pass if nothing were cached."""
    client, nonce = connect(), f"nonce-{next(NONCES)}"
    answers = client.send(*(variant.encoded(nonce) for variant in pair)).responses(2)
    assert [answer.outcome for answer in answers] == ["miss", "hit"]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert len(upstream.requests) == 1


def test_streams_and_plain_answers_of_different_requests_do_not_mix(
    connect: Connect, upstream: RecordingUpstream
) -> None:
    client = connect()
    texts = [f"mix {next(NONCES)}" for _ in range(4)]
    for stream in ("true", "false", "true"):
        for text in texts:
            answer = client.send(content(f'"{text}"')._replace(rest=field(f'"stream":{stream}').rest).encoded(text))
            (response,) = answer.responses(1)
            assert text.split()[1] in response.body.decode()
    assert len(upstream.requests) == 4
