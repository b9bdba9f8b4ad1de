"""Why a request was a hit or a miss, in plain words.

A miss is explained by the first of these that holds:

    1. the route or the client asked for a fresh answer, or the client for one that is not too old
    2. what became of the key before: evicted, not admitted, expired, purged, lost (`cache/key_history.py`)
    3. an identical request shortly before, whose answer was not stored (yet)
    4. the nearest entry, if it is similar: the fields in which it differs (`keys/difference.py`)
    5. nothing like it was stored before: it is new

Everything is derived when someone asks, from the event, the record of keys and the stored requests. Nothing is computed
when the request is served. May wait for the disk, so it runs in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from knapcache.cache.key_history import KeyRecord
from knapcache.cache.outlines import NearestRequest
from knapcache.keys.difference import Difference, without_content
from knapcache.keys.outline import outline_of, read_canonical, words_of
from knapcache.keys.public import public_value
from knapcache.proxy.admin.models import (
    Explanation,
    FieldDifference,
    Kind,
    RequestDetail,
    SimilarEntry,
    Worth,
)
from knapcache.proxy.events.events import Event
from knapcache.proxy.features import ProxyContext
from knapcache.proxy.settings.routes import RouteSettings
from knapcache.units import counted

SHARING_DELAY = 2.0
"""Seconds until an answer that one worker fetched can be read by the others."""
REMOVED: dict[str, tuple[Kind, str, str]] = {
    "over quota": ("evicted", "Evicted",
        "The tenant's quota was full. Its answer was the least valuable one of the tenant, and was evicted."),
    "id reused": ("evicted", "Evicted",
        "The policy's table of keys was full. Its answer was evicted because the policy gave up this key."),
    "at start": ("evicted", "Evicted at the start",
        "Its answer did not fit into the cache when the proxy was started, and was evicted."),
    "too large": ("not_admitted", "Not stored",
        "An earlier answer to this request was larger than the largest entry that the store takes."),
    "store busy": ("not_admitted", "Not stored",
        "An earlier answer to this request was not stored: too many writes were waiting for the disk."),
    "larger than quota": ("not_admitted", "Not stored",
        "An earlier answer to this request was larger than the tenant's quota."),
    "expired": ("expired", "Expired", "Its answer had passed its time to live (ttl)."),
    "lost": ("lost", "Lost", "Its answer could not be read from the store any more: its row was damaged or removed."),
    "not written": ("lost", "Not written", "Its answer could not be written to the disk."),
    "purged": ("purged", "Purged", "Its answer was removed by an administrator, or by a program that called purge."),
}  # fmt: skip
"""Kind, title and text by the causes of `key_history.CAUSES`; two others have texts that depend on numbers."""
OTHERS: dict[str, tuple[Kind, str, str]] = {
    "similar": ("similar", "The answer to a similar question",
        "The stored answer to a question in another wording was sent. Its proxy knows the match."),
    "coalesced": ("coalesced", "Shared with a concurrent request",
        "An identical request was under way. This one waited for its answer, so it was paid for once."),
    "stale": ("stale", "From the cache, past its time to live",
        "The stored answer had passed its time to live. It was served nevertheless, as the settings "
        "stale_while_revalidate and stale_if_error allow."),
    "passthrough": ("passthrough", "Not a cached endpoint",
        "Answers are cached for chat completions, completions, responses, embeddings and messages only."),
}  # fmt: skip
"""Kind, title and text of outcomes that need no further explanation."""
ANSWERS = {
    "not admitted": "not stored: the policy did not admit it",
    "too large": "not stored: larger than the largest entry",
    "store busy": "not stored: too many writes were waiting",
    "larger than quota": "not stored: larger than the tenant's quota",
    "evicted": "stored, and evicted since",
    "over quota": "stored, and evicted since",
    "id reused": "stored, and evicted since",
    "expired": "stored, and expired since",
    "purged": "stored, and purged since",
    "lost": "stored, and lost since",
    "not written": "not stored: it could not be written",
}
"""What became of the answer of a request, by the next record of its key."""


@dataclass(frozen=True, kw_only=True)
class Explainer:
    """Explains one of the recent requests."""

    context: ProxyContext
    tenant_name: Callable[[str], str]
    event: Event
    earlier: list[Event]
    """Recent requests for the same key."""
    content: bool
    """With parts of prompts."""
    all_tenants: bool
    """Compare with the entries of other tenants, too."""

    def detail(self, model: type[RequestDetail], row: dict[str, Any]) -> RequestDetail:
        """Return the details of the request. model: has the fields of features; row: the request as it is listed."""
        event, browser = self.event, self.context.cache.browser
        key = bytes.fromhex(event.key)
        records, since = browser.records(key) if key else ([], 0.0)
        canonical = browser.request(key) if key else None
        entry = browser.entry(key) if key else None
        features = self.context.features.active
        said = {feature.name: feature.explain(event, content=self.content) for feature in features}
        answered = next((one.why for one in said.values() if one.why is not None), None)
        texts: dict[str, Any] = {feature.name: said[feature.name].text for feature in features if feature.explains}
        known_words = next((one.words for one in said.values() if one.words), None)
        return model(
            **row,
            attempts=list(event.attempts),
            tried=[one.text for one in event.tried],
            reason=event.reason,
            words=(known_words if canonical is None else outline_of(canonical).words) if self.content else None,
            stored=entry is not None,
            answer=answer_of(event, records, self._route(event), stored=entry is not None),
            **texts,
            why=(
                self._miss(records, since, canonical)
                if event.outcome == "miss"
                else answered or other(event, self.earlier, stored_at(event, records, entry))
            ),
        )

    def _route(self, event: Event) -> RouteSettings | None:
        return next((route for route in self.context.settings.route if route.name == event.route), None)

    def _miss(self, records: list[KeyRecord], since: float, canonical: bytes | None) -> Explanation:
        event = self.event
        if not event.key:
            text = "The streamed answer was longer than the setting max_answer, so it was forwarded and not stored."
            return Explanation(kind="not_stored", title="Too long to be stored", text=text)
        return (
            asked(event, records, self._route(event))
            or became(event, records)
            or self._repeated()
            or self._compared(since, canonical)
        )

    def _repeated(self) -> Explanation | None:
        """Explain a miss by an identical request that was answered shortly before."""
        missed = [one for one in self.earlier if one.outcome == "miss"]
        if not missed:
            return None
        last, route = missed[-1], self._route(missed[-1])
        why = "it was incomplete" if last.size == 0 else ""
        if route is not None and route.cache == "read-only":
            why = f"the route {route.name} has cache = read-only"
        elif "no-store" in last.reason:
            why = "its client asked not to store it (no-store)"
        if why:
            text = f"An identical request was answered before, but that answer was not stored: {why}."
            return Explanation(kind="not_stored", title="An earlier answer was not stored", text=text, at=last.time)
        settings, end = self.context.settings, last.time + last.seconds
        if end + SHARING_DELAY <= self.event.time or (settings.store is None and settings.workers == 1):
            return None
        sharing = "proxies" if settings.store is not None else "workers"
        text = {
            "workers": "One of the workers had just fetched the same answer, or was fetching it. Workers share answers "
            "through the store, which takes about a second.",
            "proxies": "Another process had just fetched the same answer, or was fetching it, and this one did not "
            "find it in the shared store. That happens while its server does not answer, and in a failover.",
        }[sharing]
        return Explanation(kind="other_worker", title=f"Not yet shared between {sharing}", text=text, at=last.time)

    def _compared(self, since: float, canonical: bytes | None) -> Explanation:
        """Explain a miss by the nearest entry, or by nothing like it being stored."""
        event = self.event
        text = "No answer to this request is known to have been stored before."
        if event.time >= since:
            recorded = duration(event.time - since)
            text = f"No answer to this request was stored since the record of keys began, {recorded} earlier."
        if canonical is None:
            text += " The request itself is no longer known, so it cannot be compared with the stored ones."
            return Explanation(kind="new", title="New request", text=text)
        request = read_canonical(canonical)
        tenant = None if self.all_tenants or request is None else request.namespace
        found = self.context.cache.browser.compare(canonical, event.time, tenant)
        counts: dict[str, Any] = {"compared": found.coverage.read, "entries": found.coverage.entries}
        if found.nearest is None or not found.nearest.similar:
            unread = found.coverage.entries - found.coverage.read
            text += " No similar request is stored now."
            text += f" Not compared yet: {counted(unread, 'older entry', 'older entries')}." if unread > 0 else ""
            return Explanation(kind="new", title="New request", text=text, **counts)
        shown = found.nearest.differences if self.content else without_content(found.nearest.differences)
        entry = self._similar(found.nearest, shown, stored=found.stored)
        counts |= {"nearest": entry}
        stored, gone = ("is", "") if found.stored else ("was", " Its answer is no longer stored.")
        fields = [each.field for each in shown]
        if fields == ["tenant"]:
            text = (
                f"The same request {stored} stored for another tenant or API key. They do not share answers, unless "
                "the tenants are in one group."
            )
            title = "Stored for another tenant"
            return Explanation(kind="other_tenant", title=title, text=text + gone, at=entry.created, **counts)
        named = join([f"{each.field} ({each.text})" for each in shown[:3]])
        named += f", and in {counted(len(fields) - 3, 'more field')}" if len(fields) > 3 else ""
        text = f"The nearest stored request differs in {named}.{gone}"
        title = "A similar request was stored, but not the same"
        return Explanation(kind="different", title=title, text=text, **counts)

    def _similar(self, nearest: NearestRequest, shown: list[Difference], *, stored: bool) -> SimilarEntry:
        request = nearest.request
        return SimilarEntry(
            key=nearest.key.hex(),
            endpoint=request.kind,
            model=public_value("model", request.body.get("model")) or "",
            tenant=self.tenant_name(request.namespace),
            created=nearest.created,
            stored=stored,
            words=words_of(request) if self.content else None,
            differences=[
                FieldDifference(field=each.field, text=each.text, here=each.here, there=each.there) for each in shown
            ],
        )


def stored_at(event: Event, records: list[KeyRecord], entry: dict[str, Any] | None) -> float | None:
    """Return when the entry was stored that a request was served from: it may have been replaced or removed since."""
    times = [record.created for record in records]
    times += [] if entry is None else [entry["created"]]
    return max((each for each in times if 0 < each <= event.time), default=None)


def other(event: Event, earlier: list[Event], stored: float | None) -> Explanation:
    """Explain an outcome other than a miss. stored: when the entry was stored, if that is known."""
    if event.outcome == "hit":
        hits = 1 + sum(one.outcome == "hit" for one in earlier)
        nth = f"The {ordinal(hits)} hit of this entry among the recent requests."
        if stored is None:
            return Explanation(kind="hit", title="From the cache", text=f"The answer was stored. {nth}")
        text = f"The answer had been stored {duration(event.time - stored)} before this request. {nth}"
        return Explanation(kind="hit", title="From the cache", text=text, at=stored)
    if event.outcome == "bypass":
        text = f"The request was sent without the cache: {event.reason or 'reason not recorded'}."
        return Explanation(kind="bypass", title="Sent without the cache", text=text)
    if event.outcome in OTHERS:
        kind, title, text = OTHERS[event.outcome]
        return Explanation(kind=kind, title=title, text=text)
    if event.outcome == "rejected":
        reason = f": {event.reason.rstrip('.')}" if event.reason else ""
        text = f"The proxy refused the request with status {event.status}{reason}."
        return Explanation(kind="rejected", title="Refused by the proxy", text=text)
    return Explanation(kind="failed", title="Failed", text=failure(event))


def answer_of(event: Event, records: list[KeyRecord], route: RouteSettings | None, *, stored: bool) -> str:
    """Return what became of the answer of a request."""
    if event.outcome != "miss":
        return ""
    if route is not None and route.cache == "read-only":
        return f"not stored: the route {route.name} has cache = read-only"
    if "no-store" in event.reason:
        return "not stored: the client asked for that (no-store)"
    if event.size == 0:
        return "not stored: it was incomplete, or too long"
    later = [record for record in records if record.time >= event.time and record.cause != "replaced"]
    if later:
        return ANSWERS.get(later[-1].cause, "stored")
    return "stored" if stored else "not stored, for a reason that is no longer known"


def asked(event: Event, records: list[KeyRecord], route: RouteSettings | None) -> Explanation | None:
    """Explain a miss by its route, or by the directives of the client."""
    if route is not None and route.cache == "refresh":
        text = f"The route {route.name} has cache = refresh, so a stored answer was not looked for."
        return Explanation(kind="asked", title="The route fetches a fresh answer", text=text)
    if "no-cache" in event.reason:
        text = f"The client asked for a fresh answer ({event.reason}), so a stored one was not looked for."
        return Explanation(kind="asked", title="A fresh answer was asked for", text=text)
    limit = re.search(r"max-age=([0-9.e+]+)", event.reason)
    replaced = replaced_by(event, records)
    if limit and replaced is not None and event.time - replaced.created > float(limit[1]):
        age, most = duration(event.time - replaced.created), f"{float(limit[1]):g} s"
        text = f"The stored answer was {age} old, and the client asked for one of at most {most} (max-age)."
        return Explanation(kind="too_old", title="The stored answer was too old", text=text, at=replaced.created)
    return None


def became(event: Event, records: list[KeyRecord]) -> Explanation | None:
    """Explain a miss by what became of its key before."""
    end = event.time + event.seconds + 1.0
    before = (one for one in records if one.time < event.time or (one.cause == "lost" and one.time < end))
    last = next(before, None)
    if last is not None and last.cause != "replaced":
        if last.cause == "evicted":
            return evicted(last)
        if last.cause == "not admitted":
            return not_admitted(last)
        kind, title, text = REMOVED[last.cause]
        return Explanation(kind=kind, title=title, text=text, at=last.time)
    if last is not None or replaced_by(event, records) is not None:
        text = (
            "An answer was stored, but it could not be used: it lacked what this request asks for (the usage of a "
            "stream), or the disk did not return it in time."
        )
        return Explanation(kind="unusable", title="The stored answer could not be used", text=text)
    return None


def replaced_by(event: Event, records: list[KeyRecord]) -> KeyRecord | None:
    """Return the entry that the answer of this request has replaced, or None."""
    end = event.time + event.seconds + 1.0
    replaced = [record for record in records if record.cause == "replaced" and record.created < event.time]
    return next((record for record in reversed(replaced) if event.time <= record.time <= end), None)


def evicted(record: KeyRecord) -> Explanation:
    """Explain an eviction by the worth of the evicted answer and of the one that took its place."""
    own = worth(record.size, record.cost, record.requests)
    rival = worth(record.rival_size, record.rival_cost, record.rival_requests)
    text = "The cache was full. Its answer was evicted to make space for another one, "
    if rival.density > own.density:
        text += "which was worth more per byte: requests × cost ÷ size."
    else:
        text += (
            "although that was not worth more per byte: requests × cost ÷ size. The policy counts more than that, for "
            "example how recently an answer was requested."
        )
    return Explanation(kind="evicted", title="Evicted", text=text, at=record.time, own=own, rival=rival)


def not_admitted(record: KeyRecord) -> Explanation:
    own = worth(record.size, record.cost, record.requests)
    text = "An identical request was answered before, but the policy did not store that answer: "
    if record.cost == 0.0:
        text += "it cost nothing, so there is nothing to save."
    else:
        text += "the cache was full, and it estimated that the stored answers save more per byte."
    return Explanation(kind="not_admitted", title="Not admitted before", text=text, at=record.time, own=own)


def worth(size: float, cost: float, requests: float) -> Worth:
    requests = max(1.0, requests)
    return Worth(size=size, cost=cost, requests=requests, density=requests * cost / max(1.0, size))


def failure(event: Event) -> str:
    if "only-if-cached" in event.reason and not event.attempts:
        return "The client asked for a stored answer or none (only-if-cached), and none was stored."
    if event.status == 499:
        return "The client disconnected before the answer was complete."
    if event.error:
        return f"The upstream {event.upstream} failed: {event.error.rstrip('.')}."
    tried = join([str(status) if status else "no response" for status in event.attempts])
    calls = f" Its calls ended with: {tried}." if tried else ""
    return f"The request failed with status {event.status}.{calls}"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit of at least 1."""
    seconds = max(0.0, seconds)
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= (2 * size if name == "d" else size):
            return f"{seconds / size:.0f} {name}"
    return "less than a second"


def ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{suffix}"


def join(parts: list[str]) -> str:
    """Return "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
