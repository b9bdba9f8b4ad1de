"""Responses of the admin API about the proxies of a shared store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from knapcache.proxy.admin.models import Count, ResponseModel


class EngineStatus(ResponseModel):
    """The Valkey or Redis engine of a shared store, as this proxy sees it."""

    place: Annotated[str, Field(description="Host and port, without user and password.")]
    state: Annotated[
        Literal["ok", "read-only", "away"],
        Field(description="read-only: it answers and takes no writes. away: it does not answer, or cannot be used."),
    ]
    since: Annotated[float | None, Field(description="Unix time since which it is so; none if it is ok.")]
    reason: Annotated[str, Field(description="Why; empty if it is ok.")]


class ProxyRow(ResponseModel):
    """A proxy that runs."""

    id: str
    host: str
    version: str
    started: Annotated[float, Field(description="Unix time.")]
    workers: Count
    owner: Annotated[bool, Field(description="Whether it decides what the shared store keeps.")]
    requests: Annotated[Count, Field(description="All requests in its history.")]
    this: Annotated[bool, Field(description="Whether it is the one that answers.")]


class ProxyPage(ResponseModel):
    """The proxies of a shared store. Without one, and while its engine is away, only the one that answers."""

    engine: Annotated[EngineStatus | None, Field(description="None: this proxy has no shared store.")]
    rows: list[ProxyRow]
    ended: Annotated[Count, Field(description="Proxies that have ended, and whose requests are part of the sums.")]
    ignored: Annotated[Count, Field(description="Documents of other proxies that could not be read.")]
