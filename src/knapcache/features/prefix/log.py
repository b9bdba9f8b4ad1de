"""The prefix log: one CSV line for each request that went to a provider with a tariff, for `knapcache prefix`.

    time,model,prefix,outcome      prefix: JSON text

Its files are those of the request log (request_log.py), in a folder of its own: a line with many positions is long, and
`knapcache plan` reads the request log faster without quoted fields. A position is a digest under a key that only the
process has and never writes, so it says nothing about a prompt, and is comparable within one run of one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from knapcache.features.prefix.event import PrefixEvent
from knapcache.proxy.events.events import Event
from knapcache.proxy.events.labels import printable
from knapcache.proxy.events.request_log import RequestLog

PREFIX_HEADER = b"time,model,prefix,outcome\n"
LOGGED = (
    "positions", "tokens", "system", "kind", "mode", "tariff", "rule", "marked", "own_marks", "reported", "input",
    "read", "short_written", "long_written", "predicted",
)  # fmt: skip
"""Fields of a prefix event that are written."""


class PrefixLog(RequestLog):
    """Writes the prefixes of requests."""

    header = PREFIX_HEADER
    title = "prefix log"

    def _lines(self, events: Sequence[Event]) -> Iterable[bytes]:
        found = ((event, event.parts.get("prefix")) for event in events)
        return [format_prefix(event, part) for event, part in found if part is not None and part.positions]


def format_prefix(event: Event, prefix: PrefixEvent) -> bytes:
    """Return the line of a request."""
    found = orjson.dumps({name: getattr(prefix, name) for name in LOGGED})
    return b"%.3f,%b,%b,%b\n" % (
        event.time,
        quoted(printable(event.model).encode()),
        quoted(found),
        event.outcome.encode(),
    )


def quoted(text: bytes) -> bytes:
    """Return a CSV field."""
    return b'"%b"' % text.replace(b'"', b'""')
