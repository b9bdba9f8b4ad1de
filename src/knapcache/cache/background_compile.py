"""Compile the kernels of a live cache in another process, while their Python forms decide.

A cache needs the kernels of its policy and a loop for each of its shadows. If all are on disk, they are loaded at once.
If not, the cache starts with the Python forms (`uncompiled.py`) and a thread does the following:

    1. start a child process (`compile_kernels.py`) that compiles what is missing and writes it to disk. It has a low
       priority and a session of its own, so Ctrl-C does not reach it. It ends by itself, also without this process
    2. wait for it
    3. load the compiled kernels, and call back every cache of this process that waits for them

Rejected: compiling in a thread. Numba holds the interpreter's lock for seconds, and the event loop would stand still.

If the child fails, a warning is logged and the Python forms stay until the next start. They decide the same and are
only slower. Compiling in this process instead could end it: the child may have failed for lack of memory.

A cache that opens with more than MAX_PLAIN_ENTRIES entries waits for its compiled kernels, as does every cache with
KNAPCACHE_COMPILE=1: Python forms take too long for passes over all entries.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

from knapcache.cache.entry_index import EntryIndex
from knapcache.cache.ids import IdTable
from knapcache.cache.shadow import Shadows
from knapcache.kernel import compiles_before_use, load_compiled
from knapcache.kernel_files import LOCK, cache_directory
from knapcache.policy import registry

log = logging.getLogger("knapcache.cache")

MAX_PLAIN_ENTRIES = 1000
"""Most entries of a store for which Python forms decide."""
DELAY = 10.0
"""Seconds until a child begins to compile for a cache that does not wait for it. Without them, the first answer of the
embedded model took three times as long on a machine with two cores."""

Names = tuple[str, tuple[str, ...]]
Waiting = weakref.WeakMethod[Callable[[], None]]

_lock = threading.Lock()
_waiting: dict[Names, list[Waiting]] = {}
"""Callbacks by the kernels that are being compiled, one thread for each key."""


def prepare(policy: str, shadows: tuple[str, ...], entries: int) -> bool:
    """Load the compiled kernels for a cache with this policy and these shadows, or compile them if they are needed now.

    `entries`: how many the cache's store has. False: the cache is to use Python forms, and to call `start`.
    """
    if compiles_before_use():
        warm_up(policy, shadows)
        return True
    if load_compiled(lambda: warm_up(policy, shadows)):
        return True
    if entries <= MAX_PLAIN_ENTRIES:
        log.info("deciding with uncompiled kernels; they are being compiled in the background, which takes a minute")
        return False
    log.info("compiling kernels before the first request, because the store has %d entries", entries)
    compile_in_child(policy, shadows)
    warm_up(policy, shadows)  # compiles in this process if the child could not
    return True


@functools.cache
def warm_up(policy: str, shadows: tuple[str, ...]) -> None:
    """Call every kernel that a cache with this policy and these shadows calls, so that it is compiled or loaded."""
    small = registry.find(policy).build(1, 2)
    small.arrive(0)
    small.settle(0, 1, 1.0)
    small.settle(1, 1, 1.0)
    small.forget(0)
    small.forget(1)
    if type(small).recycle_kernel is not None:
        small.recycle()
    Shadows(shadows, small, IdTable(small), EntryIndex(2)).spent()


def prepare_for_takeover(policy: str, shadows: tuple[str, ...]) -> None:
    """Load compiled kernels for a cache that does not decide yet, or compile them in the background.

    Loading takes a second. A reader must not do that when it becomes the owner: no process decides meanwhile.
    """
    if not load_compiled(lambda: warm_up(policy, shadows)):
        start(policy, shadows)


def start(policy: str, shadows: tuple[str, ...], on_compiled: Waiting | None = None) -> None:
    """Compile in the background, and call `on_compiled` when compiled kernels can be used."""
    names = policy, shadows
    with _lock:
        running = names in _waiting
        _waiting.setdefault(names, []).extend([] if on_compiled is None else [on_compiled])
    if not running:
        threading.Thread(target=_compile, args=names, name="knapcache-compile", daemon=True).start()


def _compile(policy: str, shadows: tuple[str, ...]) -> None:
    reason = compile_in_child(policy, shadows, DELAY)
    if not reason and not load_compiled(lambda: warm_up(policy, shadows)):
        reason = f"no compiled code in {cache_directory()}"
    with _lock:
        waiting = _waiting.pop((policy, shadows), [])
    if reason:
        _warn(reason)
        return
    callbacks = [callback for each in waiting if (callback := each())]
    for callback in callbacks:
        callback()
    if callbacks:
        log.info("deciding with compiled kernels")


@functools.cache  # once per reason
def _warn(reason: str) -> None:
    log.warning("kernels could not be compiled, decisions stay slow until the next start: %s", reason)


def compile_in_child(policy: str, shadows: tuple[str, ...], delay: float = 0.0) -> str:
    """Compile in a child process after `delay` seconds, and wait for it. Return why it failed, or an empty text."""
    if not sys.executable or getattr(sys, "frozen", False):
        return "there is no Python interpreter to start"
    folder = cache_directory()
    # -P: do not import from the working directory.
    command = [sys.executable, "-P", "-m", "knapcache.compile_kernels", str(folder / LOCK), str(delay)]
    command += [policy, *shadows]
    environment: dict[str, Any] = {
        **os.environ,
        "KNAPCACHE_COMPILE": "1",
        "KNAPCACHE_KERNEL_CACHE": str(folder.parent),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the child must find the same modules
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not a pipe: a child that outlives this process must be able to write.
        with tempfile.TemporaryFile() as errors:
            code = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                check=False,
            ).returncode
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return str(error)
    return f"{lines[-1][:500] if lines else 'no message'} (exit code {code})" if code else ""


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _waiting.clear()  # the threads are the parent's; caches in memory start their own (AdmissionController.after_fork)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
