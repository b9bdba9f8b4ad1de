"""Limits in the admin API."""

from __future__ import annotations

from knapcache.features.limits.core import ALL
from knapcache.features.limits.limits import Limits
from knapcache.features.limits.models import LimitPage, LimitUse
from knapcache.proxy.admin.admin_request import AdminRequest
from knapcache.proxy.admin_routes import Route


def limit_routes(limits: Limits) -> list[Route]:
    """Return the routes."""

    async def serve(_: AdminRequest) -> LimitPage:
        return await limit_page(limits)

    summary = "Limits of tenants and of all callers, and their use"
    return [Route(method="GET", path="/limits", name="limits", summary=summary, response=LimitPage, serve=serve)]


async def limit_page(limits: Limits) -> LimitPage:
    """Return every limit and its use."""
    rows = [
        LimitUse(
            scope="all" if row.scope == ALL else "tenant",
            name="" if row.scope == ALL else row.scope,
            limit=row.limit,
            allowed=row.allowed,
            used=row.used,
            reserved=row.reserved,
            ratio=row.ratio,
            resets_at=row.resets_at,
        )
        for row in await limits.report()
    ]
    return LimitPage(rows=rows, alone=limits.fallback_reason)
