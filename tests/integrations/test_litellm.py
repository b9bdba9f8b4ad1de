"""LiteLLM itself, against a fake provider (`litellm_scenario.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SAID = "You said: Hello there, all of you"


@pytest.fixture(scope="module")
def found() -> Any:
    script = Path(__file__).with_name("litellm_scenario.py")
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_completions_are_given_again(found: Any) -> None:
    told = found["completions"]
    assert told["same"]
    assert told["calls"] == [1, 3]
    assert told["hits"] == 1
    assert told["saved"] > 0


def test_streams_are_given_again(found: Any) -> None:
    assert found["streams"] == {"texts": [SAID, SAID], "calls": 1}


def test_coroutines_and_embeddings(found: Any) -> None:
    told = found["coroutines"]
    assert told["ids"] == ["chatcmpl-1", "chatcmpl-1"]
    assert told["calls"] == 1
    assert told["asked"] == ["c"]
    assert told["vectors"][1][:2] == told["vectors"][0]


def test_the_contract_of_its_caches(found: Any) -> None:
    told = found["contract"]
    kept = {"timestamp": 1.0, "response": '{"a": 1}'}
    embedded = {"response": {"embedding": [1.0], "prompt_tokens": 3}}
    assert told["found"] == [None, kept, None, None, embedded, 2, [1], "success"]
    assert told["flushed"] is None


def test_litellm_can_send_through_the_transport_with_our_keys(found: Any) -> None:
    told = found["through_the_transport"]
    assert told["ids"] == ["chatcmpl-1", "chatcmpl-1"]
    assert told["text"] == SAID
    assert told["calls"] == [1, 2]  # extra_body is part of our key, and not of LiteLLM's
