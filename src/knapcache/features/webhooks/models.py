"""Webhooks in the admin API: a field of `health` in GET /summary."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from knapcache.features.webhooks.delivery import Webhook
from knapcache.proxy.admin.models import ResponseModel


class WebhookStatus(ResponseModel):
    """A webhook, and the last delivery of the owner process."""

    name: str
    events: Annotated[list[str], Field(description="Events that it gets; none: all.")]
    event: Annotated[str | None, Field(description="The last event that was sent to it; none: there was none.")]
    time: Annotated[float | None, Field(description="When it was delivered, or tried the last time, Unix time.")]
    error: Annotated[str, Field(description="Why it was not delivered; empty if it was.")]


def webhook_status(webhook: Webhook) -> WebhookStatus:
    """Return the state of a webhook."""
    last = webhook.last
    return WebhookStatus(
        name=webhook.settings.name,
        events=list(webhook.settings.events),
        event=None if last is None else last.event,
        time=None if last is None else last.time,
        error="" if last is None else last.error,
    )
