"""Builds the ONNX file of all-MiniLM-L6-v2 from its weights, with matrix products in int8.

The network is BERT: 6 layers of attention and a feed-forward part, 384 channels; then the mean over the tokens, at
length 1. A linear part y = x Wᵀ + b is computed as

    y = (r / 127) · (u8(127 x′ / r + 128) − 128) · s8(W′/s) · s + x″ W″ᵀ + b

- x″ are a few channels that are ten times larger than the others whatever the text is (OUTLIERS, LARGE_ACTIVATIONS).
  They stay float32. x′ has zeros in their place: with them, one step of the quantisation would be too coarse.
- r = max |x′| of the row, so each token has its own scale, and no row depends on another one.
- s is the scale of an output channel. |W′/s| ≤ 64: with 7 bits, the sum of two products fits in 16 bits, as CPUs
  without VNNI instructions compute it. So every CPU gets the same integers.
- What GELU returns is never below −0.17. There x + 0.17 is quantised to all 256 values, from 0, and b corrects it.

Measured against float32 (tests/…/test_embedding.py): the cosine of two texts differs by at most 0.010 in 99 % of
pairs; 2.5 ms instead of 7.5 ms for 20 tokens. Others: one scale for the whole tensor (`quantize_dynamic`) 0.030, and a
text's vector depends on its batch; 8-bit blocks (MatMulNBits) 0.0062 but 6 ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

BUILDER = "1"
"""Version of this file's computations. It is part of the build's name, so change it with them."""
DIMENSIONS = 384
MAX_TOKENS = 128
"""The weights were trained with texts of at most 128 tokens."""
LAYERS, HEADS = 6, 12
OUTLIERS = (63, 99, 127, 157, 223, 267, 319, 338)
"""Large channels between the layers."""
LARGE_ACTIVATIONS = ((691, 856), (116, 607), (218, 1004, 1265), (318, 358), (1089,), (745, 830))
"""Large channels after GELU, for each layer."""
GELU_OFFSET = 0.17
WEIGHT_STEPS = 64
MICROSOFT = "com.microsoft"
"""Operators of ONNX Runtime that ONNX does not have."""

Weights = Mapping[str, NDArray[np.float32]]


def read_safetensors(content: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the float32 tensors of a safetensors file: length of a JSON header, header, data."""
    begin = 8 + int.from_bytes(content[:8], "little")
    return {
        name: np.frombuffer(
            content, np.float32, offset=begin + entry["data_offsets"][0], count=int(np.prod(entry["shape"]))
        ).reshape(entry["shape"])
        for name, entry in json.loads(content[8:begin]).items()
        if name != "__metadata__" and entry["dtype"] == "F32"
    }


def build_model(weights: bytes, quantise: bool = True) -> bytes:
    """Return the ONNX file for a safetensors file. Input: token ids, a row for each text. Output: vectors.

    quantise   False: everything in float32, as a reference
    """
    from onnx import TensorProto, helper

    graph = GraphBuilder(read_safetensors(weights), quantise)
    vectors = graph.vectors()
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "all-minilm-l6-v2",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["texts", "tokens"])],
            [helper.make_tensor_value_info(vectors, TensorProto.FLOAT, ["texts", DIMENSIONS])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=9,  # the first one with these operators: older runtimes read it too
    )
    return bytes(model.SerializeToString())


class GraphBuilder:
    """Collects the nodes and constants of the network. Methods take and return names of tensors."""

    def __init__(self, weights: Weights, quantise: bool) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._weights = weights
        self._quantise = quantise

    def vectors(self) -> str:
        """Add the whole network. Return the name of its output."""
        x = self._embeddings()
        for layer in range(LAYERS):
            x = self._layer(x, f"encoder.layer.{layer}", LARGE_ACTIVATIONS[layer])
        mean = self._node("ReduceMean", x, self._constant(np.array([1])), keepdims=0)
        return self._node("LpNormalization", mean, axis=1, p=2)

    def _embeddings(self) -> str:
        words = self._weights["embeddings.word_embeddings.weight"]
        if self._quantise:  # half of all weights; only rows of the text's words are read, so it costs no time
            scale = np.abs(words).max(axis=1, keepdims=True) / 127
            steps = self._node("Gather", self._constant(np.rint(words / scale).astype(np.int8)), "ids")
            scales = self._node("Gather", self._constant(scale.astype(np.float32)), "ids")
            word = self._node("Mul", self._node("Cast", steps, to=1), scales)
        else:
            word = self._node("Gather", self._constant(words), "ids")
        places = self._weights["embeddings.position_embeddings.weight"][:MAX_TOKENS]
        table = self._constant((places + self._weights["embeddings.token_type_embeddings.weight"][0])[None])
        tokens = self._node("Shape", "ids", start=1, end=2)
        place = self._node("Slice", table, self._constant(np.array([0])), tokens, self._constant(np.array([1])))
        return self._normalised(self._node("Add", word, place), "embeddings.LayerNorm")

    def _layer(self, x: str, name: str, large: tuple[int, ...]) -> str:
        attention = f"{name}.attention.self"
        parts = [f"{attention}.{part}" for part in ("query", "key", "value")]
        together = self._linear(x, parts, OUTLIERS)
        query, key, value = self._nodes("Split", 3, together, self._constant(np.array([DIMENSIONS] * 3)), axis=2)
        heads = self._node("MultiHeadAttention", query, key, value, domain=MICROSOFT, num_heads=HEADS)
        attended = self._linear(heads, [f"{name}.attention.output.dense"], ())
        x = self._normalised(self._node("Add", attended, x), f"{name}.attention.output.LayerNorm")
        inner = self._node("Gelu", self._linear(x, [f"{name}.intermediate.dense"], OUTLIERS), domain=MICROSOFT)
        outer = self._linear(inner, [f"{name}.output.dense"], large, after_gelu=True)
        return self._normalised(self._node("Add", outer, x), f"{name}.output.LayerNorm")

    def _normalised(self, x: str, name: str) -> str:
        gain, bias = (self._constant(self._weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self._node("LayerNormalization", x, gain, bias, axis=-1, epsilon=1e-12)

    def _linear(self, x: str, names: list[str], large: tuple[int, ...], after_gelu: bool = False) -> str:
        """Add x Wᵀ + b as the module's docstring says. Several names: their outputs side by side."""
        weight = np.concatenate([self._weights[f"{name}.weight"] for name in names])
        bias = np.concatenate([self._weights[f"{name}.bias"] for name in names])
        if not self._quantise:
            return self._node("Add", self._node("MatMul", x, self._constant(weight.T)), self._constant(bias))
        float_part = ""
        if large:
            kept = self._node("Gather", x, self._constant(np.array(large)), axis=2)
            float_part = self._node("MatMul", kept, self._constant(weight[:, large].T))
            others = np.ones(weight.shape[1], np.float32)
            others[list(large)] = 0
            x = self._node("Mul", x, self._constant(others))
            weight = weight * others
        scale = np.abs(weight).max(axis=1) / np.float32(WEIGHT_STEPS)
        steps = np.rint(weight / scale[:, None]).astype(np.int8)
        if after_gelu:
            x = self._node("Add", x, self._constant(np.float32(GELU_OFFSET)))
            bias = bias - np.float32(GELU_OFFSET) * scale * steps.sum(axis=1, dtype=np.int32)
            largest = self._node("ReduceMax", x, self._constant(np.array([-1])))
            step, zero = np.float32(1 / 255), np.uint8(0)
        else:
            largest = self._node("ReduceMax", self._node("Abs", x), self._constant(np.array([-1])))
            step, zero = np.float32(1 / 127), np.uint8(128)
        at = self._constant(step), self._constant(zero)
        quantised = self._node("QuantizeLinear", self._node("Div", x, largest), *at)
        product = self._node(
            "MatMulIntegerToFloat",
            *(quantised, self._constant(steps.T), at[0], self._constant(scale), at[1]),
            domain=MICROSOFT,
        )
        y = self._node("Add", self._node("Mul", product, largest), self._constant(bias.astype(np.float32)))
        return self._node("Add", y, float_part) if large else y

    def _constant(self, value: NDArray[np.generic] | np.generic) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, order="C"), name))
        return name

    def _node(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self._nodes(operator, 1, *inputs, domain=domain, **attributes)[0]

    def _nodes(self, operator: str, outputs: int, *inputs: str, domain: str = "", **attributes: Any) -> tuple[str, ...]:
        from onnx import helper

        names = tuple(f"{operator}_{len(self.nodes)}_{number}" for number in range(outputs))
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names
