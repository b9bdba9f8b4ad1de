"""Finds stored answers to questions in another wording, and follows the log. Blocking: one thread calls all of it.

    find      embed the question, search its frame, match, check the entry of the match
    follow    read the log: questions into the index, labels into the learners

Texts of stored questions are read from their entries: beside the entries, no text is written to a disk.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from knapcache.cache.internal import InternalCache
from knapcache.cache.values import SimilarMatch
from knapcache.errors import InvalidInput, StoreError, UpstreamFailed, public_text
from knapcache.features.semantic.differences import FEATURES
from knapcache.features.semantic.embedding import Embedder
from knapcache.features.semantic.embeddings_endpoint import EndpointEmbedder
from knapcache.features.semantic.event import MatchKind, SemanticEvent
from knapcache.features.semantic.freshness import Fingerprints
from knapcache.features.semantic.index import FrameIndexes, pack_vector
from knapcache.features.semantic.learner import CANDIDATES, MIN_COSINE, Candidate, Label, Match, SemanticLearner
from knapcache.features.semantic.log import START, LabelRecord, QuestionRecord, SemanticLog, same_log
from knapcache.features.semantic.question import MAX_TOKENS, Question, same_frame, stored_text
from knapcache.keys.request import KeyedRequest
from knapcache.model import Endpoint
from knapcache.store.base import Entry
from knapcache.store.encryption import Encryption

log = logging.getLogger("knapcache.serve")

SWEEP_SECONDS = 600.0
"""Between two sweeps, which remove questions whose entries are gone."""
MAX_TEXTS = 20_000
"""Texts of stored questions that stay in memory."""
MAX_FAULTS = 20
"""Different faults that questions caused which are logged."""
PAIR_LENGTH = 16
"""Characters at the beginning of a match's id that name the two questions. The rest makes the id unique."""

draw = random.SystemRandom().random


class Asked(NamedTuple):
    """A question on its way through the tier."""

    scope: str
    mode: str
    endpoint: Endpoint
    question: Question
    request: KeyedRequest
    namespace: str | None
    context: Mapping[str, str]
    max_age: float | None
    principal: str = ""
    """Name of the caller."""


class Found(NamedTuple):
    """What the tier has found for a question."""

    kind: MatchKind
    reason: str = ""
    frame: bytes = b""
    vector: bytes = b""
    match: Match | None = None
    entry: Entry | None = None
    """The entry of the match."""
    similar: SimilarMatch | None = None
    """What is served with it, or would be if it were not audited; None: it may not be served."""
    match_id: str = ""

    @property
    def served(self) -> tuple[Entry, SimilarMatch] | None:
        """The entry that is served, and what is served with it."""
        if self.kind != "served" or self.entry is None or self.similar is None:
            return None
        return self.entry, self.similar


class Matcher:
    """The index, the learners and the log of one process.

    errors       allowed share of wrong answers, by scope
    limit        questions in the index
    file         of the index; None: there is none
    encryption   of that file
    """

    def __init__(
        self,
        cache: InternalCache,
        embedder: Embedder,
        semantic_log: SemanticLog,
        errors: Mapping[str, float],
        limit: int,
        file: Path | None = None,
        encryption: Encryption | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache, self.embedder, self._log, self._clock = cache, embedder, semantic_log, clock
        self._errors, self._limit = dict(errors), limit
        self._file, self._encryption = file, encryption
        self.failure = ""
        """Why nothing is served now; empty: it may be."""
        self._logged = False
        self._faults: set[tuple[str, int]] = set()
        """Type and line of the exceptions that were logged."""
        self.levels: dict[str, int] = {}
        """The certified level by scope. Replaced as a whole, for readers in other threads."""
        self._learners: dict[str, SemanticLearner] = {}
        """By scope. A scope has none before its first question or label: a learner takes most of a megabyte."""
        self._marked: set[str] = set()
        """Pairs of questions, by `pair_id`, whose match a person has marked as wrong."""
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._fingerprints = Fingerprints()
        self._swept_at = clock()
        self._index = FrameIndexes(embedder.dimensions, limit)
        self._questions_read = self._labels_read = self._drops_read = self._saved = START
        """Up to where each part of the log was read, and up to which question the index is in its file."""
        if file is not None and (found := self._index.load(file, encryption)) is not None:
            build, _, position = found.partition(b"\n")
            if build == embedder.build.encode():
                self._questions_read = self._saved = position
            else:
                self._index = FrameIndexes(embedder.dimensions, limit)
        self.configure(errors)

    def configure(self, errors: Mapping[str, float]) -> None:
        """Use these errors from now on: all labels are read again."""
        self._errors = dict(errors)
        self._learners = {}
        self._labels_read = START
        self.follow()

    def _learner(self, scope: str) -> SemanticLearner:
        found = self._learners.get(scope)
        if found is None:
            found = self._learners[scope] = SemanticLearner(self._errors[scope])
        return found

    # The log.

    def follow(self) -> None:
        """Read what was appended to the log."""
        try:
            while self._read_drops() or self._read_questions() or self._read_labels():
                pass
            self.failure = ""
        except StoreError as error:
            self._note_failure(f"its log cannot be used: {error}")
        known = {scope: learner.certificate.level for scope, learner in self._learners.items()}
        self.levels = dict.fromkeys(self._errors, -1) | known

    def _read_drops(self) -> bool:
        """Remove questions whose entries are gone. Drops come first: a question may be dropped and stored again."""
        keys, self._drops_read = self._log.read_drops(self._drops_read)
        for key in keys:
            self._forget(key)
        return bool(keys)

    def _read_questions(self) -> bool:
        """Add new questions to the index. If the log was lost and begun again, nothing of the old one counts."""
        questions, position = self._log.read_questions(self._questions_read)
        if self._questions_read != START and not same_log(position, self._questions_read):
            self._index = FrameIndexes(self.embedder.dimensions, self._limit)
        for each in questions:
            if each.build == self.embedder.build and len(each.vector) == self.embedder.dimensions:
                self._index.add(each.frame, each.key, each.vector, each.scope)
        self._questions_read = position
        return bool(questions)

    def _read_labels(self) -> bool:
        """Pass new labels to the learners, in their order."""
        labels, position = self._log.read_labels(self._labels_read)
        if self._labels_read != START and not same_log(position, self._labels_read):
            self._learners = {}
            self._marked.clear()
        for each in labels:
            if each.label.source == "feedback":
                self._marked.add(each.match_id[:PAIR_LENGTH])
            elif each.label.source == "reset":
                self._learners.pop(each.scope, None)
                continue
            readable = len(each.label.features) >= len(FEATURES) or each.label.source == "restart"
            if readable and each.build == self.embedder.build and each.scope in self._errors:
                self._learner(each.scope).add(each.label)
        self._labels_read = position
        return bool(labels)

    def add_question(self, frame: bytes, key: bytes, vector: bytes, scope: str = "", fingerprint: bytes = b"") -> None:
        """Add a question whose answer was stored, here and for all processes. fingerprint: that of the answer."""
        self._fingerprints.set(frame, fingerprint)
        self._append(questions=[QuestionRecord(self.embedder.build, frame, key, vector, self._clock(), scope)])

    def add_label(self, scope: str, match_id: str, rung: str, label: Label) -> None:
        """Add a label, here and for all processes."""
        self._append(labels=[LabelRecord(self.embedder.build, scope, match_id, rung, label)])

    def add_event(self, scope: str, source: Literal["reset", "restart"]) -> None:
        """Let no label of a scope before now count: for nothing (reset), or for no certificate (restart)."""
        self.add_label(scope, "", source, Label(b"", (), 0.0, 1.0, False, source, self._clock()))

    def _append(self, questions: Sequence[QuestionRecord] = (), labels: Sequence[LabelRecord] = ()) -> None:
        try:
            self._log.append(questions, labels)
        except StoreError as error:
            self._note_failure(f"its log cannot be used: {error}")
        else:
            self.follow()

    def _note_failure(self, reason: str) -> None:
        """Serve nothing until the log is read next. Failures that follow each other are logged once."""
        if not self._logged:
            self._logged = True
            log.error("The semantic tier serves nothing now: %s", reason)
        self.failure = reason

    # Requests.

    def find(self, asked: Asked) -> Found:
        """Return what there is for a question. It raises nothing: the request goes upstream, whatever is broken.

        A failure of the embedding API, the store or the disk concerns all questions, so none is looked at until the log
        was read again. Any other exception concerns this question alone: otherwise one caller could stop the tier.
        """
        if self.failure:
            return Found("failed", "failure")
        try:
            found = self._find(asked)
        except (UpstreamFailed, StoreError, OSError) as error:
            self._note_failure(public_text(error))
            return Found("failed", "failure")
        except Exception as error:
            self._log_fault(error)
            return Found("failed", "fault")
        self._logged = False
        return found

    def _log_fault(self, error: Exception) -> None:
        """Log the fault that a question has caused, once for each place in the code."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        fault = type(error).__name__, place.tb_lineno if place is not None else 0
        if fault not in self._faults and len(self._faults) < MAX_FAULTS:
            self._faults.add(fault)
            log.exception("The semantic tier cannot look at a question, and goes on with others")

    def _find(self, asked: Asked) -> Found:
        text = asked.question.text
        if self.embedder.tokens(text) > MAX_TOKENS:
            return Found("excluded", "long text")
        keyed = self._cache.keyed_request(
            asked.endpoint, asked.question.frame, namespace=asked.namespace, context=asked.context
        )
        if keyed is None:
            return Found("excluded", "no key")
        frame = keyed.key.digest
        vector = self.embedder.embed([text])[0]
        candidates = []
        for key, cosine in self._index.search(frame, vector, CANDIDATES + 1):
            if cosine < MIN_COSINE:
                break
            if key != asked.request.key.digest and (stored := self._text(key)) is not None:
                candidates.append(Candidate(key, stored, cosine))
        learner = self._learner(asked.scope)
        match = learner.match(text, candidates[:CANDIDATES], asked.principal)
        found = Found("none", "", frame, pack_vector(vector), match)
        if match is None:
            return found._replace(reason="veto" if candidates else "")
        return self._decide(asked, found, match, learner)

    def _decide(self, asked: Asked, found: Found, match: Match, learner: SemanticLearner) -> Found:
        """Return what becomes of a match."""
        certified = asked.mode == "on" and learner.serves(match)
        key, entry = asked.request.key.digest, self._cache.similar.entry(match.key)
        if entry is None:
            if certified:  # its answer was evicted: the new one starts with its count
                self._cache.similar.inherit(key, match.key)
            return found._replace(reason="evicted")
        if entry.tenant != asked.request.tenant or not same_frame(entry.request, asked.request.key.canonical):
            self._forget(match.key)
            return found._replace(reason="other frame", match=None)
        pair = pair_id(key, match.key)
        found = found._replace(kind="shadow", reason=match.obstacle, entry=entry, match_id=pair + secrets.token_hex(4))
        bound = learner.bound
        if not certified or bound is None or pair in self._marked or not self._is_fresh(entry, asked.max_age):
            return found
        found = found._replace(similar=SimilarMatch(match.key, match.cosine, bound, found.match_id))
        surprise = self._fingerprints.surprise(found.frame, entry.payload, self._clock() - entry.created)
        if draw() < learner.audit_rate(match, surprise):
            self._cache.similar.inherit(key, match.key)
            return found._replace(kind="audit")
        learner.count_served(match)
        return found._replace(kind="served")

    def _is_fresh(self, entry: Entry, max_age: float | None) -> bool:
        age = self._clock() - entry.created
        fresh_for = entry.meta.get("meta", {}).get("fresh")
        return (max_age is None or age <= max_age) and (fresh_for is None or age <= float(fresh_for))

    def _text(self, key: bytes) -> str | None:
        """Return the text of a stored question; None if its entry is gone."""
        text = self._texts.get(key)
        if text is None:
            entry = self._cache.similar.entry(key)
            if entry is None or (text := stored_text(entry.request)) is None:
                return None
            self._texts[key] = text
            if len(self._texts) > MAX_TEXTS:
                self._texts.popitem(last=False)
        return text

    def _forget(self, key: bytes) -> None:
        self._texts.pop(key, None)
        self._index.remove(key)

    # For people.

    def feedback(self, event: SemanticEvent) -> None:
        """Add the label of a match that a person has marked as wrong."""
        if event.scope not in self._errors:
            raise InvalidInput("the semantic tier is off for this tenant")
        label = self._learner(event.scope).feedback(
            bytes.fromhex(event.matched_key), event.features, event.risk, self._clock()
        )
        self.add_label(event.scope, event.match_id, "feedback", label)

    def report(self, scopes: Iterable[str] = ("",)) -> dict[str, dict[str, Any]]:
        """Return the state of some scopes."""
        common = {"model": self.embedder.build, "questions": len(self._index), "limit": self._limit}
        return {scope: {**common, **self._learner(scope).report()} for scope in scopes if scope in self._errors}

    def reset(self, scope: str) -> None:
        """Forget all labels of a scope. Raises InvalidInput if the tier is off."""
        if scope not in self._errors:
            raise InvalidInput("the semantic tier is off for this tenant")
        self.add_event(scope, "reset")

    # Maintenance.

    def purged(self) -> None:
        """Sweep after a purge, and start certificates anew against which older labels weigh. Raises StoreError."""
        self.sweep()
        self.restart([scope for scope, learner in self._learners.items() if learner.labels_weigh])

    def restart(self, scopes: Sequence[str]) -> None:
        """Start the certificates of some scopes anew: what the labels were about has changed."""
        for scope in scopes:
            self.add_event(scope, "restart")

    def maintain(self, *, sweep: bool) -> None:
        """Follow the log; every SWEEP_SECONDS also sweep and write the index, in the process that does so."""
        self.follow()
        if sweep and self._clock() - self._swept_at >= SWEEP_SECONDS:
            with contextlib.suppress(StoreError):
                self.sweep()
            self.save()

    def sweep(self) -> None:
        """Remove the questions whose entries are gone, here and from the log. Raises StoreError."""
        self._swept_at = self._clock()
        gone = self._cache.similar.missing({*self._index.keys(), *self._texts})
        for key in gone:
            self._forget(key)
        if gone:
            self._log.drop(gone)
            self._saved = START

    def save(self) -> None:
        """Write the index, so that the next start need not build it."""
        if self._file is None or (self._questions_read == self._saved and self._file.exists()):
            return
        try:
            position = self.embedder.build.encode() + b"\n" + self._questions_read
            self._index.save(self._file, position, self._encryption)
            self._saved = self._questions_read
        except OSError as error:
            log.warning("Index of the semantic tier not written: %s", error)

    def close(self) -> None:
        """Release the log and the connections to an embedding API."""
        self._log.close()
        if isinstance(self.embedder, EndpointEmbedder):
            self.embedder.close()


def pair_id(asked: bytes, matched: bytes) -> str:
    """Return the name of a question and the stored one that it matched, by their keys."""
    return blake2b(asked + matched, digest_size=PAIR_LENGTH // 2).hexdigest()
