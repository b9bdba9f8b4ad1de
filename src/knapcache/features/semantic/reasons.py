"""Why the semantic tier does not match a request, and for `knapcache why` whether it may, in plain words.

Apart from explanation.py, whose imports take seconds.
"""

from __future__ import annotations

from knapcache.features.semantic.differences import veto
from knapcache.features.semantic.question import read_question, stored_question
from knapcache.features.semantic.words import read_words
from knapcache.keys.outline import read_canonical
from knapcache.model import Endpoint

EXCLUSIONS = {
    "endpoint": "requests of this endpoint are never matched",
    "temperature": "its temperature is above semantic_temperature, which is 0 by default",
    "n": "it asks for several answers (n)",
    "logprobs": "it asks for log probabilities",
    "seed": "it sets a seed",
    "JSON schema": "it asks for an answer by a JSON schema",
    "several turns": "the conversation has several turns",
    "tools": "it continues a call of a tool",
    "several parts": "its text has several parts",
    "image or file": "it contains an image or a file",
    "long text": "its text is too long",
    "deixis": "its text refers to something outside of it, such as “this”",
    "date": "its text has a date that is relative to now",
    "code": "its text contains code",
    "language": "its text is not in English",
    "no key": "it has no key without its text",
    "no conversation": "it has no conversation",
    "no user text": "its last message is not the user's",
}
"""By the reasons of question.py."""
VETOES = {
    "number": "they have different numbers",
    "unit": "they have different units",
    "date": "they have different dates",
    "negation": "one of them negates, or has an opposite word",
    "quotation": "they quote different texts",
    "code": "they have different code words",
    "name": "they have different names",
    "modality": "one asks what must or will be, the other what may or did",
    "order": "their words have another order",
    "word": "a word stands where the other has another one",
}
"""By the names of `differences.veto`."""


def may_serve_text(requests: list[bytes], stored: bytes) -> str:
    """Return whether the semantic tier may serve the answer of a stored request to one of the others, in words."""
    there = read_canonical(stored)
    here = next((one for one in map(read_canonical, requests) if one and there and one.kind == there.kind), None)
    if here is None:
        return "the two requests are for different endpoints."
    asked = read_question(Endpoint(here.kind), here.body)
    if isinstance(asked, str):
        return f"this request is never matched: {EXCLUSIONS.get(asked, asked)}."
    matched = stored_question(stored)
    if matched is None or matched[1].frame != asked.frame:
        return "the two requests differ in more than the question, so none gets the answer of the other."
    reason = veto(read_words(asked.text), read_words(matched[1].text))
    if reason not in ("", "word"):
        return f"none of the questions gets the answer of the other, because {VETOES[reason]}."
    return (
        "if the semantic tier is on and certified, and labels allow the words that differ, the stored answer may be "
        "served: only the wording of the question differs."
    )
