"""The features of knapcache on the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from knapcache.proxy.admin.panels import FeaturePanel
from knapcache.proxy.settings import Settings

FOLDER = Path(__file__).parent


def _any_mode(mode: str, parts: Iterable[object], name: str) -> bool:
    """Return whether a mode is not off, for all callers or for some tenant or route."""
    return any((one or "off") != "off" for one in (mode, *(getattr(part, name) for part in parts)))


def builtin_panels(settings: Callable[[], Settings]) -> list[FeaturePanel]:
    """Return the features of knapcache. settings: returns the current ones, which SIGHUP may change."""
    return [
        FeaturePanel(
            name="limits",
            title="Limits",
            about="Limits on dollars, requests and tokens: of each tenant, or of all callers together.",
            turn_on="limits = { usd_per_day = 10.0 }",
            is_on=lambda: settings().limits is not None or any(one.limits for one in settings().tenants),
            module=FOLDER / "limits" / "panel.js",
        ),
        FeaturePanel(
            name="prefix",
            title="Prompt caches",
            about="What providers read from their prompt caches, and marks that make them read more.",
            turn_on='prefix = "observe"',
            is_on=lambda: _any_mode(settings().prefix, settings().route, "prefix"),
            module=FOLDER / "prefix" / "panel.js",
        ),
        FeaturePanel(
            name="semantic",
            title="Semantic",
            about="Stored answers to questions in other words, up to a certified error rate. The shadow serves none.",
            turn_on='semantic = "shadow"',
            is_on=lambda: _any_mode(settings().semantic, (*settings().tenants, *settings().route), "semantic"),
            module=FOLDER / "semantic" / "panel.js",
        ),
        FeaturePanel(
            name="content_log",
            title="Content log",
            about="A log of requests and answers with their text, after redaction, searched by words.",
            turn_on="content_log = true\nshow_content = true",
            is_on=lambda: settings().content_log,
            module=FOLDER / "content_log" / "panel.js",
        ),
        FeaturePanel(
            name="webhooks",
            title="Webhooks",
            about="A request to your URL when a state changes: a limit is reached, an upstream fails or recovers.",
            turn_on='webhook = [{ name = "chat", url = "https://example.com/hook" }]',
            is_on=lambda: bool(settings().webhook),
            module=FOLDER / "webhooks" / "panel.js",
        ),
    ]
