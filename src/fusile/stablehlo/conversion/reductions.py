"""Ops that combine elements with a computation: reductions, windows, sorts."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base.element_type import S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.elementwise import Compare
from fusile.hlo.opset.window import Window
from fusile.stablehlo.conversion.context import Context, converts


def promoted(context: Context, operands: Sequence[Instruction], computation: Computation) -> list[Instruction]:
    """The operands in the element types that the computation combines, which may be wider than theirs
    (`is_promotable` in the specification)."""
    count = len(computation.parameters) // 2
    results = []
    for number, x in enumerate(operands):
        new = computation.parameters[number % count].array_shape.element_type if count else None
        old = x.array_shape.element_type
        wider = new is not None and new is not old and new.kind is old.kind and new.bits >= old.bits
        results.append(context.add("convert", [x], element_type=new) if wider else x)
    return results


@converts("stablehlo.reduce")
def _reduce(context: Context) -> list[Instruction]:
    dimensions, computation = context.integers("dimensions"), context.region(0)
    operands = promoted(context, context.operands, computation)
    result = context.add("reduce", operands, dimensions=dimensions, computation=computation)
    return context.parts(result, len(context.operands) // 2)


def _window(context: Context) -> Window:
    size = context.integers("window_dimensions")
    ones = (1,) * len(size)
    padding = context.integers("padding", (0, 0) * len(size))
    return Window(
        size=size,
        stride=context.integers("window_strides", ones),
        padding_low=padding[::2],
        padding_high=padding[1::2],
        base_dilation=context.integers("base_dilations", ones),
        window_dilation=context.integers("window_dilations", ones),
    )


@converts("stablehlo.reduce_window")
def _reduce_window(context: Context) -> list[Instruction]:
    computation = context.region(0)
    operands = promoted(context, context.operands, computation)
    result = context.add("reduce-window", operands, window=_window(context), computation=computation)
    return context.parts(result, len(context.operands) // 2)


@converts("stablehlo.select_and_scatter")
def _select_and_scatter(context: Context) -> Instruction:
    select, scatter = context.region(0), context.region(1)
    return context.add("select-and-scatter", context.operands, window=_window(context), select=select, scatter=scatter)


@converts("stablehlo.sort")
def _sort(context: Context) -> list[Instruction]:
    dimension = context.integer("dimension", -1)
    if dimension < 0:
        dimension += context.operands[0].array_shape.rank
    stable = context.boolean("is_stable")
    result = context.add("sort", context.operands, dimension=dimension, is_stable=stable, computation=context.region(0))
    return context.parts(result, len(context.operands))


@converts("chlo.top_k")
def _top_k(context: Context) -> list[Instruction]:
    if context.boolean("largest", True):
        return context.parts(context.add("topk", context.operands, k=context.integer("k")), 2)
    return _bottom_k(context, context.integer("k"))


def _bottom_k(context: Context, k: int) -> list[Instruction]:
    """The first k of a stable sort of the elements and their indices."""
    (x,) = context.operands
    shape, b = context.operands[0].array_shape, context.builder
    if not shape.rank or not 0 <= k <= shape.sizes[-1]:
        raise ValueError(f"the {k} smallest of {shape}")
    less = Builder("less")
    parameters = [less.parameter(Shape(kind)) for kind in (shape.element_type,) * 2 + (S32,) * 2]
    order = Compare("LT", total_order=shape.element_type.is_float)
    both = b.sort([x, b.iota(shape.with_element_type(S32), shape.rank - 1)], shape.rank - 1,
                  less.build(less.emit(order, *parameters[:2])))  # fmt: skip
    limits = (*shape.sizes[:-1], k)
    return [b.slice(part, (0,) * shape.rank, limits) for part in context.parts(both, 2)]
