"""Checks of an answer of the cheaper model. One that fails sends the request on to the asked model.

empty     there is no text
length    the answer was cut off at a limit of tokens
refusal   the provider says so, or the text begins with a refusal
json      the request prescribes JSON, and the answer is none, or does not fit the schema (json_schema.py)
logprob   the mean log probability of its tokens is below a bound. The proxy asks the cheaper model for it, in chats; an
          answer without it passes
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from knapcache.errors import Incomplete
from knapcache.features.swap.json_schema import fits
from knapcache.features.swap.settings import is_logprob, least_logprob
from knapcache.model import Endpoint
from knapcache.wire.answer_text import answer_text
from knapcache.wire.base import CompleteAnswer, read_object
from knapcache.wire.registry import FORMATS

CUT_OFF = frozenset(("length", "max_tokens", "max_output_tokens"))
REFUSED = frozenset(("refusal", "content_filter"))
_REFUSAL = re.compile(
    r"\W*(?:(?:i['’]?m|i am) (?:very |really |so )?(?:sorry|afraid)\b|sorry,? (?:but )?i\b"
    r"|i (?:can['’]?t|can ?not|won['’]?t|am unable to|['’]m unable to|must decline)\b"
    r"|i['’]m (?:not able|unable) to\b|unfortunately,? i (?:can|am)\b|as an ai\b)",
    re.IGNORECASE,
)


def asks_logprobs(names: tuple[str, ...], endpoint: Endpoint) -> bool:
    """Return whether the cheaper model is asked for log probabilities."""
    return endpoint is Endpoint.CHAT and least_logprob(names) is not None


def failed_check(
    names: tuple[str, ...], endpoint: Endpoint, request: Mapping[str, Any], answer: CompleteAnswer | None
) -> str:
    """Return the first check that an answer fails; empty: none. An answer that is not complete (None) fails any."""
    if answer is None:
        return names[0] if names else ""
    try:
        plain = read_object(FORMATS[endpoint].to_plain(answer.body, answer.form))
    except Incomplete:
        return names[0] if names else ""
    text, reasons = answer_text(endpoint, answer.body, answer.form), set(end_reasons(plain))
    failed = {
        "empty": text is None and not reasons & REFUSED,
        "length": bool(reasons & CUT_OFF),
        "refusal": bool(reasons & REFUSED) or (text is not None and _REFUSAL.match(text) is not None),
        "json": not is_prescribed_json(request, text),
    }
    if (least := least_logprob(names)) is not None and mean_logprob(plain) < least:
        failed |= {name: True for name in names if is_logprob(name)}
    return next((name for name in names if failed.get(name)), "")


def mean_logprob(answer: Mapping[str, Any]) -> float:
    """Return the mean log probability of the tokens of a chat's answer; 0 if it has none."""
    found = [
        token["logprob"]
        for choice in objects(answer.get("choices"))
        if isinstance(choice.get("logprobs"), Mapping)
        for token in objects(choice["logprobs"].get("content"))
        if isinstance(token.get("logprob"), int | float)
    ]
    return sum(found) / len(found) if found else 0.0


def end_reasons(answer: Mapping[str, Any]) -> list[str]:
    """Return the reasons for which an answer ended, in all formats; `refusal` if a part of it is one."""
    found = [answer.get("stop_reason")]
    details = answer.get("incomplete_details")
    if isinstance(details, Mapping):
        found.append(details.get("reason"))
    for choice in objects(answer.get("choices")):
        found.append(choice.get("finish_reason"))
        message = choice.get("message")
        if isinstance(message, Mapping) and message.get("refusal"):
            found.append("refusal")
    for item in objects(answer.get("output")):
        found += ["refusal" for part in objects(item.get("content")) if part.get("type") == "refusal"]
    return [reason for reason in found if isinstance(reason, str)]


def is_prescribed_json(request: Mapping[str, Any], text: str | None) -> bool:
    """Return whether an answer is JSON that fits the schema of the request, if the request prescribes JSON."""
    form = prescribed_form(request)
    if form.get("type") not in ("json_object", "json_schema"):
        return True
    try:
        value = orjson.loads(text or "")
    except ValueError:
        return False
    inner = form.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else form.get("schema")
    return fits(value, schema)


def prescribed_form(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the form of the answer that a request prescribes, in all formats; empty: none."""
    nested = [request.get("text"), request.get("output_config")]
    forms = [request.get("response_format"), request.get("output_format")]
    forms += [each.get("format") for each in nested if isinstance(each, Mapping)]
    return next((form for form in forms if isinstance(form, Mapping)), {})


def objects(values: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list; none if it is not a list."""
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []
