"""Embeddings, kept per item of `input`: a request is taken apart into items, an answer put together from them.

    items(body) = the requests, one an item, whose keys are those of `match`
    parts(answer, n) = the n vectors, each with its share of the tokens:   Σ shares = prompt_tokens of the answer
    join(parts) = an answer whose vectors are in the order asked for, and whose usage is the sum of theirs

How many tokens an item had the provider does not say; they are shared out by length of text. So the usage of an answer
that is put together is exact where all its items came in one, and an estimate otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from knapcache.errors import Incomplete
from knapcache.wire.json_util import compact, read_object


class Part(NamedTuple):
    """One vector, as it is kept."""

    payload: bytes
    """{"model", "item": {"object", "embedding"}, "usage"}."""
    model: str
    usage: dict[str, int]


def items(given: Any) -> list[Any]:
    """The items of `input`: a text and an array of tokens are one item, a list of such is several."""
    several = isinstance(given, list) and (not given or not isinstance(given[0], int))
    return list(given) if several else [given]


def parts(answer: Mapping[str, Any], inputs: Sequence[Any]) -> list[Part]:
    """The vectors of an answer to these items, in their order, or Incomplete."""
    data = answer.get("data")
    if not isinstance(data, list) or len(data) != len(inputs):
        raise Incomplete(f"not {len(inputs)} embeddings")
    vectors: dict[int, dict[str, Any]] = {}
    for place, item in enumerate(data):
        if not isinstance(item, dict) or not item.get("embedding") or not isinstance(item["embedding"], (list, str)):
            raise Incomplete("an item without an embedding")
        vectors[item.get("index", place)] = {name: value for name, value in item.items() if name != "index"}
    if set(vectors) != set(range(len(inputs))):
        raise Incomplete("embeddings whose indices are not those of the inputs")
    model = str(answer.get("model") or "")
    usage = answer.get("usage")
    total = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    shares = share(total if isinstance(total, int) else 0, [max(1, len(item)) for item in inputs])
    found = []
    for index, tokens in enumerate(shares):
        used = {"prompt_tokens": tokens, "total_tokens": tokens}
        kept = {"model": answer.get("model"), "item": vectors[index], "usage": used}
        found.append(Part(compact(kept), model, used))
    return found


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares in proportion to the weights that add up to the total."""
    whole, given, weight = sum(weights), 0, 0
    shares = []
    for w in weights:
        weight += w
        due = (2 * total * weight + whole) // (2 * whole)  # to the nearest
        shares.append(due - given)
        given = due
    return shares


def join(payloads: Sequence[bytes]) -> bytes:
    """The answer that these items make."""
    kept = [read_object(payload) for payload in payloads]
    tokens = sum(part["usage"]["prompt_tokens"] for part in kept)
    return compact(
        {
            "object": "list",
            "data": [{**part["item"], "index": index} for index, part in enumerate(kept)],
            "model": kept[0]["model"] if kept else None,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )
