"""Embeddings. Each item of `input` has its own entry: requests and answers are split into items and joined again.

    inputs(input)           the items of a request
    split(answer, inputs)   one answer an item, with its share of the tokens:   Σ shares = prompt_tokens of the answer
    join(payloads)          an answer with the vectors in the order of the request; its usage is the sum of the shares

Providers report tokens per answer, not per item, so they are shared out in proportion to the length of the texts. The
usage of a joined answer is exact if all its items came in one answer, and an estimate otherwise.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from knapcache.errors import Incomplete
from knapcache.model import Endpoint
from knapcache.wire.base import MAX_NAME, CompleteAnswer, Format, PerItem, read_object, to_json

VECTORS = (list, str, orjson.Fragment)
"""An embedding is a list of numbers, base64, or JSON text that was checked."""


def inputs(value: Any) -> list[Any]:
    """Return the items of `input`. A text or an array of tokens is one item; a list of these is several."""
    several = isinstance(value, list) and (not value or not isinstance(value[0], int))
    return list(value) if several else [value]


def check(answer: Mapping[str, Any]) -> None:
    """Raise Incomplete unless every item of a plain answer has an embedding."""
    data = answer.get("data")
    if not isinstance(data, list):
        raise Incomplete("data is not a list")
    for item in data:
        if not isinstance(item, dict) or not item.get("embedding") or not isinstance(item["embedding"], VECTORS):
            raise Incomplete("an item without an embedding")
        if type(item.get("index", 0)) is not int:
            raise Incomplete("the index of an item is not an integer")


def split(answer: Mapping[str, Any], items: Sequence[Any]) -> list[CompleteAnswer]:
    """Split the answer to these items into one answer an item, in their order, or raise Incomplete.

    The payload of an item is {"model", "item": {"object", "embedding"}, "usage"}.
    """
    check(answer)
    data = answer["data"]
    vectors = {
        item.get("index", place): {name: value for name, value in item.items() if name != "index"}
        for place, item in enumerate(data)
    }
    if len(data) != len(items) or set(vectors) != set(range(len(items))):
        raise Incomplete(f"{len(data)} embeddings for {len(items)} items, or their indices differ")
    model = answer.get("model") if len(str(answer.get("model"))) <= MAX_NAME else None
    usage = answer.get("usage")
    total = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    shares = share(total if isinstance(total, int) else 0, [max(1, len(item)) for item in items])
    found = []
    for index, tokens in enumerate(shares):
        used = {"prompt_tokens": tokens, "total_tokens": tokens}
        payload = to_json({"model": model, "item": vectors.pop(index), "usage": used})
        found.append(CompleteAnswer(body=payload, form="json", model=str(model or ""), usage=used))
    return found


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Return integer shares of the total, in proportion to the weights. Their sum is the total."""
    weight_sum, assigned, weight = sum(weights), 0, 0
    shares = []
    for w in weights:
        weight += w
        due = (2 * total * weight + weight_sum) // (2 * weight_sum)  # rounded to the nearest integer
        shares.append(due - assigned)
        assigned = due
    return shares


def join(payloads: Sequence[bytes]) -> bytes:
    """Join stored items into one answer, one by one: all of them may be millions of numbers."""
    found = io.BytesIO()
    found.write(b'{"object":"list","data":[')
    model, tokens = None, 0
    for index, payload in enumerate(payloads):
        item = read_object(payload)
        model = model if index else item["model"]
        tokens += item["usage"]["prompt_tokens"]
        found.write(b"," if index else b"")
        found.write(to_json({**item["item"], "index": index}))
    rest = to_json({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    found.write(b"]," + rest[1:])
    return found.getvalue()


FORMAT = Format(
    endpoint=Endpoint.EMBEDDINGS,
    suffixes=("embeddings",),
    operation="embeddings",
    check=check,
    per_item=PerItem(inputs=inputs, split=split, join=join),
)
