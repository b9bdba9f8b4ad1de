"""The workers of a Dask cluster as an executor.

    with DaskExecutor("tcp://host:8786") as cluster:
        rows = replay_grid(trace, policies, capacities, jobs=cluster)

A parcel is *scattered*: sent through the scheduler to one worker, from there to the others, and to one that joins later
when it first needs it. Workers need not share a file system with each other or with us. A task is the number of an
item. Items of a worker that died Dask gives to others, three times by default, then it gives up.

Equal rows need equal code: every worker is asked for a digest of its sources before it is sent anything, and compares
again with every item, in case it joined later.

Rejected: a worker plugin that carries the parcel. The scheduler would keep it, a trace and all, after a client that was
killed; scattered data go with their client. The price: when all workers die at once, the sweep fails.
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

from knapcache.errors import ClusterFailed, InvalidInput, MissingExtra
from knapcache.kernel import source_digest
from knapcache.sim.executors import TaskBatch

Result = TypeVar("Result")
Client: TypeAlias = Any
"""distributed.Client, most of which has no types."""
PATIENCE = 5.0
"""Seconds for the scheduler to answer, and for a first worker to be there."""

LOGGERS = ("distributed", "distributed.client", "tornado.application")


class DaskExecutor:
    """A cluster, by the address of its scheduler. Connected from construction to `close()`."""

    def __init__(self, address: str) -> None:
        self.address = address
        with ExitStack() as leaving:
            leaving.enter_context(_silent())
            self._client = _connect(address)
            leaving.callback(_close, self._client)
            _require_workers(self._client, address)
            self._leaving = leaving.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, which goes on."""
        self._leaving.close()

    def run(self, parcel: TaskBatch[Result]) -> Generator[Result, None, None]:
        """See Executor."""
        from distributed import KilledWorker

        if not len(parcel):
            return
        futures: list[Any] = []
        try:
            stamp = _require_equal_code(self._client, parcel.function)
            # Neither is named by its content, as Dask would: an equal sweep before this one may just be on its way out.
            (sent,) = self._client.scatter([parcel], broadcast=True, hash=False)
            futures = self._client.map(_run_sent, range(len(parcel)), parcel=sent, stamp=stamp, pure=False)
            for future in futures:
                yield future.result()
        except KilledWorker as error:
            raise ClusterFailed(f"a worker of {self.address} died, and so did those that took over its work") from error
        except (CancelledError, OSError) as error:
            if not isinstance(error, CancelledError) and self._client.status == "running":
                raise  # an item's own
            raise ClusterFailed(
                f"the cluster at {self.address} lost the work: its scheduler, or all workers that had it, are gone"
            ) from error
        finally:
            # What has begun runs to its end, since a thread cannot be stopped; nothing else is begun.
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
        raise InvalidInput(f"{address!r} is not the address of a Dask scheduler, which looks like tcp://host:8786")
    try:
        socket.create_connection((host, port), PATIENCE).close()  # Dask would try a closed port again and again
        # In a thread of its own: the caller may have a loop, as notebooks do.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _greet(address)).result()
        return distributed.Client(address, timeout=PATIENCE, set_as_default=False, name="knapcache")  # type: ignore[no-untyped-call]
    except (OSError, ImportError) as error:  # nobody there; or a Dask that does not get along with ours
        reason = getattr(error, "strerror", None) or str(error) or "it says nothing"
        raise ClusterFailed(f"no Dask scheduler answers at {address}: {reason.splitlines()[0]}") from None
    except (MemoryError, ValueError):  # the first bytes of an answer are taken for its length
        raise ClusterFailed(f"what answers at {address} is not a Dask scheduler") from None


async def _greet(address: str) -> None:
    """Ask for a sign of life. A Client would wait forever for somebody who takes the call and says nothing."""
    from distributed.comm.core import connect
    from distributed.security import Security

    async with asyncio.timeout(PATIENCE):
        comm = await connect(address, timeout=PATIENCE, **Security().get_connection_args("client"))  # type: ignore[no-untyped-call]
        try:
            await comm.write({"op": "identity", "reply": True})
            await comm.read()
        finally:
            comm.abort()


def _close(client: Client) -> None:
    with suppress(TimeoutError):  # of a scheduler that is gone
        client.close(PATIENCE)


def _require_workers(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise ClusterFailed(f"the scheduler at {address} has no workers: start some with `dask worker`") from None


def _require_equal_code(client: Client, function: Callable[..., Any]) -> str:
    """Compare the sources of `function` and of knapcache with those of all workers; their digest."""
    packages = _packages(function)
    stamp = code_stamp(packages)
    for worker, found in client.run(code_stamp, packages, on_error="return").items():
        if isinstance(found, Exception):
            raise ClusterFailed(f"worker {worker} cannot run this knapcache: {found}")
        if found != stamp:
            raise ClusterFailed(f"worker {worker} runs knapcache {found}, but here it is {stamp}: install the same")
    return stamp


def _packages(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(sorted({"knapcache", function.__module__.partition(".")[0]}))


@functools.cache
def code_stamp(packages: tuple[str, ...]) -> str:
    """Version of knapcache, and a digest of the sources of these packages, as far as they have any."""
    files = [getattr(importlib.import_module(name), "__file__", None) for name in packages]
    version = importlib.import_module("knapcache").__version__  # by name: layers point one way
    digests = [source_digest(Path(file).resolve().parent).hex()[:8] for file in files if file]
    return f"{version} ({' '.join(digests)})"


def _run_sent(k: int, parcel: TaskBatch[Result], stamp: str) -> Result:
    """On a worker."""
    here = code_stamp(_packages(parcel.function))
    if here != stamp:
        raise ClusterFailed(f"a worker that came later runs knapcache {here}, not {stamp}: install the same")
    return parcel.run(k)


@contextmanager
def _silent() -> Iterator[None]:
    """Dask logs what it raises, and prints its log: said once, by the error, is enough."""
    try:
        import distributed  # noqa: F401 - which sets up its logs
    except ImportError:
        raise MissingExtra("clusters are reached with Dask: pip install 'knapcache[cluster]'") from None
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
