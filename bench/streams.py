"""Benchmark of stored streams: bytes and time, by number of tokens.

    python bench/streams.py [--out DIR] [--quick]

A stream of chat completions, as OpenAI sends it, has one event per token. The first table shows, by number of tokens:

    plain            bytes of the plain answer
    verbatim         bytes of the stream as it came
    compact          bytes of the stream as it is stored (`knapcache/wire/compact.py`)
    entry: …         bytes that the policy accounts for in a SQLite store, with a request of 400 bytes
    encode           µs to make the compact form, once, before the last event is sent
    decode           µs to make the stream from the compact form
    replay before    µs from a verbatim stream to its blocks, as by parsing each event
    replay           µs from the stored form to the blocks of a response; every hit does this

The second table compares ways to store the stream of 24 tokens, the third the formats. Times are the minimum CPU time
of the thread over many repetitions. Prints the tables; writes streams.json to DIR.
"""

from __future__ import annotations

import json
import random
import string
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _results import options_for, write_result

from knapcache.cli.output import print_table
from knapcache.model import Endpoint
from knapcache.store.base import Entry
from knapcache.store.sqlite.store import SqliteStore
from knapcache.testing.provider_answers import STREAM
from knapcache.wire import FORMATS
from knapcache.wire.compact import compact_stream, expand_stream
from knapcache.wire.sse import blocks

TOKENS = (1, 8, 24, 100, 500, 2000)
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "many",
    "small",
    "rivers",
    "flow",
    "past",
    "quiet",
    "old",
    "towns",
]
HEAD = {
    "id": "chatcmpl-CdR2mVq8nP0aXk7TzL4uYw9sHbE1f",
    "object": "chat.completion.chunk",
    "created": 1763251200,
    "model": "gpt-4o-mini-2024-07-18",
    "service_tier": "default",
    "system_fingerprint": "fp_560af6e559",
}
REQUEST_BYTES = 400
FORMAT = FORMATS[Endpoint.CHAT]


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def stream_of(tokens: int) -> bytes:
    """Return a stream of so many tokens."""
    rng = random.Random(tokens)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": f" {rng.choice(WORDS)}"} for _ in range(tokens)]
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
    ]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"})
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
    letters = string.ascii_letters + string.digits
    padding = [
        "".join(rng.choices(letters, k=rng.randint(2, 14))) for _ in choices
    ]  # OpenAI sends it; does not deflate
    found = [
        event({**HEAD, "choices": [choice], "usage": None, "obfuscation": text})
        for choice, text in zip(choices, padding, strict=True)
    ]
    return b"".join([*found, event({**HEAD, "choices": [], "usage": usage}), b"data: [DONE]\n\n"])


def shared_ends(stream: bytes) -> bytes:
    """Return the differences of successive events: lengths of their common start and end, and what is between."""
    found, before = [], b""
    for block in stream.split(b"\n\n"):
        start = next((k for k, (a, b) in enumerate(zip(block, before, strict=False)) if a != b), 0)
        rest, other = block[start:], before[start:]
        end = next((k for k, (a, b) in enumerate(zip(reversed(rest), reversed(other), strict=False)) if a != b), 0)
        middle = rest[: len(rest) - end]
        found.append(
            start.to_bytes(2, "little") + end.to_bytes(2, "little") + len(middle).to_bytes(2, "little") + middle
        )
        before = block
    return b"".join(found)


def deflated(stream: bytes, level: int, window: int, memory: int, dictionary: bytes = b"") -> bytes:
    preset = (dictionary,) if dictionary else ()
    deflater = zlib.compressobj(level, zlib.DEFLATED, -window, memory, zlib.Z_DEFAULT_STRATEGY, *preset)
    return deflater.compress(stream) + deflater.flush()


def inflated(data: bytes, dictionary: bytes = b"") -> bytes:
    inflater = zlib.decompressobj(-15, dictionary) if dictionary else zlib.decompressobj(-15)
    return inflater.decompress(data)


def microseconds(function: Callable[[], Any], seconds: float) -> float:
    """Return the least CPU time of one call, of as many as take so many seconds, at least 5."""
    times: list[int] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        start = time.thread_time_ns()
        function()
        times.append(time.thread_time_ns() - start)
    return round(min(times) / 1000, 1)


def entry_size(store: SqliteStore, payload: bytes) -> int:
    meta = {"usd": 0.0001, "meta": {"form": "compact", "ids": {"x-request-id": "req_" + "0" * 32}}}
    return store.entry_size(
        Entry(
            key=bytes(32),
            tenant="tenant",
            model=HEAD["model"],  # type: ignore[arg-type]
            size=0,
            cost=1.0,
            seconds=1.0,
            created=0.0,
            expires=None,
            meta=meta,
            request=bytes(REQUEST_BYTES),
            payload=payload,
        )
    )


def by_tokens(seconds: float) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "bench.db", 64 << 20) as store:
        for tokens in TOKENS:
            stream = stream_of(tokens)
            compact = compact_stream(stream)
            assert compact is not None
            assert list(FORMAT.to_stream(compact, "compact", True)) == [block.raw for block in blocks(stream)]
            plain = FORMAT.to_plain(stream, "sse")
            rows.append(
                {
                    "tokens": tokens,
                    "plain": len(plain),
                    "verbatim": len(stream),
                    "compact": len(compact),
                    "entry: plain": entry_size(store, plain),
                    "entry: verbatim": entry_size(store, stream),
                    "entry: compact": entry_size(store, compact),
                    "encode": microseconds(lambda s=stream: compact_stream(s), seconds),  # type: ignore[misc]
                    "decode": microseconds(lambda c=compact: expand_stream(c), seconds),  # type: ignore[misc]
                    "replay before": microseconds(lambda s=stream: [b.raw for b in blocks(s)], seconds),  # type: ignore[misc]
                    "replay": microseconds(lambda c=compact: list(FORMAT.to_stream(c, "compact", True)), seconds),  # type: ignore[misc]
                }
            )
    return rows


def by_method(seconds: float) -> list[dict[str, Any]]:
    stream = stream_of(24)
    choice = {"index": 0, "delta": {"content": " the"}, "logprobs": None, "finish_reason": None}
    dictionary = event({**HEAD, "choices": [choice], "usage": None})
    methods: dict[str, tuple[Callable[[], bytes], Callable[[bytes], bytes] | None]] = {
        f"deflate, level {level}, window {1 << window >> 10} KB, memory {memory}": (
            lambda level=level, window=window, memory=memory: deflated(stream, level, window, memory),  # type: ignore[misc]
            inflated,
        )
        for level, window, memory in ((1, 15, 8), (6, 15, 8), (9, 15, 9), (6, 12, 5))
    }
    methods["deflate with a dictionary, level 6"] = (
        lambda: deflated(stream, 6, 15, 8, dictionary),
        lambda data: inflated(data, dictionary),
    )
    methods["common starts and ends"] = (lambda: shared_ends(stream), None)
    methods["common starts and ends, deflated"] = (lambda: deflated(shared_ends(stream), 6, 15, 8), None)
    return [
        {
            "method": name,
            "bytes": len(made := encode()),
            "encode": microseconds(encode, seconds),
            "decode": microseconds(lambda d=decode, m=made: d(m), seconds) if decode else None,  # type: ignore[misc]
        }
        for name, (encode, decode) in methods.items()
    ]


def by_format() -> list[dict[str, Any]]:
    text = " ".join(random.Random(1).choices(WORDS, k=22))
    content = [{"role": "user", "content": text}]
    bodies: dict[str, dict[str, Any]] = {"chat/completions": {"messages": content}, "completions": {"prompt": text}}
    bodies |= {"responses": {"input": content}, "messages": {"messages": content}}
    rows = []
    for name, body in bodies.items():
        events = STREAM[f"/{name}"]({"model": "model", "stream": True, **body}, 1)
        stream = b"".join(b"data: %b\n\n" % data.encode() for data in events)
        compact = compact_stream(stream)
        assert compact is not None
        rows.append({"format": name, "verbatim": len(stream), "compact": len(compact)})
    return rows


def main() -> None:
    parser = options_for(__doc__, "streams.json")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    options = parser.parse_args()
    seconds = 0.01 if options.quick else 0.5
    tables = {"by tokens": by_tokens(seconds), "24 tokens, by method": by_method(seconds), "by format": by_format()}
    for title, rows in tables.items():
        print_table(rows, title)
    write_result(options.out, "streams", {"zlib": zlib.ZLIB_RUNTIME_VERSION, **tables})


if __name__ == "__main__":
    main()
