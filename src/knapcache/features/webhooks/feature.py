"""Webhooks as a feature of the proxy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from knapcache.features.webhooks.delivery import Webhook, WebhookClient, message_of
from knapcache.features.webhooks.settings import WebhooksSettings
from knapcache.features.webhooks.watch import StateWatcher
from knapcache.proxy.admin.models import ResponseModel
from knapcache.proxy.admin_routes import AdminServices, SummaryField
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext


class WebhookStatus(ResponseModel):
    """A webhook, and the last delivery of the owner process."""

    name: str
    events: Annotated[list[str], Field(description="Events that it gets; none: all.")]
    event: Annotated[str | None, Field(description="The last event that was sent to it; none: there was none.")]
    time: Annotated[float | None, Field(description="When it was delivered, or tried the last time, Unix time.")]
    error: Annotated[str, Field(description="Why it was not delivered; empty if it was.")]


class WebhooksFeature(Feature):
    """Sends changes of state to the operator's addresses."""

    name = "webhooks"

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self._client = WebhookClient()
        assert isinstance(context.settings, WebhooksSettings)
        self.webhooks = [Webhook(each, self._client.post) for each in context.settings.webhook]

    def start(self) -> None:
        for webhook in self.webhooks:
            self.run(webhook.run())

    def become_owner(self, pipeline: EventPipeline) -> None:
        watcher = StateWatcher(self.context.notify, pipeline.upstream_health.report)
        pipeline.add_consumer(watcher)
        self.run(watcher.run())

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:  # noqa: ARG002
        text = "The webhooks of the settings."
        return [SummaryField("webhooks", list[WebhookStatus], text, self._statuses, of_health=True)]

    def _statuses(self) -> list[WebhookStatus]:
        return [
            WebhookStatus(
                name=webhook.settings.name,
                events=list(webhook.settings.events),
                event=None if webhook.last is None else webhook.last.event,
                time=None if webhook.last is None else webhook.last.time,
                error="" if webhook.last is None else webhook.last.error,
            )
            for webhook in self.webhooks
        ]

    def notice(self, event: str, fields: dict[str, Any]) -> None:
        message = message_of(event, **fields)
        for webhook in self.webhooks:
            webhook.put(message)

    async def close(self) -> None:
        self._client.close()
