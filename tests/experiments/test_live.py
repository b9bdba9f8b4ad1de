"""The live comparison: requests through a proxy that really runs, in a process of its own."""

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

Captured = pytest.CaptureFixture[str]


class Slow(FakeUpstream):
    """Takes a millisecond for every token that may be written."""

    def wait(self, seconds: float) -> bool:
        """As long as the last request wants."""
        asked = self.calls[-1].body if self.calls else None
        return super().wait(seconds + 0.001 * asked["max_tokens"] if asked else seconds)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path, FakeUpstream]]:
    """A run in front of the fake: 90 answers of about 3 kB, room for a quarter of them."""
    folder = tmp_path_factory.mktemp("live")
    with Slow() as upstream:
        sizes = ["--queries", "90", "--requests", "250", "--capacity", "65536", "--tokens", "4,12,60", "--repeats", "1"]
        options = [
            *sizes,
            "--arrivals",
            "zipf:1",
            "--upstream",
            upstream.openai,
            "--record",
            str(folder / "record.json"),
        ]
        assert main(["experiment", "live", "--run", *options, "--out", str(folder)]) == 0
        yield options, folder, upstream


def test_adaptive_is_cheaper_than_lru_end_to_end(made: tuple[list[str], Path, FakeUpstream]) -> None:
    _, folder, upstream = made
    record = json.loads((folder / "record.json").read_text())
    ours, theirs = record["runs"]
    assert (ours["policy"], theirs["policy"]) == ("adaptive", "lru")
    assert [row[0] for row in ours["requests"]] == [row[0] for row in theirs["requests"]]
    # Against LRU on the very same costs: a hiccup of the machine in one of the two runs decides nothing.
    assert ours["ledger"]["seconds_spent"] < ours["shadow_cost"]["lru"]
    assert ours["ledger"]["seconds_spent"] == pytest.approx(ours["shadow_cost"]["adaptive"])
    missed = sum(run["ledger"]["misses"] for run in (ours, theirs))
    assert upstream.count("/chat/completions") == missed + 2  # two that warmed up


@pytest.mark.parametrize("place", [0, 1])
def test_the_books_agree_with_what_the_client_saw(made: tuple[list[str], Path, FakeUpstream], place: int) -> None:
    run = json.loads((made[1] / "record.json").read_text())["runs"][place]
    books, rows = run["ledger"], [dict(zip(live_measurement.COLUMNS, row, strict=True)) for row in run["requests"]]
    assert books["requests"] == len(rows) == 250
    assert books["hits"] == sum(row["hit"] for row in rows)
    assert books["hits"] + books["misses"] == books["requests"]
    for unit in ("seconds", "usd"):
        assert books[f"{unit}_spent"] == pytest.approx(sum(row[unit] for row in rows if not row["hit"]), abs=1e-3)
        assert books[f"{unit}_saved"] == pytest.approx(sum(row[unit] for row in rows if row["hit"]), abs=1e-3)
        assert books[f"{unit}_spent"] > 0
    assert run["shadow_cost"]["none"] == pytest.approx(books["seconds_spent"] + books["seconds_saved"])
    if run["policy"] == "lru":  # the shadow of the policy itself: the same books, kept twice
        assert run["shadow_cost"]["lru"] == pytest.approx(books["seconds_spent"])
    assert 0 < run["store"]["bytes"] <= run["store"]["capacity"] < 65536
    assert {row["prompt"] for row in rows if not row["hit"]} == {row["prompt"] for row in rows}
    assert sum(row["wall_seconds"] for row in rows) <= run["wall_seconds"]
    for row in rows:
        assert row["hit"] or row["wall_seconds"] >= row["seconds"] - 0.01  # answers leave before they are weighed


def test_the_record_gives_the_same_table_and_figure_again(
    made: tuple[list[str], Path, FakeUpstream], tmp_path: Path, capsys: Captured
) -> None:
    options, folder, _ = made
    assert main(["experiment", "live", *options, "--out", str(tmp_path)]) == 0
    assert "adaptive" in capsys.readouterr().out
    again, first = (json.loads((where / "live.json").read_text()) for where in (tmp_path, folder))
    assert again["rows"] == first["rows"]
    assert (tmp_path / "live.png").read_bytes().startswith(b"\x89PNG")
    assert main(["experiment", "live", *options, "--requests", "9", "--out", str(tmp_path)]) == 2
    assert "the record was measured with requests = 250, not 9: --run measures" in capsys.readouterr().err


def test_requests_are_drawn_by_seed_and_differ_by_repeat() -> None:
    plan = LiveSettings().plan()
    first, second = live_measurement.sequence(plan, 0), live_measurement.sequence(plan, 1)
    assert first == live_measurement.sequence(plan, 0)
    assert first != second
    assert len(first) == 300
    assert set(first) <= set(range(30))


def test_costs_and_sizes_are_mixed() -> None:
    plan = LiveSettings().plan()
    bodies = [json.loads(live_measurement.body(plan, k, f"question {k}")) for k in range(plan.queries)]
    mix = {(b["max_tokens"], "logprobs" in b) for b in bodies}
    assert mix == {(tokens, told) for tokens in (4, 24, 160) for told in (False, True)}
    assert sum("logprobs" in b for b in bodies) == 12


def a_run(policy: str, repeat: int, seconds: float, usd: float) -> dict[str, Any]:
    books = {"requests": 3, "hits": 1, "misses": 2, "usd_spent": usd, "usd_saved": 1.0}
    books |= {"seconds_spent": seconds, "seconds_saved": 5.0}
    return {
        "policy": policy,
        "repeat": repeat,
        "wall_seconds": seconds + 1,
        "ledger": books,
        "shadow_cost": {"none": seconds + 5.0},
    }


def test_rows_by_hand() -> None:
    runs = [a_run("adaptive", 0, 6.0, 3.0), a_run("lru", 0, 8.0, 4.0), a_run("adaptive", 1, 5.0, 1.0)]
    runs += [a_run("lru", 1, 12.0, 4.0)]
    rows = {(r["policy"], r["repeat"]): r for r in live.rows_of(runs)}
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
    alone = live.rows_of(runs[:1])
    assert alone[0]["saved_usd_percent"] is None  # nothing to compare with


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queries": 0}, "queries must be from 1 to"),
        ({"queries": 10_000}, "queries must be from 1 to"),
        ({"requests": 1_001}, "requests must be from 1 to 1000, not 1001"),
        ({"capacity": 65_535}, "capacity must be from 65536 to"),
        ({"tokens": (8, 0)}, "tokens must be at least 1, not 0"),
        ({"policies": ("lru", "lru")}, "policies must be different"),
        ({"policies": ("static",)}, "and static does"),
        ({"policies": ("best",)}, "best"),
        ({"arrivals": "sometimes"}, "sometimes"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"run": True}, "--run needs a file to keep what it measures: --record FILE"),
    ],
)
def test_bad_settings(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        LiveSettings(**given)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("{", "is no record"), ("[]", "is no record"), ('{"runs": []}', "is no record")],
)
def test_a_record_that_cannot_be_read(content: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput, match=said):
        live.read(LiveSettings(record=str(path)))


def small(upstream: str, record: Path) -> LiveSettings:
    return LiveSettings(run=True, record=str(record), queries=3, requests=4, repeats=1, upstream=upstream)


def test_a_place_that_cannot_be_written_is_found_before_the_run(tmp_path: Path) -> None:
    with FakeUpstream() as upstream:
        with pytest.raises(InvalidInput, match="cannot write to"):
            live.measure(small(upstream.openai, tmp_path / "missing" / "record.json"))
        assert not upstream.calls


def test_a_proxy_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"the proxy does not start: .*upstreams.0..url: must be an address"
    ) as error:
        live.measure(small("ftp://nowhere", tmp_path / "record.json"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "record.json").exists()


def test_an_upstream_that_fails_ends_the_run_and_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNAPCACHE_CAPACITY", "nonsense")  # settings of the user's own proxy do not get in
    with FakeUpstream() as upstream:
        upstream.fail("html")
        upstream.fail(*["500"] * 8)
        with pytest.raises(InvalidInput, match="the proxy answers with status 5"):
            live.measure(small(upstream.openai, tmp_path / "record.json"))
    assert not (tmp_path / "record.json").exists()


def test_the_committed_record_is_sound_and_adaptive_is_cheaper() -> None:
    if not (TABLES / "live.json").exists():
        pytest.skip("no record yet: knapcache experiment live --run")
    outcome = EXPERIMENT.run(LiveSettings(), 1)
    whole = {r["policy"]: r for r in outcome.rows if r["repeat"] is None}
    for unit in ("seconds", "usd"):
        assert whole["adaptive"][f"{unit}_spent"] < whole["lru"][f"{unit}_spent"]
    for run in live.read(LiveSettings())["runs"]:
        plan = LiveSettings().plan()
        assert [row[0] for row in run["requests"]] == live_measurement.sequence(plan, run["repeat"])
        paid = sum(seconds for _, hit, _, seconds, _, _ in run["requests"] if not hit)
        assert paid == pytest.approx(run["ledger"]["seconds_spent"], abs=1e-3)
    picture = io.BytesIO()
    outcome.figure.savefig(picture, format="png", dpi=30)
    assert picture.getvalue().startswith(b"\x89PNG")


@pytest.mark.long
def test_with_the_real_model(tmp_path: Path) -> None:
    settings = LiveSettings(
        run=True, record=str(tmp_path / "record.json"), queries=6, requests=15, repeats=1, tokens=(2, 4, 12)
    )
    outcome = EXPERIMENT.run(settings, 1)
    rows = {r["policy"]: r for r in outcome.rows if r["repeat"] is None}
    assert set(rows) == {"adaptive", "lru"}
    for r in rows.values():
        assert r["hits"] + r["misses"] == r["requests"] == 15
        assert r["seconds_spent"] > 0
        assert 0 < r["usd_spent"] < 0.01
    told = json.loads((tmp_path / "record.json").read_text())["runs"][0]["requests"]
    sizes = {row[0]: row[5] for row in told}
    plain = [size for prompt, size in sizes.items() if prompt // 3 % 3 != 0]
    probable = [size for prompt, size in sizes.items() if prompt // 3 % 3 == 0 and prompt % 3 == 2]
    assert min(probable) > max(plain)  # log probabilities take room
