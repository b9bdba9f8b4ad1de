"""Published numbers: pages show what the committed results say, and the functions that compute them are right."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knapcache.features.semantic.lab.read import LoggedQuestion

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

import _semantic_peers  # noqa: E402 - after the change of sys.path
import _semantic_questions  # noqa: E402
import _worlds  # noqa: E402
import client_faults  # noqa: E402
import kv  # noqa: E402
import reliability  # noqa: E402
import sampling  # noqa: E402
import semantic_judge  # noqa: E402
import soak  # noqa: E402
from _fault_clients import OwnClient  # noqa: E402
from _fault_harness import FAULTS, Case  # noqa: E402
from _load_generator import Connection  # noqa: E402
from _reliability_rows import ROWS  # noqa: E402
from _reliability_run import Measured, ReliabilityRow, Run  # noqa: E402
from _soak_clients import SoakClients  # noqa: E402

import prefix  # noqa: E402 isort: skip - its place depends on stale directories


def result(name: str) -> dict[str, Any]:
    """Return a committed result."""
    record: dict[str, Any] = json.loads((ROOT / f"bench/results/{name}.json").read_text(encoding="utf-8"))
    return record


def page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


# Pages and committed results.


def test_only_our_http_client_passes_all_faults() -> None:
    """Where a library passes all of them, our client is no longer needed."""
    record = result("client_faults")
    assert [row["fault"] for row in record["rows"]] == list(FAULTS), "run bench/client_faults.py --out bench/results"
    for name, client in record["clients"].items():
        passed = sum(row[name] == client_faults.PASS for row in record["rows"])
        assert (client["passed"], client["of"]) == (passed, len(FAULTS))
        assert (passed == len(FAULTS)) == (name == OwnClient.name), f"{name} passes {passed} of {len(FAULTS)}"


def test_the_page_on_reliability() -> None:
    record = result("reliability")
    assert record["scale"] == 1
    committed = [(row["row"], row["done"], row["promised"]) for row in record["rows"]]
    assert committed == [(row.name, row.done, row.promised) for row in ROWS], "run make reliability"
    assert all(row["passed"] for row in record["rows"])
    assert reliability.markdown(ROOT / "bench/results/reliability.json") in page("docs/reference/reliability.md")


def test_the_table_of_long_replays() -> None:
    record = result("sampling")
    assert sampling.markdown(record) in page("docs/guides/lab.md")
    assert {row["requests"] for row in record["rows"]} == set(sampling.SIZES)


def test_the_pages_on_the_prefix_tier() -> None:
    record = result("prefix")
    assert prefix.markdown(record) in page("docs/reference/prefix-lab.md")
    cells = {(cell["trace"], cell["upgrades"]): cell for cell in record["cells"]}
    agents, without = cells["agent_sessions", True], cells["agent_sessions", False]
    chat, chat_without = cells["chat_prefixes", True], cells["chat_prefixes", False]
    readme = " ".join(page("README.md").split())
    assert f"**{100 * (1 - agents['learned']):.0f} % of the input bill** of coding agents saved" in readme
    assert f"{100 * (1 - agents['learned_by_best']):.0f} % less than the best fixed rule" in readme
    assert f"({100 * (1 - without['learned']):.0f} % if it does not" in readme
    assert f"{100 * (1 - chat['learned']):.0f} % on production chat" in readme
    assert f"for an hour costs {100 * (chat['ratios']['last-1h'] - 1):.0f} % more" in readme
    guide = " ".join(page("docs/guides/prefix.md").split())
    for label, rule in {"a mark at the end": "last", "system prompt and last two turns": "system2"}.items():
        for time, ttl in {"5 min": "5m", "1 h": "1h"}.items():
            ratios = [cell["ratios"][f"{rule}-{ttl}"] for cell in (agents, chat)]
            assert f"| {label}, {time} | {ratios[0]:.3f} | {ratios[1]:.3f} |" in guide
    assert f"(below) | **{agents['learned']:.3f}** | **{chat['learned']:.3f}** |" in guide
    assert f"if it does not | **{without['learned']:.3f}** | **{chat_without['learned']:.3f}** |" in guide
    worst = {row["metric"].split(",")[0]: 100 * (row["measured"] - 1) for row in record["targets"]}
    assert f"the tier pays at most {worst['worst of 24 synthetic cells']:.1f} % more" in guide
    assert f"on 40 random ones at most {worst['worst of 40 random cells']:.1f} %" in guide
    (on_path,) = (row for row in record["times"] if row["part"].endswith("mode on"))
    assert f"takes {on_path['median_us'] / 1000:.2f} ms longer" in guide


def test_the_pages_on_kv_caches() -> None:
    record = result("kv")
    assert not record["quick"]
    assert all(row["met"] for row in record["targets"])
    guide, readme = page("docs/guides/kv.md"), " ".join(page("README.md").split())
    assert kv.markdown(record) in guide
    (one,) = (row["ratio"] for row in record["rows"] if row["trace"] == "chat" and row["share"] == "1%")
    assert one >= 1.8, "the README says twice, and the guide up to twice"
    assert "twice the prompt tokens of LRU" in readme
    slowest = max(row["microseconds"] for row in record["rows"])
    assert f"A block takes {slowest:.0f} µs there at most" in guide


def test_the_page_on_the_judge() -> None:
    def percent(value: float, digits: int = 1) -> str:
        return f"{100 * value:.{digits}f} %"

    record, text = result("semantic_judge"), page("docs/background/semantic-judge.md")
    found = {rung: sum(row.get(f"same {rung}", 0) for row in record["rows"]) for rung in ("equal", "embedding")}
    assert record["accepted_wrongly"] == dict.fromkeys(found, 0)
    different, same = f"{record['different']:,}", record["same"]
    for rung, count in found.items():
        assert f"| rung `{rung}` | {percent(count / same)} | 0 of {different} |" in text
    limit = percent(record["accepted_wrongly_limit"], 2)
    both = percent(sum(found.values()) / same)
    assert f"| both | {both} | 0 of {different}; at most {limit} with 95 % confidence |" in text
    for row in record["thresholds"]:
        if row["cosine"] in (0.85, 0.95):
            alone = [percent(row[f"cosine_alone_{name}"]) for name in ("same_found", "accepted_wrongly")]
            assert f"≥ {row['cosine']:.2f} alone | {alone[0]} | {alone[1]} |".replace("0.", ".", 1) in text
    assert f"{record['pairs']:,} pairs" in text


# What measures and judges.


def test_what_a_client_did_instead_is_reported(tmp_path: Path) -> None:
    async def accept_anything(case: Case) -> None:
        from tests.support.scripted_server import OK, respond_always

        async with case.serve(respond_always(OK)) as harness:
            await harness.must_fail()

    found = client_faults.run_fault(OwnClient, accept_anything, tmp_path)
    assert found == "accepted: status 200, body b'hi'"


def test_a_broken_promise_and_a_crash_fail_their_row() -> None:
    def broken(_: Run) -> Measured:
        raise AssertionError("3 answers were wrong")

    found = reliability.run_here(ReliabilityRow(name="R1", done="", promised="", seconds=1, run=broken), 1.0)
    assert not found["passed"]
    assert "3 answers were wrong" in found["measured"]
    unknown = ReliabilityRow(name="no such row", done="", promised="", seconds=1, run=broken)  # ends its process
    assert not reliability.run_in_child(unknown, 1.0)["passed"]


def test_growth_is_detected_and_noise_is_not() -> None:
    flat = [(float(t), 100.0 + t % 3) for t in range(40)]
    assert -1.0 < soak.growth(flat)[0] <= soak.growth(flat)[1] < 1.0
    assert abs(soak.growth([(t, 900.0 if t == 39 else v) for t, v in flat])[1]) < 1.0
    assert soak.growth([(t, v + 0.5 * t) for t, v in flat]) == pytest.approx((17.7, 17.7), abs=1.0)
    noise = random.Random(1)
    assert soak.growth([(float(t), noise.uniform(140, 410)) for t in range(80)])[0] < 5.0


@pytest.mark.parametrize(
    ("content", "misdelivered"),
    [(b"nonce-7- x", False), (b"nonce-8- x", True), (b"nonce-7- x nonce-8- y", True), (b"x", True)],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_responses_are_read_to_their_end_and_misdelivered_ones_counted(
    content: bytes, misdelivered: bool, chunked: bool
) -> None:
    done: list[bytes] = []
    connection = Connection(lambda connection: done.append(connection.response))
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
    if chunked:
        response = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
            len(content),
            content,
        )
    for start in range(0, len(response), 7):
        assert not done
        connection.data_received(response[start : start + 7])
    assert done == [response]
    clients = SoakClients({"seconds": 0, "prompts": 10})
    clients._count(connection, 7, aborted=False)
    assert clients.counts["misdelivered"] == misdelivered


@pytest.mark.parametrize(("wrong", "total", "limit"), [(0, 3000, 0.000998), (0, 10, 0.2589), (3, 100, 0.0757)])
def test_the_upper_limit_is_that_of_clopper_and_pearson(wrong: int, total: int, limit: float) -> None:
    assert semantic_judge.upper_limit(wrong, total) == pytest.approx(limit, rel=0.002)


def test_the_distribution_of_ratios() -> None:
    ratios = [0.9] + [0.99] * 49 + [1.0] * 44 + [1.02] * 5 + [1.3]
    found = _worlds.distribution(ratios)
    assert (found["min"], found["median"], found["p95"], found["worst"]) == (0.9, 1.0, 1.02, 1.3)
    assert (found["cells"], found["below_1"], found["above_1_01"]) == (100, 0.5, 0.06)


def test_questions_of_the_semantic_benchmark_have_one_meaning() -> None:
    questions = _semantic_questions.questions()
    assert len({question.text for question in questions}) == len(questions) > 2000
    assert min(Counter(question.meaning for question in questions).values()) >= 3


@pytest.mark.parametrize(("threshold", "served", "wrong"), [(0.85, 2, 1), (0.95, 1, 0)])
def test_a_threshold_serves_what_is_near(threshold: float, served: int, wrong: int) -> None:
    texts, truths, cosines = ["a", "b", "c", "d", "a"], "11231", [1.0, 0.97, 0.9, 0.1, 1.0]
    questions = [
        LoggedQuestion(place=f"line {k}", key=b"", frame=b"", text=text, excluded="", truth=truth)
        for k, (text, truth) in enumerate(zip(texts, truths, strict=True))
    ]
    vectors = np.zeros((5, 8), dtype=np.float32)
    for row, cosine in enumerate(cosines):
        vectors[row, 0], vectors[row, 1 + row] = cosine, (1.0 - cosine**2) ** 0.5
    found = _semantic_peers.run_peer(_semantic_peers.Threshold(threshold), questions, vectors, texts)
    assert (found["served"], found["wrong"]) == (served, wrong)
