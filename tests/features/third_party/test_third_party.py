"""A feature of another package: its settings, its hook, its metric, its route and its card on the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from knapcache.testing import FakeUpstream
from tests.support.browser import chromium, visit
from tests.support.programs import run_program
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess

HERE = Path(__file__).parent
METADATA = "Metadata-Version: 2.1\nName: slow-requests\nVersion: 1.0\n"
ENTRY_POINTS = "[knapcache.features]\nslow_requests = slow_requests:SPEC\n"


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the package is installed."""
    info = tmp_path / "site" / "slow_requests-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    paths = [str(HERE), str(info.parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as found:
        yield found


def test_it_works_as_one_of_the_package_itself(
    variables: dict[str, str], upstream: FakeUpstream, tmp_path: Path
) -> None:
    with (
        ProxyProcess(tmp_path / "data", upstream.openai_url, variables, slow_after=1e-6) as proxy,
        httpx.Client(base_url=proxy.url, headers={"authorization": f"Bearer {ADMIN_TOKEN}"}) as client,
    ):
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
        assert client.post("/v1/chat/completions", json=body).headers["x-slow-after"] == "1e-06"
        assert client.get("/admin/v1/slow").json() == {"slow": 1}
        assert "/admin/v1/slow" in client.get("/admin/v1/openapi.json").json()["paths"]
        assert "slow_requests_total 1.0" in client.get("/metrics").text
        with chromium() as browser, visit(browser, f"{proxy.url}/dashboard#token={ADMIN_TOKEN}") as page:
            page.get_by_text("1 slow requests").wait_for()
            page.goto(f"{proxy.url}/dashboard/slow_requests")
            page.get_by_text("1 slow requests").wait_for()
        assert proxy.problems() == []


def test_off_it_is_not_imported(variables: dict[str, str], upstream: FakeUpstream, tmp_path: Path) -> None:
    assert "slow_after" in run_program(sys.executable, "-m", "knapcache", "serve", "--show-settings", **variables)
    with (
        ProxyProcess(tmp_path / "data", upstream.openai_url, variables) as proxy,
        httpx.Client(base_url=proxy.url, headers={"authorization": f"Bearer {ADMIN_TOKEN}"}) as client,
    ):
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
        assert "x-slow-after" not in client.post("/v1/chat/completions", json=body).headers
        assert client.get("/admin/v1/slow").status_code == 404
        assert "slow_requests" not in client.get("/metrics").text
