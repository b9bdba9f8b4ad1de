"""The settings of the prefix tier."""

from __future__ import annotations

import pytest

from knapcache import InvalidInput
from knapcache.cli.serve import flags
from knapcache.features.prefix.settings import PrefixSettings
from knapcache.proxy.settings import Settings


@pytest.mark.parametrize(
    ("upstream", "prompt_cache"),
    [
        ({"url": "https://api.openai.com/v1"}, "openai"),
        ({"url": "https://ours.openai.azure.com/openai/v1"}, "openai"),
        ({"url": "https://api.anthropic.com"}, "anthropic"),
        ({"url": "https://gateway.example.com", "kind": "anthropic"}, "anthropic"),
        ({"url": "https://notopenai.com/v1"}, "off"),
        ({"url": "http://10.0.0.5:8000/v1"}, "off"),
        ({"url": "local"}, "off"),
        ({"url": "https://api.openai.com/v1", "prompt_cache": "off"}, "off"),
        ({"url": "https://gateway.example.com", "prompt_cache": "openai"}, "openai"),
        ({"url": "https://bedrock-runtime.us-east-1.amazonaws.com", "prompt_cache": "bedrock"}, "off"),
    ],
)
def test_the_prompt_cache_follows_from_the_host_and_the_kind(upstream: dict[str, str], prompt_cache: str) -> None:
    """`bedrock` is a value of older versions, which is accepted."""
    settings = Settings(upstreams=[upstream])
    assert isinstance(settings, PrefixSettings)
    assert [each.prompt_cache for each in settings.upstreams] == [prompt_cache]


def test_a_url_that_cannot_be_read_is_one_problem() -> None:
    with pytest.raises(InvalidInput, match=r"^upstreams\[0\]\.url: must be a URL [^\n]*$"):
        Settings(upstreams=[{"url": "http://[::1"}])


def test_the_mode_has_a_flag_and_routes_have_their_own() -> None:
    assert "prefix" in flags()
    settings = Settings(prefix="manage", route=[{"name": "a", "prefix": "off"}, {"name": "b"}])
    assert isinstance(settings, PrefixSettings)
    assert (settings.prefix, [route.prefix for route in settings.route]) == ("manage", ["off", None])
    with pytest.raises(
        InvalidInput, match=r"^route\[0\]\.prefix: must be 'off', 'observe', 'on' or 'manage', not 'x'$"
    ):
        Settings(route=[{"name": "a", "prefix": "x"}])
