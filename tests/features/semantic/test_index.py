"""The nearest questions of a frame: exact in small frames, nearly so in large ones; bounded; saved as a cache."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from knapcache.errors import InvalidInput
from knapcache.features.semantic import index as index_module
from knapcache.features.semantic.index import FrameIndexes, GraphFrame, pack_vector
from knapcache.store.encryption import Encryption

DIMENSIONS = 384


def unit_vectors(count: int, seed: int = 1) -> NDArray[np.float32]:
    """Return vectors in some clusters, as those of questions are."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(40, DIMENSIONS))
    vectors = centres[random.integers(0, 40, count)] + 0.6 * random.normal(size=(count, DIMENSIONS))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let frames become graphs with few questions."""
    monkeypatch.setattr(index_module, "MAX_EXACT", 50)


def fill(index: FrameIndexes, vectors: NDArray[np.float32], frame: bytes = b"frame") -> None:
    for number, vector in enumerate(vectors):
        index.add(frame, b"%d" % number, vector)


def unpack_vector(packed: bytes) -> NDArray[np.float32]:
    """Return the vector of `pack_vector`, at length 1."""
    vector = np.frombuffer(packed, np.int8).astype(np.float32)
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def test_packed_vectors_keep_cosines_within_three_thousandths() -> None:
    vectors = unit_vectors(200)
    packed = np.array([unpack_vector(pack_vector(vector)) for vector in vectors])
    assert np.abs(packed @ packed.T - vectors @ vectors.T).max() < 0.003
    assert len(pack_vector(vectors[0])) == DIMENSIONS
    assert not unpack_vector(pack_vector(np.zeros(DIMENSIONS, np.float32))).any()


def test_a_small_frame_returns_the_nearest_questions_in_order() -> None:
    index, vectors = FrameIndexes(DIMENSIONS, 1000), unit_vectors(300)
    fill(index, vectors)
    for query in unit_vectors(20, seed=2):
        found = index.search(b"frame", 3 * query, 6)
        exact = np.sort(vectors @ query)[::-1][:6]
        np.testing.assert_allclose([cosine for _, cosine in found], exact, atol=0.003)
        for key, cosine in found:
            assert cosine == pytest.approx(float(vectors[int(key)] @ query), abs=0.003)
    index.check()


def test_frames_do_not_see_each_other() -> None:
    index, vectors = FrameIndexes(DIMENSIONS, 1000), unit_vectors(2)
    index.add(b"one", b"a", vectors[0])
    index.add(b"two", b"b", vectors[1])
    assert [key for key, _ in index.search(b"one", vectors[1], 6)] == [b"a"]
    assert index.search(b"three", vectors[1], 6) == []
    assert index.search(b"one", vectors[1], 0) == []


@pytest.mark.usefixtures("small_graphs")
def test_a_large_frame_finds_nearly_all_after_questions_were_replaced_many_times() -> None:
    limit = 400
    index, vectors = FrameIndexes(DIMENSIONS, limit), unit_vectors(3 * limit)
    fill(index, vectors)
    assert isinstance(index._frames[b"frame"], GraphFrame)
    assert len(index) == limit
    index.check()
    live, found_of_best = vectors[-limit:], 0
    for query in unit_vectors(100, seed=2):
        cosines = live @ query
        found = index.search(b"frame", query, 6)
        assert all(int(key) >= 2 * limit for key, _ in found)
        assert sorted(found, key=lambda pair: -pair[1]) == found
        best = {b"%d" % (2 * limit + k) for k in np.argsort(-cosines)[:6]}
        found_of_best += len(best & {key for key, _ in found})
        for key, cosine in found:
            assert cosine == pytest.approx(float(vectors[int(key)] @ query), abs=0.003)
    assert found_of_best > 0.9 * 600


def test_the_oldest_question_of_all_frames_is_removed_first() -> None:
    index, vectors = FrameIndexes(DIMENSIONS, 3), unit_vectors(5)
    for frame, key in ((b"one", b"a"), (b"two", b"b"), (b"two", b"c"), (b"one", b"a"), (b"two", b"d")):
        index.add(frame, key, vectors[len(index)])
    assert len(index) == 3  # a was added again, so b was the oldest
    assert {key for key, _ in index.search(b"two", vectors[0], 6)} == {b"c", b"d"}
    index.remove(b"a")
    index.remove(b"unknown")
    assert index.search(b"one", vectors[0], 6) == []
    assert len(index) == 2
    index.check()


def test_a_flood_leaves_the_share_of_every_other_scope(tmp_path: Path) -> None:
    index, vectors = FrameIndexes(DIMENSIONS, 20), unit_vectors(210)
    for number in range(10):
        index.add(b"frame of b", b"b%d" % number, vectors[number], "b")
    index.save(tmp_path / "index")
    restored = FrameIndexes(DIMENSIONS, 20)
    assert restored.load(tmp_path / "index") == b""
    for each in (index, restored):
        for number in range(200):
            each.add(b"frame %d" % (number % 50), b"a%d" % number, vectors[number], "a")
        each.check()
        assert each.keys() == [b"b%d" % number for number in range(10)] + [b"a%d" % k for k in range(190, 200)]


def test_wrong_vectors_and_limits_are_refused() -> None:
    index = FrameIndexes(DIMENSIONS, 3)
    with pytest.raises(InvalidInput, match="must have 384 components, not 3"):
        index.add(b"frame", b"key", np.ones(3, np.float32))
    with pytest.raises(InvalidInput, match="at least 1, not 384 and 0"):
        FrameIndexes(DIMENSIONS, 0)


@pytest.mark.usefixtures("small_graphs")
def test_a_saved_index_finds_the_same_and_keeps_the_order_of_age(tmp_path: Path) -> None:
    path, vectors = tmp_path / "questions", unit_vectors(120)
    index = FrameIndexes(DIMENSIONS, 121)
    fill(index, vectors[:100])
    fill(index, vectors[100:], frame=b"other")  # takes over the first keys
    index.save(path, b"position 7")
    restored = FrameIndexes(DIMENSIONS, 121)
    assert restored.load(path) == b"position 7"
    restored.check()
    for frame in (b"frame", b"other"):
        assert restored.search(frame, vectors[3], 6) == index.search(frame, vectors[3], 6)
    for change in (index, restored):
        for number in range(60):
            change.add(b"other", b"new %d" % number, vectors[number])
        change.check()
    assert list(restored._questions) == list(index._questions)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["questions"]


def test_a_damaged_or_foreign_file_is_not_loaded(tmp_path: Path) -> None:
    path, vectors = tmp_path / "questions", unit_vectors(10)
    index = FrameIndexes(DIMENSIONS, 10)
    assert index.load(path) is None
    fill(index, vectors)
    index.save(path)
    assert FrameIndexes(DIMENSIONS, 10).load(path) == b""
    assert FrameIndexes(DIMENSIONS, 9).load(path) is None
    assert FrameIndexes(DIMENSIONS + 1, 10).load(path) is None
    whole = path.read_bytes()
    for damaged in (b"", whole[:10], whole[:-1], whole[:300] + bytes([whole[300] ^ 1]) + whole[301:]):
        path.write_bytes(damaged)
        assert index.load(path) is None
    index.check()
    assert len(index) == 10


def test_an_encrypted_file_is_loaded_with_its_key_only(tmp_path: Path) -> None:
    index, path = FrameIndexes(DIMENSIONS, 10), tmp_path / "questions"
    fill(index, unit_vectors(5))
    index.save(path, b"position", Encryption([bytes(32)]))
    assert index.load(path, Encryption([bytes(32)])) == b"position"
    assert index.load(path, Encryption([b"x" * 32])) is None
    assert b"position" not in path.read_bytes()


@pytest.mark.usefixtures("small_graphs")
def test_without_usearch_a_large_frame_is_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "usearch" else find(name))
    index, vectors = FrameIndexes(DIMENSIONS, 1000), unit_vectors(200)
    fill(index, vectors)
    assert not isinstance(index._frames[b"frame"], GraphFrame)
    assert index.search(b"frame", vectors[150], 1)[0][0] == b"150"


@pytest.mark.usefixtures("small_graphs")
def test_threads_may_search_while_others_add_and_remove() -> None:
    index, vectors = FrameIndexes(DIMENSIONS, 150), unit_vectors(600)
    failures: list[BaseException] = []

    def search() -> None:
        try:
            while len(index) < 150 or not done.is_set():
                index.search(b"frame", vectors[0], 6)
        except BaseException as error:
            failures.append(error)

    done = threading.Event()
    thread = threading.Thread(target=search)
    thread.start()
    fill(index, vectors)
    done.set()
    thread.join(30)
    assert not failures
    index.check()
