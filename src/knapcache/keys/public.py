"""The parts of a request that are shown without its content: names and values from fixed lists, and positions.

    temperature: 0.2                    a parameter at the top of the body, with its value
    tools[2].…                          a known field and a position; names and values below it are content
    a field that the API does not name  any other field

Everything else in a body is content: texts, numbers, and names, which a client chooses in tools, schemas and metadata.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, Self

from knapcache.errors import Uncacheable

NUMBERS = frozenset((
    "temperature", "top_p", "top_k", "min_p", "n", "best_of", "seed", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty", "logprobs", "top_logprobs",
    "dimensions", "echo", "stream", "store", "parallel_tool_calls", "max_tool_calls",
))  # fmt: skip
"""Parameters whose numbers, true, false and null are shown."""
CHOICES = frozenset(("reasoning_effort", "verbosity", "truncation", "encoding_format", "tool_choice", "service_tier"))
"""Parameters whose value is a choice of few words."""
FIELDS = NUMBERS | CHOICES | {
    "model", "messages", "system", "input", "instructions", "prompt", "contents", "suffix", "tools", "functions",
    "function_call", "stop", "stop_sequences", "logit_bias", "response_format", "text", "reasoning", "thinking",
    "modalities", "audio", "prediction", "user", "safety_identifier", "metadata", "stream_options", "include",
    "previous_response_id", "conversation", "container", "background", "extra_body", "other fields",
    "web_search_options", "mcp_servers", "output_config", "context_management",
}  # fmt: skip
"""Names of fields at the top of a body that are shown."""
MESSAGE_FIELDS = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio", "type", "reasoning")
)
"""Names of fields of a message that are shown."""
OTHER_FIELD = "a field that the API does not name"
HIDDEN = "…"
MAX_MODEL = 128
MAX_NUMBER = 24
_CHOICE = re.compile(r"[a-z][a-z_]{0,15}")
_PATH = re.compile(r"([^.\[]*)(\[\d+\])?(.*)", re.DOTALL)


class FieldPath(NamedTuple):
    """A position in a request: its full name, and the name for readers who may not see content."""

    full: str
    public: str

    @classmethod
    def top(cls, name: str) -> Self:
        """Return the position of a field at the top of a body."""
        return cls(name, name if name in FIELDS else OTHER_FIELD)

    @classmethod
    def fixed(cls, name: str) -> Self:
        """Return a position whose name is not from a request."""
        return cls(name, name)

    def item(self, index: int) -> Self:
        """Return the position of an item of the list at this one."""
        return self._replace(full=f"{self.full}[{index}]", public=self._public(f"[{index}]"))

    def field(self, name: str, known: frozenset[str] = frozenset()) -> Self:
        """Return the position of a field of the object at this one. known: names that are shown."""
        return self._replace(
            full=f"{self.full}.{name}", public=self._public(f".{name}" if name in known else f".{HIDDEN}")
        )

    def _public(self, step: str) -> str:
        return self.public if self.public == OTHER_FIELD or self.public.endswith(HIDDEN) else self.public + step


def public_path(path: str) -> str:
    """Return what is shown of a path such as `messages[0].content`: a known field, and its index."""
    name, index, rest = _PATH.fullmatch(path).groups()  # type: ignore[union-attr] # it matches every text
    if name not in FIELDS:
        return OTHER_FIELD
    return f"{name}{index or ''}" + (f".{HIDDEN}" if rest else "")


def public_reason(error: Uncacheable) -> str:
    """Return why a request has no key, without names that the client chose."""
    return f"{error.reason} at {public_path(error.path)}" if error.path else error.reason


def public_value(name: str, value: Any) -> str | None:
    """Return the value of a parameter at the top of the body as text; None if it is content."""
    if name == "model" and isinstance(value, str):
        return value[:MAX_MODEL]
    if name in NUMBERS and (value is None or isinstance(value, (bool, int, float))):
        text = json.dumps(value)
        return text if len(text) <= MAX_NUMBER else None
    if name in CHOICES and isinstance(value, str) and _CHOICE.fullmatch(value):
        return value
    return None
