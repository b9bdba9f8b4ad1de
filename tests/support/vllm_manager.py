"""vLLM's own offloading manager without a GPU: `python -m tests.support.vllm_manager` in the environment `.venv-vllm`.

    python -m tests.support.vllm_manager TRACE BLOCK CAPACITY POLICY …

Replays a trace as `knapcache kv` does, and prints a JSON object for each policy: {policy, capacity, tokens_found,
blocks_written, seconds, offered}. The policies are vLLM's own `lru` and `arc`, and `AdaptivePolicy` of
`knapcache.integrations.vllm`, which vLLM loads by its path.

The manager and its policies are Python code without a GPU. But `import vllm` loads PyTorch and most of the package. So
parent packages are replaced by empty ones with the same folder, and the modules that the manager only takes a name from
by modules with that name: logger, configuration, statistics, and `torch` for one annotation.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "knapcache.integrations.vllm"
ADAPTIVE = "AdaptivePolicy"
METRICS = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics"


class QuietLogger(logging.Logger):
    """A logger with the methods that vLLM adds."""

    info_once = warning_once = logging.Logger.debug


def module(name: str, **content: Any) -> None:
    """Register a module with this content."""
    sys.modules[name] = made = ModuleType(name)
    vars(made).update(content)


def prepare() -> None:
    """Register what the manager does not use, so that it can be imported without the rest of vLLM."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        sys.exit("vLLM is not installed: run `make test-vllm`")
    root = Path(next(iter(found.submodule_search_locations)))
    parts = METRICS.split(".")
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics", *(".".join(parts[:k]) for k in range(2, len(parts)))):
        module(name, __path__=[str(root.joinpath(*name.split(".")[1:]))])
    module("vllm.logger", init_logger=QuietLogger)
    module(METRICS, OffloadingConnectorStats=object)
    module("torch", Tensor=object)


def replay(chains: list[list[int]], block: int, capacity: int, policy: str) -> dict[str, Any]:
    """Replay requests through vLLM's manager, step by step as `knapcache kv` does."""
    from knapcache.lab.kv.replay import steps

    manager: Any = importlib.import_module("vllm.v1.kv_offload.cpu.manager")
    base: Any = importlib.import_module("vllm.v1.kv_offload.base")
    path = MODULE if policy == ADAPTIVE else None
    one = manager.CPUOffloadingManager(capacity, cache_policy=policy, cache_policy_module_path=path)
    found = written = 0
    start = time.process_time()
    for number, chain in enumerate(chains):
        keys = [base.make_offload_key(block_id.to_bytes(32, "big"), 0) for block_id in chain]
        context = base.ReqContext(req_id=str(number))
        one.on_new_request(context)
        for k, key in enumerate(keys, 1):
            context.set_offload_key_position(key, k * block)
        hits = 0
        while hits < len(keys) and one.lookup(keys[hits], context) == base.LookupResult.HIT:
            hits += 1
        if hits:
            one.prepare_load(keys[:hits], context)
            one.complete_load(keys[:hits], context)
        for part in steps(keys[hits:], block):
            output = one.prepare_store(part, context)
            if output is None:
                break
            one.complete_store(output.keys_to_store, context)
            written += len(output.keys_to_store)
        one.on_request_finished(context)
        found += hits
    offered = sum(map(len, chains))
    return {
        "policy": policy,
        "capacity": capacity,
        "tokens_found": found / offered,
        "blocks_written": written,
        "seconds": time.process_time() - start,
        "offered": offered,
    }


def main(trace: str, block: str, capacity: str, *policies: str) -> None:
    from knapcache.lab.kv import read_block_trace

    prepare()
    read = read_block_trace(trace, int(block))
    chains = [chain.tolist() for chain in read.chains]
    for policy in policies:
        print(json.dumps(replay(chains, read.block, int(capacity), policy)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
