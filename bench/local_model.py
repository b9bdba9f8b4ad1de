"""Benchmark of the embedded model as the proxy runs it: in a child process, over HTTP, with one thread.

    python bench/local_model.py [--out DIR] [--quick]

    load_seconds                            from `start` until ready
    prompt_tokens_per_second                tokens of a prompt read per second
    answer_tokens_per_second                tokens of an answer written per second, one answer at a time
    concurrent_answer_tokens_per_second     the same for all slots at once, in total
    memory_mb                               resident memory of the child process, including the weights

Rates come from the server's own clock, except the concurrent one, which is wall time. Reported is the best of several
rounds, because other work on the machine can only slow it down. Prints a table; writes local_model.json to DIR.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from pathlib import Path
from typing import Any

import httpx

from knapcache.cli.output import print_table
from knapcache.serve.upstream.embedded_model import REQUEST_HEADERS, EmbeddedModel
from knapcache.serve.upstream.model_server import SLOTS

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for local_model.json")
    parser.add_argument("--quick", action="store_true", help="one round with few tokens")
    args = parser.parse_args()
    found = asyncio.run(measure(1, 16) if args.quick else measure(3, 128))
    print_table([found])
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"name": "local_model", "python": platform.python_version(), "machine": platform.machine(), **found}
        (args.out / "local_model.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
