"""The workers of a Dask cluster as an executor.

    with DaskExecutor("tcp://host:8786") as cluster:
        rows = replay_grid(trace, policies, capacities, jobs=cluster)

A batch is *scattered*: sent through the scheduler to one worker, from there to the others, and to a worker that joins
later when it first needs it. Workers need no common file system. A task is the number of an item. If a worker dies,
Dask gives its items to other workers, three times by default, and then gives up.

Equal rows need equal code: before anything is sent, every worker reports a digest of its sources. A worker compares it
again with every item, in case it joined later.

Rejected: a worker plugin that carries the batch. After a client is killed the scheduler would keep it, including the
trace; scattered data are released with their client. The drawback: if all workers die at once, the sweep fails.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import socket
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from knapcache.errors import ClusterFailed, InvalidInput, MissingExtra, install_command
from knapcache.kernel import source_digest
from knapcache.lab.executors import TaskBatch

Result = TypeVar("Result")
Client: TypeAlias = Any
"""distributed.Client, which is mostly untyped."""
TIMEOUT = 5.0
"""Seconds to wait for the scheduler's reply, and for the first worker."""

LOGGERS = ("distributed", "distributed.client", "tornado.application")


class DaskExecutor:
    """A cluster, given by its scheduler's address. Connected from construction to `close()`."""

    def __init__(self, address: str) -> None:
        self.address = address
        with ExitStack() as stack:
            stack.enter_context(_silent())
            self._client = _connect(address)
            stack.callback(_close, self._client)
            _require_workers(self._client, address)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. The cluster keeps running."""
        self._stack.close()

    def run(self, batch: TaskBatch[Result]) -> Generator[Result, None, None]:
        from distributed import KilledWorker

        if not len(batch):
            return
        futures: list[Any] = []
        try:
            stamp = _require_equal_code(self._client, batch.function)
            # No names by content (hash, pure): an equal sweep before this one may still be releasing its data.
            (scattered,) = self._client.scatter([batch], broadcast=True, hash=False)
            futures = self._client.map(_run_item, range(len(batch)), batch=scattered, stamp=stamp, pure=False)
            for future in futures:
                yield future.result()
        except KilledWorker as error:
            raise ClusterFailed(
                f"a worker of {self.address} died, and so did the workers that took over its items"
            ) from error
        except (CancelledError, OSError) as error:
            if not isinstance(error, CancelledError) and self._client.status == "running":
                raise  # raised by an item
            raise ClusterFailed(
                f"the cluster at {self.address} lost the work: its scheduler, or all workers that had it, stopped"
            ) from error
        finally:
            # Running items finish, because a thread cannot be stopped; no other item is started.
            with suppress(CancelledError, OSError):
                self._client.cancel(futures)


def _connect(address: str) -> Client:
    import distributed
    from distributed.comm.addressing import get_address_host_port

    try:
        host, port = get_address_host_port(address)
    except ValueError:
        host, port = "", 0
    if not host or not 0 < port < 2**16:
        raise InvalidInput(f"{address!r} is not the address of a Dask scheduler; it must look like tcp://host:8786")
    try:
        socket.create_connection((host, port), TIMEOUT).close()  # Dask would retry a closed port many times
        # In its own thread: the caller may run an event loop, as notebooks do.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _probe(address)).result()
        return distributed.Client(address, timeout=TIMEOUT, set_as_default=False, name="knapcache")  # type: ignore[no-untyped-call]
    except (OSError, ImportError) as error:  # no listener, or an incompatible version of Dask
        reason = getattr(error, "strerror", None) or str(error) or "no reply"
        raise ClusterFailed(f"cannot reach a Dask scheduler at {address}: {reason.splitlines()[0]}") from None
    except (MemoryError, ValueError):  # Dask reads the first bytes of a foreign reply as its length
        raise ClusterFailed(f"the server at {address} is not a Dask scheduler") from None


async def _probe(address: str) -> None:
    """Send one request and wait for the reply. A Client would wait forever for a server that accepts and stays
    silent.
    """
    from distributed.comm.core import connect
    from distributed.security import Security

    async with asyncio.timeout(TIMEOUT):
        comm = await connect(address, timeout=TIMEOUT, **Security().get_connection_args("client"))  # type: ignore[no-untyped-call]
        try:
            await comm.write({"op": "identity", "reply": True})
            await comm.read()
        finally:
            comm.abort()


def _close(client: Client) -> None:
    with suppress(TimeoutError):  # the scheduler has stopped
        client.close(TIMEOUT)


def _require_workers(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=TIMEOUT)
    except TimeoutError:
        raise ClusterFailed(f"the scheduler at {address} has no workers: start some with `dask worker`") from None


def _require_equal_code(client: Client, function: Callable[..., Any]) -> str:
    """Return the digest of the sources of `function` and knapcache; raise ClusterFailed if a worker's differs."""
    packages = _packages(function)
    stamp = code_stamp(packages)
    for worker, found in client.run(code_stamp, packages, on_error="return").items():
        if isinstance(found, Exception):
            raise ClusterFailed(f"worker {worker} cannot run this knapcache: {found}")
        if found != stamp:
            raise ClusterFailed(
                f"worker {worker} runs knapcache {found}, this process {stamp}: install the same version"
            )
    return stamp


def _packages(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(sorted({"knapcache", function.__module__.partition(".")[0]}))


@functools.cache
def code_stamp(packages: tuple[str, ...]) -> str:
    """Return the version of knapcache and a digest of the sources of these packages."""
    files = [getattr(importlib.import_module(name), "__file__", None) for name in packages]
    version = importlib.import_module("knapcache").__version__  # by name: the layer rules forbid a static import
    digests = [source_digest(Path(file).resolve().parent).hex()[:8] for file in files if file]
    return f"{version} ({' '.join(digests)})"


def _run_item(k: int, batch: TaskBatch[Result], stamp: str) -> Result:
    """Run item k on a worker."""
    here = code_stamp(_packages(batch.function))
    if here != stamp:
        raise ClusterFailed(f"a worker that joined later runs knapcache {here}, not {stamp}: install the same version")
    return batch.run(k)


@contextmanager
def _silent() -> Iterator[None]:
    """Silence Dask's loggers, which would print every error that it also raises."""
    try:
        import distributed  # noqa: F401 - sets up its loggers
    except ImportError:
        raise MissingExtra(f"clusters need Dask: {install_command('cluster')}") from None
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
