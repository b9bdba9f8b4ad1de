"""Finds stored answers to questions in another wording. Blocking: one thread calls all of it.

Texts of stored questions are read from their entries: beside the entries, no text is written to a disk.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from knapcache.cache.internal import InternalCache
from knapcache.cache.values import SimilarMatch
from knapcache.errors import StoreError, UpstreamFailed, public_text
from knapcache.features.semantic.embedding import Embedder
from knapcache.features.semantic.embeddings_endpoint import EndpointEmbedder
from knapcache.features.semantic.event import MatchKind
from knapcache.features.semantic.freshness import Fingerprints
from knapcache.features.semantic.index import pack_vector
from knapcache.features.semantic.learner import CANDIDATES, MIN_COSINE, Candidate, Label, Match, SemanticLearner
from knapcache.features.semantic.question import MAX_TOKENS, Question, same_frame, stored_text
from knapcache.features.semantic.shared_state import PAIR_LENGTH, SharedState
from knapcache.keys.request import KeyedRequest
from knapcache.model import Endpoint
from knapcache.store.base import Entry

log = logging.getLogger("knapcache.serve")

SWEEP_SECONDS = 600.0
"""Between two sweeps, which remove questions whose entries are gone."""
MAX_TEXTS = 20_000
"""Texts of stored questions that stay in memory."""
MAX_FAULTS = 20
"""Different faults that questions caused which are logged."""

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
    restarts: int = 0
    """How often labels of its scope had been forgotten before."""

    @property
    def served(self) -> tuple[Entry, SimilarMatch] | None:
        """The entry that is served, and what is served with it."""
        if self.kind != "served" or self.entry is None or self.similar is None:
            return None
        return self.entry, self.similar


class Matcher:
    """Finds matches in one process. state: the index and the learners, of the same embedder."""

    def __init__(
        self, cache: InternalCache, embedder: Embedder, state: SharedState, clock: Callable[[], float] = time.time
    ) -> None:
        self._cache, self.embedder, self.state, self._clock = cache, embedder, state, clock
        state.on_remove = lambda key: self._texts.pop(key, None)
        self._faults: set[tuple[str, int]] = set()
        """Type and line of the exceptions that were logged."""
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._fingerprints = Fingerprints()
        self._swept_at = clock()

    # Requests.

    def find(self, asked: Asked) -> Found:
        """Return what there is for a question. It raises nothing: the request goes upstream, whatever is broken.

        A failure of the embedding API, the store or the disk concerns all questions, so none is looked at until the log
        was read again. Any other exception concerns this question alone: otherwise one caller could stop the tier.
        """
        if self.state.failure:
            return Found("failed", "failure")
        try:
            found = self._find(asked)
        except (UpstreamFailed, StoreError, OSError) as error:
            self.state.note_failure(public_text(error))
            return Found("failed", "failure")
        except Exception as error:
            self._log_fault(error)
            return Found("failed", "fault")
        self.state.note_success()
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
        for key, cosine in self.state.index.search(frame, vector, CANDIDATES + 1):
            if cosine < MIN_COSINE:
                break
            if key != asked.request.key.digest and (stored := self._text(key)) is not None:
                candidates.append(Candidate(key, stored, cosine))
        learner = self.state.learner(asked.scope)
        match = learner.match(text, candidates[:CANDIDATES], asked.principal)
        found = Found("none", "", frame, pack_vector(vector), match, restarts=self.state.restarts(asked.scope))
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
            self.state.remove(match.key)
            return found._replace(reason="other frame", match=None)
        pair = pair_id(key, match.key)
        found = found._replace(kind="shadow", reason=match.obstacle, entry=entry, match_id=pair + secrets.token_hex(4))
        bound = learner.bound
        if not certified or bound is None or pair in self.state.marked or not self._is_fresh(entry, asked.max_age):
            return found
        found = found._replace(similar=SimilarMatch(match.key, match.cosine, bound, found.match_id))
        surprise = self._fingerprints.surprise(found.frame, entry.payload, self._clock() - entry.created)
        if learner.is_audit(match, draw, surprise):
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

    # Maintenance.

    def add_question(self, frame: bytes, key: bytes, vector: bytes, scope: str = "", fingerprint: bytes = b"") -> None:
        """Add a question whose answer was stored, here and for all processes. fingerprint: that of the answer."""
        self._fingerprints.add(frame, fingerprint)
        self.state.add_question(frame, key, vector, scope)

    def add_label(self, scope: str, found: Found, label: Label, rung: str) -> None:
        """Add the label of a match, here and for all processes.

        A match that was found before labels of the scope were forgotten has none: it was about an answer that is gone.
        """
        self.state.follow()
        if found.restarts == self.state.restarts(scope):
            self.state.add_label(scope, found.match_id, rung, label)

    def purged(self) -> None:
        """Sweep after a purge, and start certificates anew for whose scopes it matters. Raises StoreError."""
        before = self.state.index.scopes()
        self.sweep()
        self.state.restart_outdated(before)

    def maintain(self, *, sweep: bool) -> None:
        """Follow the log; every SWEEP_SECONDS also sweep and write the index, in the process that does so."""
        self.state.follow()
        if sweep and self._clock() - self._swept_at >= SWEEP_SECONDS:
            with contextlib.suppress(StoreError):
                self.sweep()
            self.state.save()

    def sweep(self) -> None:
        """Remove the questions whose entries are gone, here and from the log. Raises StoreError."""
        self._swept_at = self._clock()
        self.state.drop(self._cache.similar.missing({*self.state.index.keys(), *self._texts}))

    def close(self) -> None:
        """Release the log and the connections to an embedding API."""
        self.state.close()
        if isinstance(self.embedder, EndpointEmbedder):
            self.embedder.close()


def pair_id(asked: bytes, matched: bytes) -> str:
    """Return the name of a question and the stored one that it matched, by their keys."""
    return blake2b(asked + matched, digest_size=PAIR_LENGTH // 2).hexdigest()
