"""Unique texts, numbers and names in requests and answers, which readers who may not see content must not find."""

from __future__ import annotations

import random
from typing import Any

ODD = ("", "²", "⁶", "①", "½ ", "\u202e", "İ", "\x1b[31m", "<b>")
"""Characters before a text that a parser or a page may stumble over."""


class Canaries:
    """Makes canaries, and finds them in texts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.texts: set[str] = set()

    def word(self) -> str:
        """Return a new word."""
        word = f"canary{self.random.getrandbits(48):012x}"
        self.texts.add(word)
        return word

    def number(self) -> int:
        """Return a new number."""
        number = self.random.randrange(10**13, 10**14)
        self.texts.add(str(number))
        return number

    def text(self) -> str:
        """Return a text that begins with a canary."""
        return f"{self.random.choice(ODD)}{self.word()} in the text"

    def value(self, depth: int = 3) -> Any:
        """Return a random JSON value with canaries at every depth, and in its names."""
        kind = self.random.randrange(5 if depth else 3)
        if kind < 3:
            return (self.text(), self.number(), self.number() + 0.5)[kind]
        if kind == 3:
            return [self.value(depth - 1) for _ in range(self.random.randint(1, 3))]
        return {self.name(): self.value(depth - 1) for _ in range(self.random.randint(1, 3))}

    def name(self) -> str:
        """Return the name of a field: a canary, an address, or a name with a meaning elsewhere in a request."""
        known = ("summary", "format", "mode", "type", "detail", "quality", "role", "effort", "model", "temperature")
        return self.random.choice((self.word(), f"{self.word()}@example.com", self.random.choice(known)))

    def chat(self) -> dict[str, Any]:
        """Return the body of a chat request with canaries everywhere but in the model's name."""
        function = {
            "name": self.word(),
            "description": self.text(),
            "parameters": {"type": "object", "properties": {self.name(): self.value()}, "format": self.text()},
        }
        parts = [{"type": "text", "text": self.text()}, {"type": "image_url", "image_url": {"url": self.text()}}]
        call = {"id": self.word(), "type": "function", "function": {"name": self.word(), "arguments": self.text()}}
        return {
            "model": "model-1",
            "temperature": self.random.choice((0, 0.2, 0.7)),
            "tools": [{"type": "function", "function": function}],
            "stop": self.text(),
            "user": self.word(),
            "metadata": {self.name(): self.word()},
            "reasoning_effort": self.word(),
            "response_format": {"type": self.word(), "json_schema": self.value()},
            self.word(): self.value(),
            "messages": [
                {"role": "system", "content": self.text(), self.name(): self.value()},
                {"role": "user", "content": self.random.choice((self.text(), parts)), "name": self.word()},
                {"role": "assistant", "tool_calls": [call], "summary": self.text(), "card": self.number()},
                {"role": "tool", "tool_call_id": self.word(), "content": self.text()},
                {"role": "user", "content": f"{self.text()}. What is the way to the old market of the town?"},
            ],
        }

    def changed(self, value: Any) -> Any:
        """Return a copy of a value with new canaries in a few places, so that both are similar but not equal."""
        if isinstance(value, dict):
            added = {self.name(): self.value(1)} if self.random.random() < 0.15 else {}
            kept = ("model", "temperature")  # their values are shown
            return added | {name: each if name in kept else self.changed(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.changed(inner) for inner in value]
        if self.random.random() < 0.8 or value in ("user", "system", "assistant", "tool"):
            return value
        return self.value(1)

    def found_in(self, text: str) -> list[str]:
        """Return the canaries that a text has."""
        return sorted(canary for canary in self.texts if canary in text)
