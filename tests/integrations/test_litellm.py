"""LiteLLM itself, with a fake provider (`tests/support/litellm_scenario.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support import ROOT

TEXT = "You said: Hello there, all of you"


@pytest.fixture(scope="module")
def results() -> Any:
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.litellm_scenario"]
    env = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")} | {"KNAPCACHE_COMPILE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_completions_are_served_from_the_cache(results: Any) -> None:
    result = results["completions"]
    assert result["same"]
    assert result["calls"] == [1, 3]
    assert result["hits"] == 1
    assert result["saved"] > 0


def test_streams_are_served_from_the_cache(results: Any) -> None:
    assert results["streams"] == {"texts": [TEXT, TEXT], "calls": 1}


def test_coroutines_and_embeddings(results: Any) -> None:
    result = results["coroutines"]
    assert result["ids"] == ["chatcmpl-1", "chatcmpl-1"]
    assert result["calls"] == 1
    assert result["fetched"] == ["c"]
    assert result["vectors"][1][:2] == result["vectors"][0]


def test_the_interface_of_its_caches(results: Any) -> None:
    result = results["interface"]
    stored = {"timestamp": 1.0, "response": '{"a": 1}'}
    embedded = {"response": {"embedding": [1.0], "prompt_tokens": 3}}
    assert result["found"] == [None, stored, None, None, embedded, 2, [1], "success"]
    assert result["flushed"] is None
    share = {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert result["read"] == [["", share, None], ["m", {"total_tokens": 5}, "flex"], ["", None, None]]


def test_litellm_can_send_through_the_transport(results: Any) -> None:
    result = results["through_the_transport"]
    assert result["ids"] == ["chatcmpl-1", "chatcmpl-1"]
    assert result["text"] == TEXT
    assert result["calls"] == [1, 2]  # extra_body is part of knapcache's key, and not of LiteLLM's


def test_the_example_runs(results: Any) -> None:
    asked = "You said: What is a knapsack?"
    *answers, last = results["example"]
    assert answers == [asked, asked, f"stream - {asked}"]
    assert last.startswith("2 of 3")
