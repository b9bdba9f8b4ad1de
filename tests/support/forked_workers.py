"""`pytest --workers N`: collect once, then run the files in N forks of this process.

Collection takes 22 seconds of CPU time. The workers of pytest-xdist are new processes, and each of them collects again.
A fork has all modules, tests and kernels already, and shares their memory.

The numbers of all files are in one pipe, from which each worker takes the next one: a file's tests run in one worker,
in order, and share its fixtures. Reports go back through a pipe of each worker. The first process prints and counts
them. A worker that ends before its file does fails the run.
"""

from __future__ import annotations

import itertools
import os
import signal
import struct
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

_NUMBER = struct.Struct("=H")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="run test files in this many forked processes")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    workers = session.config.getoption("--workers")
    if not workers or session.testsfailed or session.config.option.collectonly:
        return None
    Controller(session, workers).run()
    return True


class Controller:
    """Starts the workers and passes their reports on."""

    def __init__(self, session: pytest.Session, workers: int) -> None:
        self._session, self._files = session, _by_file(session.items)
        self._running: dict[Connection, int] = {}  # process ids
        self._tests: dict[Connection, str] = {}  # that began and did not end
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # before forks
        numbers, all_numbers = os.pipe()
        os.write(all_numbers, b"".join(map(_NUMBER.pack, range(len(self._files)))))
        os.close(all_numbers)
        for k in range(min(workers, len(self._files))):
            reports, sender = Pipe(duplex=False)
            pid = os.fork()
            if pid == 0:
                for reader in (reports, *self._running):
                    reader.close()
                Worker(session, self._files, numbers, sender).run(k)
            sender.close()
            self._running[reports] = pid
        os.close(numbers)

    def run(self) -> None:
        """Pass on reports until all workers have ended, or until the run has to stop."""
        try:
            while self._running:
                for reports in wait(list(self._running)):
                    assert isinstance(reports, Connection)
                    self._receive(reports)
                    if self._session.shouldfail:
                        raise self._session.Failed(self._session.shouldfail)
                    if self._session.shouldstop:
                        raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for reports, pid in self._running.items():
                reports.close()  # a worker that waits for space in the pipe would never end
                os.kill(pid, signal.SIGINT)
            for pid in self._running.values():
                os.waitpid(pid, 0)

    def _receive(self, reports: Connection) -> None:
        hook = self._session.config.hook
        try:
            kind, *values = reports.recv()
        except EOFError:
            _, status = os.waitpid(self._running.pop(reports), 0)
            if status:
                test = self._tests.get(reports, "its fixtures")
                self._session.shouldfail = f"a worker ended with {os.waitstatus_to_exitcode(status)} in {test}"
            return
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=self._session.config, data=values[0])
            hook.pytest_runtest_logreport(report=report)
        else:
            self._tests[reports] = values[0]
            getattr(hook, kind)(nodeid=values[0], location=values[1])


class Worker:
    """Runs files in a forked process, and reports."""

    def __init__(
        self, session: pytest.Session, files: list[list[pytest.Item]], numbers: int, sender: Connection
    ) -> None:
        self._session, self._files, self._numbers, self._sender = session, files, numbers, sender

    def run(self, k: int) -> None:
        """Run files until none is left, and end the process."""
        code = 1
        try:
            self._prepare(k)
            for item, following in self._items():
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._session.config.hook.pytest_unconfigure(config=self._session.config)
            code = 0
        except (KeyboardInterrupt, BrokenPipeError):  # the run stops
            self._session._setupstate.teardown_exact(None)
        except BaseException:
            traceback.print_exc()
        finally:
            self._sender.close()
            os._exit(code)

    def _prepare(self, k: int) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        config = self._session.config
        plugins = config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(self)
        capture: Any = plugins.get_plugin("capturemanager")
        capture.stop_global_capturing()  # its files are those of the other workers, too
        capture.start_global_capturing()
        paths: Any = config._tmp_path_factory  # type: ignore[attr-defined]
        paths._basetemp = paths.getbasetemp() / f"worker{k}"
        paths._basetemp.mkdir(0o700)

    def _items(self) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
        """Yield each test and the one that follows it: fixtures that both use live on."""
        file = self._next_file()
        while file:
            yield from itertools.pairwise(file)
            last, file = file[-1], self._next_file()
            yield last, file[0] if file else None

    def _next_file(self) -> list[pytest.Item]:
        number = os.read(self._numbers, _NUMBER.size)
        return self._files[_NUMBER.unpack(number)[0]] if number else []

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._sender.send(("pytest_runtest_logstart", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._sender.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._sender.send(("pytest_runtest_logfinish", nodeid, location))


def _by_file(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the tests of each file; first the files with the most tests, so that none of them begins last.

    Files with a browser are one: each worker would start a browser of its own.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        browser = "browser" in getattr(item, "fixturenames", ())
        files.setdefault("browser" if browser else item.nodeid.split("::", 1)[0], []).append(item)
    return sorted(files.values(), key=len, reverse=True)
