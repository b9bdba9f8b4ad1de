"""A search in the hex digits of many keys finds what a search in each of them finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knapcache.cache import key_array
from knapcache.cache.key_array import KeyArray

TEXTS = st.text("0123456789abcdefxyz", max_size=5) | st.sampled_from(["00", "000", "f" * 64, "f" * 65, "0f0", "FF"])


@given(
    st.lists(st.binary(min_size=32, max_size=32) | st.sampled_from([bytes(32), b"\xff" * 32]), max_size=9),
    TEXTS,
    st.sampled_from([1, 4, key_array.PART]),
)
def test_keys_that_contain_a_text(keys: list[bytes], text: str, part: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_array, "PART", part)
        found = KeyArray.of(keys).containing(text).tolist()
    assert found == [text != "" and text in key.hex() for key in keys]
