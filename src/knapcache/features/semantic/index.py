"""Nearest questions of a frame, by cosine. A frame is all of a request but its question (question.py).

Vectors are stored as int8, scaled so that the largest component is ±127; that changes a cosine by less than 0.003.

    ExactFrame   a matrix that is searched row by row: exact, 0.2 ms at MAX_EXACT questions
    GraphFrame   a usearch graph (HNSW): 0.3 ms at a million; its candidates are scored again like those of the other

A frame becomes a graph when it has more than MAX_EXACT questions. Without usearch it stays a matrix, at 0.2 ms for each
thousand questions.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import struct
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knapcache.errors import CorruptState, InvalidInput
from knapcache.store.encryption import Encryption

if TYPE_CHECKING:
    from usearch.index import Index


MAX_EXACT = 1024
"""Questions of a frame that is searched exactly."""
BLOCK = 128
"""Rows that are converted to float32 together: they stay in the processor's cache."""
MORE_CANDIDATES = 10
"""Candidates that a graph returns beyond the wanted ones. Scoring again changes their order."""
MAGIC = b"knapcache questions 2\n"
CONTEXT = b"semantic index"
"""Of its encryption."""
_ENTRY = struct.Struct("<IHHQ")  # number of the frame, lengths of key and scope, label


def pack_vector(vector: NDArray[np.float32]) -> bytes:
    """Return a vector as int8, one byte for each component."""
    largest = np.abs(vector).max(initial=0.0)
    scaled = vector * (127 / largest) if largest > 0 else vector
    return np.rint(scaled).astype(np.int8).tobytes()


class _Question(NamedTuple):
    key: bytes
    frame: bytes
    scope: str


class _Found(NamedTuple):
    labels: NDArray[np.uint64]
    cosines: NDArray[np.float32]


class FrameIndexes:
    """An index for each frame, with at most `limit` questions in all of them.

    Beyond that, the oldest question of the scope with the most questions is removed. So of k scopes, one with at most
    limit/k questions loses none of them, whatever the others add. Methods may be called by several threads.
    """

    def __init__(self, dimensions: int, limit: int) -> None:
        if dimensions < 1 or limit < 1:
            raise InvalidInput(f"dimensions and limit must be at least 1, not {dimensions} and {limit}")
        self.dimensions, self.limit = dimensions, limit
        self._frames: dict[bytes, ExactFrame | GraphFrame] = {}
        self._questions: OrderedDict[int, _Question] = OrderedDict()
        """By label, oldest first."""
        self._scopes: dict[str, OrderedDict[int, None]] = {}
        """Labels of the questions of each scope, oldest first."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._questions)

    def add(self, frame: bytes, key: bytes, vector: NDArray[np.float32] | bytes, scope: str = "") -> None:
        """Add a question: its vector, or what `pack_vector` returned for it. It replaces one with the same key."""
        row = np.frombuffer(vector if isinstance(vector, bytes) else pack_vector(vector), np.int8)
        if len(row) != self.dimensions:
            raise InvalidInput(f"a vector must have {self.dimensions} components, not {len(row)}")
        label = _label(key)
        with self._lock:
            self._remove(label)
            index = self._frames.get(frame)
            if index is None:
                index = self._frames[frame] = ExactFrame(self.dimensions)
            elif isinstance(index, ExactFrame) and len(index) >= MAX_EXACT and _has_usearch():
                index = self._frames[frame] = GraphFrame.of(index)
            index.add(label, row)
            self._list(label, _Question(key, frame, scope))
            while len(self._questions) > self.limit:
                most = max(self._scopes.values(), key=len)
                self._remove(next(iter(most)))

    def _list(self, label: int, question: _Question) -> None:
        self._questions[label] = question
        self._scopes.setdefault(question.scope, OrderedDict())[label] = None

    def search(self, frame: bytes, vector: NDArray[np.float32], count: int) -> list[tuple[bytes, float]]:
        """Return key and cosine of the nearest questions of a frame, the nearest first."""
        with self._lock:
            index = self._frames.get(frame)
            if index is None or count < 1:
                return []
            found = index.search(vector / max(float(np.linalg.norm(vector)), 1e-9), count)
            best = np.lexsort((found.labels, -found.cosines))[:count]
            return [(self._questions[int(found.labels[k])].key, float(found.cosines[k])) for k in best]

    def keys(self) -> list[bytes]:
        """Return the keys of all questions, the oldest first."""
        with self._lock:
            return [question.key for question in self._questions.values()]

    def scopes(self) -> dict[str, int]:
        """Return the number of questions of each scope that has any."""
        with self._lock:
            return {scope: len(labels) for scope, labels in self._scopes.items()}

    def remove(self, key: bytes) -> None:
        """Remove a question, if it is there."""
        with self._lock:
            self._remove(_label(key))

    def _remove(self, label: int) -> None:
        if (known := self._questions.pop(label, None)) is not None:
            index, scope = self._frames[known.frame], self._scopes[known.scope]
            index.remove(label)
            del scope[label]
            if not len(index):
                del self._frames[known.frame]
            if not scope:
                del self._scopes[known.scope]

    def save(self, path: Path, position: bytes = b"", encryption: Encryption | None = None) -> None:
        """Write all questions to a file, which replaces the one at `path`. Raises OSError.

        position: what `load` returns, up to where a log was read
        """
        with self._lock:
            content = self._to_bytes(position)
        if encryption is not None:
            content = b"".join(encryption.encrypt(CONTEXT, content))
        draft = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
        try:
            with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(MAGIC + hashlib.sha256(content).digest())
                file.write(content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def load(self, path: Path, encryption: Encryption | None = None) -> bytes | None:
        """Replace all questions by those of a file, and return its position.

        None, and nothing changes: there is no such file, it is damaged, or it was written for another number of
        dimensions or a higher limit.
        """
        try:
            whole = path.read_bytes()
        except OSError:
            return None
        begin = len(MAGIC) + 32
        if whole[: len(MAGIC)] != MAGIC or hashlib.sha256(whole[begin:]).digest() != whole[len(MAGIC) : begin]:
            return None
        content = whole[begin:]
        if encryption is not None:
            if (found := encryption.decrypt(CONTEXT, content)) is None:
                return None
            content = found[0]
        return self._from_bytes(memoryview(content))

    def _to_bytes(self, position: bytes) -> bytes:
        numbers = {frame: number for number, frame in enumerate(self._frames)}
        parts = [
            struct.pack("<IIIH", self.dimensions, len(self._frames), len(self._questions), len(position)),
            position,
        ]
        for frame, index in self._frames.items():
            kind, body = index.to_bytes()
            parts += [struct.pack("<BHQ", kind, len(frame), len(body)), frame, body]
        for label, (key, frame, name) in self._questions.items():
            scope = name.encode()
            parts += [_ENTRY.pack(numbers[frame], len(key), len(scope), label), key, scope]
        return b"".join(parts)

    def _from_bytes(self, content: memoryview) -> bytes | None:
        dimensions, frame_count, question_count, length = struct.unpack_from("<IIIH", content)
        at = struct.calcsize("<IIIH") + length
        position = bytes(content[at - length : at])
        if dimensions != self.dimensions or question_count > self.limit:
            return None
        frames: dict[bytes, ExactFrame | GraphFrame] = {}
        for _ in range(frame_count):
            kind, length, size = struct.unpack_from("<BHQ", content, at)
            at += struct.calcsize("<BHQ")
            name, body = bytes(content[at : at + length]), content[at + length : at + length + size]
            at += length + size
            if kind == GraphFrame.KIND and not _has_usearch():
                return None
            form = GraphFrame if kind == GraphFrame.KIND else ExactFrame
            frames[name] = form.from_bytes(dimensions, body)
        names = list(frames)
        with self._lock:
            self._frames, self._questions, self._scopes = frames, OrderedDict(), {}
            for _ in range(question_count):
                number, length, scope_length, label = _ENTRY.unpack_from(content, at)
                at += _ENTRY.size + length + scope_length
                key, scope = content[at - scope_length - length : at - scope_length], content[at - scope_length : at]
                self._list(label, _Question(bytes(key), names[number], bytes(scope).decode()))
        return position

    def check(self) -> None:
        """Raise CorruptState unless the frames have exactly the questions that are listed."""
        with self._lock:
            for frame, index in self._frames.items():
                listed = {label for label, question in self._questions.items() if question.frame == frame}
                if listed != set(index.labels().tolist()) or not listed:
                    raise CorruptState(f"the index of frame {frame.hex()} has other questions than are listed")
            by_scope = {label: scope for scope, labels in self._scopes.items() for label in labels}
            if by_scope != {label: question.scope for label, question in self._questions.items()}:
                raise CorruptState("the scopes have other questions than are listed")
            if len(self._questions) > self.limit:
                raise CorruptState(f"{len(self._questions)} questions, but the limit is {self.limit}")
            if unknown := {question.frame for question in self._questions.values()} - set(self._frames):
                raise CorruptState(f"{len(unknown)} frames have no index")


class ExactFrame:
    """The questions of a frame as rows of a matrix, in any order."""

    KIND = 0

    def __init__(self, dimensions: int) -> None:
        self._rows = np.empty((4, dimensions), np.int8)
        self._labels = np.empty(4, np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, label: int, row: NDArray[np.int8]) -> None:
        if self._count == len(self._labels):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._labels = np.concatenate([self._labels, np.empty_like(self._labels)])
        self._rows[self._count], self._labels[self._count] = row, label
        self._count += 1

    def remove(self, label: int) -> None:
        place = int(np.flatnonzero(self.labels() == label)[0])
        self._count -= 1
        self._rows[place], self._labels[place] = self._rows[self._count], self._labels[self._count]

    def search(self, vector: NDArray[np.float32], count: int) -> _Found:
        cosines = _cosines(self.rows(), vector)
        if count < self._count:
            best = np.argpartition(-cosines, count - 1)[:count]
            return _Found(self.labels()[best], cosines[best])
        return _Found(self.labels(), cosines)

    def labels(self) -> NDArray[np.uint64]:
        return self._labels[: self._count]

    def rows(self) -> NDArray[np.int8]:
        return self._rows[: self._count]

    def to_bytes(self) -> tuple[int, bytes]:
        return self.KIND, self.labels().tobytes() + self.rows().tobytes()

    @classmethod
    def from_bytes(cls, dimensions: int, body: memoryview) -> ExactFrame:
        found = cls(dimensions)
        found._count = len(body) // (8 + dimensions)
        found._labels = np.frombuffer(body, np.uint64, found._count).copy()
        found._rows = np.frombuffer(body, np.int8, offset=8 * found._count).reshape(-1, dimensions).copy()
        return found


class GraphFrame:
    """The questions of a frame as a usearch graph."""

    KIND = 1

    def __init__(self, dimensions: int) -> None:
        from usearch.index import Index

        self._index: Index = Index(ndim=dimensions, metric="cos", dtype="i8")

    @classmethod
    def of(cls, exact: ExactFrame) -> GraphFrame:
        rows = exact.rows()
        found = cls(rows.shape[1])
        found._index.add(exact.labels(), rows, threads=1)
        return found

    def __len__(self) -> int:
        return len(self._index)

    def add(self, label: int, row: NDArray[np.int8]) -> None:
        self._index.add(label, row, threads=1)

    def remove(self, label: int) -> None:
        self._index.remove(label, threads=1)

    def search(self, vector: NDArray[np.float32], count: int) -> _Found:
        query = np.frombuffer(pack_vector(vector), np.int8)
        labels = np.asarray(self._index.search(query, count + MORE_CANDIDATES, threads=1).keys, np.uint64)
        rows = np.asarray(self._index.get(labels), np.int8)
        return _Found(labels, _cosines(rows.reshape(len(labels), -1), vector))

    def labels(self) -> NDArray[np.uint64]:
        return np.asarray(self._index.keys, np.uint64)

    def to_bytes(self) -> tuple[int, bytes]:
        return self.KIND, bytes(self._index.save() or b"")

    @classmethod
    def from_bytes(cls, dimensions: int, body: memoryview) -> GraphFrame:
        found = cls(dimensions)
        found._index.load(bytes(body))
        return found


def _cosines(rows: NDArray[np.int8], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosines of rows with a vector of length 1.

    Not by `@`: on a busy machine the threads of its library wait for each other, which takes milliseconds.
    """
    cosines = np.empty(len(rows), np.float32)
    for k in range(0, len(rows), BLOCK):
        block = rows[k : k + BLOCK].astype(np.float32)
        squares = np.einsum("ij,ij->i", block, block)
        cosines[k : k + BLOCK] = np.einsum("ij,j->i", block, vector) / np.sqrt(np.maximum(squares, 1e-9))
    return cosines


def _label(key: bytes) -> int:
    """Return the number that names a question in a graph. Two keys with the same one replace each other."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _has_usearch() -> bool:
    return importlib.util.find_spec("usearch") is not None
