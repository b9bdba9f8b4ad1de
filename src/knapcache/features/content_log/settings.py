"""Types of the settings of the content log."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from knapcache.errors import InvalidInput
from knapcache.features.content_log.redaction import redaction_rules
from knapcache.proxy.settings.value_types import ByteSize, name_list

MIN_BYTES = 1_000_000
DEFAULT_RULES = ("emails", "keys")


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
    """Check the rules."""
    redaction_rules(names)
    return names


ContentLogSwitch = Annotated[bool, AfterValidator(plain_files_only)]
ContentLogBytes = Annotated[ByteSize, Field(ge=MIN_BYTES)]
RedactionRules = Annotated[tuple[str, ...], BeforeValidator(name_list), AfterValidator(known_rules)]
