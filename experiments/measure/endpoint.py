"""Measure the latency of an OpenAI-compatible endpoint: a provider, a local server, or knapcache with nothing stored.

Calls are made one at a time, at temperature 1, in random order. Seconds are the wall clock around the whole exchange,
and tokens are those the endpoint reports in `usage`. Every call is written as soon as it is made, so an interrupted
measurement continues when started again. Only ids and numbers are written, no texts.

    python -m measure.endpoint URL TIMES.csv --prompts oasst_prompts.jsonl.gz --model NAME --hardware "one core of …"

URL is the part before /chat/completions, such as http://127.0.0.1:8080/v1. The API key is read from OPENAI_API_KEY.
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


def timed_call(url: str, body: dict[str, Any], timeout: float) -> tuple[float, int, int]:
    """Make one call; return its seconds, prompt tokens and answer tokens."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
    start = time.perf_counter()
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        answer = json.load(reply)
    seconds = time.perf_counter() - start
    usage = answer["usage"]
    return seconds, int(usage["prompt_tokens"]), int(usage["completion_tokens"])


def completed_calls(times: Path) -> set[tuple[int, int]]:
    """Return prompt and sample of the calls in a table."""
    if not times.exists():
        return set()
    lines = [line for line in times.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {(int(r["prompt"]), int(r["sample"])) for r in csv.DictReader(lines)}


def create_table(times: Path, about: dict[str, str]) -> None:
    """Write the comments and the header of a new table."""
    comments = "".join(f"# {name}: {' '.join(text.split())}\n" for name, text in about.items())
    times.write_text(f"{comments}{','.join(COLUMNS)}\n", encoding="utf-8")


def measure(
    url: str, times: Path, calls: Iterable[SampledCall], request: dict[str, Any], timeout: float = 600.0
) -> int:
    """Make the calls that the table does not have yet, and return their number."""
    done, made = completed_calls(times), 0
    for call in calls:
        if (call.prompt, call.sample) in done:
            continue
        body = {**request, "messages": [{"role": "user", "content": call.text}], "temperature": 1}
        seconds, prompt_tokens, answer_tokens = timed_call(url, body, timeout)
        with times.open("a", encoding="utf-8") as table:
            table.write(f"{call.prompt},{call.sample},{prompt_tokens},{max(1, answer_tokens)},{seconds:.6f}\n")
        made += 1
    return made


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="base URL of the endpoint, such as http://127.0.0.1:8080/v1")
    parser.add_argument("times", type=Path, help="CSV file to write or to continue")
    parser.add_argument("--prompts", type=Path, required=True, help="oasst_prompts.jsonl.gz")
    parser.add_argument("--model", required=True, help="model to request; also written into the table")
    parser.add_argument("--hardware", required=True, help="hardware of the endpoint, written into the table")
    parser.add_argument("--max-tokens", type=int, default=512, help="maximum tokens per answer (default: 512)")
    parser.add_argument("--queries", type=int, default=100, help="number of prompts, of the 350 (default: 100)")
    parser.add_argument("--samples", type=int, default=20, help="calls per prompt (default: 20)")
    parser.add_argument("--limit", type=int, help="maximum number of calls")
    parser.add_argument(
        "--extra", type=json.loads, default={}, help='further fields of the request, such as {"cache_prompt": 0}'
    )
    args = parser.parse_args(arguments)
    calls = draw(args.prompts, args.queries, args.samples)
    random.Random(0).shuffle(calls)  # drift of the machine must not correlate with prompts
    if not args.times.exists():
        limit = f"at most {args.max_tokens} tokens an answer"
        about = {
            "model": args.model,
            "hardware": args.hardware,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "method": f"chat completions one at a time, temperature 1, {limit}; wall clock; measure/endpoint.py",
            "tokens": "as reported by the endpoint",
        }
        create_table(args.times, about)
    request = {"model": args.model, "max_tokens": args.max_tokens, **args.extra}
    try:
        made = measure(args.url, args.times, calls[: args.limit], request)
    except (OSError, KeyError, ValueError) as error:  # URLError is an OSError
        detail = error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else ""
        parser.exit(1, f"the endpoint failed; completed calls are in the table: {error!r} {detail}\n")
    print(f"{made} calls made, {len(completed_calls(args.times))} in {args.times}")


if __name__ == "__main__":
    main()
