"""The content log in the list of features."""

from __future__ import annotations

from knapcache.proxy.feature_list import Command, FeatureSpec

SPEC = FeatureSpec(
    name="content_log",
    title="Content log",
    feature="knapcache.features.content_log.feature:ContentLogFeature",
    is_on=lambda settings: settings.content_log,
    files=(("content.sqlite", "knapcache.features.content_log.file:KIND"),),
    turn_on="content_log = true\nshow_content = true",
    about="A log of requests and answers with their text, after redaction, searched by words.",
    settings="knapcache.features.content_log.settings:ContentLogSettings",
    commands=(
        Command(
            "log",
            "search, export or purge the content log of a proxy",
            "knapcache.features.content_log.cli",
        ),
    ),
)
