"""Webhooks as a feature of the proxy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from knapcache.features.webhooks.client import WebhookClient
from knapcache.features.webhooks.delivery import Webhooks
from knapcache.features.webhooks.models import WebhookStatus, webhook_status
from knapcache.features.webhooks.settings import WebhooksSettings
from knapcache.features.webhooks.watch import StateWatcher
from knapcache.proxy.admin_routes import AdminServices, SummaryField
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.features import Feature, ProxyContext


class WebhooksFeature(Feature):
    """Sends changes of state to the operator's addresses."""

    name = "webhooks"

    def __init__(self, context: ProxyContext) -> None:
        super().__init__(context)
        self._client = WebhookClient()
        assert isinstance(context.settings, WebhooksSettings)
        self.webhooks = Webhooks(context.settings.webhook, self._client.post)

    def start(self) -> None:
        self.webhooks.start()

    def become_owner(self, pipeline: EventPipeline) -> None:
        watcher = StateWatcher(self.webhooks, pipeline.upstream_health.report)
        pipeline.add_consumer(watcher)
        self.run(watcher.run())

    def summary_fields(self, admin: AdminServices) -> Sequence[SummaryField]:  # noqa: ARG002
        return [
            SummaryField(
                "webhooks",
                list[WebhookStatus],
                "The webhooks of the settings.",
                lambda: [webhook_status(webhook) for webhook in self.webhooks.all],
                of_health=True,
            )
        ]

    def notice(self, event: str, fields: dict[str, Any]) -> None:
        self.webhooks.send(event, **fields)

    async def close(self) -> None:
        await self.webhooks.close()
        self._client.close()
