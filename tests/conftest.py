"""A run can be repeated, and so can its failure: Hypothesis always draws the same examples.

`make test-long` draws others, and more (`--hypothesis-profile=exploring`), from a seed that it prints.

Kernels are compiled before use, as in the simulator: a cache decides in the same time from its first request on.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx import _config as httpx_config
from httpx._transports import default as httpx_transport
from hypothesis import settings

from tests.support import forked_commands, timing, uvicorn_polling, warm_python
from tests.support.forked_workers import pytest_addoption, pytest_runtestloop  # noqa: F401 - hooks
from tests.support.proxy_process import ProxyProcess
from tests.support.run_report import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401 - hooks

settings.register_profile("exploring", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("repeatable")

os.environ.setdefault("KNAPCACHE_COMPILE", "1")
ProxyProcess.compiled = False
uvicorn_polling.poll_often()
for _name in ("connect", "read", "write", "pool"):  # a busy machine may take longer than httpx's five seconds
    setattr(httpx_config.DEFAULT_TIMEOUT_CONFIG, _name, timing.DEADLINE)
# Every client of httpx loads the certificates of all authorities: 50 ms of CPU time.
vars(httpx_transport)["create_ssl_context"] = functools.cache(httpx_config.create_ssl_context)

# The upstreams of tests are on this machine; a developer's proxy could not reach them.
for _name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.lower(), None)

# Tests open thousands of stores. On a disk, most of their time would be syncs.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

gc.disable()  # until the end of collection


def pytest_collection_finish() -> None:
    """Exclude what collection has made, millions of objects, from all garbage collections of the tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def leaks_are_found_in_their_file() -> Iterator[None]:
    """Collect garbage at the end of a file: a socket or a coroutine that its tests left open fails it, and no other.

    What is left is excluded from later collections: the modules and kernels of all files would make each one slower.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """End the process whose forks are the proxies of `ProxyProcess`."""
    forked_commands.stop_server()


@pytest.fixture(scope="session")
def warm() -> Iterator[warm_python.WarmPython]:
    """A Python that has imported Numba and runs programs in forked children."""
    with warm_python.start() as found:
        yield found
