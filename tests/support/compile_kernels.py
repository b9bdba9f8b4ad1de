"""Compile the kernels of every policy: `python -m tests.support.compile_kernels`, before the workers of a run start.

Without it, each worker compiles the kernels that its tests call: three minutes of CPU time in every worker. With all of
them on disk this takes two seconds. Two processes share the work. The policies of `vsocb` are in one of them: they
share the Oracle's kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PRINTED, CHAINS = "as-printed", "chains"
OPTIONS: dict[str, dict[str, Any]] = {
    "static": {"chosen": [True, True]},
    "belady": {"following": [3, 3, 3], "gains": [1, 1, 1]},
}
"""Arguments of the policies that cannot be built without, for two ids and three requests."""


def compile_kernels(names: Sequence[str]) -> None:
    """Call every kernel of these policies: from Python, as a live cache does, and in the simulator's loop."""
    import numpy as np

    from knapcache.lab.replay import replay
    from knapcache.lab.trace import Trace
    from knapcache.policy import registry

    trace = Trace(np.array([0, 1, 0]), np.ones(3, np.int64), np.ones(3), 2)
    for name in names:
        if name == PRINTED:
            from knapcache.estimate.statistics import Confidence
            from knapcache_experiments.as_printed import AsPrinted

            replay(AsPrinted(2, 2, alpha=0.5, confidence=Confidence()), trace)
            continue
        if name == CHAINS:
            from knapcache.policy.chains.policy import warm_up

            warm_up()
            continue
        replay(registry.find(name).build(2, 2, **OPTIONS.get(name, {})), trace)
        policy = registry.find(name).build(2, 2, **OPTIONS.get(name, {}))
        policy.arrive(0)
        policy.settle(0, 1, 1.0)
        policy.forget(0)
        if type(policy).recycle_kernel is not None:
            policy.recycle()


def main() -> None:
    if sys.argv[1:]:
        compile_kernels(sys.argv[1:])
        return
    from knapcache.policy.registry import SPECS

    oracle = [name for name in SPECS if name.startswith(("vsocb", "berkeley", "offline"))]
    command = [sys.executable, "-m", "tests.support.compile_kernels"]
    environment = {**os.environ, "KNAPCACHE_COMPILE": "1"}
    parts = [
        subprocess.Popen([*command, *part], env=environment)
        for part in ([*oracle, PRINTED], [*(name for name in SPECS if name not in oracle), CHAINS])
    ]
    codes = [part.wait() for part in parts]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
