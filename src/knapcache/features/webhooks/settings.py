"""Settings of webhooks: the tables [[webhook]]."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from knapcache.errors import InvalidInput
from knapcache.proxy.settings.parts import SettingsPart
from knapcache.proxy.settings.tables import MAYBE_SECRET, NOT_SHOWN, Table, unique_names
from knapcache.proxy.settings.value_types import Label, NameList, split_http_url

WEBHOOK_EVENTS = (
    "limit_warning",
    "limit_reached",
    "upstream_down",
    "upstream_recovered",
    "store_fallback",
    "hit_rate_fallen",
    "semantic_shadow",
    "swap_stopped",
)


def webhook_url(value: str) -> str:
    """Check the URL of a webhook. It may have a query, as those of some chat services do."""
    parts = split_http_url(value)
    if parts is None or "@" in parts.netloc or parts.fragment:
        raise InvalidInput("must be a URL that starts with http:// or https://, without a user, a password and #")
    return value


def webhook_events(names: tuple[str, ...]) -> tuple[str, ...]:
    if not set(names) <= set(WEBHOOK_EVENTS):
        raise InvalidInput(f"must be some of {', '.join(WEBHOOK_EVENTS)}")
    return names


class WebhookSettings(Table):
    """A URL that gets a request when a state changes."""

    name: Label = Field(description="name in the log")
    url: Annotated[str, AfterValidator(webhook_url), MAYBE_SECRET] = Field(
        description="URL that gets a POST for each event"
    )
    events: Annotated[NameList, AfterValidator(webhook_events)] = Field((), description="events to send; none: all")
    secret_env: Annotated[str | None, MAYBE_SECRET] = Field(
        None, description="environment variable with the secret of the signature; none: not signed"
    )

    @property
    def secret(self) -> bytes | None:
        """The secret of the signature. Raises InvalidInput if its variable is not set."""
        if self.secret_env is None:
            return None
        found = os.environ.get(self.secret_env)
        if not found:
            raise InvalidInput(f"webhook {self.name}: the environment variable {self.secret_env} is not set")
        return found.encode()

    def wants(self, event: str) -> bool:
        return not self.events or event in self.events

    def shown(self) -> dict[str, Any]:
        """Return the table without the URL, which often is a secret: who knows it can send."""
        return super().shown() | {"url": NOT_SHOWN}


class WebhooksSettings(SettingsPart):
    """All webhooks."""

    webhook: Annotated[tuple[WebhookSettings, ...], AfterValidator(unique_names)] = Field(
        (), description="URLs that get changes of state; none: none"
    )
