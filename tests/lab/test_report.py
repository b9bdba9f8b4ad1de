"""Report files are complete, make no network request, and are equal for equal plans."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from knapcache.lab import report, summary
from knapcache.lab.plan import CapacityPlan, make_plan
from knapcache.lab.sampling import take_sample
from knapcache.lab.synthetic import Workload


@pytest.fixture(scope="module")
def plan() -> CapacityPlan:
    _, trace = Workload(queries=2000, rounds=20_000).draw(np.random.default_rng(2))
    return make_plan(take_sample([trace], 10_000), ["lru", "gdsf-cost"], "2%..100%:4", jobs=1)


class Page(HTMLParser):
    """The addresses that a browser would load, and the text that it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.shown = ""
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = str(dict(attrs)["content"])

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.shown += data


def test_the_page_loads_nothing(plan: CapacityPlan) -> None:
    page = Page(report.page(plan, "log.csv"))
    assert page.loaded == []
    assert page.policy.startswith("default-src 'none'")
    assert "http" not in page.policy
    assert page.tags.count("script") == 4  # the library and three plots
    assert not {"link", "img", "iframe", "object"} & set(page.tags)


def test_the_page_contains_the_text_of_the_terminal(plan: CapacityPlan) -> None:
    page = Page(report.page(plan, "<b>&.csv"))
    assert "knapcache plan: <b>&.csv" in page.shown
    assert "b" not in page.tags
    for sentence in (summary.facts(plan), summary.legend(plan), summary.recommendation(plan)):
        assert sentence in page.shown
    for row in summary.table(plan, oracle=True):
        assert row["lru"] in page.shown
        assert row["±"] in page.shown
        assert row["Oracle's price_of 1 kB"] in page.shown


def test_the_json_contains_all_numbers(plan: CapacityPlan) -> None:
    record = json.loads(summary.to_json(plan, "log.csv"))
    assert [(row["policy"], row["capacity"]) for row in record["rows"]] == [
        (policy, capacity) for policy in ("lru", "gdsf-cost") for capacity in plan.capacities
    ]
    assert (record["unit"], record["seconds"], record["span"]) == ("", None, "an unknown time")
    assert record["projection"]["per_day"] is None
    assert (record["sampled"], record["rate"]) == (plan.sampled, plan.rate)
    assert record["knees"] == {curve.policy: curve.knee for curve in plan.curves}
    row = record["rows"][1]
    whole = record["total_cost"]
    assert row["cost_ratio"] == pytest.approx(1 - row["saved"] / whole)
    assert row["cost_ratio_error"] == pytest.approx(row["saved_error"] / whole)
    assert plan.recommendation is not None
    assert record["recommended"]["policy"] == plan.recommendation.policy


def test_the_same_plan_gives_the_same_files(plan: CapacityPlan) -> None:
    one, two = (report.files(plan, "$a_b$.csv") for _ in range(2))
    assert list(one) == ["plan.html", "plan.png", "plan.json"]
    assert one == two
    assert one["plan.png"].startswith(b"\x89PNG")


def test_a_plan_with_nothing_to_draw() -> None:
    """One capacity, one policy, and no price that a log axis can show."""
    _, trace = Workload(queries=5, rounds=5, arrivals="uniform").draw(np.random.default_rng(2))
    assert report.files(make_plan(trace, ["lru"], "100%", jobs=1), "log")["plan.png"].startswith(b"\x89PNG")
