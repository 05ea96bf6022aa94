"""Rules of ops that move quantized elements, choose among them, or pass them to computations: they act on storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fusile.base.shape import Shape
from fusile.hlo.ir import Computation, Instruction
from fusile.stablehlo.conversion.context import Context, Conversion, Quantizations
from fusile.stablehlo.conversion.other import IDENTITIES
from fusile.stablehlo.conversion.quantized import (
    dequantize_op_quantize,
    on_storage,
    operand_quantizations,
    quantized_rule,
    requantize,
    require_same,
    result_quantizations,
    with_result_types,
)
from fusile.stablehlo.parser import symbol_name
from fusile.stablehlo.quantization import Quantization, keeps_every_value, quantizations, storage_shape
from fusile.stablehlo.syntax import Dense

# Movement

_MOVED = {
    "stablehlo.slice": 1, "stablehlo.real_dynamic_slice": 1, "stablehlo.dynamic_slice": 1,
    "stablehlo.dynamic_update_slice": 2, "stablehlo.gather": 1, "stablehlo.dynamic_gather": 1, "stablehlo.pad": 2,
    "stablehlo.dynamic_pad": 2, "stablehlo.reverse": 1, "stablehlo.broadcast": 1, "stablehlo.set_dimension_size": 1,
    "stablehlo.concatenate": None,
}  # fmt: skip
"""How many of the first operands have the elements that become the result's; None for all. The others are indices."""


@quantized_rule(*_MOVED)
def _moved(context: Context, conversion: Conversion) -> list[Instruction]:
    count = _MOVED[context.operation.name]
    (result,) = result_quantizations(context)
    for number, q in enumerate(operand_quantizations(context)):
        is_moved = count is None or number < count
        require_same(context, f"operand {number}", (q,), (result,) if is_moved else ())
    if result is not None and result.is_per_axis:
        raise context.error("it takes tensors quantized as a whole, not per axis",
                            "stablehlo.uniform_dequantize first")  # fmt: skip
    return on_storage(context, conversion)


@quantized_rule("stablehlo.transpose")
def _transpose(context: Context, conversion: Conversion) -> list[Instruction]:
    (q, *_) = operand_quantizations(context)
    if q is not None and q.dimension is not None:
        q = replace(q, dimension=context.integers("permutation").index(q.dimension))
    require_same(context, "result 0", (result_quantizations(context)[0],), (q,))
    return on_storage(context, conversion)


@quantized_rule("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
def _broadcast_in_dim(context: Context, conversion: Conversion) -> list[Instruction]:
    """A quantized dimension of size 1 that is repeated gives each of its copies the one scale."""
    q, result = operand_quantizations(context)[0], result_quantizations(context)[0]
    if q is not None and q.dimension is not None:
        q = replace(q, dimension=context.integers("broadcast_dimensions")[q.dimension])
        if len(q.scales) == 1 and result is not None:
            count = len(result.scales)
            q = replace(q, scales=q.scales * count, zero_points=q.zero_points * count)
    require_same(context, "result 0", (result,), (q,))
    return on_storage(context, conversion)


@quantized_rule("stablehlo.reshape", "stablehlo.dynamic_reshape")
def _reshape(context: Context, conversion: Conversion) -> list[Instruction]:
    """A quantized dimension keeps its size, and as many elements before it."""
    q, result = operand_quantizations(context)[0], result_quantizations(context)[0]
    if q is not None and q.dimension is not None and result is not None and result.dimension is not None:
        old, new = context.operands[0].array_shape, context.result_shape()
        if old.is_static and new.is_static:
            before = math.prod(old.sizes[: q.dimension]), math.prod(new.sizes[: result.dimension])
            if before[0] != before[1]:
                raise context.error(f"it has {before[1]} slices before the quantized dimension, not {before[0]}")
        q = replace(q, dimension=result.dimension)
    require_same(context, "result 0", (result,), (q,))
    return on_storage(context, conversion)


@quantized_rule("stablehlo.constant")
def _constant(context: Context, conversion: Conversion) -> list[Instruction]:
    """The value lists storage integers, as one of the type itself or of the storage's."""
    (q,), value = result_quantizations(context), context.attribute("value")
    if not isinstance(value, Dense) or q is None or value.array.dtype != q.storage.dtype:
        raise context.error("its value does not list the storage integers of its type")
    if value.array.size:
        least, most = (int(f(value.array.astype(np.int64))) for f in (np.min, np.max))
        if not q.storage_min <= least <= most <= q.storage_max:
            raise context.error(f"integers {least} to {most} are not within the storage's {q.storage_min} to "
                                f"{q.storage_max}")  # fmt: skip
    return on_storage(context, conversion)


@quantized_rule(
    "stablehlo.bitcast_convert", "stablehlo.get_dimension_size", "stablehlo.outfeed", "stablehlo.infeed",
    "stablehlo.send", "stablehlo.recv",
)  # fmt: skip
def _bits(context: Context, conversion: Conversion) -> list[Instruction]:
    """Of the storage, whatever it stands for."""
    return on_storage(context, conversion)


_PASSED = (
    "stablehlo.optimization_barrier", "sdy.sharding_constraint", "stablehlo.all_gather", "stablehlo.all_to_all",
    "stablehlo.collective_broadcast", "stablehlo.collective_permute",
)  # fmt: skip


@quantized_rule(*_PASSED, "stablehlo.custom_call")
def _passed(context: Context, conversion: Conversion) -> list[Instruction]:
    """Results are the operands; routines behind custom calls get and give storage integers."""
    if context.operation.name in _PASSED or context.attribute("call_target_name") in IDENTITIES:
        pairs = zip(operand_quantizations(context), result_quantizations(context), strict=False)
        for number, (old, new) in enumerate(pairs):
            require_same(context, f"result {number}", (new,), (old,))
    return on_storage(context, conversion)


@quantized_rule("stablehlo.tuple", "stablehlo.get_tuple_element")
def _tuple(context: Context, conversion: Conversion) -> list[Instruction]:
    elements: list[Quantization | None] = []
    for name, operand in zip(context.operation.operands, context.operands, strict=True):
        elements += context.scope.quantization(name) or (None,) * len(operand.shape.leaves())
    if context.operation.name == "stablehlo.get_tuple_element":
        shapes = getattr(context.operands[0].shape, "shapes", ())
        index = context.integer("index")
        start = sum(len(s.leaves()) for s in shapes[:index])
        elements = elements[start : start + len(shapes[index].leaves())]
    require_same(context, "its result", quantizations(context.operation.result_types[0]), tuple(elements))
    return on_storage(context, conversion)


# Choice


@quantized_rule("stablehlo.maximum", "stablehlo.minimum", "stablehlo.clamp", "stablehlo.select", "stablehlo.compare")
def _chosen(context: Context, conversion: Conversion) -> list[Instruction]:
    """Where all have one type and its integers are in the order of what they express, the integers are compared."""
    operands, results = operand_quantizations(context), result_quantizations(context)
    name = context.operation.name
    compared = [*(operands[1:] if name == "stablehlo.select" else operands), *results]
    if name == "stablehlo.compare":
        first, second = operands
        if first is None or second is None or first.baseline != second.baseline:
            raise context.error(f"it compares {' and '.join(q.text if q else 'numbers' for q in operands)}")
        compared = operands
    q = compared[0]
    if q is None or any(other != q for other in compared) or not keeps_every_value(q):
        return dequantize_op_quantize(context, conversion)
    return on_storage(context, conversion)


# Computations


@quantized_rule("stablehlo.reduce", "stablehlo.reduce_window")
def _reduce(context: Context, conversion: Conversion) -> list[Instruction]:
    """Inputs and initial values become of the type that the region takes, and its results of the type that is
    written."""
    arguments = _region_arguments(context, 0)
    types = [getattr(shape, "quantization", None) for shape in arguments]
    operands, results = operand_quantizations(context), result_quantizations(context)
    context.operands = [
        _as(context, x, old, new) for x, old, new in zip(context.operands, operands, types, strict=True)
    ]
    plain = [
        storage_shape(t).with_element_type(a.element_type) if isinstance(t, Shape) else t  # type: ignore[union-attr]
        for t, a in zip(context.operation.result_types, arguments, strict=False)
    ]
    values = with_result_types(context, conversion, plain)
    for number, q in enumerate(_returned(context, values)[0]):
        require_same(context, f"value {number} that its region returns", q, (types[number],))
    return [_as(context, v, old, new) for v, old, new in zip(values, types, results, strict=False)]


def _as(context: Context, x: Instruction, old: Quantization | None, new: Quantization | None) -> Instruction:
    return x if old == new else requantize(context, x, old, new)


def _region_arguments(context: Context, number: int) -> list[Shape]:
    shapes = [shape for _, shape, _ in context._region(number).arguments]
    if not all(isinstance(shape, Shape) for shape in shapes):
        raise context.error("its region takes a tuple")
    return shapes  # type: ignore[return-value]


_GROUPS: dict[str, Callable[[int], list[list[int]]]] = {
    "stablehlo.scatter": lambda count: [[i, i + count // 2 + 1] for i in range(count // 2)],
    "stablehlo.select_and_scatter": lambda count: [[0, 1, 2]],
    "stablehlo.sort": lambda count: [[i] for i in range(count)],
    "stablehlo.all_reduce": lambda count: [[i] for i in range(count)],
    "stablehlo.reduce_scatter": lambda count: [[i] for i in range(count)],
}
"""The operands of one type that each result has, given how many operands there are."""


@quantized_rule(*_GROUPS)
def _elements_in_regions(context: Context, conversion: Conversion) -> list[Instruction]:
    """Each result has its operands' type, and so have the arguments that its regions take of it."""
    operands, results = operand_quantizations(context), result_quantizations(context)
    groups = _GROUPS[context.operation.name](len(operands))
    for number, (group, q) in enumerate(zip(groups, results, strict=True)):
        for i in group:
            require_same(context, f"operand {i}", (operands[i],), (q,))
        for region in range(len(context.operation.regions)):
            arguments = _region_arguments(context, region)
            sort = context.operation.name == "stablehlo.sort"
            places = (2 * number, 2 * number + 1) if sort else (number, number + len(groups))
            for place in places:
                require_same(context, f"argument {place} of its region", quantizations(arguments[place]), (q,))
    values = on_storage(context, conversion)
    if context.operation.name in ("stablehlo.scatter", "stablehlo.all_reduce", "stablehlo.reduce_scatter"):
        for returned in _returned(context, values)[:1]:
            for number, found in enumerate(returned):
                require_same(context, f"value {number} that its region returns", found, (results[number],))
    return values


@quantized_rule("stablehlo.map")
def _map(context: Context, conversion: Conversion) -> list[Instruction]:
    for number, (q, shape) in enumerate(
        zip(operand_quantizations(context), _region_arguments(context, 0), strict=True)
    ):
        require_same(context, f"argument {number} of its region", quantizations(shape), (q,))
    return on_storage(context, conversion)


def _returned(context: Context, values: Sequence[Instruction]) -> list[list[Quantizations]]:
    """What each computation of the instruction that gives these values returns."""
    if not values:
        return []
    made = values[0].operands[0] if values[0].opcode == "get-tuple-element" else values[0]
    computations: Sequence[Computation] = made.op.computations()
    return [context.program.returned[c] for c in computations if c in context.program.returned]


@quantized_rule("stablehlo.while")
def _while(context: Context, conversion: Conversion) -> list[Instruction]:
    count = len(context.operands)
    operands, results = operand_quantizations(context), result_quantizations(context)
    for number in range(count):
        require_same(context, f"result {number}", (results[number],), (operands[number],))
        for region in (0, 1):
            argument = quantizations(_region_arguments(context, region)[number])
            require_same(context, f"argument {number} of its region", argument, (operands[number],))
    values = on_storage(context, conversion)
    for number, found in enumerate(_returned(context, values)[1][:count]):
        require_same(context, f"value {number} that its body returns", found, (operands[number],))
    return values


@quantized_rule("stablehlo.case", "stablehlo.if")
def _conditional(context: Context, conversion: Conversion) -> list[Instruction]:
    values = on_storage(context, conversion)
    for branch, returned in enumerate(_returned(context, values)):
        for number, (found, q) in enumerate(zip(returned, result_quantizations(context), strict=False)):
            require_same(context, f"value {number} of branch {branch}", found, (q,), "the text says")
    return values


@quantized_rule("func.call", "call", "stablehlo.composite")
def _call(context: Context, conversion: Conversion) -> list[Instruction]:
    composite = context.operation.name == "stablehlo.composite"
    name = symbol_name(context.attribute("decomposition" if composite else "callee"))
    parameters = context.program.functions[name].regions[0].arguments
    for number, (operand, (_, shape, _)) in enumerate(zip(context.operation.operands, parameters, strict=False)):
        actual = context.scope.quantization(operand)
        require_same(context, f"operand {number}", actual, quantizations(shape), f"@{name} takes")
    returned = context.program.returned[context.program.computations[name]]
    for number, (found, shape) in enumerate(zip(returned, context.operation.result_types, strict=False)):
        require_same(context, f"result {number}", found, quantizations(shape), "the text says")
    return on_storage(context, conversion)
