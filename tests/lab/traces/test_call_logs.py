"""Logs of calls in the formats of other programs: batch files, bare requests, Helicone, LiteLLM; prices by model."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.lab.trace import Trace
from knapcache.lab.traces import AUTO, ColumnRules, Prices, read_trace
from knapcache.lab.traces.base import find_time
from tests.support.trace_logs import error_of
from tests.support.trace_logs import write_lines as write

PER_MILLION = ColumnRules(prices=Prices(2.0, 10.0))
BY_MODEL = ColumnRules(prices=AUTO)
EACH = ColumnRules(cost_each=1.0)
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}


def request(text: str = "Hi", model: str = "gpt-4o") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def response(model: str = "gpt-4o", created: int = 1_700_000_000) -> dict[str, Any]:
    message = {"role": "assistant", "content": 'Say "Hello"'}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def read(path: Any, rules: ColumnRules = ColumnRules(), **options: Any) -> tuple[Trace, Counter[str]]:  # noqa: B008
    notices: Counter[str] = Counter()
    return read_trace(path, rules, on_notice=lambda text: notices.update([text]), **options), notices


# Prices of each line's own model --------------------------------------------------------------------------------------


def test_each_line_is_priced_by_its_own_model(tmp_path: Path) -> None:
    models = ("gpt-4o", "gpt-4o-mini", "claude-3-5-sonnet-20241022")
    lines: list[dict[str, Any]] = [{"request": request(model=m), "response": response(m)} for m in models]
    anthropic = {"input_tokens": 1000, "output_tokens": 100}
    lines[2]["response"] = {"type": "message", "model": models[2], "usage": anthropic}
    trace, notices = read(write(tmp_path / "log", *lines), BY_MODEL)
    # Dollars per million: 2.5 and 10; 0.15 and 0.6; 3 and 15.
    assert trace.costs.tolist() == pytest.approx([0.0035, 0.00021, 0.0045])
    assert trace.unit == "usd"
    assert not notices


def test_lines_without_a_price_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [{"request": request(model=m), "response": response(m)} for m in ("gpt-4o", "our-own", "our-own", "other")]
    path = write(tmp_path / "log", *lines)
    trace, notices = read(path, BY_MODEL)
    assert len(trace) == 1
    assert notices == {
        "left out: call of model 'our-own', which has no known price": 2,
        "left out: call of model 'other', which has no known price": 1,
    }
    assert "line 2: cannot be replayed (call of model 'our-own'" in error_of(path, BY_MODEL)
    write(path, *lines[1:])
    with pytest.raises(InvalidInput, match=r"no requests to replay \(first line left out: call of model 'our-own'"):
        read(path, BY_MODEL)


def test_formats_without_models_have_no_automatic_prices(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    rules = ColumnRules(key=("ContextTokens",), prices=AUTO)
    assert "--prices auto needs the model of each call" in error_of(tmp_path / "azure.csv", rules)


def test_failed_calls_are_left_out(tmp_path: Path) -> None:
    failed = {"request": request(), "response": {"error": {"code": 429}}}
    trace, notices = read(write(tmp_path / "log", failed, {"request": request(), "response": response()}), EACH)
    assert len(trace) == 1
    assert notices == {"left out: failed call": 1}


# Times ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["key", "time"], "time"),
        (["created_at", "timestamp"], "timestamp"),
        (["Timestamp", "x"], "Timestamp"),
        (["@timestamp"], "@timestamp"),
        (["startTime", "endTime"], "startTime"),
        (["request_created_at", "response_created_at"], "request_created_at"),
        (["createdAt"], "createdAt"),
        (["when"], None),
    ],
)
def test_the_time_field_is_found_by_its_name(names: list[str], found: str | None) -> None:
    assert find_time(names) == found


@pytest.mark.parametrize(
    "values",
    [
        [1_700_000_000, 1_700_000_060],
        [1_700_000_000_000, 1_700_000_060_000],
        [1_700_000_000_000_000, 1_700_000_060_000_000],
        [1_700_000_000_000_000_000, 1_700_000_060_000_000_000],
        ["2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z"],
        ["2023-11-14 22:13:20", "2023-11-14 22:14:20"],
        ["2023-11-14T23:13:20+01:00", "1700000060"],
    ],
)
@pytest.mark.parametrize("name", ["timestamp", "ts", "created_at", "start_time"])
def test_times_are_seconds_since_1970(values: list[Any], name: str, tmp_path: Path) -> None:
    lines = [{name: value, "key": "a", "size": 1, "cost": 1} for value in values]
    tables = [write(tmp_path / "log.jsonl", *lines), tmp_path / "log.csv"]
    tables[1].write_text(f"{name},key,size,cost\n" + "".join(f"{value},a,1,1\n" for value in values))
    calls = [{name: value, "request": request(), "response": response()} for value in values]
    for path, rules in [(tables[0], ColumnRules()), (tables[1], ColumnRules()), (write(tmp_path / "c", *calls), EACH)]:
        trace, _ = read(path, rules)
        assert trace.times is not None
        assert trace.times.tolist() == [1_700_000_000.0, 1_700_000_060.0]


def test_relative_times_stay_seconds(tmp_path: Path) -> None:
    trace, _ = read(write(tmp_path / "log", *({"ts": t, "key": "a", "size": 1, "cost": 1} for t in (0, 3600.5))))
    assert trace.times is not None
    assert trace.times.tolist() == [0.0, 3600.5]


def test_calls_have_the_time_of_the_answer_if_the_log_has_none(tmp_path: Path) -> None:
    lines = [{"request": request(), "response": response(created=at)} for at in (100, 160)]
    trace, _ = read(write(tmp_path / "log", *lines), EACH)
    assert trace.times is not None
    assert trace.times.tolist() == [100.0, 160.0]
    assert read(tmp_path / "log", ColumnRules(cost_each=1.0, no_time=True))[0].times is None


# Units of cost --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "unit"),
    [
        (PER_MILLION, "usd"),
        (ColumnRules(cost="cost_usd"), "usd"),
        (ColumnRules(cost="meta.spend"), "usd"),
        (ColumnRules(cost="latency"), "latency"),
        (EACH, ""),
    ],
)
def test_the_unit_of_costs(rules: ColumnRules, unit: str, tmp_path: Path) -> None:
    line = {"request": request(), "response": response(), "cost_usd": 1, "latency": 2, "meta": {"spend": 3}}
    assert read(write(tmp_path / "log", line), rules)[0].unit == unit


@pytest.mark.parametrize(
    ("rows", "unit"),
    [
        ("1,a,5,0.5,0.5,2,hit\n2,b,5,0.1,unknown,500,miss\n", "usd"),
        ("1,a,5,2,unknown,2,hit\n", "seconds"),
        ("1,a,5,2.5,0.5,2,hit\n", ""),
    ],
)
def test_the_unit_of_the_proxys_request_log(rows: str, unit: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("time,key,size,cost,usd,seconds,outcome\n" + rows)
    assert read(path)[0].unit == unit


# OpenAI's batch files -------------------------------------------------------------------------------------------------


def batch_input(name: str, text: str = "Hi") -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": request(text)}


def batch_output(name: str, status: int = 200, **more: Any) -> dict[str, Any]:
    inner = {"status_code": status, "request_id": "r", "body": response()}
    return {"id": "batch_req_1", "custom_id": name, "response": inner, "error": None, **more}


def test_a_batch_is_joined_by_custom_id(tmp_path: Path) -> None:
    path = write(tmp_path / "in", batch_input("a"), batch_input("b", "Ho"), batch_input("c"))
    answers = write(tmp_path / "out", batch_output("c"), batch_output("a"), batch_output("b"))
    trace, notices = read([path, answers], PER_MILLION)
    assert trace.keys.tolist() == [0, 1, 0], "in the order of the input"
    assert trace.costs.tolist() == pytest.approx([0.003] * 3)
    assert trace.times is not None
    assert not notices
    compact = [json.dumps(body, separators=(",", ":")) for body in (request(), response())]
    assert trace.sizes[0] == sum(map(len, compact))
    half, _ = read([answers, path], BY_MODEL)
    assert half.costs.tolist() == pytest.approx([0.0035 / 2] * 3), "the price of a batch"


def test_failed_requests_of_a_batch_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "in", *(batch_input(name) for name in "abcd"))
    expired = {"id": "x", "custom_id": "c", "response": None, "error": {"code": "batch_expired", "message": "…"}}
    answers = write(tmp_path / "out", batch_output("a"), batch_output("b", status=400), expired, batch_output("z"))
    trace, notices = read([path, answers], EACH)
    assert len(trace) == 1
    assert notices == {
        "left out: failed call": 2,
        "left out: request without an answer": 1,
        "left out: answer without a request": 1,
    }


def test_batches_with_equal_ids_are_kept_apart(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "in-1", batch_input("a", "1"), batch_input("b", "2")),
        write(tmp_path / "in-2", batch_input("a", "3"), batch_input("b", "4")),
        write(tmp_path / "out-1", batch_output("a")),
        write(tmp_path / "out-2", batch_output("a"), batch_output("b")),
    ]
    trace, notices = read(files, EACH)
    assert (len(trace), trace.ids) == (3, 3)
    assert notices == {"left out: request without an answer": 1}


def test_a_batch_without_answers_has_the_sizes_of_its_requests(tmp_path: Path) -> None:
    path = write(tmp_path / "in", batch_input("a"))
    trace, notices = read(path, EACH)
    assert trace.sizes.tolist() == [len(json.dumps(request(), separators=(",", ":")))]
    assert sum(notices.values()) == 1
    assert "response.usage is missing" in error_of(path, PER_MILLION)
    assert "give its input file" in error_of(write(tmp_path / "out", batch_output("a")), EACH)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**batch_input("b"), "custom_id": 5}, "custom_id must be a text, not 5"),
        (batch_input("a"), "custom_id 'a' is used twice"),
        ({**batch_input("b"), "body": []}, "body must be an object, not []"),
        ({"custom_id": "b"}, "neither a request (body) nor an answer (response)"),
    ],
)
def test_broken_batch_lines(line: Any, message: str, tmp_path: Path) -> None:
    assert f"line 2: {message}" in error_of(write(tmp_path / "in", batch_input("a"), line), EACH)


# Bare requests --------------------------------------------------------------------------------------------------------


def test_bare_requests_with_answers(tmp_path: Path) -> None:
    lines = [
        {**request(), "timestamp": 1, "request_id": "x", "response": response()},
        {**request(), "timestamp": 2, "request_id": "y", "response": json.dumps(response())},
        {**request("Ho"), "timestamp": 3, "request_id": "z", "response": response()},
    ]
    trace, notices = read(write(tmp_path / "log", *lines), BY_MODEL)
    assert trace.keys.tolist() == [0, 0, 1], "times and ids are not part of the key"
    assert trace.costs.tolist() == pytest.approx([0.0035] * 3)
    assert trace.times is not None
    assert not notices


def test_bare_requests_without_answers(tmp_path: Path) -> None:
    trace, notices = read(write(tmp_path / "log", request(), request()), EACH)
    assert trace.sizes.tolist() == [len(json.dumps(request(), separators=(",", ":")))] * 2
    assert list(notices.values()) == [2]
    assert "size is that of the request alone" in next(iter(notices))
    priced, _ = read(write(tmp_path / "log", {**request(), "usage": USAGE}), BY_MODEL)
    assert priced.costs.tolist() == pytest.approx([0.0035])
    assert "must be a request body" in error_of(write(tmp_path / "log", request(), {"model": "m"}), EACH)


# Helicone -------------------------------------------------------------------------------------------------------------


def helicone(text: str, at: str, **more: Any) -> dict[str, Any]:
    """A record as `@helicone/export` writes it."""
    return {
        "response_id": "r",
        "response_created_at": at,
        "response_status": 200,
        "response_model": "gpt-4o",
        "request_id": "q",
        "request_created_at": at,
        "request_path": "https://api.openai.com/v1/chat/completions",
        "request_body": request(text),
        "response_body": response(),
        "request_user_id": None,
        "request_properties": {"app": "x"},
        "request_model": "gpt-4o",
        "delay_ms": 900,
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "total_tokens": 1100,
        "costUSD": 0.0035,
        **more,
    }


# The newest first, as the exporter writes them.
EXPORT = [
    helicone("Hi", "2024-05-01T10:02:00.000Z"),
    helicone("Ho", "2024-05-01T10:01:00.000Z"),
    helicone("Hi", "2024-05-01T10:00:00.000Z", response_status=500, costUSD=None),
    helicone("Hi", "2024-05-01T09:59:00.000Z", costUSD=0.5),
]


def as_csv(records: list[dict[str, Any]]) -> str:
    """The exporter's CSV, in which the quotes of an object are doubled twice."""
    names = ["response_id", "response_created_at", "response_status", "request_created_at", "request_body"]
    names += ["request_properties", "request_user_id", "model", "prompt_tokens", "completion_tokens", "latency", "cost"]
    lines = [",".join(names)]
    for record in records:
        record = {**record, "model": record["request_model"], "cost": record["costUSD"]}
        cells = []
        for name in names:
            value = record.get(name)
            text = json.dumps(value).replace('"', '""') if isinstance(value, dict) else value
            cells.append("" if text is None else '"' + str(text).replace('"', '""') + '"')
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def test_helicone_exports_in_all_their_formats(tmp_path: Path) -> None:
    array = "[\n" + "".join(json.dumps(record, indent=2) + ",\n" for record in EXPORT) + "]\n"  # as it is written
    texts = {
        "log.jsonl": "".join(json.dumps(record) + "\n" for record in EXPORT),
        "log.json": array,
        "log.csv": as_csv(EXPORT),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        trace, notices = read(tmp_path / name)
        assert trace.keys.tolist() == [0, 1, 0], "sorted by time"
        assert trace.costs.tolist() == [0.5, 0.0035, 0.0035]
        assert trace.unit == "usd"
        assert trace.times is not None
        assert (trace.times[1:] - trace.times[0]).tolist() == [120.0, 180.0]
        assert notices["left out: failed call"] == 1
        priced, _ = read(tmp_path / name, BY_MODEL)
        assert priced.costs.tolist() == pytest.approx([0.0035] * 3)
    assert any("request alone" in text for text in notices), "the exporter's CSV has no answers"


def test_helicone_exports_without_bodies_need_a_key(tmp_path: Path) -> None:
    record = {name: value for name, value in EXPORT[0].items() if not name.endswith("_body")}
    path = write(tmp_path / "log", record)
    assert "line 1: the request is missing; --key-fields FIELD" in error_of(path)
    assert len(read(path, ColumnRules(key=("request_id",), size="total_tokens"))[0]) == 1


def test_a_prompt_may_be_longer_than_the_limit_of_the_csv_module(tmp_path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["request_created_at", "response_status", "request_body", "cost"])
    writer.writerow(["2024-05-01T10:02:00Z", 200, json.dumps(request("x" * 300_000)), 1])
    (tmp_path / "log.csv").write_text(text.getvalue())
    assert read(tmp_path / "log.csv")[0].sizes[0] > 300_000


def test_an_array_that_ends_too_early_is_reported(tmp_path: Path) -> None:
    text = json.dumps(EXPORT, indent=1)
    (tmp_path / "log.json").write_text(text[: text.rindex("request_properties")])
    with pytest.raises(InvalidInput, match="record 4: not JSON"):
        read(tmp_path / "log.json")
    (tmp_path / "log.json").write_text("[1, 2]")
    assert "it is a JSON array" in error_of(tmp_path / "log.json")


# LiteLLM --------------------------------------------------------------------------------------------------------------


def spend_log(text: str, at: str, **more: Any) -> dict[str, Any]:
    """A row of LiteLLM_SpendLogs with store_prompts_in_spend_logs."""
    return {
        "request_id": "chatcmpl-1",
        "call_type": "acompletion",
        "api_key": "hash",
        "spend": 0.004,
        "total_tokens": 1100,
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "startTime": at,
        "endTime": at,
        "model": "gpt-4o",
        "custom_llm_provider": "openai",
        "cache_hit": "None",
        "cache_key": "Cache OFF",
        "messages": {},
        "response": response(),
        "proxy_server_request": json.dumps(request(text)),
        "status": "success",
        "created_at": "2024-05-02T00:00:00Z",
        **more,
    }


def logging_payload(text: str, at: float, **more: Any) -> dict[str, Any]:
    """A StandardLoggingPayload."""
    return {
        "id": "chatcmpl-1",
        "call_type": "acompletion",
        "response_cost": 0.004,
        "status": "success",
        "custom_llm_provider": "openai",
        "total_tokens": 1100,
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "startTime": at,
        "endTime": at + 1,
        "model": "gpt-4o",
        "cache_hit": False,
        "cache_key": None,
        "saved_cache_cost": 0.0,
        "messages": request(text)["messages"],
        "response": response(),
        "model_parameters": {"temperature": 0},
        **more,
    }


def test_litellm_spend_logs(tmp_path: Path) -> None:
    rows = [
        spend_log("Hi", "2024-05-01T10:02:00+00:00"),
        spend_log("Hi", "2024-05-01T10:01:00+00:00", cache_hit="True", spend=0.0),
        spend_log("Ho", "2024-05-01T10:00:00+00:00", status="failure", spend=0.0),
        spend_log("Ho", "2024-05-01T09:59:00+00:00", cache_hit="True", spend=0.0),
        spend_log("Hi", "2024-05-01T09:58:00+00:00", spend=0.008),
    ]
    names = list(rows[0])
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    for row in rows:
        writer.writerow([json.dumps(row[n]) if isinstance(row[n], dict) else row[n] for n in names])
    (tmp_path / "log.csv").write_text(text.getvalue())
    (tmp_path / "log.json").write_text(json.dumps(rows))
    for path in (write(tmp_path / "log.jsonl", *rows), tmp_path / "log.csv", tmp_path / "log.json"):
        trace, notices = read(path)
        assert trace.keys.tolist() == [0, 0, 0]
        assert trace.costs.tolist() == pytest.approx([0.008, 0.006, 0.004]), "a hit of its cache: the mean of the key"
        assert trace.times is not None
        assert (trace.times[1:] - trace.times[0]).tolist() == [180.0, 240.0]
        assert notices["left out: failed call"] == 1
        assert sum(notices.values()) == 2, "the hit for Ho, which was never paid for"
        priced, _ = read(path, BY_MODEL)
        assert priced.costs.tolist() == pytest.approx([0.0035] * 4)


def test_litellm_logging_payloads(tmp_path: Path) -> None:
    rows = [
        logging_payload("Hi", 1_700_000_000.5),
        logging_payload("Hi", 1_700_000_001.5, cache_hit=True, response_cost=0.0, saved_cache_cost=0.004),
        logging_payload("Hi", 1_700_000_002.5, model_parameters={"temperature": 1}),
    ]
    trace, notices = read(write(tmp_path / "log", *rows))
    assert trace.keys.tolist() == [0, 0, 1], "the parameters are part of the key"
    assert trace.costs.tolist() == [0.004] * 3
    assert not notices


def test_litellm_logs_without_prompts_have_litellms_own_keys(tmp_path: Path) -> None:
    bare: dict[str, Any] = {"proxy_server_request": "{}", "response": "{}", "messages": "{}"}
    rows = [spend_log("Hi", f"2024-05-01T10:0{k}:00Z", **bare, cache_key=key) for k, key in enumerate("aba")]
    path = write(tmp_path / "log", *rows)
    assert "the answer is missing; --size FIELD" in error_of(path)
    assert read(path, ColumnRules(size="total_tokens"))[0].keys.tolist() == [0, 1, 0]
    path = write(tmp_path / "log", {**rows[0], "cache_key": "Cache OFF"})
    assert "the request is missing; --key-fields FIELD" in error_of(path, ColumnRules(size="total_tokens"))


# Detection ------------------------------------------------------------------------------------------------------------


def test_an_unknown_object_is_an_error_that_names_the_formats(tmp_path: Path) -> None:
    message = error_of(write(tmp_path / "log", {"prompt": "a", "bytes": 5}))
    assert "its first object has the fields prompt, bytes" in message
    for name in ("jsonl", "openai-batch", "requests", "helicone", "litellm"):
        assert name in message
    trace, _ = read(tmp_path / "log", ColumnRules(key=("prompt",), size="bytes", cost_each=1.0, no_time=True))
    assert len(trace) == 1


def test_a_named_format_is_not_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "log", {"request": request(), "response": response()})
    assert "must be a request body" in error_of(path, EACH, format="requests")
