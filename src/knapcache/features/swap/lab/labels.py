"""The proxy's own log of labels (log.py) as a log of answer pairs.

A label has no scores, only their difference z. So the asked model gets the score (1 + z)/2, and the cheaper one
(1 − z)/2. A label of a call that failed has no costs; it gets the means of its frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import apsw

from knapcache.cache.opening import seal_secrets
from knapcache.errors import InvalidInput
from knapcache.features.swap.lab.read import ScoredAnswer, ScoredRequest
from knapcache.features.swap.log import LabelCodec, SwapLabel
from knapcache.store.sqlite.rows import Sealer

SQLITE = b"SQLite format 3\0"


class SelfComparison(NamedTuple):
    """How often the asked model was asked twice in a frame, and how often its answers were no tie."""

    asked_twice: int = 0
    differing: int = 0

    @property
    def floor(self) -> float | None:
        """The share that differs; None: it is not known."""
        return self.differing / self.asked_twice if self.asked_twice else None


def is_label_log(path: Path) -> bool:
    """Return whether a file is a database, as logs of labels are."""
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


def read_labels(path: Path, secret: bytes | None) -> list[SwapLabel]:
    """Return the labels of a file, which is not changed. Raises InvalidInput if none can be read."""
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            rows = [record for (record,) in connection.execute("SELECT record FROM labels ORDER BY id")]
    except apsw.Error as error:
        raise InvalidInput(f"{path} is no log of labels: {error}") from None
    for seals in seal_secrets(secret):
        if found := LabelCodec(Sealer(seals)).decode_all(rows):
            return list({label.id: label for label in found}.values())
    raise InvalidInput(f"{path} has no labels that can be read: it is empty, encrypted, or of another secret")


def as_requests(labels: Sequence[SwapLabel]) -> list[ScoredRequest]:
    """Return labels as lines of a log of answer pairs."""
    paid: dict[str, list[SwapLabel]] = {}
    for label in labels:
        if label.asked_answer > 0.0:
            paid.setdefault(label.frame, []).append(label)
    found = []
    for label in labels:
        of_frame = [label] if label.asked_answer > 0.0 else paid.get(label.frame, [])
        if of_frame:
            asked = sum(each.asked_answer for each in of_frame) / len(of_frame)
            cheaper = sum(each.cheaper_answer for each in of_frame) / len(of_frame)
            answer = ScoredAnswer((1.0 - label.z) / 2.0, cheaper)
            scored = ScoredAnswer((1.0 + label.z) / 2.0, asked)
            found.append(ScoredRequest(frame_title(label), scored, {label.swap_model: answer}))
    if not found:
        raise InvalidInput("no label has a cost, so a cheaper model cannot save anything")
    return found


def self_comparisons(labels: Sequence[SwapLabel]) -> dict[str, SelfComparison]:
    """Return how the asked model agrees with itself, by frame."""
    found: dict[str, SelfComparison] = {}
    for label in labels:
        if label.again is not None:
            twice, differing = found.get(frame_title(label), SelfComparison())
            found[frame_title(label)] = SelfComparison(twice + 1, differing + (label.again != 0.0))
    return found


def frame_title(label: SwapLabel) -> str:
    """Return the name of a frame for people."""
    tenant = f", {label.tenant}" if label.tenant else ""
    return f"{label.route}: {label.model}{tenant} ({label.frame[:8]})"
