"""Fuzzer of the admin API: no mutated path, query, header or body gives a server error, or access without a token.

The requests go to the application by ASGI, as an HTTP server passes them on. In every fourth case the token is mutated,
too: such a request gets nothing but errors, except from public routes.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.openapi import ROOT, ROUTES
from tests.support.admin_context import TOKEN, AdminHarness
from tests.support.fuzzing import Mutator, Progress, no_progress

PUBLIC = {f"{ROOT}{route.path}" for route in ROUTES if route.access == "public"}
KEY = b"{key}"
"""Replaced by the key of an entry."""
JSON = b"content-type: application/json\n"
CORPUS = (
    b"GET /admin/v1/summary\n\n",
    b"GET /admin/v1/history?span=day\n\n",
    b"GET /admin/v1/entries?limit=10&offset=0&sort=size&descending=false\n\n",
    b"GET /admin/v1/entries?model=m&tenant=anonymous&search=x\n\n",
    b"GET /admin/v1/entries/{key}\n\n",
    b"GET /admin/v1/requests?limit=5&after=1\naccept: application/json\n\n",
    b"GET /admin/v1/plan\n\n",
    b"GET /admin/v1/plan?x=\xff\n\n",
    b"GET /admin/v1/openapi.json\n\n",
    b"GET /admin/v1/session\ncookie: knapcache-session=abc\n\n",
    b"GET /metrics\naccept: text/plain\n\n",
    b"GET /dashboard/index.html\n\n",
    b"GET /dashboard/../v1/summary\nrange: bytes=0-1\n\n",
    b"GET /\n\n",
    b"DELETE /admin/v1/entries/{key}\norigin: http://127.0.0.1:8080\n\n",
    b"POST /admin/v1/purge\n" + JSON + b'\n{"tenant": "a", "model": "m", "older_than": 3600}',
    b"POST /admin/v1/purge\n" + JSON + b'\n{"all": true}',
    b"POST /admin/v1/snapshot\n" + JSON + b"\n{}",
    b"POST /admin/v1/login\n" + JSON + b'\n{"token": "wrong"}',
    b"POST /admin/v1/logout\nx-csrf-token: x\n" + JSON + b"\n{}",
    b"OPTIONS /admin/v1/purge\naccess-control-request-method: POST\n\n",
)
TOKENS = (
    *(b"/", b"//", b"/..", b"/.", b"%2e%2e", b"%2f", b"%00", b"%ff", b"%", b"?", b"&", b"=", b"#", b"+"),
    *(b"limit=-1", b"limit=99999999999999999999", b"limit=1e3", b"limit=", b"&limit=5", b"offset=-5", b"span=year"),
    *(b"search=%25_", b"'; DROP TABLE entries; --", b"\xc3\xa9", b"%c3%a9", b"%ed%a0%80", b"NaN", b"Infinity", b"null"),
    *(b'"', b"{", b"}", b"[", b"]", b"{}", b"1e400", b"-1", b"9" * 30, b"true", b'"a":', b"\\ud800", b"\\u0000"),
    *(b"\\", b"*", b";", b"&a=b", b"\0", b"\xff"),
    *(b"0" * 64, b"f" * 64, KEY, b"GET ", b"POST ", b"DELETE ", b"HEAD ", b"PUT ", b"TRACE "),
    *(b"[" * 300, b'{"a":' * 300, b"\n\n", b"\n"),
    *(b"content-type: text/plain\n", b"content-length: 5\n", b"content-encoding: gzip\n", b"origin: null\n"),
)  # fmt: skip


class AdminFuzzer:
    """Sends requests to the admin application, and counts what comes back."""

    def __init__(self, app: Any, key: str) -> None:
        self._app, self._key = app, key.encode()
        self.counts = {"succeeded": 0, "refused": 0, "refused_without_token": 0}

    async def run(self, text: bytes, token: str | None) -> None:
        """Send one request. token: None for the right one."""
        head, _, body = text.replace(KEY, self._key).partition(b"\n\n")
        first, *lines = head.split(b"\n")
        method, _, target = first.partition(b" ")
        raw_path, _, query = target.partition(b"?")
        raw_path = raw_path.decode("ascii", "ignore").encode() or b"/"
        headers = [(b"host", b"127.0.0.1:8080")]
        headers += [(b"authorization", f"Bearer {TOKEN if token is None else token}".encode("latin-1", "replace"))]
        fields = [line.partition(b":") for line in lines if b":" in line]
        headers += [(name.lower(), value.strip()) for name, _, value in fields]
        path = urllib.parse.unquote(raw_path.decode())
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
            "method": method.decode("ascii", "ignore") or "GET", "path": path, "raw_path": raw_path,
            "query_string": query, "headers": headers, "client": ("127.0.0.1", 40000), "server": ("127.0.0.1", 8080),
        }  # fmt: skip
        status = await self._send(scope, body)
        if token is not None:
            assert status >= 300 or path in PUBLIC or not path.startswith("/admin/"), "served without the token"
            self.counts["refused_without_token"] += status >= 400
        else:
            self.counts["succeeded" if status < 400 else "refused"] += 1

    async def _send(self, scope: dict[str, Any], body: bytes) -> int:
        incoming = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return incoming.pop() if incoming else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        status: int = sent[0]["status"]
        assert status < 500, f"status {status}: {sent[-1].get('body')!r}"
        assert not sent[-1].get("more_body"), "an incomplete response"
        return status


@contextmanager
def admin_fuzzer() -> Iterator[AdminFuzzer]:
    """Yield a fuzzer of an admin API with two entries."""
    harness = AdminHarness(show_content=True)
    key = harness.request(1)
    harness.request(2)
    yield AdminFuzzer(admin_app(harness.context), key)
    harness.close()


def mutate_after_path(mutator: Mutator) -> bytes:
    """Return a request with a valid path: most other mutations hit the path and end with status 404."""
    text = mutator.rng.choice(CORPUS)
    end = text.find(b"?") + 1 or text.find(b"\n") + 1
    return text[:end] + mutator.mutate(text[end:])


async def fuzz_admin_async(cases: int, seed: int, progress: Progress = no_progress) -> dict[str, int]:
    mutator, tokens = Mutator(CORPUS, TOKENS, seed), Mutator([TOKEN.encode()], [b" ", b"x", b"\0", b","], seed)
    # Wrong tokens are counted, and after many of them the right one is refused, too. So they have their own API.
    with admin_fuzzer() as fuzzer, admin_fuzzer() as unauthorised:
        for number, mutated in enumerate(mutator.cases(cases), 1):
            text = mutated if number % 3 else mutate_after_path(mutator)
            try:
                if number % 4:
                    await fuzzer.run(text, None)
                elif (token := tokens.mutate(TOKEN.encode()).decode("latin-1")).strip() != TOKEN:
                    await unauthorised.run(text, token)
            except Exception as error:
                raise AssertionError(f"case {number} of seed {seed}: {text!r}") from error
            if number % 100 == 0:
                progress(number)
        counts = fuzzer.counts | {"refused_without_token": unauthorised.counts["refused_without_token"]}
    return {"cases": cases, **counts}


def fuzz_admin(cases: int, seed: int, progress: Progress = no_progress) -> dict[str, int]:
    """Return how many requests succeeded, and how many were refused with and without the token."""
    return asyncio.run(fuzz_admin_async(cases, seed, progress))
