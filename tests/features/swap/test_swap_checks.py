"""Checks of answers, on the formats of all endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.features.swap.checks import failed_check
from knapcache.features.swap.settings import CHECKS, check_names
from knapcache.model import Endpoint
from knapcache.wire.base import CompleteAnswer, to_json


def chat(text: str | None = "yes", reason: str = "stop", **message: Any) -> dict[str, Any]:
    content = {"role": "assistant", "content": text, **message}
    return {"choices": [{"index": 0, "finish_reason": reason, "message": content}]}


def check(answer: dict[str, Any], request: dict[str, Any] | None = None, endpoint: Endpoint = Endpoint.CHAT) -> str:
    return failed_check(CHECKS, endpoint, request or {}, CompleteAnswer(to_json(answer), "json", "m", None))


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (chat(), ""),
        (chat(""), "empty"),
        (chat("  \n"), "empty"),
        (chat(None), "empty"),
        (chat("half", "length"), "length"),
        (chat(None, "content_filter"), "refusal"),
        (chat(None, refusal="no"), "refusal"),
        (chat("I'm sorry, but I can't help with that."), "refusal"),
        (chat("I cannot answer this."), "refusal"),
        (chat("As an AI, I do not know."), "refusal"),
        (chat("Sorry is the hardest word."), ""),
        (chat("I can tell you that it is 5."), ""),
    ],
)
def test_chat(answer: dict[str, Any], failed: str) -> None:
    assert check(answer) == failed


def test_anthropic_and_responses() -> None:
    message = {"content": [{"type": "text", "text": "half"}], "stop_reason": "max_tokens"}
    assert check(message, endpoint=Endpoint.MESSAGES) == "length"
    assert check({"content": [], "stop_reason": "refusal"}, endpoint=Endpoint.MESSAGES) == "refusal"
    part = {"type": "refusal", "refusal": "no"}
    response = {"status": "completed", "output": [{"type": "message", "content": [part]}]}
    assert check(response, endpoint=Endpoint.RESPONSES) == "refusal"
    text = {"type": "message", "content": [{"type": "output_text", "text": "half"}]}
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [text]}
    assert check(cut, endpoint=Endpoint.RESPONSES) == "length"
    assert check(cut | {"incomplete_details": None}, endpoint=Endpoint.RESPONSES) == ""


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["a", "b"]}}}


@pytest.mark.parametrize(
    ("form", "text", "failed"),
    [
        ({"type": "text"}, "no JSON", ""),
        ({"type": "json_object"}, "no JSON", "json"),
        ({"type": "json_object"}, "{}", ""),
        (SCHEMA, '{"a": 1}', "json"),
        (SCHEMA, '["a", "b"]', "json"),
        (SCHEMA, '{"a": 1, "b": null}', ""),
    ],
)
def test_prescribed_json(form: dict[str, Any], text: str, failed: str) -> None:
    assert check(chat(text), {"response_format": form}) == failed
    nested = {"type": form["type"], **form.get("json_schema", {})}
    assert check(chat(text), {"text": {"format": nested}}) == failed
    assert check(chat(text), {"output_config": {"format": nested}}) == failed
    assert check(chat(text), {"output_format": nested}) == failed


def test_only_the_checks_of_the_settings_count() -> None:
    complete = CompleteAnswer(to_json(chat("half", "length")), "json", "m", None)
    assert failed_check(("refusal",), Endpoint.CHAT, {}, complete) == ""
    for incomplete in (None, CompleteAnswer(b"{", "json", "m", None), CompleteAnswer(b"data: {\n\n", "sse", "m", None)):
        assert failed_check(("refusal",), Endpoint.CHAT, {}, incomplete) == "refusal"
        assert failed_check((), Endpoint.CHAT, {}, incomplete) == ""


def with_logprobs(*values: float) -> dict[str, Any]:
    answer = chat()
    answer["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": value} for value in values]}
    return answer


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (with_logprobs(-0.2, -0.6), ""),
        (with_logprobs(-0.2, -1.0), "logprob:-0.5"),
        (with_logprobs(), ""),
        (chat(), ""),
    ],
)
def test_a_mean_log_probability_below_the_bound_fails(answer: dict[str, Any], failed: str) -> None:
    complete = CompleteAnswer(to_json(answer), "json", "m", None)
    assert failed_check(("empty", "logprob:-0.5"), Endpoint.CHAT, {}, complete) == failed


@pytest.mark.parametrize("names", [("logprob:0",), ("logprob:x",), ("logprob:-inf",), ("logprob:-1", "logprob:-2")])
def test_a_bound_that_is_no_number_below_zero_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="one number below 0 such as logprob"):
        check_names(names)
