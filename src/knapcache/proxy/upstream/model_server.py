"""The child process of the embedded model: llama.cpp's server, until the end of stdin (embedded_model.py).

    python model_server.py WEIGHTS NAME THREADS CONTEXT PROMPT_CACHE

It imports nothing of knapcache, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SLOTS = 2
"""Answers generated at a time, each with the whole context; further requests wait. A slot of 2,048 tokens takes 47
MB."""
MAX_CONNECTIONS = 64
"""Open connections. Each has a thread, also while it is idle or waits for a slot."""
DEFAULT_MAX_TOKENS = 256
"""Tokens of an answer if the request sets no limit: a small model does not always stop by itself."""
MIB = 1 << 20
NICE = 2
"""Added to the child's nice value: cache hits come first where both share a core."""


def server_params(path: Path, name: str, threads: int, context: int, prompt_cache: int) -> Any:
    """Parameters of llama.cpp's server: loopback only, silent, bounded memory, no endpoint that shows other
    requests.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(path), {name}
    params.hostnames, params.port, params.cors_origins = ["127.0.0.1"], 0, ""
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_parallel, params.n_ctx, params.n_predict = SLOTS, SLOTS * context, DEFAULT_MAX_TOKENS
    params.n_threads_http = MAX_CONNECTIONS
    params.cache_ram_mib = prompt_cache // MIB  # 0: none; the default keeps past prompts in up to 8 GB
    params.n_gpu_layers, params.fit_params = 0, False  # do not look for a GPU
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.embedding, params.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.verbosity = -1
    return params


def exit_with_parent() -> None:
    """Exit at the end of stdin, without cleanup: the child has nothing to save."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(0)


def load_library() -> str:
    """Import xllamacpp. Return why that is not possible, or an empty string."""
    try:
        import xllamacpp  # noqa: F401
    except ImportError as error:
        hint = "; install Debian's package libgomp1, or libgomp of another distribution"
        return f"{error}{hint if 'libgomp' in str(error) else ''}"
    return ""


def main(argv: Sequence[str]) -> int:
    """Run the child: serve, print the address, wait for the end of stdin. Without arguments, only load xllamacpp."""
    if problem := load_library():
        print(problem, file=sys.stderr)
        return 1
    if not argv:
        return 0
    watcher = threading.Thread(target=exit_with_parent, daemon=True)
    watcher.start()
    if hasattr(os, "nice"):  # not on Windows
        os.nice(NICE)
    path, name, *numbers = argv
    import xllamacpp

    try:
        server = xllamacpp.Server(server_params(Path(path), name, *map(int, numbers)))
    except RuntimeError as error:
        print(f"llama.cpp cannot use {path}: {error}", file=sys.stderr)
        return 1
    print(server.listening_address, flush=True)
    watcher.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
