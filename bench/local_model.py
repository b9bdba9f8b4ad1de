"""Benchmark of the embedded model as the proxy runs it: in a child process, over HTTP, with one thread.

    python bench/local_model.py [--out DIR] [--quick] [--only model|prompt-cache]

    load_seconds                            from `start` until ready
    prompt_tokens_per_second                tokens of a prompt read per second
    answer_tokens_per_second                tokens of an answer written per second, one answer at a time
    concurrent_answer_tokens_per_second     the same for all slots at once, in total
    memory_mb                               resident memory of the child process, including the weights

Rates come from the server's own clock, except the concurrent one, which is wall time. Reported is the best of several
rounds, because other work on the machine can only slow it down. Prints a table; writes local_model.json to DIR.

The second table is about two prompts that begin alike and alternate, without the prompt cache and with it. Requests
that begin alike get the same slot, so each of them replaces the other's prompt there.

    prompt_tokens            tokens of each prompt
    first_seconds            median time to read a prompt for the first time
    alternating_seconds      median time of the later requests, each of which adds a few words to its prompt
    read_again               tokens that each of these read again, at most
    memory_mb                resident memory of the child process at the end

It is written to local_prompt_cache.json.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from _results import options_for, write_result

from knapcache.cli.output import print_table
from knapcache.proxy.upstream.embedded_model import REQUEST_HEADERS, EmbeddedModel
from knapcache.proxy.upstream.model_server import SLOTS

LONG_PROMPT = " ".join(f"The number {n} comes after the number {n - 1}." for n in range(1, 60))


async def complete(session: httpx.AsyncClient, url: str, prompt: str, tokens: int) -> dict[str, Any]:
    """Return an answer of exactly `tokens` tokens, without the prompt cache."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    response = await session.post(f"{url}/chat/completions", json=body, headers=REQUEST_HEADERS)
    answer: dict[str, Any] = response.json()
    return answer


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6


async def measure(rounds: int, tokens: int) -> dict[str, float]:
    model = EmbeddedModel()
    start = time.perf_counter()
    await model.start()
    url = await model.ready()
    found = {
        "load_seconds": time.perf_counter() - start,
        "prompt_tokens_per_second": 0.0,
        "answer_tokens_per_second": 0.0,
        "concurrent_answer_tokens_per_second": 0.0,
    }
    try:
        async with httpx.AsyncClient(timeout=60) as session:
            for _ in range(rounds):
                timings = (await complete(session, url, LONG_PROMPT, 1))["timings"]
                found["prompt_tokens"] = timings["prompt_n"]
                found["prompt_tokens_per_second"] = max(found["prompt_tokens_per_second"], timings["prompt_per_second"])
                timings = (await complete(session, url, "Tell me a story.", tokens))["timings"]
                found["answer_tokens_per_second"] = max(
                    found["answer_tokens_per_second"], timings["predicted_per_second"]
                )
                start = time.perf_counter()
                await asyncio.gather(*(complete(session, url, "Tell me a story.", tokens) for _ in range(SLOTS)))
                together = SLOTS * tokens / (time.perf_counter() - start)
                found["concurrent_answer_tokens_per_second"] = max(
                    found["concurrent_answer_tokens_per_second"], together
                )
        assert model.pid is not None
        found["memory_mb"] = resident_mb(model.pid)
    finally:
        await model.stop()
    return found


async def measure_alternating(prompt_cache: int, words: int, rounds: int) -> dict[str, float]:
    model = EmbeddedModel(prompt_cache=prompt_cache)
    await model.start()
    url = await model.ready()
    prompts = [" ".join(f"{word} number {n}." for n in range(words)) for word in ("House", "Tree")]
    rules = " ".join(f"Rule {n} of {words}." for n in range(words // 3))
    first: list[float] = []
    later: list[float] = []
    tokens = again = 0
    try:
        async with httpx.AsyncClient(timeout=300) as session:
            for k in range(rounds):
                for prompt in prompts:
                    messages = [{"role": "user", "content": f"{rules} {prompt} Answer {k}."}]
                    start = time.perf_counter()
                    body = {"messages": messages, "max_tokens": 1}
                    response = await session.post(f"{url}/chat/completions", json=body, headers=REQUEST_HEADERS)
                    (later if k else first).append(time.perf_counter() - start)
                    usage = response.json()["usage"]
                    tokens = usage["prompt_tokens"]
                    if k:
                        again = max(again, tokens - usage["prompt_tokens_details"]["cached_tokens"])
        assert model.pid is not None
        memory = resident_mb(model.pid)
    finally:
        await model.stop()
    return {
        "prompt_cache": prompt_cache,
        "prompt_tokens": tokens,
        "first_seconds": median(first),
        "alternating_seconds": median(later),
        "read_again": again,
        "memory_mb": memory,
    }


def main() -> None:
    parser = options_for(__doc__, "the results")
    parser.add_argument("--only", choices=["model", "prompt-cache"], help="one of the two measurements")
    parser.add_argument("--quick", action="store_true", help="one round with few tokens")
    args = parser.parse_args()
    if args.only != "prompt-cache":
        found = asyncio.run(measure(1, 16) if args.quick else measure(3, 128))
        print_table([found])
        write_result(args.out, "local_model", found)
    if args.only != "model":
        words, rounds = (20, 2) if args.quick else (150, 3)
        rows = [asyncio.run(measure_alternating(size, words, rounds)) for size in (0, EmbeddedModel().prompt_cache)]
        print_table(rows)
        write_result(args.out, "local_prompt_cache", {"rows": rows})


if __name__ == "__main__":
    main()
