"""The live experiment: requests through a real proxy in its own process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from knapcache.cli.main import main
from knapcache.errors import InvalidInput
from knapcache.testing import FakeUpstream
from knapcache_experiments import live, live_measurement
from knapcache_experiments.live import EXPERIMENT, LiveSettings
from knapcache_experiments.measured import TABLES

pytestmark = pytest.mark.tools

Captured = pytest.CaptureFixture[str]


class SlowUpstream(FakeUpstream):
    """Takes a millisecond per token of `max_tokens`."""

    def wait(self, seconds: float) -> bool:
        body = self.calls[-1].body if self.calls else None
        return super().wait(seconds + 0.001 * body["max_tokens"] if body else seconds)


@pytest.fixture(scope="module")
def live_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path, FakeUpstream]]:
    """A run with a fake upstream: 90 answers of about 3 kB, and capacity for a quarter of them."""
    folder = tmp_path_factory.mktemp("live")
    with SlowUpstream() as upstream:
        sizes = ["--queries", "90", "--requests", "250", "--capacity", "65536", "--tokens", "4,12,60", "--repeats", "1"]
        options = [
            *sizes,
            "--arrivals",
            "zipf:1",
            "--upstream",
            upstream.openai_url,
            "--record",
            str(folder / "record.json"),
        ]
        assert main(["experiment", "live", "--run", *options, "--out", str(folder)]) == 0
        yield options, folder, upstream


def test_adaptive_is_cheaper_than_lru(live_run: tuple[list[str], Path, FakeUpstream]) -> None:
    _, folder, upstream = live_run
    record = json.loads((folder / "record.json").read_text())
    adaptive, lru = record["runs"]
    assert (adaptive["policy"], lru["policy"]) == ("adaptive", "lru")
    assert [row[0] for row in adaptive["requests"]] == [row[0] for row in lru["requests"]]
    # Against the LRU shadow of the same run, so that a pause of the machine in one run decides nothing.
    assert adaptive["ledger"]["seconds_spent"] < adaptive["shadow_cost"]["lru"]
    assert adaptive["ledger"]["seconds_spent"] == pytest.approx(adaptive["shadow_cost"]["adaptive"])
    missed = sum(run["ledger"]["misses"] for run in (adaptive, lru))
    assert upstream.count("/chat/completions") == missed + 2  # two warm-up requests


@pytest.mark.parametrize("number", [0, 1])
def test_the_ledger_agrees_with_what_the_client_saw(
    live_run: tuple[list[str], Path, FakeUpstream], number: int
) -> None:
    run = json.loads((live_run[1] / "record.json").read_text())["runs"][number]
    ledger, rows = run["ledger"], [dict(zip(live_measurement.COLUMNS, row, strict=True)) for row in run["requests"]]
    assert ledger["requests"] == len(rows) == 250
    assert ledger["hits"] == sum(row["hit"] for row in rows)
    assert ledger["hits"] + ledger["misses"] == ledger["requests"]
    for unit in ("seconds", "usd"):
        assert ledger[f"{unit}_spent"] == pytest.approx(sum(row[unit] for row in rows if not row["hit"]), abs=1e-3)
        assert ledger[f"{unit}_saved"] == pytest.approx(sum(row[unit] for row in rows if row["hit"]), abs=1e-3)
        assert ledger[f"{unit}_spent"] > 0
    assert run["shadow_cost"]["none"] == pytest.approx(ledger["seconds_spent"] + ledger["seconds_saved"])
    if run["policy"] == "lru":  # the shadow of the policy itself
        assert run["shadow_cost"]["lru"] == pytest.approx(ledger["seconds_spent"])
    assert 0 < run["store"]["bytes"] <= run["store"]["capacity"] == 65536
    assert {row["prompt"] for row in rows if not row["hit"]} == {row["prompt"] for row in rows}
    assert sum(row["wall_seconds"] for row in rows) <= run["wall_seconds"]
    for row in rows:
        assert row["hit"] or row["wall_seconds"] >= row["seconds"] - 0.01  # the response is sent before admission


def test_the_record_reproduces_table_and_figure(
    live_run: tuple[list[str], Path, FakeUpstream], tmp_path: Path, capsys: Captured
) -> None:
    options, folder, _ = live_run
    assert main(["experiment", "live", *options, "--out", str(tmp_path)]) == 0
    assert "adaptive" in capsys.readouterr().out
    second, first = (json.loads((directory / "live.json").read_text()) for directory in (tmp_path, folder))
    assert second["rows"] == first["rows"]
    assert (tmp_path / "live.png").read_bytes().startswith(b"\x89PNG")
    assert main(["experiment", "live", *options, "--requests", "9", "--out", str(tmp_path)]) == 2
    assert "the record was measured with requests = 250, not 9; --run measures again" in capsys.readouterr().err


def test_requests_are_drawn_by_seed_and_differ_by_repeat() -> None:
    plan = LiveSettings().plan()
    first, second = live_measurement.prompt_sequence(plan, 0), live_measurement.prompt_sequence(plan, 1)
    assert first == live_measurement.prompt_sequence(plan, 0)
    assert first != second
    assert len(first) == 300
    assert set(first) <= set(range(30))


def test_costs_and_sizes_vary_independently() -> None:
    plan = LiveSettings().plan()
    bodies = [json.loads(live_measurement.request_body(plan, k, f"question {k}")) for k in range(plan.queries)]
    mix = {(b["max_tokens"], "logprobs" in b) for b in bodies}
    assert mix == {(tokens, logprobs) for tokens in (4, 24, 160) for logprobs in (False, True)}
    assert sum("logprobs" in b for b in bodies) == 12


def make_run(policy: str, repeat: int, seconds: float, usd: float) -> dict[str, Any]:
    ledger = {"requests": 3, "hits": 1, "misses": 2, "usd_spent": usd, "usd_saved": 1.0}
    ledger |= {"seconds_spent": seconds, "seconds_saved": 5.0}
    return {
        "policy": policy,
        "repeat": repeat,
        "wall_seconds": seconds + 1,
        "ledger": ledger,
        "shadow_cost": {"none": seconds + 5.0},
    }


def test_savings_by_hand() -> None:
    runs = [make_run("adaptive", 0, 6.0, 3.0), make_run("lru", 0, 8.0, 4.0), make_run("adaptive", 1, 5.0, 1.0)]
    runs += [make_run("lru", 1, 12.0, 4.0)]
    rows = {(r["policy"], r["repeat"]): r for r in live.table_rows(runs)}
    assert rows["adaptive", 0]["saved_seconds_percent"] == pytest.approx(25.0)
    assert rows["adaptive", 0]["saved_usd_percent"] == pytest.approx(25.0)
    assert rows["lru", 1]["saved_usd_percent"] == 0.0
    whole = rows["adaptive", None]
    assert (whole["seconds_spent"], whole["usd_spent"], whole["wall_seconds"], whole["shadow_cost_none"]) == (
        11.0,
        4.0,
        13.0,
        21.0,
    )
    assert whole["saved_seconds_percent"] == pytest.approx(100 * (1 - 11 / 20))
    assert whole["saved_usd_percent"] == pytest.approx(50.0)
    assert "| all | `adaptive` | 2 of 6 | 11.0 | 4.00000 | 13.0 s | −45.0 %, −50.0 % |" in live.markdown(
        [*rows.values()]
    )
    without_lru = live.table_rows(runs[:1])
    assert without_lru[0]["saved_usd_percent"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": 0}, "queries must be from 1 to"),
        ({"queries": 10_000}, "queries must be from 1 to"),
        ({"requests": 1_001}, "requests must be from 1 to 1000, not 1001"),
        ({"capacity": 65_535}, "capacity must be from 65536 to"),
        ({"tokens": (8, 0)}, "tokens must be at least 1, not 0"),
        ({"policies": ("lru", "lru")}, "policies must be different"),
        ({"policies": ("static",)}, "policies must be online, and static is not"),
        ({"policies": ("best",)}, "best"),
        ({"arrivals": "sometimes"}, "sometimes"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"run": True}, "--run needs a file for the record: --record FILE"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LiveSettings(**settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{", "is not a record"), ("[]", "is not a record"), ('{"runs": []}', "is not a record")],
)
def test_bad_records(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        live.read(LiveSettings(record=str(path)))


def small_settings(upstream: str, record: Path) -> LiveSettings:
    return LiveSettings(run=True, record=str(record), queries=3, requests=4, repeats=1, upstream=upstream)


def test_an_unwritable_record_is_reported_before_the_run(tmp_path: Path) -> None:
    with FakeUpstream() as upstream:
        with pytest.raises(InvalidInput, match="cannot write to"):
            live.measure(small_settings(upstream.openai_url, tmp_path / "missing" / "record.json"))
        assert not upstream.calls


def test_the_error_of_a_proxy_that_does_not_start_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the proxy did not start: .*upstreams.0..url: must be a URL") as error:
        live.measure(small_settings("ftp://nowhere", tmp_path / "record.json"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "record.json").exists()


def test_an_upstream_that_fails_ends_the_run_and_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNAPCACHE_CAPACITY", "nonsense")  # the user's own settings must not apply
    with FakeUpstream() as upstream:
        upstream.fail("html")
        upstream.fail(*["500"] * 8)
        with pytest.raises(InvalidInput, match="the proxy returned status 5"):
            live.measure(small_settings(upstream.openai_url, tmp_path / "record.json"))
    assert not (tmp_path / "record.json").exists()


def test_the_committed_record_is_consistent_and_adaptive_is_cheaper() -> None:
    if not (TABLES / "live.json").exists():
        pytest.skip("no record: run knapcache experiment live --run")
    result = EXPERIMENT.run(LiveSettings(), 1)
    whole = {r["policy"]: r for r in result.rows if r["repeat"] is None}
    for unit in ("seconds", "usd"):
        assert whole["adaptive"][f"{unit}_spent"] < whole["lru"][f"{unit}_spent"]
    for run in live.read(LiveSettings())["runs"]:
        plan = LiveSettings().plan()
        assert [row[0] for row in run["requests"]] == live_measurement.prompt_sequence(plan, run["repeat"])
        paid = sum(seconds for _, hit, _, seconds, _, _ in run["requests"] if not hit)
        assert paid == pytest.approx(run["ledger"]["seconds_spent"], abs=1e-3)
    picture = io.BytesIO()
    result.figure.savefig(picture, format="png", dpi=30)
    assert picture.getvalue().startswith(b"\x89PNG")


@pytest.mark.long
def test_with_the_real_model(tmp_path: Path) -> None:
    settings = LiveSettings(
        run=True, record=str(tmp_path / "record.json"), queries=6, requests=15, repeats=1, tokens=(2, 4, 12)
    )
    result = EXPERIMENT.run(settings, 1)
    rows = {r["policy"]: r for r in result.rows if r["repeat"] is None}
    assert set(rows) == {"adaptive", "lru"}
    for r in rows.values():
        assert r["hits"] + r["misses"] == r["requests"] == 15
        assert r["seconds_spent"] > 0
        assert 0 < r["usd_spent"] < 0.01
    requests = json.loads((tmp_path / "record.json").read_text())["runs"][0]["requests"]
    sizes = {row[0]: row[5] for row in requests}
    plain = [size for prompt, size in sizes.items() if prompt // 3 % 3 != 0]
    with_logprobs = [size for prompt, size in sizes.items() if prompt // 3 % 3 == 0 and prompt % 3 == 2]
    assert min(with_logprobs) > max(plain)
