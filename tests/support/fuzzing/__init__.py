"""Fuzzers: seeded mutations of valid inputs, each with a judge that knows what must come out.

A fuzzer takes a number of cases and a seed, and returns counts. A failure names the case by its bytes, so it can be
turned into a test of its own. Tests run some thousand cases, bench/reliability.py and the long tests a million.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

Progress = Callable[[int], object]


def no_progress(_: int) -> None:
    pass


class Mutator:
    """Random changes to byte strings: bits, slices, and tokens that parsers care about."""

    def __init__(self, corpus: Sequence[bytes], tokens: Sequence[bytes], seed: int) -> None:
        self.rng = random.Random(seed)
        self._corpus, self._tokens = corpus, tokens
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip_bit, self._replace_byte, self._insert_token, self._insert_token, self._replace_by_token,
            self._delete, self._repeat, self._move, self._splice, self._truncate, self._insert_noise,
        )  # fmt: skip

    def cases(self, count: int) -> Iterator[bytes]:
        """Yield the corpus itself, and then mutations of it."""
        yield from self._corpus[:count]
        for _ in range(count - len(self._corpus)):
            yield self.mutate(self.rng.choice(self._corpus))

    def mutate(self, text: bytes) -> bytes:
        """Return a text with one to four changes."""
        changed = bytearray(text)
        for _ in range(self.rng.choice([1, 1, 2, 2, 3, 4])):
            self.rng.choice(self._changes)(changed)
        return bytes(changed)

    def _slice(self, text: bytearray, most: int = 24) -> tuple[int, int]:
        start = self.rng.randint(0, len(text))
        return start, min(len(text), start + self.rng.randint(0, most))

    def _flip_bit(self, text: bytearray) -> None:
        if text:
            text[self.rng.randrange(len(text))] ^= 1 << self.rng.randrange(8)

    def _replace_byte(self, text: bytearray) -> None:
        if text:
            text[self.rng.randrange(len(text))] = self.rng.choice(b'\0\t\n\r "#+,-.0159:;=[\\]{}\x7f\x80\xc3\xef\xff')

    def _insert_token(self, text: bytearray) -> None:
        at = self.rng.randint(0, len(text))
        text[at:at] = self.rng.choice(self._tokens)

    def _replace_by_token(self, text: bytearray) -> None:
        start, end = self._slice(text, 8)
        text[start:end] = self.rng.choice(self._tokens)

    def _delete(self, text: bytearray) -> None:
        start, end = self._slice(text)
        del text[start:end]

    def _repeat(self, text: bytearray) -> None:
        start, end = self._slice(text)
        text[end:end] = text[start:end] * self.rng.choice([1, 1, 2, 20])

    def _move(self, text: bytearray) -> None:
        start, end = self._slice(text)
        piece = text[start:end]
        del text[start:end]
        at = self.rng.randint(0, len(text))
        text[at:at] = piece

    def _splice(self, text: bytearray) -> None:
        other = self.rng.choice(self._corpus)
        at, start = self.rng.randint(0, len(text)), self.rng.randint(0, len(other))
        text[at:] = other[start:]

    def _truncate(self, text: bytearray) -> None:
        del text[self.rng.randint(0, len(text)) :]

    def _insert_noise(self, text: bytearray) -> None:
        at = self.rng.randint(0, len(text))
        text[at:at] = self.rng.randbytes(self.rng.randint(1, 4))


def pieces(rng: random.Random, text: bytes) -> list[bytes]:
    """Split a text at random places."""
    if rng.random() < 0.1:
        return [text[k : k + 1] for k in range(len(text))]
    places = sorted(rng.randint(0, len(text)) for _ in range(rng.choice([1, 2, 3, 8])))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
