"""Explanations of requests as a feature of the proxy."""

from __future__ import annotations

from collections.abc import Sequence

from knapcache.features.explain.admin import ExplainAdmin
from knapcache.proxy.admin_routes import AdminServices, Route
from knapcache.proxy.features import Feature


class ExplainFeature(Feature):
    """Explains why a request was a hit or a miss."""

    name = "explain"

    def admin_routes(self, admin: AdminServices) -> Sequence[Route]:
        return ExplainAdmin(self.context, admin).routes()
