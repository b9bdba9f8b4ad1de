"""docs/background/life-of-a-request.md names the files that a miss really passes through, in order."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest

import knapcache
from knapcache.features.swap import frame
from knapcache.proxy.proxy import Proxy
from knapcache.proxy.run import listen, server
from knapcache.proxy.settings import Settings
from tests.support import ROOT
from tests.support.programs import need_semantic_extra

SOURCE = str(Path(knapcache.__file__).parent)
ANSWER = orjson.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
)


PERIODIC = ("LoopWatchdog._measure", "EventBuffer.flush_periodically", "Connections._sweep")
"""Functions that timers call, for no request in particular."""


class FileTrace:
    """Records the package's files in the order in which functions in them are called, until the answer is written."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._periodic: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == "wall_clock":
            return
        if event == "return" and frame is self._periodic:
            self._periodic = None
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        if self._periodic is None and code.co_qualname in PERIODIC:
            self._periodic = frame
        if self._periodic is not None:
            return
        name = code.co_filename[len(SOURCE) + 1 :]
        if name not in self.files:
            self.files.append(name)
        if name == "proxy/http/uvicorn_protocol.py" and code.co_name == "write":
            sys.setprofile(None)


async def serve_upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with ANSWER, uncompressed."""
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"content-length: (\d+)", head.lower())
            assert length is not None
            await reader.readexactly(int(length[1]))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))


async def send(port: int, text: str) -> bytes:
    """Send a chat request and return the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = orjson.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]})
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-x\r\n")
    writer.write(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head


def settings_of(case: str, url: str, folder: Path) -> Settings:
    """Return settings without features, or with all of them."""
    upstream: dict[str, Any] = {"name": "fake", "url": url}
    given: dict[str, Any] = {"path": folder, "capacity": "20MB", "grace": 1.0, "prefix": "off"}
    if case == "all features":
        upstream["prompt_cache"] = "openai"
        given |= {"prefix": "on", "semantic": "shadow", "content_log": True, "limits": {"usd_per_day": 100.0}}
        given["webhook"] = [{"name": "ops", "url": url}]
        upstream["headers"] = {"authorization": "Bearer sk-own"}  # swap pays labels with it
        swap = {"swap": "shadow", "swap_model": "gpt-4o-mini"}
        given["route"] = [{"name": "cheaper", "model": ["gpt-4o"]} | swap]
    return Settings(**given, upstreams=[upstream])


async def trace(case: str, folder: Path) -> list[str]:
    """Return the files that a request passes through. A hit is that of a request whose bytes are known."""
    upstream = await asyncio.start_server(serve_upstream, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"
    proxy = Proxy(settings_of(case, url, folder))
    socket, running = listen("127.0.0.1", 0), server(proxy)
    serving = asyncio.create_task(running.serve(sockets=[socket]))
    while not running.started or proxy.not_ready():
        await asyncio.sleep(0.01)
    port = socket.getsockname()[1]
    traces: list[list[str]] = []
    while len(traces) < 2 or traces[-1] != traces[-2]:  # the first requests create connections and fill caches
        assert len(traces) < 20
        found = FileTrace()
        sys.setprofile(found)
        try:
            head = await send(port, case if case == "hit" else f"{case} {len(traces)}")
        finally:
            sys.setprofile(None)
        await asyncio.sleep(0.5)  # the request is over, with what it left to do
        if case != "hit" or b"x-knapcache: hit" in head:
            traces.append(found.files)
    running.should_exit = True
    await serving
    upstream.close()
    return traces[-1]


def files_of(section: str) -> list[str]:
    """Return the files that a section of the page names, in order."""
    page = (ROOT / "docs" / "background" / "life-of-a-request.md").read_text(encoding="utf-8")
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| \d+ \| \[([^\]]+)\]", text, re.MULTILINE)


async def test_the_page_names_the_files_of_a_hit(tmp_path: Path) -> None:
    found = await trace("hit", tmp_path / "data")
    assert found == files_of("A hit"), found


async def test_the_page_names_the_files_of_a_miss(tmp_path: Path) -> None:
    found = await trace("miss", tmp_path / "data")
    assert found == files_of("A miss"), found


async def test_the_page_names_the_files_that_features_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_semantic_extra()
    monkeypatch.setattr(frame, "MAX_LABELLED", 0.0)  # requests with a label are drawn at random
    found = await trace("all features", tmp_path / "data")
    added = [file for file in found if file not in files_of("A miss")]
    assert added == files_of("A miss with all features"), added
