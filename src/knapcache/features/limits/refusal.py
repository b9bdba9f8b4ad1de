"""The response to a request that a limit refuses: status 429, in the form that the SDKs of OpenAI and Anthropic read.

retry-after      seconds until the limit admits calls again, at most an hour
x-should-retry   false for spend limits: both SDKs obey it, and do not repeat the request
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import orjson

from knapcache.features.limits.core import ALL, SPEND_LIMITS, LimitValues, Refusal, free_at, retry_after
from knapcache.proxy.hooks import CallRefused

CODE = "knapcache_limit"
REASON = re.compile(r"limit (?P<limit>[^ ]+) of (?P<scope>[^ ]+)")
"""The `reason` of an event whose request a limit has refused. The metrics count by it."""
STATUS = 429
UNITS = {
    "usd_per_day": "USD of this day are spent",
    "usd_per_month": "USD of this month are spent",
    "requests_per_minute": "requests within a minute",
    "tokens_per_minute": "tokens within a minute",
    "concurrent": "requests are in flight",
}


class LimitReached(CallRefused):
    """A call was not made, because a limit is reached. The provider has not failed."""

    def __init__(self, refusal: Refusal, limits: LimitValues, now: float) -> None:
        limit, usage = refusal.limit, refusal.usage
        allowed = float(getattr(limits, limit))
        self.limit, self.scope = limit, refusal.scope
        self.retry_seconds = retry_after(limit, allowed, usage, now)
        self.resets_at = free_at(limit, allowed, usage, now)
        used = min(usage.used(limit), allowed)
        # What all callers together use is not for each of them to know.
        amounts = "" if self.scope == ALL else f": {amount(used)} of {amount(allowed)} {UNITS[limit]}"
        in_flight = usage.used(limit) < allowed and limit != "concurrent"
        reserved = ". Calls in flight may use what is left" if in_flight else ""
        message = f"The limit {limit} of {whose(self.scope)} is reached{amounts}{reserved}. "
        message += f"Try again at {time_text(self.resets_at)}."
        super().__init__(STATUS, message)
        self.should_retry = limit not in SPEND_LIMITS or in_flight
        self.event_reason = f"limit {self.limit} of {self.scope}"

    def concerns(self, tenant: str) -> bool:
        """Return whether the limit is one of this caller."""
        return self.scope in (ALL, tenant)

    @property
    def headers(self) -> list[tuple[str, str]]:
        pairs = [("retry-after", str(self.retry_seconds))]
        return pairs if self.should_retry else [*pairs, ("x-should-retry", "false")]

    def body(self) -> bytes:
        """Return the body: OpenAI's SDK reads `error`, Anthropic's `type` and `error`."""
        error: dict[str, Any] = {
            "message": str(self),
            "type": "rate_limit_error",
            "code": CODE,
            "param": None,
            "limit": self.limit,
            "scope": "all" if self.scope == ALL else "tenant",
            "resets_at": time_text(self.resets_at),
        }
        return orjson.dumps({"type": "error", "error": error})


def whose(scope: str) -> str:
    return "all callers together" if scope == ALL else f"the tenant {scope}"


def amount(value: float) -> str:
    """Return an amount with at most six digits after the point."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def time_text(at: float) -> str:
    """Return a time as ISO 8601 in UTC, whole seconds rounded up."""
    found = datetime.datetime.fromtimestamp(-(-at // 1), datetime.UTC)
    return found.strftime("%Y-%m-%dT%H:%M:%SZ")
