"""A fake admin API over HTTP for dashboard tests, with numbers that a test sets.

It gives states that a real cache reaches only after hours: long histories, thousands of requests, a restarted server.
test_dashboard_live.py tests the dashboard on the real API, and test_fake_admin.py checks this one against its models.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from knapcache.features.prefix.feature import prefix_summary
from knapcache.features.prefix.settings import PrefixMode
from knapcache.features.prefix.totals import PrefixTotals
from knapcache.features.semantic.admin import SemanticAdmin
from knapcache.features.semantic.event import RecentMatches
from knapcache.features.semantic.totals import SemanticTotals
from knapcache.features.swap.admin import report as swap_report
from knapcache.features.swap.frames import Frames
from knapcache.features.swap.totals import SwapCounts
from knapcache.proxy.admin.pages import Pages, feature_panels, panel_row
from knapcache.proxy.events.upstream_health import UpstreamHealth
from knapcache.proxy.events.usage import NUMBERS, WHOLE, UsageRow
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.settings import Settings
from tests.support.front_proxies import free_port
from tests.support.semantic_control import LearnerControl
from tests.support.timing import wait_until

TOKEN = "the-admin-token"
UPSTREAMS = Settings(upstreams=[{"name": "openai", "url": "http://127.0.0.1:9/v1"}]).upstreams
STEPS = {"hour": (60, 60), "day": (60, 1440), "month": (3600, 720), "all": (86400, 45)}
SHADOWS = {"lru": 0.72, "gdsf-cost": 0.9, "adaptive@2x": 1.12}
"""What other policies would have saved, as a share of what was saved."""


DETAIL: dict[str, Any] = {
    "attempts": [200], "tried": [], "reason": "", "words": None, "stored": True, "answer": "stored", "semantic": "",
    "why": {
        "kind": "different", "title": "A similar request was stored, but not the same", "at": None,
        "text": "The nearest stored request differs in temperature (0.2 instead of 0).", "compared": 90, "entries": 90,
        "nearest": {
            "key": "ab" * 32, "endpoint": "chat/completions", "model": "gpt-4o", "tenant": "search", "created": 1.7e9,
            "stored": True, "words": "<b>Hello</b>",
            "differences": [{"field": "temperature", "text": "0.2 instead of 0", "here": "0.2", "there": "0"}],
        },
    },
}  # fmt: skip
"""What GET /requests/{serial} adds to a row."""


def row(hits: int = 0, misses: int = 0, each: float = 0.01) -> dict[str, Any]:
    """Return a usage row of requests that each cost `each`."""
    spent, saved = each * misses, each * hits
    return UsageRow(
        requests=hits + misses,
        hits=hits,
        misses=misses,
        usd_spent=spent,
        usd_saved=saved,
        cost_spent=spent,
        cost_saved=saved,
        seconds_spent=2.0 * misses,
        seconds_saved=2.0 * hits,
        tokens_spent=300 * misses,
        tokens_saved=300 * hits,
        priced=hits + misses,
        evictions=misses // 2,
        shadows={name: share * saved for name, share in SHADOWS.items()},
    ).report()


def add(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of usage rows."""
    total = row()
    for one in rows:
        for name in NUMBERS:
            total[name] += one[name]
        for name, cost in one["would"].items():
            total["would"][name] += cost
    return total


def plan_result(**changes: Any) -> dict[str, Any]:
    """Return a finished capacity plan."""
    rows = [
        {"policy": policy, "capacity": 4_000_000 * 2**k, "saved": share * 5 * k, "price": None}
        for policy, share in (("adaptive", 1.0), ("lru", 0.8))
        for k in range(9)
    ]
    advice = {"policy": "adaptive", "capacity": 300_000_000, "saved": 34.0, "at_knee": True}
    result = {"rows": rows, "recommended": advice, "largest_saving": 40.0, "total_cost": 90.0, "requests": 5000}
    result |= {"span": "6 seconds", "projection": {"per_day": None, "method": "No projection: too short."}} | changes
    return {"state": "done", "seconds": 12.0, "amounts": {"unit": "usd", "factor": 1.0}, "result": result}


def audit_record(action: str, status: int | None = 200, **fields: Any) -> dict[str, Any]:
    who = {"name": "admin", "role": "operator", "address": "127.0.0.1", "session": "", "parameters": {}}
    made = who | {"id": action, "time": "2026-01-01T00:00:00.000Z", "action": action, "status": status}
    return made | {"result": None, "skipped": 0} | fields


class FakeAdmin:
    """The server, in a thread. A restart listens on the same port."""

    def __init__(self) -> None:
        self.reset()
        self.panels = feature_panels()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Start with no traffic, and nobody logged in."""
        self.unit = "usd"
        self.prices = "known"
        self.amounts: dict[str, Any] = {"unit": "usd", "factor": 1.0}
        self.first_request = {"kind": "openai", "model": "gpt-4o-mini", "key": "provider"}
        self.model_prices: dict[str, str] = {}
        """Prices of models that are not known."""
        self.capacity = 256_000_000
        self.usable = 223_000_000
        self.started = time.time() - 3600.0
        self.since = self.started
        self.points: dict[int, dict[str, Any]] = {}
        """Usage rows by minute."""
        self.entries: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.serial = 0
        self.upstreams = UpstreamHealth(UPSTREAMS).report()
        self.engine: dict[str, Any] | None = None
        """State of the server of a shared store."""
        self.proxies: list[dict[str, Any]] = []
        self.on = {"prefix"}
        """Features that are on."""
        self.routes: list[dict[str, Any]] = []
        self.webhooks: list[dict[str, Any]] = []
        self.limits: list[dict[str, Any]] = []
        """Rows of GET /limits."""
        self.shadow_rate = 1
        self.prefix_mode: PrefixMode = "observe"
        self.prefix = PrefixTotals()
        """Use of the providers' prompt caches."""
        self.swap: Any = SimpleNamespace(frames=Frames(), routes={}, failure="")
        """As a SwapTier."""
        self.swapped = SwapCounts()
        self.tier: LearnerControl | None = None
        """The semantic tier; None: it is off."""
        self.semantic = SemanticTotals()
        self.matches = RecentMatches()
        self.plan: dict[str, Any] = {
            "state": "idle", "started": None, "seconds": None, "progress": 0.0, "remaining": None,
            "amounts": None, "result": None,
        }  # fmt: skip
        self.show_content = True
        self.csrf = secrets.token_hex(8)
        self.role = "operator"
        self.audit: list[dict[str, Any]] = []
        self.tokens = [{"name": "admin", "role": "operator"}]
        self.purges: list[dict[str, Any]] = []
        self.models = ("gpt-4o", "gpt-4o-mini", "claude-sonnet-4-5", "text-embedding-3-small")
        self.tenants = ("search", "support", "evals")

    def login(self, path: str = "") -> str:
        """Return the address of a view, with the token."""
        return f"{self.url}/dashboard{path}#token={TOKEN}"

    # Control by tests.

    def traffic(self, outcome: str = "hit", times: int = 1, model: str = "gpt-4o", usd: float = 0.01) -> None:
        """Add finished requests, now."""
        for _ in range(times):
            now, hit = time.time(), outcome == "hit"
            self.serial += 1
            minute = int(now // 60) * 60
            self.points[minute] = add([self.points.get(minute, row()), row(int(hit), int(not hit), usd)])
            line = {"serial": self.serial, "time": now, "tenant": "support", "model": model, "outcome": outcome}
            line |= {"endpoint": "chat/completions", "status": 502 if outcome == "failed" else 200, "stream": False}
            line |= {"seconds": 0.0008 if hit else 1.84, "ttfb": 0.0006 if hit else 0.42, "cost": usd, "usd": usd}
            line |= {"size": 900, "upstream_seconds": 1.8, "upstream": "openai", "saved": hit}
            line |= {"tokens": 300, "error": "", "route": "", "usd_estimated": 0.0}
            line["key"] = self.entries[self.serial % len(self.entries)]["key"] if self.entries else ""
            self.requests = [*self.requests[-999:], line]

    def fill(self, entries: int = 60, days: float = 1.0) -> None:
        """Add entries and past traffic."""
        for k in range(entries):
            cost, requests, size = 0.06 / (1 + k % 17), 400.0 / (1 + k), 900 + 531 * (k * k % 23)
            self.entries.append(
                {
                    "key": f"{k * 2654435761 % 2**32:08x}" + "c0ffee" * 9 + "ab",
                    "endpoint": "embeddings" if k % len(self.models) == 3 else "chat/completions",
                    "model": self.models[k % len(self.models)],
                    "tenant": self.tenants[k % len(self.tenants)],
                    "tags": ["faq", "prompt-v3"] if k % 10 == 0 else [], "system": "",
                    "size": size, "cost": cost, "usd": cost, "seconds": 1.2 + k % 5, "requests": requests,
                    "per_day": requests / (2 + k) if k < 30 else None,
                    "value": requests * cost, "density": requests * cost / size,
                    "age": 86400.0 * (2 + k) if k < 30 else 600.0 * (1 + k),
                    "expires_in": 86400.0 if k % 3 == 0 else None,
                }
            )  # fmt: skip
        now = int(time.time() // 60) * 60
        for k in range(int(days * 1440)):
            wave = 1.2 + math.sin(k / 180.0) + 0.4 * math.sin(k / 17.0)
            hits, misses = int(9 * wave * (1 - k / (3000 * days))), int(5 * wave)
            self.points[now - 60 * k] = row(max(0, hits), max(0, misses), 0.0123)

    # Responses.

    def session(self) -> dict[str, str]:
        """GET /session."""
        return {"csrf": self.csrf, "name": "admin", "role": self.role}

    def summary(self) -> dict[str, Any]:
        """GET /summary."""
        total = add(list(self.points.values()))
        midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
        today = add([one for at, one in self.points.items() if at >= midnight])
        total_size = sum(entry["size"] for entry in self.entries)
        used = min(self.usable, 3500 * total_size) if self.entries else 0
        shares = [0.55, 0.25, 0.15, 0.05]

        def part(share: float) -> dict[str, Any]:
            scaled = {name: total[name] * share for name in NUMBERS}
            return scaled | {name: int(scaled[name]) for name in WHOLE} | {"would": {}}

        named = total["requests"] > 0
        models = [
            {"name": name, "price": self.model_prices.get(name, "known"), **part(shares[k])}
            for k, name in enumerate(self.models)
        ] if named else []  # fmt: skip
        tenants = [
            {"name": name, "namespace": f"{k:032x}", "bytes": used // 3, "quota": None if k else 50_000_000,
             **part(shares[k])}
            for k, name in enumerate(self.tenants)
        ] if named else []  # fmt: skip
        more = total["would"]["none"] - total["would"]["adaptive@2x"] - total["cost_saved"] if total["evictions"] else 0
        return {
            "now": time.time(), "started": self.started, "since": self.since, "version": "0.1.0", "unit": self.unit,
            "prices": self.prices, "amounts": self.amounts, "first_request": self.first_request,
            "semantic": self.tier is not None, "content_log": False, "routes": self.routes,
            "prefix": prefix_summary(self.prefix_mode, self.prefix, self.prefix).model_dump(),
            "policy": {"name": "adaptive", "oracle_calls": 412, "oracle_seconds": 0.0931, "ids": 131072,
                       "shadow_rate": self.shadow_rate},
            "storage": {"capacity": self.capacity, "usable": self.usable, "bytes": used, "entries": len(self.entries),
                       "disk_bytes": int(1.04 * used)},
            "today": today, "all": total, "models": models, "tenants": tenants,
            "price_per_mb": more / (self.capacity / 1e6),
            "least_value_per_mb": min((1e6 * entry["density"] for entry in self.entries), default=0.0),
            "doubling": {"saves": more, "per_day": None, "per_day_low": None, "per_day_high": None, "method": ""},
            "health": {"store": "ok", "owner": True, "workers": 1, "upstreams": self.upstreams,
                       "breaker": {"state": "closed", "opened": 0, "skipped": 0}, "engine": self.engine,
                       "webhooks": self.webhooks},
        }  # fmt: skip

    def history(self, span: str) -> dict[str, Any]:
        """GET /history."""
        step, limit = STEPS[span]
        now = int(time.time() // step) * step
        sums: dict[int, list[dict[str, Any]]] = {}
        for at, one in self.points.items():
            sums.setdefault(at // step * step, []).append(one)
        first = max(now - step * (limit - 1), min(sums, default=now))
        return {"step": step, "points": [{"time": at, **add(sums.get(at, []))} for at in range(first, now + 1, step)]}

    def find(self, query: dict[str, str]) -> dict[str, Any]:
        """GET /entries."""
        text = query.get("search", "")
        found = [
            entry
            for entry in self.entries
            if query.get("model") in (None, entry["model"])
            and query.get("tenant") in (None, entry["tenant"])
            and query.get("tag") in (None, *entry["tags"])
            and (text in entry["key"] or text in entry["model"] or text in entry["tenant"] or text in entry["tags"])
        ]
        found.sort(
            key=lambda entry: entry[query.get("sort", "value")] or -1.0, reverse=query.get("descending") != "false"
        )
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 50))
        least = self.summary()["least_value_per_mb"]
        rows = found[offset : offset + limit]
        if self.show_content:
            rows = [entry | {"words": f"Question {entry['key'][:4]} about the sea"} for entry in rows]
        counts = {"total": len(found), "entries": len(self.entries), "searched": len(self.entries)}
        return counts | {"content": self.show_content, "rows": rows, "least_value_per_mb": least}

    def purge(self, conditions: dict[str, Any]) -> dict[str, Any]:
        """POST /purge."""
        removed = [
            entry
            for entry in self.entries
            if conditions.get("all")
            or conditions.get("key") == entry["key"]
            or conditions.get("model") == entry["model"]
            or conditions.get("tenant") == entry["tenant"]
            or not set(conditions.get("tags", ())).isdisjoint(entry["tags"])
            or entry["age"] > conditions.get("older_than", math.inf)
        ]
        if conditions.get("dry_run"):
            rows = sorted(removed, key=lambda entry: -float(entry["value"]))[:5]
            totals = {"entries": len(removed), "bytes": sum(entry["size"] for entry in removed)}
            value = sum(entry["value"] for entry in removed)
            return {"purged": 0, "preview": totals | {"value": value, "rows": rows}}
        self.purges.append(conditions)
        self.entries = [entry for entry in self.entries if entry not in removed]
        return {"purged": len(removed)}

    def semantic_admin(self) -> SemanticAdmin:
        """Return what serves GET /semantic and POST /semantic/feedback, with the numbers of this API."""
        settings = Settings(semantic="on", semantic_judge="gpt-4o-mini")
        services = SimpleNamespace(
            totals=SimpleNamespace(sums=lambda _: (self.semantic, self.semantic)),
            read_shared=lambda: None,
            flush_events=lambda: None,
        )
        assert self.tier is not None
        return SemanticAdmin(
            settings,
            services,
            self.tier,
            self.matches,
            lambda verdict: self.matches.consume_verdicts([verdict]),
        )

    async def _semantic(self, path: str, query: dict[str, str], body: dict[str, Any]) -> Response:
        if self.tier is None:
            return problem(404, "Not Found")
        admin = self.semantic_admin()
        if path == "semantic":
            found = self.matches.newest(int(query.get("limit", 50)), query.get("scope"))
            status = admin.status(await self.tier.report(), found, content=self.show_content)
            return JSONResponse(status.model_dump())
        try:
            scope = await admin.mark(body["match"])
        except RequestRejected as error:
            return problem(error.status, error.message)
        return JSONResponse({"match": body["match"], "scope": scope, "verdict": "different"})

    # The server.

    def app(self) -> Starlette:
        """Return the application: pages, authentication and routes."""

        async def answer(request: Request) -> Response:
            path, method = request.path_params["path"], request.method
            body = await request.json() if method == "POST" and await request.body() else {}
            if path == "login":
                if body.get("token") != TOKEN:
                    return problem(401, "wrong token")
                done = JSONResponse(self.session())
                done.set_cookie("session", self.csrf, httponly=True, samesite="strict")
                return done
            if request.cookies.get("session") != self.csrf:
                return problem(401, "log in first")
            if request.headers.get("x-csrf-token") != self.csrf:
                return problem(403, "the CSRF token is missing or wrong", "invalid_csrf_token")
            if path.startswith("semantic"):
                return await self._semantic(path, dict(request.query_params), body)
            return self._answer(method, path, dict(request.query_params), body)

        return Starlette(
            routes=[
                Route("/dashboard{path:path}", Pages(self.panels).serve),
                Route("/admin/v1/{path:path}", answer, methods=["GET", "POST", "DELETE"]),
            ]
        )

    def swap_status(self) -> dict[str, Any]:
        totals = self.swapped.totals
        return swap_report(self.swap, self.swapped.frames, totals, totals).model_dump()

    def _answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Response:
        plain: dict[str, Callable[[], dict[str, Any]]] = {
            "session": self.session,
            "audit": lambda: {"rows": self.audit[-int(query["limit"]) :][::-1]},
            "panels": lambda: {"rows": [panel_row(one, on=one.name in self.on).model_dump() for one, _ in self.panels]},
            "tokens": lambda: {"rows": self.tokens},
            "limits": lambda: {"rows": self.limits, "alone": ""},
            "swap": self.swap_status,
            "proxies": lambda: {"engine": self.engine, "rows": self.proxies, "ended": 0, "ignored": 0},
            "summary": self.summary,
            "history": lambda: self.history(query["span"]),
            "entries": lambda: self.find(query),
            "purge": lambda: self.purge(body),
            "snapshot": dict,
            "logout": dict,
        }
        if path in plain:
            return JSONResponse(plain[path]())
        if path == "requests":
            later = [line for line in self.requests if line["serial"] > int(query["after"])]
            return JSONResponse({"serial": self.serial, "rows": later[-int(query["limit"]) :]})
        if path.startswith("requests/"):
            line = next((one for one in self.requests if one["serial"] == int(path.removeprefix("requests/"))), None)
            return problem(404, "no such request") if line is None else JSONResponse(line | DETAIL)
        if path == "plan":
            return JSONResponse(self.plan, status_code=202 if method == "POST" else 200)
        if path.startswith("entries/"):
            key = path.removeprefix("entries/")
            entry = next((one for one in self.entries if one["key"] == key), None)
            if entry is None:
                return problem(404, "no such entry")
            if method == "DELETE":
                return JSONResponse(self.purge({"key": key}))
            content = {
                "request": '{"model": "gpt-4o", "messages": [{"role": "user", "content": "<b>Hello</b>"}]}',
                "answer": "A knapsack.",
            }
            return JSONResponse(entry | (content if self.show_content else {}))
        return problem(404, "no such route")

    def start(self) -> None:
        config = uvicorn.Config(self.app(), host="127.0.0.1", port=self.port, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        server = self._server
        wait_until(lambda: server.started, "the server")

    def stop(self) -> None:
        """Close the server; `start` listens again."""
        if self._server and self._thread:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def problem(status: int, message: str, kind: str = "error") -> Response:
    """Return an error response of the admin API."""
    return JSONResponse({"error": {"message": message, "type": kind}}, status_code=status)
