"""Settings of the content log."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from knapcache.errors import InvalidInput
from knapcache.features.content_log.redaction import redaction_rules
from knapcache.proxy.settings.parts import SettingsPart
from knapcache.proxy.settings.value_types import ByteSize, name_list

MIN_BYTES = 1_000_000


def plain_files_only(on: bool, info: ValidationInfo) -> bool:
    """Reject the log where its file could not be written, or would be the only one that is not encrypted."""
    if on and info.data.get("memory_only"):
        raise InvalidInput("cannot be combined with memory_only: the log is a file in the data directory")
    if on and (info.data.get("encryption_key_env") or info.data.get("encryption_key_file")):
        raise InvalidInput(
            "cannot be combined with an encryption key: the log can be searched only if its text is not encrypted"
        )
    return on


def known_rules(names: tuple[str, ...]) -> tuple[str, ...]:
    redaction_rules(names)
    return names


class ContentLogSettings(SettingsPart):
    """Settings of the content log."""

    content_log: Annotated[bool, AfterValidator(plain_files_only)] = Field(
        False, description="write a log of requests and answers with their text"
    )
    content_log_bytes: ByteSize = Field(
        1_000_000_000,
        ge=MIN_BYTES,
        description="maximum size of the content log; the oldest lines are deleted; at least 1MB",
    )
    content_log_days: float = Field(30.0, gt=0, le=36_500, description="days after which lines of it are deleted")
    redact: Annotated[tuple[str, ...], BeforeValidator(name_list), AfterValidator(known_rules)] = Field(
        ("emails", "keys"),
        description="rules that remove texts from it: emails, keys, cards, and regular expressions",
    )
