"""Measure the latency of an encoder-decoder of the shape of T5-3B at batch size 1.

FastChat-T5-3B has the shape of T5 1.1 XL: 24 + 24 layers, d_model 2048, gated d_ff 5120, 32 heads of 64, vocabulary
32128, relative positions in 32 buckets; 2.85 B parameters, bfloat16. The time of a call depends on these shapes and on
the lengths of prompt and answer, not on the values of the weights: every matrix is dense, and every step reads all of
them. So the weights are random and the answer length is args. Everything else is done as in a server: ids are copied
to the GPU, the encoder runs, and each step attends, samples a token at temperature 1 and copies it to the host, where a
server would compare it with the end token.

    seconds = time when the last token is on the host − time before the first id is copied

Launched kernel by kernel, a step mostly waits for Python. So encoder and step are CUDA graphs, captured once for each
padded prompt length, over key and value caches at fixed addresses. A token takes about 2.2 ms on an H200.

This file needs PyTorch only. It reads the calls and writes the times:

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
import torch.nn.functional as F  # noqa: N812  # the customary name

PADDED_LENGTHS = (32, 64, 128, 256, 512)
MAX_LENGTH = 512


@dataclass(frozen=True)
class Shape:
    """Dimensions of a T5 model."""

    layers: int = 24
    width: int = 2048
    inner: int = 5120
    heads: int = 32
    head: int = 64
    vocabulary: int = 32128
    buckets: int = 32
    max_distance: int = 128


TINY = Shape(layers=2, width=32, inner=48, heads=4, head=8, vocabulary=97)


def position_bias(shape: Shape, table: torch.Tensor, queries: int, keys: int, bidirectional: bool) -> torch.Tensor:
    """Return T5's attention bias, [1, heads, queries, keys]. Short distances have their own buckets, long ones
    share.
    """
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    buckets, start = shape.buckets, torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        start = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    shared = exact + (distance.clamp(min=1) / exact).log() / math.log(shape.max_distance / exact) * (buckets - exact)
    bucket = start + torch.where(distance < exact, distance, shared.long().clamp(max=buckets - 1))
    return table[bucket.to(table.device)].permute(2, 0, 1)[None]


class T5:
    """Weights, key and value caches, and the two functions captured as graphs: `encode` and `step`."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype) -> None:
        self.shape, self.device = shape, device
        self.parameters = 0
        d, a, f = shape.width, shape.heads * shape.head, shape.inner

        def weights(out: int, into: int) -> torch.Tensor:
            self.parameters += out * into
            return (torch.randn(out, into, device=device) * into**-0.5).to(dtype)

        def layer(cross_attention: bool) -> dict[str, torch.Tensor]:
            matrices = {"qkv": weights(3 * a, d), "o": weights(d, a), "wi": weights(2 * f, d), "wo": weights(d, f)}
            if cross_attention:
                matrices |= {"cq": weights(a, d), "ckv": weights(2 * a, d), "co": weights(d, a)}
            return matrices

        self.encoder = [layer(False) for _ in range(shape.layers)]
        self.decoder = [layer(True) for _ in range(shape.layers)]
        self.embedding, self.head = weights(shape.vocabulary, d), weights(shape.vocabulary, d)
        tables = [weights(shape.buckets, shape.heads) for _ in range(2)]
        self.scale = torch.ones(d, device=device, dtype=dtype)
        self.parameters += (5 * shape.layers + 2) * d
        self.encoder_bias = {n: position_bias(shape, tables[0], n, n, True) for n in PADDED_LENGTHS}
        causal = torch.full((MAX_LENGTH, MAX_LENGTH), -math.inf, device=device, dtype=dtype).triu(1)
        self.decoder_bias = (
            (position_bias(shape, tables[1], MAX_LENGTH, MAX_LENGTH, False) + causal)[0].transpose(0, 1).contiguous()
        )

        def cache(n: int) -> torch.Tensor:
            return torch.zeros(shape.layers, 2, 1, shape.heads, n, shape.head, device=device, dtype=dtype)

        self.self_cache, self.cross_cache = cache(MAX_LENGTH), {n: cache(n) for n in PADDED_LENGTHS}
        self.ids = {n: torch.zeros(1, n, dtype=torch.long, device=device) for n in PADDED_LENGTHS}
        self.length = torch.ones(1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.token = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.logits = torch.zeros(1, shape.vocabulary, device=device)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """Root mean square norm. T5 has no biases."""
        return F.rms_norm(x, (self.shape.width,), self.scale, 1e-6)

    def split_heads(self, x: torch.Tensor, parts: int) -> torch.Tensor:
        """[1, n, parts·heads·head] → [parts, 1, heads, n, head]."""
        return x.view(1, -1, parts, self.shape.heads, self.shape.head).permute(2, 0, 3, 1, 4)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Attention without the factor 1/√head, which T5 folds into the weights."""
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return mixed.transpose(1, 2).reshape(1, -1, self.shape.heads * self.shape.head)

    def feed_forward(self, x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        """The gated feed-forward layer."""
        gate, up = F.linear(self.norm(x), w["wi"]).chunk(2, dim=-1)
        return x + F.linear(F.gelu(gate, approximate="tanh") * up, w["wo"])

    def padding_mask(self, n: int) -> torch.Tensor:
        """Return −∞ for keys after the end of the prompt."""
        mask = torch.zeros(1, 1, 1, n, device=self.device, dtype=self.scale.dtype)
        return mask.masked_fill(torch.arange(n, device=self.device) >= self.length, -math.inf)

    def encode(self, n: int) -> None:
        """Encode the prompt, padded to n, and fill the cross-attention cache of every decoder layer."""
        x = self.embedding[self.ids[n]]
        bias = self.encoder_bias[n] + self.padding_mask(n)
        for w in self.encoder:
            q, k, v = self.split_heads(F.linear(self.norm(x), w["qkv"]), 3)
            x = self.feed_forward(x + F.linear(self.attend(q, k, v, bias), w["o"]), w)
        x = self.norm(x)
        for cache, w in zip(self.cross_cache[n], self.decoder, strict=True):
            cache.copy_(self.split_heads(F.linear(x, w["ckv"]), 2))
        self.position.zero_()
        self.token.zero_()  # T5 starts answers with its padding token

    def step(self, n: int) -> None:
        """Generate one token."""
        x = self.embedding[self.token]
        bias, mask = self.decoder_bias[self.position][:, :, None, :], self.padding_mask(n)
        for own, cross, w in zip(self.self_cache, self.cross_cache[n], self.decoder, strict=True):
            q, k, v = self.split_heads(F.linear(self.norm(x), w["qkv"]), 3)
            own[0].index_copy_(2, self.position, k)
            own[1].index_copy_(2, self.position, v)
            x = x + F.linear(self.attend(q, own[0], own[1], bias), w["o"])
            (q,) = self.split_heads(F.linear(self.norm(x), w["cq"]), 1)
            x = x + F.linear(self.attend(q, cross[0], cross[1], mask), w["co"])
            x = self.feed_forward(x, w)
        self.logits.copy_(F.linear(self.norm(x), self.head)[0])
        # Temperature 1: argmax of p/E with E exponential is a sample of p, and needs no transfer to the host.
        probabilities = self.logits.softmax(-1)
        self.token.copy_((probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1, keepdim=True))
        self.position.add_(1)


def capture(work: Callable[[], None]) -> Callable[[], None]:
    """Return a function that replays the work as one CUDA graph."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


class T5Runner:
    """Runs one call at a time, with captured graphs on a GPU."""

    def __init__(self, model: T5) -> None:
        self.model = model
        on_cpu = model.device == "cpu"
        graphs: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}
        for n in PADDED_LENGTHS:
            encode, step = (lambda n=n: model.encode(n)), (lambda n=n: model.step(n))
            model.position.zero_()
            graphs[n] = (encode, step) if on_cpu else (capture(encode), capture(step))
        self.graphs = graphs

    def generate(self, prompt: list[int], tokens: int) -> tuple[float, list[int]]:
        """Generate this many tokens; return the seconds and the tokens."""
        n = next(n for n in PADDED_LENGTHS if n >= len(prompt))
        encode, step = self.graphs[n]
        model, generated = self.model, []
        start = time.perf_counter()
        model.ids[n].copy_(torch.tensor([prompt + [0] * (n - len(prompt))]))
        model.length.fill_(len(prompt))
        encode()
        for _ in range(tokens):
            step()
            generated.append(int(model.token))  # waits for the GPU
        return time.perf_counter() - start, generated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", help="CSV file with prompt,sample,prompt_tokens,answer_tokens")
    parser.add_argument("times", help="CSV file to write: the same columns and seconds")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no call after this many seconds of calls")
    parser.add_argument("--first", type=int, default=0, help="number of calls to skip, in random order")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand weights, to test this file")
    args = parser.parse_args()
    with open(args.calls, encoding="utf-8") as lines:
        calls = [{k: int(v) for k, v in r.items()} for r in csv.DictReader(x for x in lines if x[0] != "#")]
    random.Random(0).shuffle(calls)  # drift of the machine must not correlate with prompts
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.inference_mode():
        model = T5(TINY if args.tiny else Shape(), device, torch.bfloat16 if device == "cuda" else torch.float32)
        runner = T5Runner(model)
        ids = random.Random(1)

        def time_call(call: dict[str, int]) -> float:
            prompt = [ids.randrange(model.shape.vocabulary) for _ in range(call["prompt_tokens"])]
            return runner.generate(prompt, call["answer_tokens"])[0]

        for call in calls[:20]:
            time_call(call)
        done: list[dict[str, int | float]] = []
        spent = 0.0
        for call in calls[args.first :]:
            if spent > args.seconds:
                break
            seconds = time_call(call)
            done.append({**call, "seconds": round(seconds, 6)})
            spent += seconds
    hardware = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    about = {
        "model": f"T5-3B shape (FastChat-T5-3B), {model.parameters / 1e9:.3f} B random weights, {model.scale.dtype}",
        "hardware": f"one {hardware}, PyTorch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "method": "batch 1, CUDA graphs, a token to the host each step; answer lengths given; calls in random order",
    }
    with open(args.times, "w", encoding="utf-8", newline="") as out:
        out.writelines(f"# {k}: {v}\n" for k, v in about.items())
        table = csv.DictWriter(out, list(done[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(done)
    tokens = sum(r["answer_tokens"] for r in done)
    print(f"{args.first} … {args.first + len(done)} of {len(calls)} calls, {1e3 * spent / tokens:.3f} ms a token")


if __name__ == "__main__":
    main()
