"""Response headers that say how the cache served a request. Every response gets them from here.

    x-knapcache             the outcome: hit, similar, miss, coalesced, stale, bypass or passthrough
    cache-status            the outcome in the terms of RFC 9211; none for `passthrough`, which never reached the cache
    x-knapcache-key         the digest of the key, in hex
    x-knapcache-matched-key, x-knapcache-similarity, x-knapcache-bound, x-knapcache-match    of an answer to a similar
                            question: the entry that answered, the cosine of the two questions, the certified share of
                            wrong answers, and the id of the match for feedback
    age                     seconds since the answer was fetched
    x-knapcache-saved-usd   US dollars not spent because the answer was stored, if its price is known; otherwise
    x-knapcache-saved-seconds, x-knapcache-saved-tokens    upstream time and tokens not needed
    x-knapcache-prices      simulated: the dollars are of the embedded model, which is free; its price is made up

    x-knapcache-model       the model that answered, if it is not the one that was asked for

The proxy adds `x-knapcache-upstream`, the name of the upstream, to answers that it has fetched. The saved amounts are
sent with answers that were not paid for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knapcache.cache import Answer
from knapcache.cache.values import EMPTY, SimilarMatch
from knapcache.price.meter import Bill

Pairs = list[tuple[str, str]]

CACHE_STATUS = {
    "hit": "knapcache; hit",
    "stale": "knapcache; hit",
    "similar": "knapcache; hit; detail=similar",
    "coalesced": "knapcache; fwd=miss; collapsed",
    "miss": "knapcache; fwd=miss",
    "bypass": "knapcache; fwd=bypass",
}
REUSED = ("hit", "stale", "coalesced", "similar")


def outcome_headers(outcome: str, *, forwarded: bool = True) -> Pairs:
    """Return the headers of a response without an answer of the cache. forwarded=False: no upstream was asked."""
    if not forwarded or outcome not in CACHE_STATUS:
        return [("x-knapcache", outcome)]
    return [("x-knapcache", outcome), ("cache-status", CACHE_STATUS[outcome])]


def cache_headers(answer: Answer) -> Pairs:
    """Return the headers of an answer."""
    headers = [*outcome_headers(answer.outcome), ("x-knapcache-key", answer.key)]
    if answer.similar is not None:
        headers += similar_headers(answer.similar)
    if answer.outcome in REUSED:
        headers.append(("age", str(int(answer.age))))
        if answer.saved_usd is not None:
            headers.append(("x-knapcache-saved-usd", f"{answer.saved_usd:.8f}"))
            if "embedded" in answer.meta:
                headers.append(("x-knapcache-prices", "simulated"))
        else:
            headers.append(("x-knapcache-saved-seconds", f"{answer.bill.seconds:.3f}"))
            headers.append(("x-knapcache-saved-tokens", str(answer.bill.tokens)))
        if "fallback" in answer.meta:
            headers.append(("x-knapcache-model", answer.meta["fallback"]))
    return headers


def similar_headers(match: SimilarMatch) -> Pairs:
    """Return the headers of an answer to a similar question."""
    return [
        ("x-knapcache-matched-key", match.key.hex()),
        ("x-knapcache-similarity", f"{match.similarity:.4f}"),
        ("x-knapcache-bound", f"{match.bound:.4f}"),
        ("x-knapcache-match", match.match_id),
    ]


def hit_header_lines(
    key: str, usd: float | None, seconds: float, tokens: int, meta: Mapping[str, Any] = EMPTY
) -> tuple[bytes, bytes]:
    """Return `cache_headers` of a hit as encoded header lines: up to its age, and after it. Only the age changes."""
    bill = Bill(usd, seconds, 0.0, "stored", tokens)
    answer = Answer(payload=b"", meta=meta, outcome="hit", key=key, age=0.0, saved_usd=usd, model="", bill=bill)
    text = "".join(f"{name}: {value}\r\n" for name, value in cache_headers(answer))
    before, name, after = text.partition("age: ")
    return (before + name).encode(), after.removeprefix("0").encode()
