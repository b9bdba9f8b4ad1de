"""Every example runs offline and prints the expected lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
EXPECTED = {
    "anthropic_sdk.py": ["stream - You said: What is a knapsack?", "hit - You said: What is a knapsack?", "1 of 2"],
    "langchain_cache.py": ["A bag.", "A bag.", "1 of 2 from the cache"],
    "litellm_transport.py": [
        "You said: What is a knapsack?",
        "You said: What is a knapsack?",
        "stream - You said: What is a knapsack?",
        "2 of 3",
    ],
    "openai_sdk.py": [
        "miss - You said: What is a knapsack?",
        "hit - You said: What is a knapsack?",
        "stream - You said: What is a knapsack?",
        "2 of 3",
    ],
    "plain_function.py": ["A knapsack holds what", "A knapsack holds what", "1 of 2 from the cache, 0.2 seconds saved"],
}


def test_every_example_has_expected_output() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str) -> None:
    env = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")} | {"KNAPCACHE_COMPILE": "0"}
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(EXPECTED[name]), done.stdout
    for line, start in zip(lines, EXPECTED[name], strict=True):
        assert line.startswith(start)
