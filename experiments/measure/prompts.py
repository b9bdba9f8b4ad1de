"""Choice of prompts and answer lengths for the measurements.

The prompts file has 350 OpenAssistant prompts, each with the lengths in characters of 194 to 702 answers sampled for it
(the sampling reports of Open-Assistant/oasst-model-eval). From it are drawn

    prompts         100 of the 350, at random (seed 0)
    answers         20 answer lengths per prompt, at random without replacement
    tokens          ⌈characters/4⌉ + 1 for the end token, because T5's tokenizer is not available; at most 512

Only ids and numbers are printed:

    python -m measure.prompts oasst_prompts.jsonl.gz > calls.csv
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

CHARACTERS_PER_TOKEN = 4
MAX_TOKENS = 512


@dataclass(frozen=True)
class SampledCall:
    """A call to time: prompt, sample number, lengths in tokens, text of the prompt."""

    prompt: int
    sample: int
    prompt_tokens: int
    answer_tokens: int
    text: str


def token_count(characters: int) -> int:
    """Return ⌈characters/4⌉ + 1, at most 512."""
    return min(MAX_TOKENS, -(-characters // CHARACTERS_PER_TOKEN) + 1)


def draw(path: Path, prompts: int = 100, samples: int = 20, seed: int = 0) -> list[SampledCall]:
    """Draw the calls, grouped by prompt."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        known = [json.loads(line) for line in lines]
    rng = random.Random(seed)
    picked = sorted(rng.sample(known, prompts), key=lambda p: int(p["id"]))
    return [
        SampledCall(p["id"], k, token_count(len(p["prompt"])), token_count(characters), p["prompt"])
        for p in picked
        for k, characters in enumerate(rng.sample(p["answer_chars"], samples))
    ]


if __name__ == "__main__":
    print("prompt,sample,prompt_tokens,answer_tokens")
    for call in draw(Path(sys.argv[1])):
        print(call.prompt, call.sample, call.prompt_tokens, call.answer_tokens, sep=",")
