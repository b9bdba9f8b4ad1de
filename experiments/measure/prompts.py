"""Which prompts, and how long their answers are.

The prompts file holds 350 OpenAssistant prompts, each with the lengths in characters of 194 to 702 answers that
were really sampled for it (the sampling reports of Open-Assistant/oasst-model-eval). From it

    prompts         100 of the 350, at random (seed 0)
    answers         20 of a prompt's answers, at random, none twice: every length is that of an answer somebody got
    tokens          ⌈characters/4⌉ + 1 for the end mark, T5's tokenizer not being at hand; at most 512

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
LONGEST = 512


@dataclass(frozen=True)
class SampledCall:
    """A call to be timed."""

    prompt: int
    sample: int
    prompt_tokens: int
    answer_tokens: int
    text: str


def tokens(characters: int) -> int:
    """⌈characters/4⌉ + 1, at most 512."""
    return min(LONGEST, -(-characters // CHARACTERS_PER_TOKEN) + 1)


def draw(path: Path, prompts: int = 100, samples: int = 20, seed: int = 0) -> list[SampledCall]:
    """The calls, prompt by prompt."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        known = [json.loads(line) for line in lines]
    rng = random.Random(seed)
    picked = sorted(rng.sample(known, prompts), key=lambda p: int(p["id"]))
    return [
        SampledCall(p["id"], k, tokens(len(p["prompt"])), tokens(characters), p["prompt"])
        for p in picked
        for k, characters in enumerate(rng.sample(p["answer_chars"], samples))
    ]


if __name__ == "__main__":
    print("prompt,sample,prompt_tokens,answer_tokens")
    for call in draw(Path(sys.argv[1])):
        print(call.prompt, call.sample, call.prompt_tokens, call.answer_tokens, sep=",")
