"""How surprising it would be if a stored answer were still right: by its age, and by the model that gave it."""

from __future__ import annotations

import re
from collections import OrderedDict

DAY = 86_400.0
DAYS_TO_DOUBLE, MAX_AGE_FACTOR = 30.0, 3.0
"""Audits of an answer double with this age, and rise fourfold at most."""
CHANGED_MODEL = 5.0
"""Audits rise by this factor when the upstream's last answers have another model or fingerprint."""
RECENT_FINGERPRINTS = 5
"""The last answers of a frame whose fingerprints are no change: providers send requests to several builds in turn."""
MAX_FRAMES = 10_000
FINGERPRINT = re.compile(rb'"(?:model|system_fingerprint)"\s*:\s*"([^"]{1,200})"')
MAX_SCANNED = 2_000
"""Bytes at each end of an answer in which its fingerprint is looked for."""


def fingerprint_of(payload: bytes) -> bytes:
    """Return model and fingerprint that an answer names; empty: it names none."""
    ends = payload if len(payload) <= 2 * MAX_SCANNED else payload[:MAX_SCANNED] + payload[-MAX_SCANNED:]
    return b" ".join(FINGERPRINT.findall(ends)[:4])


class Fingerprints:
    """The fingerprints of the upstream's last answers, by frame. At most MAX_FRAMES."""

    def __init__(self) -> None:
        self._latest: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def add(self, frame: bytes, fingerprint: bytes) -> None:
        """Count the fingerprint of an answer; empty: it has none."""
        if not fingerprint:
            return
        self._latest[frame] = (*self._latest.get(frame, ()), fingerprint)[-RECENT_FINGERPRINTS:]
        self._latest.move_to_end(frame)
        if len(self._latest) > MAX_FRAMES:
            self._latest.popitem(last=False)

    def surprise(self, frame: bytes, payload: bytes, age: float) -> float:
        """Return the factor by which audits of a stored answer rise. age: in seconds."""
        latest = self._latest.get(frame, ())
        changed = bool(latest) and fingerprint_of(payload) not in latest
        return (1.0 + min(max(0.0, age) / DAY / DAYS_TO_DOUBLE, MAX_AGE_FACTOR)) * (CHANGED_MODEL if changed else 1.0)
