"""The question of a request: its only short user text, and a frame of everything else."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.features.semantic.question import (
    MAX_CHARACTERS,
    Question,
    excluded,
    read_question,
    same_frame,
    stored_text,
)
from knapcache.keys import Keyer
from knapcache.keys.parse import ParsedBody
from knapcache.model import Endpoint

TEXT = "What is the capital of France?"
USER = {"role": "user", "content": TEXT}
SYSTEM = {"role": "system", "content": "Be brief."}


def chat(*messages: dict[str, Any], **options: Any) -> ParsedBody:
    return ParsedBody({"model": "m", "messages": [*messages] or [USER], **options})


def question(body: ParsedBody, endpoint: Endpoint = Endpoint.CHAT) -> Question:
    found = read_question(endpoint, body)
    assert isinstance(found, Question), found
    return found


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, chat()),
        (Endpoint.CHAT, chat(SYSTEM, USER)),
        (Endpoint.CHAT, chat({"role": "user", "content": [{"type": "text", "text": TEXT}]})),
        (Endpoint.CHAT, chat(temperature=0, n=1, logprobs=False, stream=True, tools=[])),
        (Endpoint.MESSAGES, ParsedBody({"model": "m", "system": "Be brief.", "messages": [USER], "max_tokens": 9})),
        (Endpoint.RESPONSES, ParsedBody({"model": "m", "input": TEXT, "instructions": "Be brief."})),
        (
            Endpoint.RESPONSES,
            ParsedBody({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]}),
        ),
    ],
)
def test_a_request_with_one_short_user_text_has_a_question(endpoint: Endpoint, body: ParsedBody) -> None:
    before = repr(body)
    found = question(body, endpoint)
    assert found.text == TEXT
    assert TEXT not in repr(found.frame)
    assert repr(body) == before


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (chat(USER, {"role": "assistant", "content": "Paris"}, USER), "several turns"),
        (chat(USER, USER), "several turns"),
        (chat(USER, {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "x"}), "tools"),
        (chat(SYSTEM), "no user text"),
        (chat({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}), "image or file"),
        (chat({"role": "user", "content": [{"type": "text", "text": TEXT}] * 2}), "several parts"),
        (chat({"role": "user", "content": None}), "several parts"),
        (chat(temperature=0.7), "temperature"),
        (chat(n=2), "n"),
        (chat(logprobs=True), "logprobs"),
        (chat(seed=7), "seed"),
        (chat(seed=0), "seed"),
        (chat(response_format={"type": "json_schema", "json_schema": {}}), "JSON schema"),
        (chat({"role": "user", "content": "word " * MAX_CHARACTERS}), "long text"),
        (ParsedBody({"model": "m", "messages": []}), "no conversation"),
        (ParsedBody({"model": "m"}), "no conversation"),
        (ParsedBody({"messages": [7]}), "no user text"),
    ],
)
def test_other_requests_have_none(body: ParsedBody, reason: str) -> None:
    assert read_question(Endpoint.CHAT, body) == reason


@pytest.mark.parametrize("endpoint", [Endpoint.EMBEDDINGS, Endpoint.COMPLETIONS])
def test_other_endpoints_have_none(endpoint: Endpoint) -> None:
    assert read_question(endpoint, chat()) == "endpoint"


def test_a_higher_temperature_is_allowed_by_its_setting() -> None:
    assert isinstance(read_question(Endpoint.CHAT, chat(temperature=0.7), 1.0), Question)


def test_a_schema_of_the_responses_api_has_none() -> None:
    body = ParsedBody({"input": TEXT, "text": {"format": {"type": "json_schema"}}})
    assert read_question(Endpoint.RESPONSES, body) == "JSON schema"


def test_frames_are_equal_only_if_nothing_but_the_text_differs() -> None:
    other = {"role": "user", "content": "Which city is the capital of France?"}
    assert question(chat(SYSTEM, USER)).frame == question(chat(SYSTEM, other)).frame
    for body in (
        chat(USER),
        chat({**SYSTEM, "content": "Be brief"}, USER),
        chat(SYSTEM, {**USER, "name": "x"}),
        chat(SYSTEM, USER, temperature=0),
        chat(SYSTEM, {"role": "user", "content": [{"type": "text", "text": TEXT}]}),
    ):
        assert question(chat(SYSTEM, USER)).frame != question(body).frame


def test_stored_requests_have_the_same_question_and_frame() -> None:
    def canonical(text: str, namespace: str = "a", **options: Any) -> bytes:
        body = chat(SYSTEM, {"role": "user", "content": text}, **options)
        read = Keyer(b"secret" * 6).read(Endpoint.CHAT, body, namespace=namespace, context={"upstream": "u"})
        return read.keys[0].canonical

    assert stored_text(canonical(TEXT)) == TEXT
    assert stored_text(b"other bytes") is None
    assert same_frame(canonical(TEXT), canonical("Which city is the capital of France?"))
    assert not same_frame(canonical(TEXT), canonical(TEXT, "b"))
    assert not same_frame(canonical(TEXT), canonical(TEXT, temperature=0))
    assert not same_frame(canonical(TEXT), b"other bytes")


EXCLUDED = [
    ("deixis", "Summarise this"),
    ("deixis", "What is wrong with the code below?"),
    ("deixis", "Translate the following into Dutch: good evening"),
    ("deixis", "As above, but shorter"),
    ("deixis", "Make your previous answer shorter"),
    ("deixis", "Here's my essay, how do you like it?"),
    ("date", "What's the weather in Rome tomorrow?"),
    ("date", "Is the museum open on Friday?"),
    ("date", "What happens next week?"),
    ("date", "What is on this weekend's programme?"),
    ("date", "Who won three days ago?"),
    ("code", "Why does it fail?\n```\nprint(1)\n```"),
    ("code", "Explain:\nfor i in range(3):\n    total = total + i\n"),
    ("language", "Wie hoch ist der Eiffelturm?"),
    ("language", "¿Cuál es la capital de Francia?"),
    ("language", "Quelle est la capitale de la France ?"),
    ("language", "Qual è la capitale della Francia?"),
    ("language", "Qual é a capital da França?"),
    ("language", "Wat is de hoofdstad van Frankrijk?"),
    ("language", "Vad är huvudstaden i Frankrike?"),
    ("language", "Jaka jest stolica Francji?"),
    ("language", "Fransa'nın başkenti neresi?"),
    ("language", "Какая столица Франции?"),
    ("language", "法国的首都是什么？"),
    ("language", "ما هي عاصمة فرنسا؟"),
]
ALLOWED = [
    "",
    "What is the capital of France?",
    "WHAT IS THE CAPITAL OF FRANCE?",
    "weather rome",
    "pto balance",
    "How cold is it at 3,000 metres above sea level?",
    "Is the museum open on Mondays?",
    "How many days are in a month?",
    "What happened on Friday 13 October 1307?",
    "Translate 'bonjour tout le monde' to English please",
    "Why do we dream?",
    "When was the last ice age?",
]


@pytest.mark.parametrize(("reason", "text"), [*EXCLUDED, *(("", text) for text in ALLOWED)])
def test_texts_whose_meaning_depends_on_more_than_their_words_are_excluded(reason: str, text: str) -> None:
    assert excluded(text) == reason
