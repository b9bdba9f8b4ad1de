"""The part of an event about the provider's prompt cache, and the prefix log.

The log has one CSV line for each request that went to a provider with a tariff, for `knapcache prefix`.

    time,model,prefix,outcome      prefix: JSON text

Its files are those of the request log (request_log.py), in a folder of its own: a line with many positions is long, and
`knapcache plan` reads the request log faster without quoted fields. A position is a digest under a key that only the
process has and never writes, so it says nothing about a prompt, and is comparable within one run of one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from knapcache.proxy.events.events import Event
from knapcache.proxy.events.labels import printable
from knapcache.proxy.events.request_log import RequestLog

PREFIX_HEADER = b"time,model,prefix,outcome\n"
LOGGED = (
    "positions", "tokens", "system", "kind", "mode", "tariff", "rule", "marked", "own_marks", "reported", "input",
    "read", "short_written", "long_written", "predicted",
)  # fmt: skip
"""Fields of a prefix event that are written."""
MAX_POSITIONS = 1024
"""Positions of a prefix event. Of a request with more, none are kept: some of them would be a wrong request. A position
takes 130 bytes."""


class PrefixEvent(NamedTuple):
    """Use of the provider's prompt cache by one request. Built with keywords.

    Every request that went upstream has one. Amounts of the tier are in plain tokens: tokens at the price of an input
    token that is neither read nor written.
    """

    mode: str
    """The setting `prefix` of the request's route: off, observe, on or manage."""
    tariff: str = ""
    """The tariff by which the tier decided (features/prefix/tariff.py); empty: none, so it decided nothing."""
    rule: str = ""
    """The rule that led; empty without a tariff."""
    marked: bool = False
    """The tier placed marks, or changed them."""
    own_marks: bool = False
    """The request came with marks."""
    below: bool = False
    """The request is shorter than the least that the model's provider caches."""
    reported: bool = False
    """The provider reported the five numbers below. Otherwise they are 0 and unknown."""
    input: int = 0
    """All input tokens."""
    read: int = 0
    """Input tokens that were read from the provider's cache."""
    short_written: int = 0
    """Input tokens that were written to it for the shorter TTL."""
    long_written: int = 0
    """Input tokens that were written to it for the longer TTL."""
    predicted: int = 0
    """Tokens that the tier expected to be read."""
    bills: Mapping[str, float] = MappingProxyType({})
    """Plain tokens that each rule would have paid for the input, by its name, and `paid`: what was paid by the report.
    Empty if nothing was reported, or without a tariff."""
    usd_per_token: float | None = None
    """Dollars of a plain token; None: the price is unknown."""
    tokens: int = 0
    """All input tokens, as the tier counted them."""
    positions: tuple[tuple[int, int], ...] = ()
    """Digest and length in tokens of every prefix that can be marked, ascending. For the prefix log only."""
    system: int = -1
    """Index of the position at the end of the system prompt; -1: none."""
    kind: str = "text"
    """`tool` if the last message is the result of a tool, else `text`."""

    def shortened(self) -> PrefixEvent:
        """Return it without its positions."""
        return self._replace(positions=()) if self.positions else self

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> PrefixEvent:
        """Return the event of its fields, as JSON has them."""
        return cls(**fields | {"positions": tuple(map(tuple, fields["positions"]))})


class PrefixLog(RequestLog):
    header = PREFIX_HEADER
    title = "prefix log"

    def _lines(self, events: Sequence[Event]) -> Iterable[bytes]:
        found = ((event, event.parts.get("prefix")) for event in events)
        return [format_prefix(event, part) for event, part in found if part is not None and part.positions]


def format_prefix(event: Event, prefix: PrefixEvent) -> bytes:
    found = orjson.dumps({name: getattr(prefix, name) for name in LOGGED})
    return b"%.3f,%b,%b,%b\n" % (
        event.time,
        quoted(printable(event.model).encode()),
        quoted(found),
        event.outcome.encode(),
    )


def quoted(text: bytes) -> bytes:
    return b'"%b"' % text.replace(b'"', b'""')
