"""Linux's transparent huge pages: not used in the tables of a live cache.

NumPy asks for them in arrays of 4 MB and more. The kernel zeroes a huge page (2 MB) when it is first used, and requests
wait meanwhile: for up to 0.2 s on a virtual machine. With pages of 4 kB the work is divided into steps of microseconds.

The simulator keeps huge pages: no request waits for it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy.typing as npt

PR_SET_THP_DISABLE, MADV_NOHUGEPAGE = 41, 15
"""Of prctl(2) and madvise(2)."""
LINUX = sys.platform == "linux"


def disable_for_process() -> None:
    """Use no huge pages in this process, as Redis does."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def disable_for(*arrays: npt.NDArray[Any]) -> None:
    """Use no huge pages in these arrays. For a library: the process belongs to its caller."""
    if not LINUX:
        return
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    for array in arrays:
        first = -(-array.ctypes.data // page) * page
        length = array.ctypes.data + array.nbytes - first
        if length >= page:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length // page * page), MADV_NOHUGEPAGE)
