"""Explanations of requests as a feature of the proxy."""

from __future__ import annotations

from knapcache.proxy.features import Feature


class ExplainFeature(Feature):
    """Explains why a request was a hit or a miss."""

    name = "explain"
