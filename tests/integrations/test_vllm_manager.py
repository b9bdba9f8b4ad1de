"""vLLM's own offloading manager, without a GPU (`make test-vllm`)."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from knapcache.lab.capacity import Capacity
from knapcache.lab.kv import KvRow, read_block_trace, replay_kv
from tests.support import ROOT
from tests.support.programs import skip_without

PYTHON = ROOT / ".venv-vllm/bin/python"
CAPACITIES = (24, 60, 200)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of up to 60 blocks with one of two system prompts. Some are longer than the smallest cache."""
    rng = random.Random(1)
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    conversations: list[list[int]] = []
    blocks = 2
    with path.open("w") as file:
        for time in range(1500):
            if conversations and rng.random() < 0.6:
                ids = conversations[-1 - min(len(conversations) - 1, int(rng.expovariate(0.1)))]
            else:
                ids = [rng.randrange(2)]
            new = rng.randint(1, 12)
            ids = [*ids, *range(blocks, blocks + new)][:60]
            blocks += new
            conversations.append(ids)
            row = {"timestamp": time, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return path


def manager_rows(trace: Path, capacity: int, *policies: str) -> dict[str, dict[str, Any]]:
    """Return what vLLM's manager finds with each policy."""
    if not PYTHON.exists():
        skip_without("vllm", "make test-vllm")
    command = [str(PYTHON), "-m", "tests.support.vllm_manager", str(trace), "512", str(capacity), *policies]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return {row["policy"]: row for row in map(json.loads, done.stdout.splitlines())}


def same(row: dict[str, Any], expected: KvRow) -> bool:
    return (row["tokens_found"], row["blocks_written"]) == (expected.tokens_found, expected.blocks_written)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_same_numbers_as_knapcache_kv(trace: Path, capacity: int) -> None:
    rows = manager_rows(trace, capacity, "lru", "AdaptivePolicy")
    lru, adaptive, _ = replay_kv(read_block_trace(trace, 512), [Capacity.parse(str(capacity))], ["lru", "adaptive"])
    assert 0.0 < lru.tokens_found < adaptive.tokens_found
    assert same(rows["lru"], lru)
    assert same(rows["AdaptivePolicy"], adaptive)
