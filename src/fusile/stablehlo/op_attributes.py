"""How each HLO op is written in StableHLO's generic form: its name, and its attributes as MLIR text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType, element_type
from fusile.base.shape import Shape
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.window import ConvolutionDimensions, Window
from fusile.hlo.text.literal import format_elements
from fusile.stablehlo.types import mlir_type

CHLO = frozenset({
    "erf", "erfc", "erf-inv", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma",
    "bessel-i1e", "next-after",
})  # fmt: skip
"""Elementwise ops that StableHLO has in its client dialect only."""

_HEX_FROM = 64


def quoted(text: str) -> str:
    """An MLIR string."""
    return (
        json.dumps(text, ensure_ascii=False)
        .replace("\\u00", "\\")
        .replace("\\b", "\\08")
        .replace("\\f", "\\0C")
        .replace("\\r", "\\0D")
    )


def integers(values: Sequence[int]) -> str:
    """`array<i64: 1, 2>`."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def booleans(values: Sequence[bool]) -> str:
    return f"array<i1: {', '.join('true' if v else 'false' for v in values)}>" if values else "array<i1>"


def integer(value: int) -> str:
    return f"{value} : i64"


def boolean(value: bool) -> str:
    return "true" if value else "false"


def word(enumeration: str, value: str) -> str:
    return f"#stablehlo<{enumeration} {value}>"


def dense(array: np.ndarray) -> str:
    """`dense<...> : tensor<...>`, exact for every element type."""
    kind = element_type(array.dtype)
    return f"dense<{_elements(array, kind)}> : {mlir_type(Shape(kind, array.shape))}"


def _elements(array: np.ndarray, kind: ElementType) -> str:
    if array.size == 0:
        return ""
    if array.size > _HEX_FROM and not kind.is_predicate:
        return f'"0x{array.tobytes().hex().upper()}"'
    if kind.is_complex:
        pairs = np.ascontiguousarray(array).reshape(-1)
        words = [f"({a}, {b})" for a, b in zip(_floats(pairs.real), _floats(pairs.imag), strict=True)]
    else:
        words = _floats(array.reshape(-1)) if kind.is_float else format_elements(array.reshape(-1))
    for size in reversed(array.shape):
        words = ["[" + ", ".join(words[i : i + size]) + "]" for i in range(0, len(words), size)]
    return words[0]


def _floats(flat: np.ndarray) -> list[str]:
    """Decimals with the point that MLIR asks for; the bits of what is not finite."""
    flat = np.ascontiguousarray(flat)
    bits = flat.view(np.dtype(f"u{flat.dtype.itemsize}")).tolist()
    finite = np.isfinite(flat.astype(np.float64)).tolist()
    width = flat.dtype.itemsize * 2
    texts = format_elements(flat)
    return [_pointed(t) if f else f"0x{b:0{width}X}" for t, f, b in zip(texts, finite, bits, strict=True)]


def _pointed(text: str) -> str:
    mantissa, e, exponent = text.partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + e + exponent


def padding(low: Sequence[int], high: Sequence[int]) -> str:
    return dense(np.array(list(zip(low, high, strict=True)), np.int64).reshape(len(low), 2))


def _list(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _record(name: str, **fields: Sequence[int] | int) -> str:
    """`#stablehlo.name<field = [..], ...>`; empty lists are left out, as MLIR's own printer does."""
    texts = [f"{k} = {v if isinstance(v, int) else _list(v)}" for k, v in fields.items() if isinstance(v, int) or v]
    return f"#stablehlo.{name}<{', '.join(texts)}>"


def _window(window: Window) -> dict[str, str]:
    return {
        "window_dimensions": integers(window.size),
        "window_strides": integers(window.stride),
        "base_dilations": integers(window.base_dilation),
        "window_dilations": integers(window.window_dilation),
        "padding": padding(window.padding_low, window.padding_high),
    }


def _select_and_scatter(op: Any) -> dict[str, str]:
    names = ("window_dimensions", "window_strides", "padding")
    return {name: text for name, text in _window(op.window).items() if name in names}


def _convolution(op: Any) -> dict[str, str]:
    window: Window = op.window
    return {
        "window_strides": integers(window.stride),
        "padding": padding(window.padding_low, window.padding_high),
        "lhs_dilation": integers(window.base_dilation),
        "rhs_dilation": integers(window.window_dilation),
        "window_reversal": booleans(window.reversal),
        "dimension_numbers": _dimension_numbers(op.dimension_numbers),
        "feature_group_count": integer(op.feature_group_count),
        "batch_group_count": integer(op.batch_group_count),
    }


def _dimension_numbers(numbers: ConvolutionDimensions) -> str:
    n = numbers
    data = _labels({n.input_batch: "b", n.input_feature: "f"}, n.input_spatial)
    kernel = _labels({n.kernel_input_feature: "i", n.kernel_output_feature: "o"}, n.kernel_spatial)
    output = _labels({n.output_batch: "b", n.output_feature: "f"}, n.output_spatial)
    return f"#stablehlo.conv<{data}x{kernel}->{output}>"


def _labels(letters: dict[int, str], spatial: Sequence[int]) -> str:
    labels = letters | {position: str(i) for i, position in enumerate(spatial)}
    return f"[{', '.join(labels[i] for i in range(len(labels)))}]"


def _dot(op: Any) -> dict[str, str]:
    numbers = _record(
        "dot",
        lhs_batching_dimensions=op.lhs_batch,
        rhs_batching_dimensions=op.rhs_batch,
        lhs_contracting_dimensions=op.lhs_contracting,
        rhs_contracting_dimensions=op.rhs_contracting,
    )
    return {"dot_dimension_numbers": numbers}


def _gather(op: Any) -> dict[str, str]:
    names = ("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims",
             "start_index_map", "index_vector_dim")  # fmt: skip
    return {
        "dimension_numbers": _record("gather", **{n: getattr(op, n) for n in names}),
        "slice_sizes": integers(op.slice_sizes),
        "indices_are_sorted": boolean(op.indices_are_sorted),
    }


def _scatter(op: Any) -> dict[str, str]:
    names = ("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
             "scatter_dims_to_operand_dims", "index_vector_dim")  # fmt: skip
    return {
        "scatter_dimension_numbers": _record("scatter", **{n: getattr(op, n) for n in names}),
        "indices_are_sorted": boolean(op.indices_are_sorted),
        "unique_indices": boolean(op.unique_indices),
    }


def _compare(op: Any) -> dict[str, str]:
    direction = {"comparison_direction": word("comparison_direction", op.direction)}
    return direction | ({"compare_type": word("comparison_type", "TOTALORDER")} if op.total_order else {})


def _custom_call(op: Any) -> dict[str, str]:
    config = {"backend_config": quoted(op.config)} if op.config else {}
    return {"call_target_name": quoted(op.target), "has_side_effect": boolean(op.has_effect), **config}


def _batch_norm(op: Any) -> dict[str, str]:
    return {"epsilon": f"{_pointed(repr(float(op.epsilon)))} : f32", "feature_index": integer(op.feature_index)}


def _triangular_solve(op: Any) -> dict[str, str]:
    flags = {name: boolean(getattr(op, name)) for name in ("left_side", "lower", "unit_diagonal")}
    return flags | {"transpose_a": word("transpose", op.transpose)}


def _nothing(op: Any) -> dict[str, str]:
    return {}


Attributes = Callable[[Any], dict[str, str]]

WRITTEN: dict[str, tuple[str, Attributes]] = {
    "constant": ("constant", lambda op: {"value": dense(op.literal.array)}),
    "iota": ("iota", lambda op: {"iota_dimension": integer(op.dimension)}),
    "compare": ("compare", _compare),
    "convert": ("convert", _nothing),
    "bitcast-convert": ("bitcast_convert", _nothing),
    "reduce-precision": (
        "reduce_precision",
        lambda op: {"exponent_bits": f"{op.exponent_bits} : i32", "mantissa_bits": f"{op.mantissa_bits} : i32"},
    ),
    "broadcast": ("broadcast_in_dim", lambda op: {"broadcast_dimensions": integers(op.broadcast_dimensions)}),
    "reshape": ("reshape", _nothing),
    "transpose": ("transpose", lambda op: {"permutation": integers(op.permutation)}),
    "reverse": ("reverse", lambda op: {"dimensions": integers(op.dimensions)}),
    "slice": (
        "slice",
        lambda op: {
            "start_indices": integers(op.starts),
            "limit_indices": integers(op.limits),
            "strides": integers(op.strides),
        },
    ),
    "pad": (
        "pad",
        lambda op: {
            "edge_padding_low": integers(op.low),
            "edge_padding_high": integers(op.high),
            "interior_padding": integers(op.interior),
        },
    ),
    "concatenate": ("concatenate", lambda op: {"dimension": integer(op.dimension)}),
    "dynamic-slice": ("dynamic_slice", lambda op: {"slice_sizes": integers(op.sizes)}),
    "dynamic-update-slice": ("dynamic_update_slice", _nothing),
    "gather": ("gather", _gather),
    "scatter": ("scatter", _scatter),
    "reduce": ("reduce", lambda op: {"dimensions": integers(op.dimensions)}),
    "reduce-window": ("reduce_window", lambda op: _window(op.window)),
    "select-and-scatter": ("select_and_scatter", _select_and_scatter),
    "sort": ("sort", lambda op: {"dimension": integer(op.dimension), "is_stable": boolean(op.is_stable)}),
    "dot": ("dot_general", _dot),
    "convolution": ("convolution", _convolution),
    "custom-call": ("custom_call", _custom_call),
    "optimization-barrier": ("optimization_barrier", _nothing),
    "after-all": ("after_all", _nothing),
    "batch-norm-training": ("batch_norm_training", _batch_norm),
    "batch-norm-inference": ("batch_norm_inference", _batch_norm),
    "batch-norm-grad": ("batch_norm_grad", _batch_norm),
    "fft": ("fft", lambda op: {"fft_type": word("fft_type", op.kind), "fft_length": integers(op.length)}),
    "cholesky": ("cholesky", lambda op: {"lower": boolean(op.lower)}),
    "triangular-solve": ("triangular_solve", _triangular_solve),
    "rng-bit-generator": (
        "rng_bit_generator",
        lambda op: {"rng_algorithm": word("rng_algorithm", op.algorithm.removeprefix("RNG_"))},
    ),
}
"""Name and attributes in the stablehlo dialect, by opcode; elementwise ops without attributes need no row."""


def written(instruction: Instruction) -> tuple[str, dict[str, str]] | None:
    """The op's MLIR name and attributes; None when StableHLO has no such op."""
    opcode = instruction.opcode
    if opcode in WRITTEN:
        name, attributes = WRITTEN[opcode]
        return "stablehlo." + name, attributes(instruction.op)
    if opcode == "topk":
        return "chlo.top_k", {"k": integer(instruction.op.k)}  # type: ignore[attr-defined]
    if opcode in CHLO:
        return "chlo." + opcode.replace("-", "_"), {}
    if instruction.op.elementwise and opcode != "bessel-i0e":
        return "stablehlo." + opcode.replace("-", "_"), {}
    return None
