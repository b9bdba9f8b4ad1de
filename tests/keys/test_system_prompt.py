"""The digest of a system prompt is the same in every format of a request, and can be computed from a file."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from knapcache.keys.canonical import Keyer, RequestKeyer
from knapcache.keys.request import KeyedRequest
from knapcache.keys.system_prompt import system_digest, text_digest

TEXT = "You are a helpful clerk.\nAnswer in Norwegian: å."
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()[:16]
USER = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "system", "content": TEXT}, USER]},
        {"messages": [{"role": "developer", "content": TEXT}, USER]},
        {"messages": [USER, {"role": "system", "content": f"\n{TEXT}  \n"}]},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": TEXT}]}]},
        {"messages": [{"role": "system", "content": line} for line in TEXT.split("\n")]},
        {"messages": [{"role": "system", "content": TEXT.replace("\n", "\r\n")}]},
        {"system": TEXT, "messages": [USER]},
        {"system": [{"type": "text", "text": line, "cache_control": {}} for line in TEXT.split("\n")]},
        {"instructions": TEXT, "input": "Hello"},
        {"input": [{"role": "developer", "content": [{"type": "input_text", "text": TEXT}]}, USER]},
    ],
)
def test_every_format_has_the_digest_of_the_text(body: dict[str, Any]) -> None:
    assert system_digest(body) == text_digest(TEXT) == DIGEST
    keyed = RequestKeyer(Keyer(b"s" * 32), "").key("chat/completions", {"model": "m", **body}, None, None)
    assert isinstance(keyed, KeyedRequest)
    assert keyed.system == DIGEST


@pytest.mark.parametrize(
    "body",
    [
        {}, {"messages": [USER]}, {"system": None}, {"system": " \n"}, {"instructions": 5},
        {"messages": [{"role": "system", "content": None}, {"role": "system"}, "text", 7]},
        {"messages": [{"role": "system", "content": [{"type": "image"}, {"text": 3}, "text"]}]},
        {"prompt": TEXT}, {"input": ["one", [1, 2]]}, {"messages": {"role": "system"}},
    ],
)  # fmt: skip
def test_a_request_without_a_system_prompt_has_no_digest(body: dict[str, Any]) -> None:
    assert system_digest(body) == ""


def test_long_and_unusual_texts_have_digests() -> None:
    long = "word " * 10_000
    assert text_digest(long) == hashlib.sha256(long.strip().encode()).hexdigest()[:16]
    assert len(text_digest("\ud800")) == 16
