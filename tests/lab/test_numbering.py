"""Keys are numbered in the order of first appearance, as with a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import CorruptState, InvalidInput
from knapcache.lab.numbering import BLOCK, Numbering, trace_of_keys


def by_dict(keys: list[int]) -> list[int]:
    ids: dict[int, int] = {}
    return [ids.setdefault(key, len(ids)) for key in keys]


KEYS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5) | st.integers(0, 9).map(lambda k: k << 60), max_size=80)


@given(st.lists(KEYS, max_size=4))
def test_numbering_in_pieces_equals_a_dict(pieces: list[list[int]]) -> None:
    numbering = Numbering()
    found = [i for piece in pieces for i in numbering.number(np.array(piece, np.uint64)).tolist()]
    whole = [key for piece in pieces for key in piece]
    assert found == by_dict(whole)
    assert numbering.names.tolist() == list(dict.fromkeys(whole))
    numbering.check()


@pytest.mark.parametrize("step", [1, 2**20, 2**32, 2**44, 2**32 + 1])
def test_the_table_grows_and_keeps_every_id(step: int) -> None:
    keys = np.arange(5 * BLOCK + 3, dtype=np.uint64) * np.uint64(step)
    numbering = Numbering()
    new = len(np.unique(keys))
    assert numbering.number(keys).tolist()[:new] == list(range(new))
    assert numbering.number(keys[::-1].copy())[-1] == 0
    assert len(numbering) == new
    numbering.check()


def test_a_field_of_packed_records_is_accepted() -> None:
    packed = np.zeros(5, np.dtype([("time", "<u4"), ("id", "<u8")]))
    packed["id"] = [7, 8, 7, 2**64 - 1, 8]
    assert Numbering().number(packed["id"]).tolist() == [0, 1, 0, 2, 1]


def test_check_finds_a_lost_key() -> None:
    numbering = Numbering()
    numbering.number(np.arange(10, dtype=np.uint64))
    numbering._table["number"][numbering._table["key"] == 4] = 0
    with pytest.raises(CorruptState, match="lost keys"):
        numbering.check()


@pytest.mark.parametrize("keys", [np.array([1, 2]), np.array([1.0]), np.zeros((2, 2), np.uint64)])
def test_keys_of_other_types_are_rejected(keys: Any) -> None:
    with pytest.raises(InvalidInput, match="flat array of uint64"):
        Numbering().number(keys)


def test_trace_of_keys() -> None:
    trace = trace_of_keys(np.array([9, 3, 9], np.uint64), np.array([5, 1, 5]), np.array([1.0, 2.0, 0.0]))
    assert trace.keys.tolist() == [0, 1, 0]
    assert trace.names == [9, 3]
    assert trace.ids == 2
