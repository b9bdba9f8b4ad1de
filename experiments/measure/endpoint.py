"""Latency of any OpenAI-compatible endpoint: a provider, a server on this machine, knapcache itself with nothing kept.

Calls go out one at a time, at temperature 1, in random order; what each took is the wall clock around the whole
exchange, and its tokens are those the endpoint reports in `usage`. Every call is written as it is made, so a run
that was cut short goes on where it stopped when started again. Only ids and numbers are written, no texts.

    python -m measure.endpoint URL TIMES.csv --prompts oasst_prompts.jsonl.gz --model NAME --hardware "one core of …"

URL is what stands before /chat/completions, such as http://127.0.0.1:8080/v1. A key is read from OPENAI_API_KEY.
The endpoint must not answer from a cache: every call has to reach the model.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure.prompts import SampledCall, draw

COLUMNS = ("prompt", "sample", "prompt_tokens", "answer_tokens", "seconds")


def ask(url: str, request: dict[str, Any], timeout: float) -> tuple[float, int, int]:
    """One call: seconds, tokens of the prompt, tokens of the answer."""
    head = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        head["Authorization"] = f"Bearer {key}"
    sent = urllib.request.Request(f"{url.rstrip('/')}/chat/completions", json.dumps(request).encode(), head)
    began = time.perf_counter()
    with urllib.request.urlopen(sent, timeout=timeout) as reply:
        answer = json.load(reply)
    seconds = time.perf_counter() - began
    usage = answer["usage"]
    return seconds, int(usage["prompt_tokens"]), int(usage["completion_tokens"])


def made_before(times: Path) -> set[tuple[int, int]]:
    """Prompt and sample of the calls that a table already has."""
    if not times.exists():
        return set()
    lines = [line for line in times.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {(int(r["prompt"]), int(r["sample"])) for r in csv.DictReader(lines)}


def begin(times: Path, about: dict[str, str]) -> None:
    """A new table: what was measured, on what, when and how."""
    comments = "".join(f"# {name}: {' '.join(text.split())}\n" for name, text in about.items())
    times.write_text(f"{comments}{','.join(COLUMNS)}\n", encoding="utf-8")


def measure(
    url: str, times: Path, calls: Iterable[SampledCall], request: dict[str, Any], timeout: float = 600.0
) -> int:
    """Make the calls that the table does not have yet; how many."""
    done, made = made_before(times), 0
    for call in calls:
        if (call.prompt, call.sample) in done:
            continue
        asked = {**request, "messages": [{"role": "user", "content": call.text}], "temperature": 1}
        seconds, prompt_tokens, answer_tokens = ask(url, asked, timeout)
        with times.open("a", encoding="utf-8") as table:
            table.write(f"{call.prompt},{call.sample},{prompt_tokens},{max(1, answer_tokens)},{seconds:.6f}\n")
        made += 1
    return made


def main(arguments: list[str] | None = None) -> None:
    """Read the prompts, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("times", type=Path, help="CSV to write, or to go on with")
    parser.add_argument("--prompts", type=Path, required=True, help="oasst_prompts.jsonl.gz")
    parser.add_argument("--model", required=True, help="model to ask for; also written into the table")
    parser.add_argument("--hardware", required=True, help="what it runs on, for the table")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer (default: 512)")
    parser.add_argument("--queries", type=int, default=100, help="prompts, of the 350 (default: 100)")
    parser.add_argument("--samples", type=int, default=20, help="calls a prompt (default: 20)")
    parser.add_argument("--limit", type=int, help="stop after so many calls")
    parser.add_argument("--extra", type=json.loads, default={}, help='more of the request, such as {"cache_prompt": 0}')
    given = parser.parse_args(arguments)
    calls = draw(given.prompts, given.queries, given.samples)
    random.Random(0).shuffle(calls)  # what drifts while this runs must not look like a property of a prompt
    if not given.times.exists():
        longest = f"at most {given.max_tokens} tokens an answer"
        about = {
            "model": given.model,
            "hardware": given.hardware,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "method": f"chat completions one at a time, temperature 1, {longest}; wall clock; measure/endpoint.py",
            "tokens": "as reported by the endpoint",
        }
        begin(given.times, about)
    request = {"model": given.model, "max_tokens": given.max_tokens, **given.extra}
    try:
        made = measure(given.url, given.times, calls[: given.limit], request)
    except (OSError, KeyError, ValueError) as error:  # URLError is an OSError
        told = error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else ""
        parser.exit(1, f"the endpoint failed, what was measured is kept: {error!r} {told}\n")
    print(f"{made} calls made; {len(made_before(given.times))} in {given.times}")


if __name__ == "__main__":
    main()
