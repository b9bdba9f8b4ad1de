"""The index of questions and the learners, which follow from the log (log.py): all processes of a cache have the same.

Blocking: one thread calls all of it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from knapcache.errors import InvalidInput, StoreError
from knapcache.features.semantic.differences import FEATURES
from knapcache.features.semantic.embedding import Embedder
from knapcache.features.semantic.event import SemanticEvent
from knapcache.features.semantic.index import FrameIndexes
from knapcache.features.semantic.learner import Label, SemanticLearner
from knapcache.features.semantic.log import START, LabelRecord, QuestionRecord, SemanticLog, same_log
from knapcache.store.encryption import Encryption

log = logging.getLogger("knapcache.serve")

PAIR_LENGTH = 16
"""Characters at the beginning of a match's id that name the two questions. The rest makes the id unique."""


class SharedState:
    """What the log of one cache has taught.

    errors       allowed share of wrong answers, by scope
    limit        questions in the index
    file         of the index; None: there is none
    encryption   of that file
    """

    def __init__(
        self,
        embedder: Embedder,
        semantic_log: SemanticLog,
        errors: Mapping[str, float],
        limit: int,
        file: Path | None = None,
        encryption: Encryption | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._embedder, self._log, self._clock = embedder, semantic_log, clock
        self._errors, self._limit = dict(errors), limit
        self._file, self._encryption = file, encryption
        self.failure = ""
        """Why nothing is served now; empty: it may be."""
        self._logged = False
        self.levels: dict[str, int] = {}
        """The certified level by scope. Replaced as a whole, for readers in other threads."""
        self._restarts: Counter[str] = Counter()
        """Events in the log that have ended what labels of a scope were about."""
        self._learners: dict[str, SemanticLearner] = {}
        """By scope. A scope has none before its first question or label: a learner takes most of a megabyte."""
        self.marked: set[str] = set()
        """Pairs of questions, by the beginning of a match's id, whose match a person has marked as wrong."""
        self.on_remove: Callable[[bytes], object] = lambda _: None
        """Called with the key of a question that is removed because its entry is gone."""
        self.index = FrameIndexes(embedder.dimensions, limit)
        self._questions_read = self._labels_read = self._drops_read = self._saved = START
        """Up to where each part of the log was read, and up to which question the index is in its file."""
        if file is not None and (found := self.index.load(file, encryption)) is not None:
            build, _, position = found.partition(b"\n")
            if build == embedder.build.encode():
                self._questions_read = self._saved = position
            else:
                self.index = FrameIndexes(embedder.dimensions, limit)
        self.configure(errors)

    def configure(self, errors: Mapping[str, float]) -> None:
        """Use these errors from now on: all labels are read again."""
        self._errors = dict(errors)
        self._learners = {}
        self._restarts.clear()
        self._labels_read = START
        self.follow()

    def learner(self, scope: str) -> SemanticLearner:
        found = self._learners.get(scope)
        if found is None:
            found = self._learners[scope] = SemanticLearner(self._errors[scope])
        return found

    def restarts(self, scope: str) -> int:
        """Return how often labels of a scope have been forgotten, as far as the log was read."""
        return self._restarts[scope]

    def follow(self) -> None:
        """Read what was appended to the log."""
        try:
            while self._read_drops() or self._read_questions() or self._read_labels():
                pass
            self.failure = ""
        except StoreError as error:
            self.note_failure(f"its log cannot be used: {error}")
        known = {scope: learner.certificate.level for scope, learner in self._learners.items()}
        self.levels = dict.fromkeys(self._errors, -1) | known

    def _read_drops(self) -> bool:
        """Remove questions whose entries are gone. Drops come first: a question may be dropped and stored again."""
        keys, self._drops_read = self._log.read_drops(self._drops_read)
        for key in keys:
            self.remove(key)
        return bool(keys)

    def _read_questions(self) -> bool:
        """Add new questions to the index. If the log was lost and begun again, nothing of the old one counts."""
        questions, position = self._log.read_questions(self._questions_read)
        if self._questions_read != START and not same_log(position, self._questions_read):
            self.index = FrameIndexes(self._embedder.dimensions, self._limit)
        for each in questions:
            if each.build == self._embedder.build and len(each.vector) == self._embedder.dimensions:
                self.index.add(each.frame, each.key, each.vector, each.scope)
        self._questions_read = position
        return bool(questions)

    def _read_labels(self) -> bool:
        """Pass new labels to the learners, in their order."""
        labels, position = self._log.read_labels(self._labels_read)
        if self._labels_read != START and not same_log(position, self._labels_read):
            self._learners = {}
            self.marked.clear()
        for each in labels:
            if each.label.source == "feedback":
                self.marked.add(each.match_id[:PAIR_LENGTH])
            is_event = each.label.source in ("reset", "restart", "partial restart")
            self._restarts[each.scope] += is_event
            if each.label.source == "reset":
                self._learners.pop(each.scope, None)
                continue
            readable = len(each.label.features) >= len(FEATURES) or is_event
            if readable and each.build == self._embedder.build and each.scope in self._errors:
                self.learner(each.scope).add(each.label)
        self._labels_read = position
        return bool(labels)

    def add_question(self, frame: bytes, key: bytes, vector: bytes, scope: str = "") -> None:
        """Add a question whose answer was stored, here and for all processes."""
        self._append(questions=[QuestionRecord(self._embedder.build, frame, key, vector, self._clock(), scope)])

    def add_label(self, scope: str, match_id: str, rung: str, label: Label) -> None:
        """Add a label, here and for all processes."""
        self._append(labels=[LabelRecord(self._embedder.build, scope, match_id, rung, label)])

    def add_event(self, scope: str, source: Literal["reset", "restart", "partial restart"]) -> None:
        """Let no label of a scope before now count: for nothing (reset), or for no certificate (`Label.source`)."""
        self.add_label(scope, "", source, Label(b"", (), 0.0, 1.0, False, source, self._clock()))

    def _append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        try:
            self._log.append(questions, labels)
        except StoreError as error:
            self.note_failure(f"its log cannot be used: {error}")
        else:
            self.follow()

    def note_failure(self, reason: str) -> None:
        """Serve nothing until the log is read next. Failures that follow each other are logged once."""
        if not self._logged:
            self._logged = True
            log.error("The semantic tier serves nothing now: %s", reason)
        self.failure = reason

    def note_success(self) -> None:
        """Log the next failure."""
        self._logged = False

    # For people.

    def feedback(self, event: SemanticEvent) -> None:
        """Add the label of a match that a person has marked as wrong."""
        if event.scope not in self._errors:
            raise InvalidInput("the semantic tier is off for this tenant")
        label = self.learner(event.scope).feedback(
            bytes.fromhex(event.matched_key), event.features, event.risk, self._clock()
        )
        self.add_label(event.scope, event.match_id, "feedback", label)

    def report(self, scopes: Iterable[str] = ("",)) -> dict[str, dict[str, Any]]:
        """Return the state of some scopes."""
        common = {"model": self._embedder.build, "questions": len(self.index), "limit": self._limit}
        return {scope: {**common, **self.learner(scope).report()} for scope in scopes if scope in self._errors}

    def reset(self, scope: str) -> None:
        """Forget all labels of a scope. Raises InvalidInput if the tier is off."""
        if scope not in self._errors:
            raise InvalidInput("the semantic tier is off for this tenant")
        self.add_event(scope, "reset")

    def restart(self, scopes: Iterable[str]) -> None:
        """Start the certificates of some scopes anew: the upstreams have changed. Stored answers are left."""
        for scope in scopes:
            self.add_event(scope, "partial restart")

    def restart_outdated(self, before: Mapping[str, int]) -> None:
        """Start the certificates anew against which labels weigh, if answers that those were about are gone.

        before: the number of questions of each scope, before those whose entries are gone were removed
        """
        now = self.index.scopes()
        is_smaller = sum(now.values()) < sum(before.values())
        for scope in [scope for scope, learner in self._learners.items() if learner.labels_weigh]:
            left = now.get(scope, 0)
            if left < before.get(scope, 0) or (is_smaller and not left):
                self.add_event(scope, "partial restart" if left else "restart")

    def remove(self, key: bytes) -> None:
        """Remove a question from the index."""
        self.on_remove(key)
        self.index.remove(key)

    def drop(self, keys: Collection[bytes]) -> None:
        """Remove questions whose entries are gone, here and from the log. Raises StoreError."""
        for key in keys:
            self.remove(key)
        if keys:
            self._log.drop(keys)
            self._saved = START

    def save(self) -> None:
        """Write the index, so that the next start need not build it."""
        if self._file is None or (self._questions_read == self._saved and self._file.exists()):
            return
        try:
            position = self._embedder.build.encode() + b"\n" + self._questions_read
            self.index.save(self._file, position, self._encryption)
            self._saved = self._questions_read
        except OSError as error:
            log.warning("Index of the semantic tier not written: %s", error)

    def close(self) -> None:
        """Release the log."""
        self._log.close()
