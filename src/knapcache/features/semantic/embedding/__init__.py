"""Embeddings: a vector for each text, so that texts that mean the same have a cosine near 1.

`local_embedder` returns the model that runs on this machine (minilm.py). Nothing here imports its packages before it is
called: they are an extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Embedder(Protocol):
    """A model of embeddings. Its methods may be called by several threads at the same time."""

    @property
    def build(self) -> str:
        """Identity of the model. Embedders with the same build give the same vectors for the same text.

        Labels and certificates hold for one build only.
        """

    @property
    def dimensions(self) -> int:
        """Components of a vector."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length 1 for each text, as rows."""

    def tokens(self, text: str) -> int:
        """Return how many tokens a text has."""


def check_local_embedder() -> None:
    """Raise MissingExtra if `local_embedder` would. It takes no time."""
    from knapcache.features.semantic.embedding.minilm import find_installed

    find_installed()


def local_embedder() -> Embedder:
    """Return the embedding model of this machine. The first call on a machine builds its file, in about a second.

    Raises MissingExtra, with the command that installs them, if its packages or weights are missing.
    """
    from knapcache.features.semantic.embedding.minilm import load_minilm

    return load_minilm()
