"""Latency of a T5-3B-shaped encoder-decoder, batch 1, as a server would run it.

FastChat-T5-3B has the shape of T5 1.1 XL: 24 + 24 layers, d_model 2048, gated d_ff 5120, 32 heads of 64,
vocabulary 32128, relative positions in 32 buckets; 2.85 B parameters, bfloat16. What a call takes depends on
these shapes and on the two lengths, not on what the weights are: every matrix is dense and every step reads all
of them. So the weights here are random and the length of the answer is given; everything else is done: ids go to
the GPU, the encoder runs, each step attends, samples a token at temperature 1 and brings it to the host, where a
server would compare it with the end mark.

    seconds = clock after the last token is on the host − clock before the first id leaves it

A step launched kernel by kernel waits for Python most of the time. Here encoder and step are CUDA graphs, captured
once for each length to which prompts are padded, over caches of keys and values that never move; a token takes
some 2.2 ms on an H200.

This file needs PyTorch and nothing else; it reads the calls and writes the times:

    python t5.py CALLS.csv TIMES.csv [--seconds 500] [--first 0] [--tiny]
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

PADDED = (32, 64, 128, 256, 512)
LONGEST = 512


@dataclass(frozen=True)
class Shape:
    """The numbers that make a T5."""

    layers: int = 24
    width: int = 2048
    inner: int = 5120
    heads: int = 32
    head: int = 64
    words: int = 32128
    buckets: int = 32
    far: int = 128


TINY = Shape(layers=2, width=32, inner=48, heads=4, head=8, words=97)


def relative(shape: Shape, table: torch.Tensor, queries: int, keys: int, both: bool) -> torch.Tensor:
    """T5's bias on attention, [1, heads, queries, keys]: near distances have a bucket each, far ones share."""
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    buckets, start = shape.buckets, torch.zeros_like(distance)
    if both:
        buckets //= 2
        start = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    near = buckets // 2
    far = near + (distance.clamp(min=1) / near).log() / math.log(shape.far / near) * (buckets - near)
    bucket = start + torch.where(distance < near, distance, far.long().clamp(max=buckets - 1))
    return table[bucket.to(table.device)].permute(2, 0, 1)[None]


class T5:
    """Weights, caches, and the two functions that are captured: `encode` and `step`."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype) -> None:
        self.shape, self.device = shape, device
        self.parameters = 0
        d, a, f = shape.width, shape.heads * shape.head, shape.inner

        def weights(out: int, into: int) -> torch.Tensor:
            self.parameters += out * into
            return (torch.randn(out, into, device=device) * into**-0.5).to(dtype)

        def layer(crossed: bool) -> dict[str, torch.Tensor]:
            made = {"qkv": weights(3 * a, d), "o": weights(d, a), "wi": weights(2 * f, d), "wo": weights(d, f)}
            if crossed:
                made |= {"cq": weights(a, d), "ckv": weights(2 * a, d), "co": weights(d, a)}
            return made

        self.encoder = [layer(False) for _ in range(shape.layers)]
        self.decoder = [layer(True) for _ in range(shape.layers)]
        self.embedding, self.head = weights(shape.words, d), weights(shape.words, d)
        tables = [weights(shape.buckets, shape.heads) for _ in range(2)]
        self.scale = torch.ones(d, device=device, dtype=dtype)
        self.parameters += (5 * shape.layers + 2) * d
        self.near = {n: relative(shape, tables[0], n, n, True) for n in PADDED}
        past = torch.full((LONGEST, LONGEST), -math.inf, device=device, dtype=dtype).triu(1)
        self.past = (relative(shape, tables[1], LONGEST, LONGEST, False) + past)[0].transpose(0, 1).contiguous()

        def cache(n: int) -> torch.Tensor:
            return torch.zeros(shape.layers, 2, 1, shape.heads, n, shape.head, device=device, dtype=dtype)

        self.own, self.other = cache(LONGEST), {n: cache(n) for n in PADDED}
        self.ids = {n: torch.zeros(1, n, dtype=torch.long, device=device) for n in PADDED}
        self.length = torch.ones(1, dtype=torch.long, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.token = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.logits = torch.zeros(1, shape.words, device=device)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """Root mean square norm; T5 has no bias anywhere."""
        return F.rms_norm(x, (self.shape.width,), self.scale, 1e-6)

    def apart(self, x: torch.Tensor, parts: int) -> torch.Tensor:
        """[1, n, parts·heads·head] → [parts, 1, heads, n, head]."""
        return x.view(1, -1, parts, self.shape.heads, self.shape.head).permute(2, 0, 3, 1, 4)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Attention without the usual 1/√head: T5 leaves it to the weights."""
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return mixed.transpose(1, 2).reshape(1, -1, self.shape.heads * self.shape.head)

    def feed(self, x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        """The gated layer."""
        gate, up = F.linear(self.norm(x), w["wi"]).chunk(2, dim=-1)
        return x + F.linear(F.gelu(gate, approximate="tanh") * up, w["wo"])

    def padding(self, n: int) -> torch.Tensor:
        """−∞ on keys behind the end of the prompt."""
        mask = torch.zeros(1, 1, 1, n, device=self.device, dtype=self.scale.dtype)
        return mask.masked_fill(torch.arange(n, device=self.device) >= self.length, -math.inf)

    def encode(self, n: int) -> None:
        """The prompt, padded to n: what the decoder will look at, for each of its layers."""
        x = self.embedding[self.ids[n]]
        bias = self.near[n] + self.padding(n)
        for w in self.encoder:
            q, k, v = self.apart(F.linear(self.norm(x), w["qkv"]), 3)
            x = self.feed(x + F.linear(self.attend(q, k, v, bias), w["o"]), w)
        x = self.norm(x)
        for kept, w in zip(self.other[n], self.decoder, strict=True):
            kept.copy_(self.apart(F.linear(x, w["ckv"]), 2))
        self.at.zero_()
        self.token.zero_()  # T5 starts an answer with its padding token

    def step(self, n: int) -> None:
        """One token."""
        x = self.embedding[self.token]
        bias, hidden = self.past[self.at][:, :, None, :], self.padding(n)
        for own, other, w in zip(self.own, self.other[n], self.decoder, strict=True):
            q, k, v = self.apart(F.linear(self.norm(x), w["qkv"]), 3)
            own[0].index_copy_(2, self.at, k)
            own[1].index_copy_(2, self.at, v)
            x = x + F.linear(self.attend(q, own[0], own[1], bias), w["o"])
            (q,) = self.apart(F.linear(self.norm(x), w["cq"]), 1)
            x = x + F.linear(self.attend(q, other[0], other[1], hidden), w["co"])
            x = self.feed(x, w)
        self.logits.copy_(F.linear(self.norm(x), self.head)[0])
        # Temperature 1: argmax of p/E with E exponential is a draw from p, and needs no look from the host.
        chance = self.logits.softmax(-1)
        self.token.copy_((chance / torch.empty_like(chance).exponential_()).argmax(-1, keepdim=True))
        self.at.add_(1)


def capture(work: Callable[[], None]) -> Callable[[], None]:
    """The same work as one graph."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


class T5Runner:
    """Answers one call at a time."""

    def __init__(self, model: T5) -> None:
        self.model = model
        plain = model.device == "cpu"
        made: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}
        for n in PADDED:
            encode, step = (lambda n=n: model.encode(n)), (lambda n=n: model.step(n))
            model.at.zero_()
            made[n] = (encode, step) if plain else (capture(encode), capture(step))
        self.made = made

    def answer(self, prompt: list[int], tokens: int) -> tuple[float, list[int]]:
        """Seconds, and the tokens."""
        n = next(n for n in PADDED if n >= len(prompt))
        encode, step = self.made[n]
        model, said = self.model, []
        began = time.perf_counter()
        model.ids[n].copy_(torch.tensor([prompt + [0] * (n - len(prompt))]))
        model.length.fill_(len(prompt))
        encode()
        for _ in range(tokens):
            step()
            said.append(int(model.token))  # waits for the GPU
        return time.perf_counter() - began, said


def main() -> None:
    """Read the calls, warm up, time them in random order, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", help="CSV with prompt,sample,prompt_tokens,answer_tokens")
    parser.add_argument("times", help="the same with seconds")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no call after so many seconds of calls")
    parser.add_argument("--first", type=int, default=0, help="calls to leave out, of those in random order")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand weights: a test of this file")
    given = parser.parse_args()
    with open(given.calls, encoding="utf-8") as lines:
        calls = [{k: int(v) for k, v in r.items()} for r in csv.DictReader(x for x in lines if x[0] != "#")]
    random.Random(0).shuffle(calls)  # what drifts while this runs must not look like a property of a prompt
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.inference_mode():
        model = T5(TINY if given.tiny else Shape(), device, torch.bfloat16 if device == "cuda" else torch.float32)
        server = T5Runner(model)
        ids = random.Random(1)

        def ask(call: dict[str, int]) -> float:
            prompt = [ids.randrange(model.shape.words) for _ in range(call["prompt_tokens"])]
            return server.answer(prompt, call["answer_tokens"])[0]

        for call in calls[:20]:
            ask(call)
        done: list[dict[str, int | float]] = []
        spent = 0.0
        for call in calls[given.first :]:
            if spent > given.seconds:
                break
            seconds = ask(call)
            done.append({**call, "seconds": round(seconds, 6)})
            spent += seconds
    hardware = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    about = {
        "model": f"T5-3B shape (FastChat-T5-3B), {model.parameters / 1e9:.3f} B random weights, {model.scale.dtype}",
        "hardware": f"one {hardware}, PyTorch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "method": "batch 1, CUDA graphs, a token to the host each step; answer lengths given; calls in random order",
    }
    with open(given.times, "w", encoding="utf-8", newline="") as out:
        out.writelines(f"# {k}: {v}\n" for k, v in about.items())
        table = csv.DictWriter(out, list(done[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(done)
    tokens = sum(r["answer_tokens"] for r in done)
    print(f"{given.first} … {given.first + len(done)} of {len(calls)} calls, {1e3 * spent / tokens:.3f} ms a token")


if __name__ == "__main__":
    main()
