"""Compile the kernels of a live cache and end: the child process of `cache/background_compile.py`.

    python -m knapcache.compile_kernels LOCK DELAY POLICY [SHADOW …]

It begins after DELAY seconds: a proxy needs the cores for its first answers. Of several such processes, one at a time
compiles; the others wait for the lock on the file LOCK, and then find the kernels on disk. Numba is imported after
that, so a process that waits is small.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

with contextlib.suppress(ImportError):  # Windows: several processes may compile at the same time
    import fcntl

NICE = 10
"""Added to the nice value: requests come first."""
MAX_SECONDS = 1800
"""Seconds after which the process ends in any case."""


def main(argv: Sequence[str]) -> None:
    lock, delay, policy, *shadows = argv
    if hasattr(os, "nice"):
        os.nice(NICE)
    if hasattr(signal, "alarm"):
        signal.alarm(MAX_SECONDS)
    time.sleep(float(delay))
    with open(lock, "w") as file:
        if "fcntl" in globals():
            fcntl.flock(file, fcntl.LOCK_EX)
        from knapcache.cache.background_compile import warm_up

        warm_up(policy, tuple(shadows))


if __name__ == "__main__":
    main(sys.argv[1:])
