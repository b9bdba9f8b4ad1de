"""Whether the tier may give the answer of a stored request to another request, for `knapcache why`."""

from __future__ import annotations

from knapcache.features.semantic.question import read_question, stored_question
from knapcache.features.semantic.reasons import EXCLUSIONS, VETOES
from knapcache.features.semantic.vetoes import veto
from knapcache.features.semantic.words import read_words
from knapcache.keys.outline import read_canonical
from knapcache.model import Endpoint


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
    if reason := veto(read_words(asked.text), read_words(matched[1].text)):
        return f"none of the questions gets the answer of the other, because {VETOES[reason]}."
    return (
        "if the semantic tier is on and certified, the stored answer may be served: only the wording of the question "
        "differs."
    )
