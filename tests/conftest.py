"""Hypothesis explores anew in every run of a developer; in CI a run can be repeated, and so can its failure.

Kernels are compiled before use, as in the simulator: a cache decides in the same time from its first request on.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from httpx import _config as httpx_config
from hypothesis import settings

from tests.support import timing, uvicorn_polling, warm_python
from tests.support.proxy_process import ProxyProcess

settings.register_profile("exploring", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "exploring")

os.environ.setdefault("KNAPCACHE_COMPILE", "1")
ProxyProcess.compiled = False
uvicorn_polling.poll_often()
for _name in ("connect", "read", "write", "pool"):  # a busy machine may take longer than httpx's five seconds
    setattr(httpx_config.DEFAULT_TIMEOUT_CONFIG, _name, timing.DEADLINE)

# The upstreams of tests are on this machine; a developer's proxy could not reach them.
for _name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.lower(), None)


gc.disable()  # until the end of collection


def pytest_collection_finish() -> None:
    """Exclude what collection has made, millions of objects, from all garbage collections of the tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def warm() -> Iterator[warm_python.WarmPython]:
    """A Python that has imported Numba and runs programs in forked children."""
    with warm_python.start() as found:
        yield found
