"""The settings of the content log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from knapcache import InvalidInput
from knapcache.features.content_log.settings import ContentLogSettings
from knapcache.proxy.settings import Settings


def settings_of(**values: Any) -> ContentLogSettings:
    settings = Settings(**values)
    assert isinstance(settings, ContentLogSettings)
    return settings


def test_the_log_is_off_and_redacts_addresses_and_keys_by_default() -> None:
    settings = settings_of()
    assert (settings.content_log, settings.content_log_bytes, settings.content_log_days) == (False, 10**9, 30.0)
    assert settings.redact == ("emails", "keys")


def test_rules_are_names_or_patterns() -> None:
    assert settings_of(redact="emails, cards").redact == ("emails", "cards")
    assert settings_of(redact=["emails", r"EMP-[0-9]{4,6}"]).redact == ("emails", r"EMP-[0-9]{4,6}")
    assert settings_of(redact=[]).redact == ()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"content_log": True, "memory_only": True}, "cannot be combined with memory_only: the log is a file"),
        ({"content_log": True, "encryption_key_env": "KEY"}, "cannot be combined with an encryption key: the log"),
        ({"content_log": True, "encryption_key_file": Path("key")}, "cannot be combined with an encryption key"),
        ({"content_log_bytes": 1000}, "content_log_bytes"),
        ({"content_log_days": 0}, "content_log_days"),
        ({"redact": ["email"]}, "must be emails, keys, cards or regular expressions"),
        ({"redact": [r"(a)\1"]}, "has back references, which cannot be matched in linear time"),
    ],
)
def test_other_values_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Settings(**values)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
