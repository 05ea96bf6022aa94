"""Elementwise ops. Those without attributes share one conversion, the one entered as "elementwise"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusile.hlo.ir import Instruction
from fusile.hlo.text.elementwise_map import apply_map
from fusile.stablehlo.conversion.context import Context, converts

_COMPARE_TYPES = ("NOTYPE", "SIGNED", "UNSIGNED", "FLOAT", "TOTALORDER", "WEAKORDER")


@converts("elementwise")
def _elementwise(context: Context) -> Instruction:
    return context.add(context.operation.name.partition(".")[2].replace("_", "-"), context.operands)


@converts("stablehlo.compare")
def _compare(context: Context) -> Instruction:
    order = context.word("compare_type", "NOTYPE")
    if order not in _COMPARE_TYPES:
        raise ValueError(f"compare_type {order} is none of {', '.join(_COMPARE_TYPES)}")
    operands = [_weakly_ordered(context, x) for x in context.operands] if order == "WEAKORDER" else context.operands
    direction = context.word("comparison_direction")
    return context.add("compare", operands, direction=direction, total_order=order in ("TOTALORDER", "WEAKORDER"))


def _weakly_ordered(context: Context, x: Instruction) -> Instruction:
    """x with one NaN, which is above infinity, and one zero: then its total order is the weak order."""
    if not x.array_shape.element_type.is_float:
        return x
    b = context.builder
    x = b.select(b.compare(x, b.like(0, x), "EQ"), b.like(0, x), x)
    return b.select(b.compare(x, x, "NE"), b.like(np.nan, x), x)


@converts("stablehlo.convert")
def _convert(context: Context) -> Instruction:
    (operand,) = context.operands
    kind = context.result_shape().element_type
    return operand if operand.array_shape.element_type is kind else context.add("convert", [operand], element_type=kind)


@converts("stablehlo.bitcast_convert")
def _bitcast_convert(context: Context) -> Instruction:
    return context.add("bitcast-convert", context.operands, element_type=context.result_shape().element_type)


@converts("stablehlo.reduce_precision")
def _reduce_precision(context: Context) -> Instruction:
    bits = {name: context.integer(name) for name in ("exponent_bits", "mantissa_bits")}
    return context.add("reduce-precision", context.operands, **bits)


@converts("stablehlo.map")
def _map(context: Context) -> Instruction:
    return apply_map(context.scope.computation, context.region(0), context.operands)


# CHLO


@converts("chlo.square")
def _square(context: Context) -> Instruction:
    (x,) = context.operands
    return context.add("multiply", [x, x])


@converts("chlo.conj")
def _conj(context: Context) -> Instruction:
    (x,) = context.operands
    if not x.array_shape.element_type.is_complex:
        return x
    return context.add("complex", [context.add("real", [x]), context.add("negate", [context.add("imag", [x])])])


@converts("chlo.is_inf", "chlo.is_pos_inf", "chlo.is_neg_inf")
def _is_infinite(context: Context) -> Instruction:
    (x,) = context.operands
    if context.operation.name == "chlo.is_inf":
        x = context.add("abs", [x])
    sign = -1 if context.operation.name == "chlo.is_neg_inf" else 1
    infinity = context.constant(np.array(sign * np.inf).astype(x.array_shape.element_type.dtype))
    bound = context.broadcast(infinity, x.array_shape.dimensions)
    return context.add("compare", [x, bound], direction="EQ")


@converts("chlo.constant_like")
def _constant_like(context: Context) -> Instruction:
    shape = context.operands[0].array_shape
    value = context.attribute("value")
    return context.broadcast(context.constant(np.array(value).astype(shape.element_type.dtype)), shape.dimensions)


def broadcast_together(context: Context, operands: Sequence[Instruction]) -> list[Instruction]:
    """The operands in one shape, by NumPy's rule or along `broadcast_dimensions`."""
    shapes = [o.array_shape for o in operands]
    rank = max(s.rank for s in shapes)
    given = context.attribute("broadcast_dimensions")
    places = []
    for shape in shapes:
        aligned = tuple(range(rank - shape.rank, rank))
        places.append(context.integers("broadcast_dimensions") if given is not None and shape.rank < rank else aligned)
    sizes = [1] * rank
    for shape, place in zip(shapes, places, strict=True):
        for position, size in zip(place, shape.sizes, strict=True):
            sizes[position] = size if sizes[position] == 1 else sizes[position]
    return [stretch(context, o, sizes, p) for o, p in zip(operands, places, strict=True)]


def stretch(context: Context, operand: Instruction, sizes: Sequence[int], positions: Sequence[int]) -> Instruction:
    """`broadcast_in_dim`: the operand's dimensions at `positions` of the result, those of size 1 repeated."""
    old = operand.array_shape.dimensions
    if len(old) != len(positions):
        raise ValueError(f"{len(positions)} broadcast dimensions for an operand of {len(old)}")
    kept = [i for i, p in enumerate(positions) if old[i] != 1 or sizes[p] == 1]
    if len(kept) < len(old):
        operand = context.reshape(operand, [old[i] for i in kept])
    return context.broadcast(operand, sizes, [positions[i] for i in kept])


def _with_broadcast(opcode: str) -> None:
    @converts(f"chlo.broadcast_{opcode.replace('-', '_')}")
    def convert(context: Context) -> Instruction:
        return context.add(opcode, broadcast_together(context, context.operands))


for _opcode in (
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", "atan2", "and", "or", "xor",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "complex", "next-after", "select",
):  # fmt: skip
    _with_broadcast(_opcode)


@converts("chlo.broadcast_compare")
def _broadcast_compare(context: Context) -> Instruction:
    context.operands = broadcast_together(context, context.operands)
    return _compare(context)  # type: ignore[return-value]
