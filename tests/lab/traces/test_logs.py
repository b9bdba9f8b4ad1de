"""Logs without a table of requests: calls, prefix blocks, token counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.lab.trace import Trace
from knapcache.lab.traces import BrokenLine, ColumnRules, Prices, read_trace
from tests.support.trace_logs import error_of
from tests.support.trace_logs import write_lines as log

PRICES = ColumnRules(prices=Prices(2.0, 10.0))


# OpenAI-style logs -------------------------------------------------------------------------------------------------


def call(text: str = "Hi", **more: Any) -> dict[str, Any]:
    """Return a logged call in the API's format."""
    request = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
    message = {"role": "assistant", "content": "Hello!"}
    response = {"id": "x", "choices": [{"index": 0, "message": message}], "usage": usage}
    return {"request": request, "response": response, "latency": 1.25, "meta": {"at": "1970-01-01T00:00:05Z"}}


def test_calls(tmp_path: Path) -> None:
    one, other = call(), call("Ho")
    trace = read_trace(log(tmp_path / "log", one, other, one), PRICES)
    assert trace.keys.tolist() == [0, 1, 0]
    assert trace.times is None
    assert trace.costs.tolist() == pytest.approx([(100 * 2.0 + 7 * 10.0) / 1e6] * 3)
    compact = [json.dumps(one[side], separators=(",", ":")) for side in ("request", "response")]
    assert trace.sizes[0] == sum(map(len, compact))


def test_sizes_are_bytes(tmp_path: Path) -> None:
    plain, accented = call("a"), call("é")
    sizes = read_trace(log(tmp_path / "log", plain, accented), PRICES).sizes
    assert sizes[1] == sizes[0] + 1


def test_fields_that_do_not_affect_the_answer_are_not_in_the_key(tmp_path: Path) -> None:
    same = [
        call(),
        call(stream=True, stream_options={"include_usage": True}),
        call(user="me"),
        call(metadata={"a": "b"}),
        {**call(), "request": dict(reversed(call()["request"].items()))},
        {**call(), "request": json.dumps(call()["request"], indent=2), "response": json.dumps(call()["response"])},
    ]
    others = [call(temperature=0), call(temperature=0.0), call(n=2), call("hi")]
    trace = read_trace(log(tmp_path / "log", *same, *others), PRICES)
    assert trace.keys.tolist() == [0] * len(same) + [1, 2, 3, 4]


def test_costs_from_a_field_and_times(tmp_path: Path) -> None:
    path = log(tmp_path / "log", call(), call())
    trace = read_trace(path, ColumnRules(cost="latency", time="meta.at"))
    assert trace.costs.tolist() == [1.25, 1.25]
    assert trace.times is not None
    assert trace.times.tolist() == [5.0, 5.0]
    assert read_trace(path, ColumnRules(cost_each=3.0)).total_cost == 6.0


def test_usage_of_the_responses_api(tmp_path: Path) -> None:
    entry = call()
    entry["response"]["usage"] = {"input_tokens": 1_000_000, "output_tokens": 500_000}
    assert read_trace(log(tmp_path / "log", entry), PRICES).costs.tolist() == [7.0]


def test_costs_of_calls_must_be_given(tmp_path: Path) -> None:
    message = error_of(log(tmp_path / "log", call()))
    for option in ("--prices auto", "--prices IN,OUT", "--cost FIELD", "--cost-each X"):
        assert option in message


def broken_call(side: str, **changes: Any) -> dict[str, Any]:
    entry = call()
    entry[side] = {name: value for name, value in {**entry[side], **changes}.items() if value is not ...}
    return entry


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"request": {"model": "m"}}, "response is missing"),
        ({"response": {"id": "x"}}, "request is missing"),
        ({**call(), "request": {}}, "request must be an object, not {}"),
        ({**call(), "request": "Hi"}, "request is not JSON"),
        ({**call(), "response": 'data: {"a": 1}'}, "response is not JSON"),
        ({**call(), "response": [1]}, "response must be an object, not [1]"),
        (broken_call("response", usage=...), "response.usage is missing"),
        (broken_call("response", usage={}), "response.usage has neither prompt_tokens nor input_tokens"),
        (
            broken_call("response", usage={"prompt_tokens": 1}),
            "response.usage.completion_tokens must be a whole number",
        ),
        (broken_call("response", usage={"prompt_tokens": -1, "completion_tokens": 1}), "must contain token counts"),
        (broken_call("response", usage={"prompt_tokens": 1.5, "completion_tokens": 1}), "must be a whole number"),
        ("{", "not JSON"),
    ],
)
def test_broken_calls(line: Any, message: str, tmp_path: Path) -> None:
    path = log(tmp_path / "log", call(), line, call())
    assert f"{path}, line 2: " in error_of(path, PRICES)
    assert message in error_of(path, PRICES)
    broken: list[BrokenLine] = []
    assert len(read_trace(path, PRICES, on_broken=broken.append)) == 2
    assert [b.place for b in broken] == ["line 2"]


@pytest.mark.parametrize("latency", [None, "slow", -1, True])
def test_broken_costs_of_calls(latency: Any, tmp_path: Path) -> None:
    path = log(tmp_path / "log", {**call(), "latency": latency})
    assert "line 1: " in error_of(path, ColumnRules(cost="latency"))
    assert "line 1: latency.deep is missing" in error_of(path, ColumnRules(cost="latency.deep"))


# Mooncake ----------------------------------------------------------------------------------------------------------


def blocks(*ids: int, at: int = 0, last: int = 100) -> dict[str, Any]:
    return {"timestamp": at, "input_length": 512 * (len(ids) - 1) + last, "output_length": 5, "hash_ids": list(ids)}


def entries(trace: Trace) -> list[tuple[object, int]]:
    assert trace.names is not None
    return [(trace.names[k], s) for k, s in zip(trace.keys.tolist(), trace.sizes.tolist(), strict=True)]


def test_segments(tmp_path: Path) -> None:
    """Like the first lines of Mooncake's conversation trace: block 0 is shared, the others are not."""
    path = log(
        tmp_path / "log",
        blocks(0, 1, 2, 3, at=0, last=102),
        blocks(0, 14, 15, at=3000, last=154),
        blocks(0, 1, 2, 3, 9, at=3500, last=512),  # extends the first request
        blocks(0, 1, 7, at=4000, last=1),  # diverges from it
    )
    trace = read_trace(path, PRICES)
    expected = [(0, 512), (1, 512), (2, 512 + 102), (0, 512), (14, 512 + 154)]
    expected += [(0, 512), (1, 512), (2, 1024), (9, 512), (0, 512), (1, 512), (7, 1)]
    assert entries(trace) == expected
    assert trace.times is not None
    assert trace.times.tolist() == [0.0] * 3 + [3.0] * 2 + [3.5] * 4 + [4.0] * 3
    assert trace.costs.tolist() == pytest.approx([size * 2e-6 for _, size in expected])


PREFIXES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


@given(chains=PREFIXES)
@settings(max_examples=100, deadline=None)
def test_segments_against_their_definition(chains: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A block begins a segment unless its predecessor is always followed by it."""
    numbers: dict[tuple[int, ...], int] = {}  # an id identifies the whole prefix
    requests = [
        [numbers.setdefault(tuple(chain[:k]), len(numbers)) for k in range(1, len(chain) + 1)] for chain in chains
    ]
    path = log(tmp_path_factory.mktemp("m") / "log", *(blocks(*ids, last=512) for ids in requests))
    successors = {
        b: {r[r.index(b) + 1] if r[-1] != b else None for r in requests if b in r} for r in requests for b in r
    }
    expected: list[tuple[object, int]] = []
    for r in requests:
        for k, b in enumerate(r):
            if k == 0 or len(successors[r[k - 1]]) > 1:
                expected.append((b, 0))
            expected[-1] = (expected[-1][0], expected[-1][1] + 512)
    assert entries(read_trace(path, PRICES)) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**blocks(1, 2), "input_length": 512}, "input_length is 512, which is not 2 blocks of 512 tokens"),
        ({**blocks(1, 2), "input_length": 1025}, "input_length is 1025, which is not 2 blocks"),
        ({**blocks(1), "input_length": 0}, "input_length is 0"),
        ({**blocks(1), "hash_ids": []}, "hash_ids must be a list of whole numbers, not []"),
        ({**blocks(1), "hash_ids": [True]}, "hash_ids must be a list of whole numbers"),
        ({**blocks(1), "hash_ids": [-1]}, "hash_ids must be a list of whole numbers"),
        ({**blocks(1), "hash_ids": "1"}, "hash_ids must be a list of whole numbers, not '1'"),
        ({"timestamp": 0, "input_length": 5}, "hash_ids is missing"),
        ({"timestamp": 0, "hash_ids": [1]}, "input_length is missing"),
        ({**blocks(1), "timestamp": None}, "timestamp is missing"),
        ("{", "not JSON"),
    ],
)
def test_broken_blocks(line: Any, message: str, tmp_path: Path) -> None:
    path = log(tmp_path / "log", blocks(1, 2), line)
    assert f"line 2: {message}" in error_of(path, PRICES)
    broken: list[BrokenLine] = []
    read_trace(path, PRICES, on_broken=broken.append)
    assert [b.place for b in broken] == ["line 2"]  # reported once, although the file is read twice


def test_costs_of_blocks_must_be_given(tmp_path: Path) -> None:
    path = log(tmp_path / "log", blocks(1, 2))
    assert "contains no costs: use --prices IN,OUT per million tokens, or --cost-each X" in error_of(path)
    assert read_trace(path, ColumnRules(cost_each=2.0)).costs.tolist() == [2.0]


# Token counts ------------------------------------------------------------------------------------------------------

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,374,9\n"
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
KEY = ("ContextTokens",)


def test_token_counts(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    trace = read_trace(path, ColumnRules(key=KEY, prices=Prices(1.0, 2.0)))
    assert (trace.keys.tolist(), trace.sizes.tolist()) == ([0, 0], [418, 383])
    assert trace.costs.tolist() == pytest.approx([462e-6, 392e-6])
    assert trace.times is not None
    assert trace.times[1] - trace.times[0] == pytest.approx(4.314579, abs=1e-5)


def test_a_token_log_of_another_program_is_csv(tmp_path: Path) -> None:
    path = tmp_path / "burstgpt.csv"
    path.write_text(BURST)
    assert "has no column 'key' among 'Timestamp', 'Model', 'Request tokens'" in error_of(path, ColumnRules())
    assert "name another with --key-fields" in error_of(path, ColumnRules())
    trace = read_trace(path, ColumnRules(key=("Model", "Request tokens"), size="Total tokens", cost_each=1.0))
    assert (trace.names, trace.sizes.tolist()) == ([("ChatGPT", "472")], [490])


def test_token_counts_have_no_identity(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(AZURE)
    message = error_of(tmp_path / "t.csv", PRICES)
    assert "nothing in it identifies equal requests" in message
    assert "--key" in message
    assert "contains no costs: use --prices IN,OUT" in error_of(tmp_path / "t.csv", ColumnRules(key=("x",)))
    assert "has no column 'x'" in error_of(tmp_path / "t.csv", ColumnRules(key=("x",), cost_each=1.0))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-16 18:15:46,-1,9", "ContextTokens must be at least 0"),
        ("2023-11-16 18:15:46,3,", "GeneratedTokens is missing"),
        ("2023-11-16 18:15:46,3,1.5", "GeneratedTokens must be a whole number, not '1.5'"),
        ("2023-11-16 18:15:46,0,0", "size must be at least 1"),
        ("yesterday,3,4", "TIMESTAMP must be a number or a date and time, not 'yesterday'"),
        ("2023-11-16 18:15:46,3", "2 fields where the header has 3"),
    ],
)
def test_broken_token_counts(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(AZURE + line + "\n")
    assert f"line 4: {message}" in error_of(tmp_path / "t.csv", ColumnRules(key=KEY, cost_each=1.0))
    broken: list[BrokenLine] = []
    assert len(read_trace(tmp_path / "t.csv", ColumnRules(key=KEY, cost_each=1.0), on_broken=broken.append)) == 2
    assert len(broken) == 1
