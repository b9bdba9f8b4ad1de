"""The timed T5 at tiny shapes: decoding with caches equals the formula without caches.

Needs PyTorch, which is not among the development dependencies: `pip install torch` in a separate environment.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest

from tests.support.programs import find_module

pytestmark = pytest.mark.tools

find_module("torch", "the package torch")

import torch  # noqa: E402

from measure import t5  # noqa: E402


def reference_logits(model: t5.T5, prompt: list[int], generated: list[int]) -> torch.Tensor:
    """Return the logits after `generated`, without caches and padding, with attention written out."""
    s, start = model.shape, [0, *generated]

    def heads(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        split = (x @ w.T).reshape(len(x), -1, s.heads, s.head)
        return [split[:, k] for k in range(split.shape[1])]

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("ahd,bhd->hab", q, k) + bias
        return torch.einsum("hab,bhd->ahd", scores.softmax(-1), v).reshape(len(q), -1)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    def feed_forward(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        gate, up = (norm(x) @ w["wi"].T).split(s.inner, dim=-1)
        activated = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        return x + (activated * up) @ w["wo"].T

    x = model.embedding[prompt]
    encoder_bias = model.encoder_bias[32][0][:, : len(prompt), : len(prompt)]
    for w in model.encoder:
        q, k, v = heads(norm(x), w["qkv"])
        x = feed_forward(x + attention(q, k, v, encoder_bias) @ w["o"].T, w)
    encoded, x = norm(x), model.embedding[start]
    decoder_bias = model.decoder_bias[: len(start), :, : len(start)].transpose(0, 1)
    for w in model.decoder:
        q, k, v = heads(norm(x), w["qkv"])
        x = x + attention(q, k, v, decoder_bias) @ w["o"].T
        (q,) = heads(norm(x), w["cq"])
        k, v = heads(encoded, w["ckv"])
        x = feed_forward(x + attention(q, k, v, torch.zeros(1)) @ w["co"].T, w)
    return norm(x[-1]) @ model.head.T


def test_decoding_with_caches_equals_the_formula() -> None:
    torch.manual_seed(3)
    with torch.inference_mode():
        model = t5.T5(t5.TINY, "cpu", torch.float32)
        runner = t5.T5Runner(model)
        for prompt in ([5, 17, 3], list(range(20))):
            for length in (1, 2, 9):
                seconds, generated = runner.generate(prompt, length)
                assert seconds > 0.0
                assert len(generated) == length
                assert all(0 <= token < t5.TINY.vocabulary for token in generated)
                torch.testing.assert_close(
                    model.logits[0], reference_logits(model, prompt, generated[:-1]), rtol=1e-4, atol=1e-4
                )


def test_relative_positions_have_the_buckets_of_t5() -> None:
    """Known values: distances 0 … 7 have their own buckets, 8 … 11 share one, and all from 128 on share the last."""
    table = torch.arange(32.0)[:, None]
    both = t5.position_bias(t5.Shape(), table, 200, 200, True)[0, 0]
    assert both[0, :9].tolist() == [0, 17, 18, 19, 20, 21, 22, 23, 24]
    assert both[199, 199 - 127].item() == 15
    past = t5.position_bias(t5.Shape(), table, 200, 200, False)[0, 0]
    assert [past[190, 190 - d].item() for d in (0, 1, 15, 16, 127, 150)] == [0, 1, 15, 16, 31, 31]
    assert past[0, 5].item() == 0


def test_the_full_shape_has_the_published_number_of_parameters() -> None:
    s = t5.Shape()
    attention = 4 * s.width * s.heads * s.head
    layer = attention + 3 * s.width * s.inner
    total = s.layers * (2 * layer + attention) + 2 * s.vocabulary * s.width
    assert total == pytest.approx(2.85e9, rel=0.01)


def test_the_script_reads_calls_and_writes_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, times = tmp_path / "calls.csv", tmp_path / "times.csv"
    calls.write_text("# about: nothing\nprompt,sample,prompt_tokens,answer_tokens\n7,0,3,2\n7,1,3,4\n9,0,40,1\n")
    monkeypatch.setattr(sys, "argv", ["t5.py", str(calls), str(times), "--tiny", "--first", "1"])
    t5.main()
    lines = times.read_text().splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == ["# model", "# hardware", "# date", "# method"]
    found = list(csv.DictReader(lines[4:]))
    assert len(found) == 2  # the first of three was skipped
    assert all(float(r["seconds"]) > 0.0 for r in found)
    assert {int(r["prompt"]) for r in found} <= {7, 9}
