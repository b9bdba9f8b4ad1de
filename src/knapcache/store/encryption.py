"""Encryption at rest: AES-256-GCM for the bytes that a store writes. It knows nothing of the store's format.

    key id   = BLAKE2b-64 of the key K; names the key, and does not reveal it
    subkey   = BLAKE2b-256(salt, key = K), a new random salt of 24 bytes for each value
    part i   = AES-256-GCM(subkey, nonce = i, AAD = context)
    value    = version (1 byte), key id (8), salt (24), part 0 with its tag (16); further parts follow with their tags
    name     = BLAKE2b-256(cache key, key = index key of K), under which an entry is stored

Why a subkey for each value: with one key and random nonces of 96 bits, AES-GCM allows 2^32 values. A repeated nonce
would reveal both. With a random salt of 192 bits, subkeys do not repeat, so there is no limit and nothing to count.

The context binds a value to its place: the kind of value, and for an entry its name and numbers. Values that were
swapped, or moved to another kind, do not decrypt. Names hide the cache keys: who knows the secret of the keys could
otherwise test guesses of a request.

Several keys: the first encrypts, all of them decrypt. `cryptography` is imported when the first `Encryption` is built.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from knapcache.errors import InvalidInput, MissingExtra, install_command

KEY_BYTES = 32
KEY_ID_BYTES = 8
ALLOWED_KEYS = "32 bytes: 64 hex digits, or 44 characters of base64"
_VERSION = b"\1"
_SALT_BYTES, _TAG_BYTES = 24, 16
_HEADER_BYTES = len(_VERSION) + KEY_ID_BYTES + _SALT_BYTES
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{43}=?")


def value_overhead(parts: int = 1) -> int:
    """Return by how many bytes a value of `parts` parts is longer than its plain text."""
    return _HEADER_BYTES + _TAG_BYTES * parts


class Encryption:
    """Encrypts with the first key, decrypts with all."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(not isinstance(key, bytes) or len(key) != KEY_BYTES for key in keys):
            raise InvalidInput(f"an encryption key must be {ALLOWED_KEYS}")
        self._cipher = _aes_gcm()
        self._keys = {_key_id(key): key for key in keys}
        if len(self._keys) != len(keys):
            raise InvalidInput("the same encryption key was given twice")
        self.key_ids = tuple(self._keys)
        """Of all keys; the first encrypts."""
        self._index_keys = tuple(_derive(key, b"index") for key in keys)

    def names(self, key: bytes) -> tuple[bytes, ...]:
        """Return the names under which an entry may be stored: first that for new entries."""
        return tuple(hashlib.blake2b(key, digest_size=32, key=index).digest() for index in self._index_keys)

    def derived_key(self, purpose: bytes) -> bytes:
        """Return a key of 32 bytes for another purpose, from the first key."""
        return _derive(self._keys[self.key_ids[0]], purpose)

    def encrypt(self, context: bytes, *parts: bytes) -> list[bytes]:
        """Return the encrypted parts."""
        key_id, salt = self.key_ids[0], os.urandom(_SALT_BYTES)
        cipher = self._cipher(_subkey(self._keys[key_id], salt))
        found: list[bytes] = [cipher.encrypt(_nonce(k), part, context) for k, part in enumerate(parts)]
        found[0] = b"".join((_VERSION, key_id, salt, found[0]))
        return found

    def decrypt(self, context: bytes, *parts: bytes) -> list[bytes] | None:
        """Return the decrypted parts, or the first of them; None if one was changed or its key is not known."""
        first = parts[0]
        key = self._keys.get(first[1 : 1 + KEY_ID_BYTES])
        if first[:1] != _VERSION or key is None:
            return None
        cipher = self._cipher(_subkey(key, first[1 + KEY_ID_BYTES : _HEADER_BYTES]))
        try:
            decrypted = [cipher.decrypt(_nonce(0), first[_HEADER_BYTES:], context)]
            decrypted += [cipher.decrypt(_nonce(k), part, context) for k, part in enumerate(parts[1:], 1)]
        except _invalid_tag():
            return None
        return decrypted


def checked_keys(value: Any) -> tuple[bytes, ...]:
    """Return keys from bytes, text, or a sequence of either; none from None."""
    if value is None:
        return ()
    if isinstance(value, bytes):
        value = [value]
    elif isinstance(value, str):
        return parse_keys(value, "encryption_key")
    if not isinstance(value, (list, tuple)) or not value:
        raise InvalidInput(f"encryption_key must be {ALLOWED_KEYS}; or a list of keys, of which the first encrypts")
    keys: list[Any] = []
    for key in value:
        keys += parse_keys(key, "encryption_key") if isinstance(key, str) else [key]
    if any(not isinstance(key, bytes) or len(key) != KEY_BYTES for key in keys):
        raise InvalidInput(f"encryption_key must be {ALLOWED_KEYS}")
    return tuple(keys)


def parse_keys(text: str, source: str) -> tuple[bytes, ...]:
    """Return the keys in a text, separated by spaces, commas or lines. Messages name the source, never the text."""
    keys = []
    for word in re.split(r"[\s,]+", text.strip()):
        if _HEX.fullmatch(word):
            keys.append(bytes.fromhex(word))
        elif _BASE64.fullmatch(word):
            try:
                keys.append(base64.b64decode(word.rstrip("=") + "=", altchars=b"-_" if set(word) & set("-_") else None))
            except binascii.Error:
                raise InvalidInput(f"{source}: an encryption key must be {ALLOWED_KEYS}") from None
        else:
            raise InvalidInput(
                f"{source}: an encryption key must be {ALLOWED_KEYS}; found a word of {len(word)} characters"
            )
    return tuple(keys)


def read_keys(variable: str | None, file: str | os.PathLike[str] | None) -> tuple[bytes, ...]:
    """Return the keys in an environment variable or in a file; none if neither is given."""
    if variable is not None and file is not None:
        raise InvalidInput("the encryption key must come from a variable or from a file, not from both")
    if variable is not None:
        text = os.environ.get(variable, "")
        if not text.strip():
            raise InvalidInput(f"the environment variable {variable} must have the encryption key, but it is not set")
        return parse_keys(text, variable)
    if file is not None:
        try:
            text = Path(file).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise InvalidInput(f"cannot read the encryption key: {error}") from None
        return parse_keys(text, str(file))
    return ()


def describe(key_ids: Sequence[bytes]) -> str:
    """Return key ids for messages."""
    return ", ".join(key_id.hex() for key_id in key_ids)


def _key_id(key: bytes) -> bytes:
    return hashlib.blake2b(b"", digest_size=KEY_ID_BYTES, key=key, person=b"knapcache id").digest()


def _subkey(key: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(salt, digest_size=32, key=key, person=b"knapcache value").digest()


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, digest_size=32, key=key, person=b"knapcache other").digest()


def _nonce(part: int) -> bytes:
    return part.to_bytes(12, "big")


def _aes_gcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtra(f"encryption needs cryptography: {install_command('encryption')}") from None
    return AESGCM


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
