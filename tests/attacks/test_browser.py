"""A hostile page in a real browser, whose user is logged in on the dashboard.

The page comes from another port of the dashboard's host (which browsers count as the same site), from another address
of the same machine, and from a host name of its own, which also resolves to the proxy (DNS rebinding). It must call no
upstream, read nothing and change nothing. The audit log must show what the user did and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page
from playwright.sync_api import Error as PlaywrightError

from tests.support.browser import chromium, wait_for_data
from tests.support.raw_client import chat, exchange
from tests.support.recording_upstream import RecordingUpstream, plain, send
from tests.support.running_proxy import RunningProxy

TOKEN = "an-operator-token-of-these-tests-0123456789"
ROOT = "/admin/v1"
FLAGS = (
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
    # The browser's own barrier between public pages and this machine: not every browser has one.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)
HOSTILE_HOSTS = ["localhost", "127.0.0.1", "evil.example"]

# Each gets the proxy's origin and returns what the page could learn: "blocked", or what it read.
HELPERS = """
const read = async (promise) => {
  try {
    const response = await promise;
    return response.type === "opaque" ? "blocked" : `${response.status} ${await response.text()}`;
  } catch { return "blocked"; }
};
const tag = (name, attributes) => new Promise((done) => {
  const element = Object.assign(document.createElement(name), attributes);
  element.onload = () => done(`${name} loaded`);
  element.onerror = () => done("blocked");
  document.body.append(element);
  setTimeout(() => done("blocked"), 3000);
});
const form = (action, fields, enctype) => new Promise((done) => {
  const frame = Object.assign(document.createElement("iframe"), { name: "f" + Math.random() });
  const form = Object.assign(document.createElement("form"), { action, method: "POST", enctype, target: frame.name });
  for (const [name, value] of Object.entries(fields)) {
    form.append(Object.assign(document.createElement("input"), { name, value }));
  }
  frame.onload = () => {
    let text = "";
    try { text = frame.contentDocument.body.textContent; } catch {}
    done(text || "blocked");
  };
  document.body.append(frame, form);
  form.submit();
  setTimeout(() => done("blocked"), 3000);
});
const chat = JSON.stringify({ model: "m", messages: [{ role: "user", content: "paid by the victim" }] });
"""
ATTACKS = {
    "fetch-simple": "read(fetch(T + '/v1/models', { credentials: 'include' }))",
    "fetch-opaque": "read(fetch(T + '/v1/models', { mode: 'no-cors', credentials: 'include' }))",
    "fetch-text-plain": "read(fetch(T + '/v1/chat/completions', { method: 'POST', mode: 'no-cors', body: chat }))",
    "fetch-preflighted": "read(fetch(T + '/v1/chat/completions', { method: 'POST', body: chat,"
    " headers: { 'content-type': 'application/json', authorization: 'Bearer any' } }))",
    "fetch-delete": "read(fetch(T + '/v1/files/f', { method: 'DELETE' }))",
    "beacon": "(navigator.sendBeacon(T + '/v1/chat/completions', chat), 'blocked')",
    "form-text-plain": "form(T + '/v1/chat/completions', { [chat.slice(0, -1) + ', \"x\": \"']: '\"}' }, 'text/plain')",
    "form-purge": f"form(T + '{ROOT}/purge', {{ '{{\"all\": true, \"x\": \"': '\"}}' }}, 'text/plain')",
    "form-logout": f"form(T + '{ROOT}/logout', {{}}, 'application/x-www-form-urlencoded')",
    "form-login": f"form(T + '{ROOT}/login', {{ '{{\"token\": \"': 'wrong\"}}' }}, 'text/plain')",
    "read-summary": f"read(fetch(T + '{ROOT}/summary', {{ credentials: 'include' }}))",
    "read-session": f"read(fetch(T + '{ROOT}/session', {{ credentials: 'include' }}))",
    "read-metrics": "read(fetch(T + '/metrics', { credentials: 'include' }))",
    "read-openapi": f"read(fetch(T + '{ROOT}/openapi.json'))",
    "purge-opaque": f"read(fetch(T + '{ROOT}/purge', {{ method: 'POST', mode: 'no-cors', credentials: 'include',"
    " body: '{\"all\": true}' }))",
    "purge-preflighted": f"read(fetch(T + '{ROOT}/purge', {{ method: 'POST', credentials: 'include',"
    " headers: { 'content-type': 'application/json', 'x-csrf-token': '0' }, body: '{\"all\": true}' }))",
    "image-of-models": "tag('img', { src: T + '/v1/models' })",
    "image-of-summary": f"tag('img', {{ src: T + '{ROOT}/summary' }})",
    "image-of-icon": "tag('img', { src: T + '/dashboard/icon.svg' })",
    "script-of-metrics": "tag('script', { src: T + '/metrics' })",
    "script-of-summary": f"tag('script', {{ src: T + '{ROOT}/summary' }})",
    "script-of-dashboard": "tag('script', { src: T + '/dashboard/theme.js' })",
    "style-of-dashboard": "tag('link', { rel: 'stylesheet', href: T + '/dashboard/style.css' })",
    "websocket": "new Promise((done) => { const s = new WebSocket(T.replace('http', 'ws') + '/v1/realtime');"
    " s.onopen = () => done('open'); s.onerror = () => done('blocked'); })",
    "event-source": "new Promise((done) => {"
    f" const s = new EventSource(T + '{ROOT}/requests', {{ withCredentials: true }});"
    " s.onopen = () => done('open'); s.onmessage = (e) => done(e.data);"
    " s.onerror = () => { s.close(); done('blocked'); }; })",
}


class HostilePages:
    """A web server that serves an empty page at every path, and records the cookies it gets."""

    def __init__(self) -> None:
        self.cookies: list[str] = []
        pages = self

        class PageHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.cookies += self.headers.get_all("cookie") or []
                body = b"<!doctype html><title>hostile</title><body></body>"
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), PageHandler)
        self.port = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    return {"admin_token": TOKEN, "show_content": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(*FLAGS) as launched:
        yield launched


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostilePages]:
    with HostilePages() as pages:
        yield pages


def origin_of(proxy: RunningProxy, host: str = "localhost") -> str:
    return proxy.url.replace("127.0.0.1", host)


def records(proxy: RunningProxy) -> list[str]:
    """Return the actions in the audit log, refused ones too."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    rows = httpx.get(f"{proxy.url}{ROOT}/audit?limit=500", headers=headers).json()["rows"]
    return [row["action"] for row in reversed(rows)]


@pytest.fixture
def victim(browser: Browser, proxy: RunningProxy, upstream: RecordingUpstream) -> Iterator[BrowserContext]:
    """A browser whose user is logged in on the dashboard, with an entry in the cache. Checks that nothing happened."""
    (response,) = exchange(proxy.url, chat("a private question"))
    assert response.status == 200
    before, entries = records(proxy), proxy.proxy.cache.entries(limit=0)["total"]
    upstream.clear()
    context = browser.new_context()
    dashboard = context.new_page()
    dashboard.goto(f"{origin_of(proxy)}/dashboard/entries#token={TOKEN}")
    wait_for_data(dashboard)
    yield context
    dashboard.reload()
    wait_for_data(dashboard)  # the session is still valid
    context.close()
    assert upstream.targets == []
    later = records(proxy)[len(before) :]
    assert later in (["login"], ["login", "entries"]), "the dashboard itself lists first words of prompts, once"
    assert proxy.proxy.cache.entries(limit=0)["total"] == entries


def attack(page: Page, target: str, name: str) -> Any:
    """Run an attack in a page, and return what it learned."""
    return page.evaluate(f"async (T) => {{ {HELPERS} return await {ATTACKS[name]}; }}", target)


@pytest.mark.parametrize("host", HOSTILE_HOSTS)
def test_a_page_of_another_origin_reads_and_changes_nothing(
    victim: BrowserContext, proxy: RunningProxy, hostile: HostilePages, host: str
) -> None:
    page = victim.new_page()
    page.goto(f"http://{host}:{hostile.port}/")
    assert {name: attack(page, origin_of(proxy), name) for name in ATTACKS} == dict.fromkeys(ATTACKS, "blocked")


def test_the_attacks_work_where_nothing_stops_them(browser: Browser, hostile: HostilePages) -> None:
    """The same code succeeds against a server that checks nothing, so the test above can fail."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://localhost:{hostile.port}/")
    own = f"http://localhost:{hostile.port}"
    for name in ("fetch-simple", "read-summary", "read-metrics", "script-of-metrics"):
        assert attack(page, own, name) != "blocked", name
    context.close()


def test_the_dashboard_cannot_be_framed(victim: BrowserContext, proxy: RunningProxy, hostile: HostilePages) -> None:
    for host in HOSTILE_HOSTS:
        page = victim.new_page()
        page.goto(f"http://{host}:{hostile.port}/")
        page.evaluate(
            """(T) => Promise.all(["iframe", "object", "embed"].map((name) => new Promise((done) => {
                 const frame = document.createElement(name);
                 frame[name === "object" ? "data" : "src"] = T + "/dashboard";
                 frame.onload = frame.onerror = done;
                 document.body.append(frame);
                 setTimeout(done, 2000);
               })))""",
            origin_of(proxy),
        )
        for frame in page.frames[1:]:
            with contextlib.suppress(PlaywrightError):  # <object> and <embed> drop a frame whose page was refused
                assert "knapcache" not in frame.content()
        page.close()


def test_a_window_that_a_hostile_page_opened_is_out_of_its_reach(
    victim: BrowserContext, proxy: RunningProxy, hostile: HostilePages
) -> None:
    page = victim.new_page()
    page.goto(f"http://localhost:{hostile.port}/")
    # The token in the address is the attacker's: the user must not be logged in with it, or logged out.
    with victim.expect_page() as opened:
        page.evaluate(
            "(T) => { addEventListener('message', (e) => (window.got = e.data));"
            " window.w = open(T + '/dashboard#token=wrong'); }",
            origin_of(proxy),
        )
    wait_for_data(opened.value)
    seen = page.evaluate(
        """async (T) => {
             let text = "blocked";
             try { text = window.w.document.body.textContent; } catch {}
             try { text = window.w.location.href === "about:blank" ? text : window.w.location.href; } catch {}
             window.w.postMessage({ type: "purge" }, "*");
             await new Promise((done) => setTimeout(done, 300));
             return [text, window.got ?? null, window.w.closed];
           }""",
        origin_of(proxy),
    )
    assert seen == ["blocked", None, True]  # closed: the browser has cut the connection between the windows
    assert opened.value.evaluate("window.opener") is None
    opened.value.close()


def test_dns_rebinding_is_refused(victim: BrowserContext, proxy: RunningProxy) -> None:
    own = origin_of(proxy, "evil.example")
    page = victim.new_page()
    # The attacker's server has served this page, and then its name was made to resolve to the proxy.
    page.route(f"{own}/page", lambda route: route.fulfill(body="<body></body>", content_type="text/html"))
    page.goto(f"{own}/page")
    requests = [("GET", "/dashboard"), ("GET", f"{ROOT}/summary"), ("GET", "/metrics"), ("POST", f"{ROOT}/purge")]
    requests += [("GET", "/v1/models"), ("POST", "/v1/chat/completions")]
    found = page.evaluate(
        """async (requests) => {
             const statuses = [];
             for (const [method, path] of requests) {
               const body = method === "POST" ? '{"model": "m", "messages": []}' : undefined;
               statuses.push((await fetch(path, { method, body })).status);
             }
             return statuses;
           }""",
        requests,
    )
    assert found == [421] * 6


def test_a_session_cookie_that_another_port_has_got_is_worth_nothing(
    victim: BrowserContext, proxy: RunningProxy, hostile: HostilePages
) -> None:
    hostile.cookies.clear()
    page = victim.new_page()
    page.goto(f"http://localhost:{hostile.port}/admin/v1/steal")  # cookies ignore ports
    (stolen,) = hostile.cookies
    assert stolen.startswith("knapcache-session=")
    for method, path in (("GET", "/session"), ("GET", "/summary"), ("POST", "/purge"), ("POST", "/logout")):
        found = httpx.request(method, f"{proxy.url}{ROOT}{path}", headers={"cookie": stolen})
        assert (found.status_code, found.json()["error"]["type"]) == (403, "invalid_csrf_token")
    page.evaluate("document.cookie = 'knapcache-session=fixed; path=/admin/v1'")


def test_html_of_an_upstream_cannot_use_the_session(
    victim: BrowserContext, proxy: RunningProxy, upstream: RecordingUpstream
) -> None:
    script = f"""<body>quiet<script>
      document.body.textContent = "scripts run";
      fetch("{ROOT}/summary", {{ headers: {{ "x-csrf-token": localStorage.getItem("knapcache-csrf") }} }})
        .then((r) => r.text()).then((t) => (document.body.textContent = t));
    </script>"""
    upstream.script(send(plain(script.encode(), "content-type: text/html")))
    page = victim.new_page()
    page.goto(f"{origin_of(proxy)}/v1/models")  # the user typed it, or followed a link of the same origin
    assert upstream.targets == ["GET /v1/models"]
    assert "scripts run" not in page.content().partition("<script>")[0]
    assert "usd_saved" not in page.content()
    upstream.clear()
