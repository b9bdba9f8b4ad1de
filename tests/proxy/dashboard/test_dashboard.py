"""The dashboard in a browser, on a fake admin API."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Tab, dollars, open_view, poll_now, visit, wait_for_data
from tests.support.fake_admin import TOKEN, FakeAdmin, audit_record, plan_result
from tests.support.semantic_control import LearnerControl
from tests.support.timing import wait_until

DISCONNECTED = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
UNAUTHORIZED = ("401",)


def first_key(page: Page) -> str | None:
    return page.get_attribute("#entries-table tbody tr:first-child", "data-key")


def test_numbers_move_when_traffic_flows(page: Page, admin: FakeAdmin) -> None:
    before = dollars(page, "#saved-today")
    admin.traffic("hit", 7, usd=2.0)
    admin.traffic("miss", 1, model="new-model")  # no poll_now: the page polls by itself
    expect(page.locator("#saved-today")).to_have_text(f"${before + 14:.2f}")
    assert page.title() == f"${before + 14:.2f} saved today · knapcache"
    open_view(page, "requests")
    expect(page.locator("#requests-table tbody tr").first).to_contain_text("new-model")
    expect(page.locator("#requests-table tbody tr").nth(1)).to_contain_text("+$2.00")
    open_view(page, "savings")
    expect(page.locator("#bars .name")).to_have_text(["knapcache", "GDSF", "LRU", "Twice the capacity"])
    amounts = [float(text[1:]) for text in page.locator("#bars .amount").all_inner_texts()]
    assert amounts[1] == pytest.approx(0.9 * amounts[0], rel=0.01)
    assert amounts[2] == pytest.approx(0.72 * amounts[0], rel=0.01)
    assert amounts[3] == pytest.approx(1.12 * amounts[0], rel=0.01)


def test_the_first_screen_shows_how_to_connect(browser: Browser, server: FakeAdmin) -> None:
    server.reset()
    with visit(browser, server.login(), permissions=["clipboard-read", "clipboard-write"]) as page:
        wait_for_data(page)
        expect(page.locator("#welcome")).to_be_visible()
        assert f'OpenAI(base_url="{server.url}/v1")' in page.inner_text("#welcome")
        page.click("#welcome .copy >> nth=0")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith(f"curl {server.url}/v1/chat/completions \\\n")
        expect(page.locator("#spend")).to_be_hidden()
        server.traffic("miss")
        poll_now(page)
        expect(page.locator("#welcome")).to_be_hidden()
        expect(page.locator("#spend")).to_be_visible()
        page.click("#connect")
        assert f'Anthropic(base_url="{server.url}")' in page.inner_text("#panel")


def test_an_entry_shows_its_value_and_can_be_purged(page: Page, admin: FakeAdmin) -> None:
    admin.entries[0] |= {"model": "<img src=x onerror=alert(1)>", "requests": 400.0, "cost": 0.06, "value": 24.0}
    open_view(page, "entries")
    page.click("#entries-table tbody tr:first-child button")
    drawer = page.locator("#drawer")
    expect(drawer.locator("h2")).to_have_text("<img src=x onerror=alert(1)>")
    assert drawer.locator(".formula").inner_text().split() == [
        "400", "requests", "×", "$0.06", "cost", "=", "$24.00", "value",
    ]  # fmt: skip
    expect(drawer).to_contain_text("times that of the least valuable tenth of the cache")
    expect(drawer.locator("pre").first).to_contain_text('"content": "<b>Hello</b>"')
    key = admin.entries[0]["key"]
    drawer.get_by_role("button", name="Purge this entry").click()
    page.get_by_role("button", name="Cancel").click()
    assert admin.purges == []
    drawer.get_by_role("button", name="Purge this entry").click()
    page.locator("#confirm").get_by_role("button", name="Purge").click()
    expect(page.locator(".toast")).to_have_text("Purged 1 entry")
    expect(drawer).to_be_hidden()
    assert admin.purges == [{"key": key}]
    expect(page.locator("#entries-total")).to_have_text("89")
    assert first_key(page) != key


def test_hidden_content_names_the_setting_that_shows_it(page: Page, admin: FakeAdmin) -> None:
    admin.show_content = False
    open_view(page, "entries")
    expect(page.locator("#entries-hint")).to_contain_text("--set show_content=true")
    expect(page.locator("#entries-table td.request").first).to_contain_text("Chat, ")
    page.click("#entries-table tbody tr:first-child button")
    expect(page.locator("#drawer")).to_contain_text("show_content")
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_be_hidden()


def test_entries_of_a_model_are_purged_after_confirmation(page: Page, admin: FakeAdmin) -> None:
    open_view(page, "entries")
    page.select_option("#by-model", "gpt-4o-mini")
    expect(page.locator("#entries-total")).to_have_text("23 found")
    page.click("#purge")
    expect(page.locator("#confirm option").first).to_have_text("All entries of gpt-4o-mini")
    size = sum(entry["size"] for entry in admin.entries if entry["model"] == "gpt-4o-mini")
    expect(page.locator("#confirm .preview")).to_contain_text(f"23 entries, {size / 1000:.3g} kB would be removed")
    expect(page.locator("#confirm .preview li")).to_have_count(5)
    expect(page.locator("#confirm .preview")).to_contain_text("and 18 entries of less value")
    expect(page.locator("#confirm button.main")).to_have_text("Purge 23 entries")
    assert admin.purges == [], "a preview must remove nothing"
    page.locator("#confirm").get_by_role("button", name="Purge").click()
    expect(page.locator(".toast")).to_have_text("Purged 23 entries")
    assert admin.purges == [{"model": "gpt-4o-mini"}]
    page.select_option("#by-model", "")
    page.click("#purge")
    page.locator("#confirm select").select_option("all")
    page.locator("#confirm").get_by_role("button", name="Purge").click()
    expect(page.locator("#entries-table tbody")).to_have_text(
        re.compile("No entries. The answers to the next requests")
    )
    assert admin.purges[1:] == [{"all": True}]


def test_entries_are_filtered_and_purged_by_tag(page: Page, admin: FakeAdmin) -> None:
    open_view(page, "entries")
    expect(page.locator("#entries-table .tags").first).to_have_text("faqprompt-v3")
    page.click("#entries-table tbody tr:first-child button")
    page.locator("#drawer").get_by_role("button", name="prompt-v3").click()
    expect(page.locator("#entries-total")).to_have_text("9 found")
    page.click("#purge")
    expect(page.locator("#confirm option").first).to_have_text("All entries of prompt-v3")
    expect(page.locator("#confirm button.main")).to_have_text("Purge 9 entries")
    page.get_by_role("button", name="Cancel").click()
    page.click("#by-tag")
    expect(page.locator("#entries-total")).to_have_text("90")
    page.click("#purge")
    page.locator("#confirm select").select_option("tags")
    expect(page.locator("#confirm button.main")).to_be_disabled()
    page.get_by_label("Tags, separated by commas").fill("other, faq")
    expect(page.locator("#confirm button.main")).to_have_text("Purge 9 entries")
    page.locator("#confirm").get_by_role("button", name="Purge").click()
    expect(page.locator(".toast")).to_have_text("Purged 9 entries")
    assert admin.purges == [{"tags": ["other", "faq"]}]


def test_entries_are_sorted_searched_and_paged(page: Page, admin: FakeAdmin) -> None:
    by_size = sorted(admin.entries, key=lambda entry: entry["size"])
    open_view(page, "entries")
    expect(page.locator("#page")).to_have_text("1–20 of 90")
    page.click("th button[data-sort=size]")
    expect(page.locator("th.size")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#entries-table td.size").first).to_have_text(f"{by_size[-1]['size'] / 1000:.3g} kB")
    page.click("th button[data-sort=size]")
    expect(page.locator("th.size")).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("#entries-table td.size").first).to_have_text("900 B")
    page.click("th button[data-sort=per_day]")
    expect(page.locator("#entries-table td.per_day").first).to_have_text("200")
    page.click("th button[data-sort=per_day]")
    expect(page.locator("#entries-table td.per_day").first).to_have_text("–")
    for _ in range(4):
        page.click("#next")
    expect(page.locator("#page")).to_have_text("81–90 of 90")
    expect(page.locator("#next")).to_be_disabled()
    page.fill("#search", admin.entries[40]["key"][:8])
    expect(page.locator("#page")).to_have_text("1–1 of 1")
    assert first_key(page) == admin.entries[40]["key"]
    page.fill("#search", "no such entry")
    expect(page.locator("#entries-table tbody")).to_contain_text("No matching entries.")
    page.fill("#search", "")
    open_view(page, "savings")
    page.click("#tenants-table tbody tr:first-child a")
    expect(page.locator("#entries-total")).to_have_text("30 found")


def test_requests_can_be_paused_and_filtered(page: Page, admin: FakeAdmin) -> None:
    open_view(page, "requests")
    admin.traffic("failed", 2)
    poll_now(page)
    expect(page.locator("#requests-table .outcome.failed")).to_have_count(2)
    expect(page.locator("#requests-table td.status").first).to_have_class("status hide-small error")
    page.click("#chips [data-kind=failed]")
    expect(page.locator("#requests-table tbody tr")).to_have_count(2)
    page.click("#chips [data-kind=all]")
    page.keyboard.press("p")
    admin.traffic("miss", 5)
    poll_now(page)
    expect(page.locator("#requests-note")).to_have_text("Paused, 5 new")
    expect(page.locator("#requests-table tbody tr")).to_have_count(5)
    page.click("#pause")
    expect(page.locator("#requests-table tbody tr")).to_have_count(10)
    page.fill("#requests-search", "no such thing")
    expect(page.locator("#requests-table tbody")).to_contain_text("No matching requests.")


def test_every_function_has_a_keyboard_shortcut(page: Page) -> None:
    def focused(page: Page) -> Any:
        return page.evaluate("document.activeElement.id")

    page.keyboard.press("/")
    assert focused(page) == "search"
    page.keyboard.type("gp?")  # shortcuts are off in text fields
    assert page.input_value("#search") == "gp?"
    page.fill("#search", "")
    page.keyboard.press("Escape")
    for keys, section in (
        ("gr", "requests"),
        ("gs", "savings"),
        ("5", "prefix"),
        ("gt", "settings"),
        ("1", "overview"),
    ):
        for key in keys:
            page.keyboard.press(key)
        assert focused(page) == section
        expect(page.locator("#views a[aria-current=page]")).to_have_attribute("href", re.compile(f"({section}|d)$"))
    page.keyboard.press("?")
    expect(page.locator("#panel")).to_contain_text("Search entries")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    open_view(page, "entries")
    # Arrow keys move between rows. Closing the drawer restores the focus.
    page.focus("#entries-table tbody tr:first-child button")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#drawer")).to_be_visible()
    page.keyboard.press("Escape")
    second = page.get_attribute("#entries-table tbody tr:nth-child(2)", "data-key")
    assert page.evaluate("document.activeElement.closest('tr').dataset.key") == second
    open_view(page, "")
    # The chart is a slider with a text value.
    page.focus("#chart .plot")
    page.keyboard.press("Home")
    first = page.get_attribute("#chart .plot", "aria-valuetext")
    page.keyboard.press("End")
    last = page.get_attribute("#chart .plot", "aria-valuetext")
    assert first != last
    assert (last or "").endswith("saved")
    expect(page.locator(".tooltip")).to_contain_text("Saved")
    ring = page.evaluate("getComputedStyle(document.querySelector('#chart .plot')).outlineStyle")
    assert ring == "solid"


CONTRAST = """() => {
  const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const probe = document.body.appendChild(document.createElement("i"));
  const of = (token) => {
    probe.style.color = `var(${token})`;
    paint.fillStyle = getComputedStyle(probe).color;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const found = {};
  for (const token of ["--ink", "--soft", "--pale", "--saved", "--spent", "--warn", "--bad", "--violet"])
    found[token] = ratio(of(token), of("--card"));
  return found;
}"""


def test_the_theme_follows_the_system_or_the_selection(browser: Browser, admin: FakeAdmin) -> None:
    def dark(page: Page) -> bool:
        red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        return int(red) < 60

    with visit(browser, admin.login(), color_scheme="dark") as page:
        wait_for_data(page)
        assert dark(page)
        assert min(page.evaluate(CONTRAST).values()) >= 4.5
        page.click("#theme")
        assert not dark(page)
        assert min(page.evaluate(CONTRAST).values()) >= 4.5
        page.reload()
        wait_for_data(page)
        assert not dark(page), "the selection was not stored"
        page.keyboard.press("d")
        assert dark(page)
        page.emulate_media(color_scheme="light")
        assert not dark(page), "selecting the system's theme must follow the system again"


def test_the_page_reconnects_after_the_server_was_down(browser: Browser, admin: FakeAdmin) -> None:
    with visit(browser, admin.login(), allow=DISCONNECTED) as page:
        wait_for_data(page)
        expect(page.locator("#connection")).to_have_text("Live")
        before = page.inner_text("#saved-today")
        admin.stop()
        poll_now(page)
        expect(page.locator("#offline")).to_contain_text("Disconnected: the server cannot be reached")
        expect(page.locator("#connection")).to_have_text("Disconnected")
        assert page.inner_text("#saved-today") == before, "the last numbers must stay visible"
        admin.traffic("hit", 5, usd=1.0)
        admin.start()
        expect(page.locator("#offline")).to_be_hidden()
        expect(page.locator("#connection")).to_have_text("Live")
        assert page.inner_text("#saved-today") != before


def test_requests_are_listed_in_the_order_in_which_they_arrived(page: Page, admin: FakeAdmin) -> None:
    start = time.time()

    def finish(model: str, arrived: float) -> None:
        admin.traffic("miss", model=model)
        admin.requests[-1]["time"] = start + arrived

    open_view(page, "requests")
    models = page.locator("#requests-table td.model")
    for name, arrived in (("second", 2.0), ("fourth", 4.0)):
        finish(name, arrived)
    poll_now(page)
    expect(models.nth(0)).to_have_text("fourth")
    for name, arrived in (("third", 3.0), ("first", 1.0), ("fifth", 5.0)):
        finish(name, arrived)
    poll_now(page)
    expect(models.nth(0)).to_have_text("fifth")
    assert models.all_inner_texts()[:5] == ["fifth", "fourth", "third", "second", "first"]


def test_the_token_logs_in_and_is_not_stored(browser: Browser, admin: FakeAdmin) -> None:
    with visit(browser, admin.login()) as page:
        wait_for_data(page)
        assert page.url == f"{admin.url}/dashboard"
        stored = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert stored == f'[{{"knapcache-csrf":"{admin.csrf}"}},{{}},""]'
        page.reload()  # the session is still valid
        wait_for_data(page)
    with visit(browser, f"{admin.url}/dashboard", allow=UNAUTHORIZED) as page:
        expect(page.locator("#login")).to_be_visible()
        expect(page.locator("main")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "nothing to scroll over"
        page.keyboard.press("Escape")
        page.fill("#token", "wrong-token")
        page.keyboard.press("Enter")
        expect(page.locator("#login-error")).to_have_text("Wrong admin token.")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        wait_for_data(page)
        expect(page.locator("#login")).to_be_hidden()
        admin.csrf = "another process"  # a restart of the server ends its sessions
        poll_now(page)
        expect(page.locator("#login")).to_be_visible()
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        wait_for_data(page)
        page.click("#help")
        page.click("#logout")
        expect(page.locator("#login")).to_be_visible()


def test_amounts_are_in_the_unit_of_the_cost(page: Page, admin: FakeAdmin) -> None:
    admin.unit, admin.prices, admin.amounts = "seconds", "none", {"unit": "seconds", "factor": 1.0}
    poll_now(page)
    expect(page.locator("#overview")).to_contain_text("by time")
    for view, sections in {
        "": ("#saved-today", "#spend"),
        "entries": ("#entries-table",),
        "savings": ("#marginal", "#bars", "#models-table", "#doubling"),
    }.items():
        open_view(page, view)
        page.wait_for_load_state("networkidle")
        for section in sections:
            assert "$" not in page.inner_text(section), section
    open_view(page, "")
    admin.unit, admin.prices = "usd + 0.01*seconds", "known"
    admin.amounts = {"unit": "number", "factor": 1.0}
    poll_now(page)
    expect(page.locator("#overview")).to_contain_text("by cost")
    assert "$" not in page.inner_text("#spend-legend") + page.inner_text("#saved-today")


@pytest.mark.long
def test_the_chart_has_spans_and_steps(browser: Browser, admin: FakeAdmin) -> None:
    with visit(browser, admin.login(), timezone_id="America/New_York") as page:
        wait_for_data(page)
        page.click("#span [data-value=hour]")
        page.click("#chart-mode [data-value=step]")
        expect(page.locator("#spend-legend")).to_contain_text("step: 1 min")
        hour = dollars(page, "#spend-legend .without b")
        page.focus("#span [data-value=hour]")
        page.keyboard.press("ArrowRight")
        wait_until(lambda: dollars(page, "#spend-legend .without b") > hour)
        page.click("#span [data-value=all]")
        expect(page.locator("#spend-legend")).to_contain_text("step: 24 h")
        # The time axis is in the browser's time zone.
        page.click("#span [data-value=hour]")
        expect(page.locator("#spend-legend")).to_contain_text("step: 1 min")
        now = page.evaluate("new Date().toLocaleTimeString('en-GB', {hour: '2-digit'})")
        page.focus("#chart .plot")
        page.keyboard.press("End")
        assert f", {now}:" in (page.get_attribute("#chart .plot", "aria-valuetext") or "")


@pytest.mark.long
def test_the_capacity_plan_is_drawn(page: Page, admin: FakeAdmin) -> None:
    per_day = {"per_day": 17.0, "per_day_low": 12.0, "per_day_high": 22.0, "method": "95 % confidence interval."}
    long = plan_result(span="2 days", projection=per_day)
    open_view(page, "savings")
    page.wait_for_load_state("networkidle")  # the page has fetched the idle plan
    running = {"state": "running", "result": None, "seconds": 3.0, "remaining": None}
    admin.plan = running | {"progress": 0.0}
    page.click("#plan")
    expect(page.locator("#plan-note")).to_have_text("Reading the log and compiling the policies: 3 s")
    expect(page.locator("#plan")).to_be_disabled()
    admin.plan = running | {"progress": 0.3, "remaining": 7.2}
    expect(page.locator("#plan-note")).to_have_text("Replaying: 30 %, about 8 s left")
    expect(page.locator("#plan-progress")).to_have_attribute("value", "0.3")
    admin.plan = plan_result()
    expect(page.locator("#plan-result")).to_contain_text(
        "300 MB for entries would have saved $34.00 in the 6 seconds of this log, 85 % of what unlimited capacity"
    )
    expect(page.locator("#plan-result")).to_contain_text("No projection: too short.")
    assert "per day" not in page.inner_text("#plan-result")
    expect(page.locator("#plan-progress")).to_be_hidden()
    expect(page.locator("#plan-result .curve")).to_have_count(2)
    admin.plan = long
    page.click("#plan")
    expect(page.locator("#plan-result")).to_contain_text(
        "Projected: $17.00 (between $12.00 and $22.00) per day, $510.00 (between $360.00 and $660.00) per 30 days."
    )
    admin.plan = long | {"amounts": {"unit": "share", "factor": 1.0}}
    page.click("#plan")
    expect(page.locator("#plan-result")).to_contain_text("would have saved 38 % of the cost in the 2 days")
    assert "$" not in page.inner_text("#plan-result")
    admin.plan = {"state": "failed", "result": {"message": "the log is empty"}}
    page.click("#plan")
    expect(page.locator("#plan-result")).to_have_text("Plan failed: the log is empty")


def test_a_long_open_page_does_not_grow(page: Page, admin: FakeAdmin) -> None:
    """After 3,000 requests, DOM nodes, listeners and heap are as after the first 750."""
    open_view(page, "requests")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def resources() -> dict[str, float]:
        devtools.send("HeapProfiler.collectGarbage")
        found = devtools.send("Performance.getMetrics")["metrics"]
        return {metric["name"]: metric["value"] for metric in found}

    def send_batches(times: int) -> None:
        for _ in range(times):
            admin.traffic("hit", 250)
            poll_now(page)
            expect(page.locator("#requests-table tbody tr").first).to_have_attribute("data-serial", str(admin.serial))

    send_batches(3)
    before = resources()
    assert page.locator("#requests-table tbody tr").count() == 100
    send_batches(9)
    assert page.locator("#requests-table tbody tr").count() == 100

    def has_not_grown() -> bool:
        after = resources()
        return (
            after["Nodes"] <= 1.05 * before["Nodes"] + 50
            and after["JSEventListeners"] <= 1.05 * before["JSEventListeners"] + 20
            and after["JSHeapUsedSize"] <= 1.1 * before["JSHeapUsedSize"] + 300_000
        )

    wait_until(has_not_grown, "the end of old rows")  # one collection may leave the rows of the last poll


def visit_and_run(browser: Browser, url: str, script: str) -> None:
    with visit(browser, url) as page:
        page.evaluate(script)
        page.wait_for_timeout(50)


def test_visit_fails_on_policy_violations_console_output_and_foreign_requests(
    browser: Browser, admin: FakeAdmin
) -> None:
    for script in ("document.head.append(Object.assign(document.createElement('style'), {textContent: 'p {}'}))",
                "console.log('hello')", "fetch('http://localhost:9/').catch(() => {})"):  # fmt: skip
        with pytest.raises(AssertionError):
            visit_and_run(browser, admin.login(), script)


def test_polling_backs_off_after_failures(page: Page) -> None:
    delays = page.evaluate("""async () => {
        const { delay } = await import("/dashboard/poll.js");
        return [[0, 1, 2, 3, 4, 5, 50].map((k) => delay(k, false)), delay(0, true), delay(9, true)];
    }""")
    assert delays == [[2000, 2000, 4000, 8000, 16000, 30000, 30000], 30000, 30000]


def test_numbers_are_formatted_with_units(page: Page) -> None:
    formatted = page.evaluate("""async () => {
            const f = await import("/dashboard/format.js"), { amounts, nice } = await import("/dashboard/scale.js");
            const axis = (highest, unit) => amounts(highest, unit).map((tick) => tick.text);
            return [
              [0, 0.000012, 0.0342, 0.5, 12.3, 1234.4, -2].map(f.usd),
              [0, 0.0004, 0.42, 4.2, 725, 12240, 900000].map(f.time),
              [0, 999, 1000, 1.5e6, 256e6, 4.2e12].map(f.bytes),
              [0, 0.0001, 0.034, 0.5, 0.9999, 1, NaN].map(f.percent),
              axis(270, "usd"), axis(0.00031, "usd"), axis(7300, "seconds"), axis(0, "usd"), nice(0.21),
            ];
        }""")
    assert formatted == [
        ["$0.00", "$0.000012", "$0.0342", "$0.50", "$12.30", "$1,234", "−$2.00"],
        ["0 s", "400 µs", "420 ms", "4.2 s", "12.1 min", "3.4 h", "10.4 d"],
        ["0 B", "999 B", "1 kB", "1.5 MB", "256 MB", "4.2 TB"],
        ["0 %", "< 0.1 %", "3.4 %", "50 %", "99.9 %", "100 %", "–"],
        ["$0", "$100", "$200", "$300"],
        ["$0.0000", "$0.0001", "$0.0002", "$0.0003", "$0.0004"],
        ["0 h", "0.5 h", "1 h", "1.5 h", "2 h", "2.5 h"],
        ["$0.000", "$0.002", "$0.004", "$0.006", "$0.008", "$0.010"],
        0.5,
    ]


def test_every_control_has_an_accessible_name(page: Page, tab: Tab, admin: FakeAdmin) -> None:
    admin.on = {spec.name for spec, _ in admin.panels}
    admin.tier = LearnerControl()
    tab.open(admin.login())
    for view in ("", "entries", "requests", "savings", *sorted(admin.on), "settings"):
        wait_for_data(page)
        open_view(page, view)
    page.wait_for_load_state("networkidle")
    nameless = page.evaluate("""() => [...document.querySelectorAll(
        "button, input, select, a, [role=slider], [role=meter], section")]
        .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length
            || document.getElementById(one.getAttribute("aria-labelledby"))))
        .map((one) => one.outerHTML)""")
    assert nameless == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_operators_see_admin_actions(page: Page, admin: FakeAdmin) -> None:
    admin.audit += [
        audit_record("login", 401, name="", skipped=7),
        audit_record("entry", parameters={"key": "abcdef0123456789", "content": True}),
        audit_record("purge", parameters={"model": "<b>m</b>", "older_than": 86400.0}, result={"purged": 3}),
        audit_record("snapshot", None),
    ]
    open_view(page, "settings")
    expect(page.locator("#tokens-table tbody")).to_have_text("adminoperatoreverything")
    rows = page.locator("#audit-table tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("unfinished")
    expect(rows.nth(1)).to_contain_text("model <b>m</b>, older than 24 h → purged 3")
    expect(rows.nth(2)).to_contain_text("key abcdef01")
    expect(rows.nth(3)).to_contain_text("7 more not recorded")
    page.click("#help")
    expect(page.locator("#panel")).to_contain_text("Logged in with the token admin, role operator")
    page.click("#logout")
    expect(page.locator("#login")).to_be_visible()
    expect(rows).to_have_count(0)


def test_a_read_only_token_shows_its_role_and_no_actions(tab: Tab, admin: FakeAdmin) -> None:
    admin.role = "read-only"
    admin.audit.append(audit_record("login"))
    page = tab.open(admin.login())
    wait_for_data(page)
    expect(page.locator("#role")).to_have_text("read-only")
    for view, hidden in {"savings": ["#plan"], "settings": ["#snapshot", "#audit-table", "#tokens-table"]}.items():
        open_view(page, view)
        for place in hidden:
            expect(page.locator(place)).to_be_hidden()
    open_view(page, "entries")
    expect(page.locator("#purge")).to_be_hidden()
    page.click("#entries-table tbody tr >> nth=0")
    expect(page.locator("#drawer")).to_be_visible()
    expect(page.locator("#drawer footer")).to_be_hidden()
    tab.check()


def test_a_token_in_the_address_does_not_replace_a_session(browser: Browser, admin: FakeAdmin) -> None:
    with visit(browser, admin.login()) as page:
        wait_for_data(page)
        page.evaluate("location.hash = '#token=of-an-attacker'")
        page.goto(f"{admin.url}/dashboard?again#token=of-an-attacker")
        wait_for_data(page)
        assert page.url == f"{admin.url}/dashboard?again"
