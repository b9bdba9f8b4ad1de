"""How fast the embedded model is, as the proxy has it: in its child process, over HTTP, with one thread.

    python bench/local_model.py [--out DIR] [--quick]

Load: from `start` until it is ready. Read: tokens of a prompt a second. Written: tokens of an answer a second, one
answer at a time and as many at a time as there are slots, together. By the server's own clock, but for the last, which
is wall time; the best of some rounds, for other work on the machine only ever makes it slower. Memory: of the child,
the weights included. Prints a table; writes local_model.json into DIR.
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
from knapcache.serve.upstream.embedded_model import REQUEST_HEADERS, SLOTS, EmbeddedModel

LONG = " ".join(f"The number {n} comes after the number {n - 1}." for n in range(1, 60))


async def ask(session: httpx.AsyncClient, url: str, prompt: str, tokens: int) -> dict[str, Any]:
    """One answer of exactly so many tokens, from a prompt that was not read before."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    response = await session.post(f"{url}/chat/completions", json=body, headers=REQUEST_HEADERS)
    found: dict[str, Any] = response.json()
    return found


def resident(pid: int) -> float:
    """Megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6


async def measure(rounds: int, tokens: int) -> dict[str, float]:
    """The numbers."""
    model = EmbeddedModel()
    began = time.perf_counter()
    await model.start()
    url = await model.ready()
    found = {
        "load_seconds": time.perf_counter() - began,
        "prompt_tokens_per_second": 0.0,
        "answer_tokens_per_second": 0.0,
        "concurrent_answer_tokens_per_second": 0.0,
    }
    try:
        async with httpx.AsyncClient(timeout=60) as session:
            for _ in range(rounds):
                timings = (await ask(session, url, LONG, 1))["timings"]
                found["prompt_tokens"] = timings["prompt_n"]
                found["prompt_tokens_per_second"] = max(found["prompt_tokens_per_second"], timings["prompt_per_second"])
                timings = (await ask(session, url, "Tell me a story.", tokens))["timings"]
                found["answer_tokens_per_second"] = max(
                    found["answer_tokens_per_second"], timings["predicted_per_second"]
                )
                began = time.perf_counter()
                await asyncio.gather(*(ask(session, url, "Tell me a story.", tokens) for _ in range(SLOTS)))
                together = SLOTS * tokens / (time.perf_counter() - began)
                found["concurrent_answer_tokens_per_second"] = max(
                    found["concurrent_answer_tokens_per_second"], together
                )
        assert model.pid is not None
        found["memory_mb"] = resident(model.pid)
    finally:
        await model.stop()
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write local_model.json here")
    parser.add_argument("--quick", action="store_true", help="one round of few tokens")
    args = parser.parse_args()
    found = asyncio.run(measure(1, 16) if args.quick else measure(3, 128))
    print_table([found])
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"name": "local_model", "python": platform.python_version(), "machine": platform.machine(), **found}
        (args.out / "local_model.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
