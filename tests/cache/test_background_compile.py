"""A live cache decides with uncompiled kernels until another process has compiled them."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from knapcache.cache import background_compile
from knapcache.cache.background_compile import MAX_PLAIN_ENTRIES, prepare
from knapcache.kernel_files import LOCK
from tests.support.caches import CHAT, Upstream, admission_of, request_of, small_cache
from tests.support.timing import wait_until

NAMES = ("lru", ("fifo",))


@pytest.fixture
def compilation(monkeypatch: pytest.MonkeyPatch) -> Compilation:
    return Compilation(monkeypatch)


class Compilation:
    """Replaces the child process. Kernels count as missing on disk until it is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_disk, self.failure, self.runs = False, "", 0
        self.finish = threading.Event()
        monkeypatch.delenv("KNAPCACHE_COMPILE", raising=False)
        monkeypatch.setattr(background_compile, "load_compiled", lambda _call: self.on_disk)
        monkeypatch.setattr(background_compile, "compile_in_child", self.run)
        background_compile._warn.cache_clear()

    def run(self, policy: str, shadows: tuple[str, ...], _delay: float = 0.0) -> str:
        assert (policy, shadows) == NAMES
        self.runs += 1
        self.finish.wait(60)
        self.on_disk = not self.failure
        return self.failure

    def end(self) -> None:
        """Let the child end, and wait for the thread that waits for it."""
        self.finish.set()
        for thread in threading.enumerate():
            if thread.name == "knapcache-compile":
                thread.join(60)


def test_a_cache_changes_to_compiled_kernels_when_they_are_ready(
    compilation: Compilation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "knapcache.cache")
    with small_cache(policy=NAMES[0], shadows=NAMES[1]) as cache:
        for number in (1, 2, 1):
            cache.fetch(CHAT, request_of(number), Upstream()(number))
        assert not cache.stats().compiled
        compilation.end()
        assert cache.stats().compiled
        for number in (1, 3):
            cache.fetch(CHAT, request_of(number), Upstream()(number))
        stats = cache.stats()
        assert (stats.hits, stats.misses) == (2, 3)
        assert stats.shadows["fifo"] == pytest.approx(3 / 5 * stats.shadows["none"])
        cache.check()
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "deciding with uncompiled kernels",
        "deciding with compiled kernels",
    ]


def test_caches_of_one_process_share_the_compilation(compilation: Compilation) -> None:
    with small_cache(policy=NAMES[0], shadows=NAMES[1]) as one, small_cache(policy=NAMES[0], shadows=NAMES[1]) as two:
        compilation.end()
        assert (compilation.runs, one.stats().compiled, two.stats().compiled) == (1, True, True)
    with small_cache(policy=NAMES[0], shadows=NAMES[1]) as later:
        assert later.stats().compiled
    assert compilation.runs == 1


def test_a_failed_compilation_is_logged_once_and_the_cache_keeps_working(
    compilation: Compilation, caplog: pytest.LogCaptureFixture
) -> None:
    compilation.failure = "MemoryError (exit code 1)"
    for _ in range(2):
        with small_cache(policy=NAMES[0], shadows=NAMES[1]) as cache:
            compilation.end()
            for _ in range(2):
                cache.fetch(CHAT, request_of(1), Upstream()(1))
            assert (cache.stats().hits, cache.stats().compiled) == (1, False)
            cache.check()
    (warning,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.endswith(": MemoryError (exit code 1)")


def test_a_cache_with_many_entries_waits_for_compiled_kernels(compilation: Compilation) -> None:
    compilation.finish.set()
    assert not prepare(*NAMES, MAX_PLAIN_ENTRIES)
    assert compilation.runs == 0
    assert prepare(*NAMES, MAX_PLAIN_ENTRIES + 1)
    assert compilation.runs == 1


def test_a_cache_that_is_gone_is_not_kept_by_the_compilation(compilation: Compilation) -> None:
    cache = small_cache(policy=NAMES[0], shadows=NAMES[1])
    cache.close()
    del cache
    compilation.end()
    assert compilation.on_disk


def test_a_forked_child_compiles_for_itself(compilation: Compilation) -> None:
    with small_cache(policy=NAMES[0], shadows=NAMES[1]) as cache:
        background_compile._after_fork()
        admission_of(cache).after_fork()
        compilation.end()
        assert (compilation.runs, cache.stats().compiled) == (2, True)


PROGRAM = """
import json, time
from knapcache import Cache
from knapcache.cache import background_compile
from knapcache.kernel_files import LOCK, cache_directory

background_compile.DELAY = 0.0
with Cache("1MB", policy="fifo", shadows=(), cost="seconds") as cache:
    compiled = cache.stats().compiled
    same = cache.cached(name="same")(lambda k: k)
    answers = [same(k) for k in (1, 2, 1)]
    while not (cache_directory() / LOCK).exists():  # the child creates it: ending earlier could prevent its start
        time.sleep(0.01)
    print(json.dumps([compiled, answers, cache.stats().hits]), flush=True)
"""


def test_the_child_process_ends_its_work_without_its_parent(tmp_path: Path) -> None:
    """The first program ends at once. The process that it started writes the kernels that the second one loads."""
    environment = {name: value for name, value in os.environ.items() if name != "KNAPCACHE_COMPILE"}
    environment["KNAPCACHE_KERNEL_CACHE"] = str(tmp_path / "kernels")

    def run() -> list[object]:
        command = [sys.executable, "-W", "error", "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert done.stderr == ""
        return list(json.loads(done.stdout))

    assert run() == [False, [1, 2, 1], 1]
    wait_for_kernels(tmp_path / "kernels")
    assert run() == [True, [1, 2, 1], 1]


def wait_for_kernels(folder: Path) -> None:
    """Wait until a process has held the lock of the kernel directory, written kernels and released it."""
    wait_until(lambda: list(folder.glob("*/settle-*")), "kernels", seconds=240.0)
    (lock,) = folder.glob(f"*/{LOCK}")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the child ends within seconds
