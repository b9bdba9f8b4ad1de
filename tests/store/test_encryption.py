"""The codec: known answers, tampering, several keys, and the forms of a key."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.store import encryption
from knapcache.store.encryption import Encryption, checked_keys, parse_keys, read_keys, value_overhead

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


def test_a_value_can_be_decrypted_by_its_description() -> None:
    """The description in the module, transcribed with `cryptography` and hashlib alone."""
    first, second = Encryption([ONE]).encrypt(b"context", b"first part", b"second part")
    assert first[:1] == b"\1"
    assert first[1:9] == hashlib.blake2b(b"", digest_size=8, key=ONE, person=b"knapcache id").digest()
    subkey = hashlib.blake2b(first[9:33], digest_size=32, key=ONE, person=b"knapcache value").digest()
    assert AESGCM(subkey).decrypt(bytes(12), first[33:], b"context") == b"first part"
    assert AESGCM(subkey).decrypt(bytes(11) + b"\1", second, b"context") == b"second part"


def test_a_known_value_is_decrypted() -> None:
    """A format that changes by accident would make existing files unreadable."""
    value = bytes.fromhex(KNOWN_VALUE)
    assert Encryption([TWO, ONE]).decrypt(b"context", value) == [b"an answer"]


KNOWN_VALUE = (
    "013f91d46374871909a675e762249cba2f4044956f5ba39ef00a2a73d2ab21ad86"
    "086eb02222d41792210a698c809667fc128311b14c2a839c25"
)


@given(st.binary(max_size=300), st.binary(max_size=50), st.binary(max_size=3000))
def test_values_come_back_and_only_in_their_context(context: bytes, first: bytes, second: bytes) -> None:
    codec = Encryption([ONE])
    parts = codec.encrypt(context, first, second)
    assert sum(map(len, parts)) == len(first) + len(second) + value_overhead(2)
    assert codec.decrypt(context, *parts) == [first, second]
    assert codec.decrypt(context, parts[0]) == [first]
    assert codec.decrypt(context + b"x", *parts) is None
    assert codec.decrypt(context, parts[0], parts[0]) is None
    assert Encryption([TWO]).decrypt(context, *parts) is None
    assert Encryption([TWO, ONE]).decrypt(context, *parts) == [first, second]
    again = codec.encrypt(context, first, second)
    assert again[0][9:33] != parts[0][9:33], "a salt was used twice"


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_or_truncated_value_is_not_decrypted(plain: bytes, data: st.DataObject) -> None:
    codec = Encryption([ONE])
    (value,) = codec.encrypt(b"context", plain)
    place = data.draw(st.integers(0, len(value) - 1))
    changed = bytearray(value)
    changed[place] ^= data.draw(st.integers(1, 255))
    assert codec.decrypt(b"context", bytes(changed)) is None
    assert codec.decrypt(b"context", value[:place]) is None
    assert codec.decrypt(b"context", value + b"x") is None


def test_names_depend_on_the_key_and_reveal_nothing_of_it() -> None:
    key = hashlib.sha256(b"request").digest()
    one, two = Encryption([ONE]).names(key)[0], Encryption([TWO]).names(key)[0]
    assert one != two
    assert key not in (one, two)
    assert Encryption([TWO, ONE]).names(key) == (two, one)
    assert Encryption([ONE]).derived_key(b"a") != Encryption([ONE]).derived_key(b"b")


@pytest.mark.parametrize(
    "text",
    [ONE.hex(), ONE.hex().upper(), base64.b64encode(ONE).decode(), base64.urlsafe_b64encode(ONE).decode().rstrip("=")],
)
def test_keys_are_hex_or_base64(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_keys(text, "here") == (ONE,)
    assert parse_keys(f" {text}\n# ".replace("# ", "") + TWO.hex() + "\n", "here") == (ONE, TWO)
    assert checked_keys(text) == checked_keys(ONE) == checked_keys([ONE]) == (ONE,)
    assert checked_keys([text, TWO]) == (ONE, TWO)
    (tmp_path / "key").write_text(text + "\n")
    monkeypatch.setenv("SOME_KEY", text)
    assert read_keys(None, tmp_path / "key") == read_keys("SOME_KEY", None) == (ONE,)
    assert read_keys(None, None) == checked_keys(None) == ()


def test_other_keys_are_refused_without_showing_them(tmp_path: Path) -> None:
    for text in ("", "secret-password", ONE.hex()[:-2], ONE.hex() + "00", "é" * 44):
        with pytest.raises(InvalidInput, match="an encryption key must be 32 bytes: 64 hex digits, or 44") as error:
            parse_keys(text, "KEY_VARIABLE")
        assert "KEY_VARIABLE" in str(error.value)
        assert not text or text not in str(error.value)
    for value in (b"short", [], [b"short"], 5, [5]):
        with pytest.raises(InvalidInput, match="must be 32 bytes"):
            checked_keys(value)
    with pytest.raises(InvalidInput, match="given twice"):
        Encryption([ONE, ONE])
    with pytest.raises(InvalidInput, match="NO_SUCH_VARIABLE must have the encryption key, but it is not set"):
        read_keys("NO_SUCH_VARIABLE", None)
    with pytest.raises(InvalidInput, match="cannot read the encryption key"):
        read_keys(None, tmp_path / "missing")
    with pytest.raises(InvalidInput, match="not from both"):
        read_keys("A", tmp_path)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("encryption"))):
        encryption.Encryption([ONE])
