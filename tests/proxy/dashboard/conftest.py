"""One browser, one fake admin API and one page for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import Tab, chromium, wait_for_data
from tests.support.fake_admin import FakeAdmin


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="package")
def server() -> Iterator[FakeAdmin]:
    with FakeAdmin() as running:
        yield running


@pytest.fixture(scope="package")
def tab(browser: Browser) -> Iterator[Tab]:
    opened = Tab(browser, reduced_motion="reduce")
    yield opened
    opened.close()


@pytest.fixture
def admin(server: FakeAdmin) -> FakeAdmin:
    """The fake API with the traffic of some hours."""
    server.reset()
    server.fill(90, days=0.2)
    server.traffic("hit", 3)
    return server


@pytest.fixture
def page(tab: Tab, admin: FakeAdmin) -> Iterator[Page]:
    """The overview, in a session of its own."""
    opened = tab.open(admin.login())
    wait_for_data(opened)
    yield opened
    tab.check()
