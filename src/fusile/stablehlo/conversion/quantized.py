"""Ops on quantized tensors: what they mean on the arrays of storage integers (StableHLO, "Quantization computations").

Most ops mean `dequantize_op_quantize`: their conversion runs on the numbers that the operands express and never learns
of it. Those that move integers, choose among them or sum products of them have a rule each, in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fusile.base.element_type import S32, S64, ElementType
from fusile.base.shape import Shape, TupleShape
from fusile.hlo.ir import OPS, Computation, Instruction
from fusile.stablehlo.conversion.context import Context, Conversion, Quantizations, converts
from fusile.stablehlo.quantization import Quantization, quantizations, storage_shape
from fusile.stablehlo.syntax import FunctionType, Operation

if TYPE_CHECKING:
    from fusile.stablehlo.conversion.program import Program

Rule = Callable[[Context, Conversion], Sequence[Instruction]]

RULES: dict[str, Rule] = {}
"""How operations convert that do not mean `dequantize_op_quantize` when something quantized takes part."""


def quantized_rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters the rule of these operations."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return enter


# What takes part


def is_quantized(context: Context) -> bool:
    """Whether an operand or a result is a quantized tensor, or holds one."""
    scope, operation = context.scope, context.operation
    if scope.quantized and any(scope.quantization(name) for name in operation.operands):
        return True
    return any(any(quantizations(t)) for t in operation.result_types)


def convert_quantized(context: Context, conversion: Conversion) -> Sequence[Instruction]:
    """What the operation, which has this conversion, means where something quantized takes part."""
    operation = context.operation
    if len(operation.operand_types) == len(operation.operands):
        for number, (name, written) in enumerate(zip(operation.operands, operation.operand_types, strict=True)):
            actual = context.scope.quantization(name)
            require_same(context, f"operand {number}", actual, quantizations(written), "the text says")
    return RULES.get(operation.name, dequantize_op_quantize)(context, conversion)


def operand_quantizations(context: Context) -> list[Quantization | None]:
    """The quantized type of each operand; None for those that have none."""
    found = [context.scope.quantization(name) for name in context.operation.operands]
    if any(len(f) > 1 for f in found):
        raise context.error("a tuple of quantized tensors is no operand of it")
    return [f[0] if f else None for f in found]


def result_quantizations(context: Context) -> list[Quantization | None]:
    return [getattr(t, "quantization", None) for t in context.operation.result_types]


def check_function_results(program: Program, function: Operation, computation: Computation) -> None:
    """What a function returns has the quantized types that it declares. Raises ParseError."""
    declared = function.attributes.get("function_type")
    if isinstance(declared, FunctionType):
        pairs = zip(declared.results, program.returned[computation], strict=False)
        for number, (written, actual) in enumerate(pairs):
            if _named(quantizations(written)) != _named(actual):
                message = f"it returns {_text(actual)} as result {number}, its type says"
                raise program.error(f"{message} {_text(quantizations(written))}", function)


def require_same(
    context: Context, what: str, found: Quantizations, wanted: Quantizations, source: str = "it must be"
) -> None:
    """Raises ParseError where the quantized types differ."""
    if _named(found) != _named(wanted):
        raise context.error(f"{what} is {_text(found)}, {source} {_text(wanted)}")


def _named(found: Quantizations) -> Quantizations:
    return found if any(found) else ()


def _text(found: Quantizations) -> str:
    return ", ".join(q.text if q else "not quantized" for q in found) or "not quantized"


# Numbers and integers


def dequantize(context: Context, x: Instruction, q: Quantization) -> Instruction:
    """The numbers `(x - zero_point) * scale`; the difference is exact, whatever the storage."""
    difference = convert(context, centered(context, x, q), q.expressed)
    return context.add("multiply", [difference, _spread(context, q.scales, q.expressed, x, q)])


def centered(context: Context, x: Instruction, q: Quantization) -> Instruction:
    """`x - zero_point`, as wide integers; x itself where every zero point is 0."""
    if not any(q.zero_points):
        return x
    kind = S64 if q.storage.bits > 16 else S32
    return context.add("subtract", [convert(context, x, kind), _spread(context, q.zero_points, kind, x, q)])


def quantize(context: Context, x: Instruction, q: Quantization) -> Instruction:
    """The storage integers nearest to the numbers x, ties to even, clamped to the storage's range. NaN gives the
    storage integer nearest to 0."""
    x = context.add("divide", [x, _spread(context, q.scales, q.expressed, x, q)])
    if any(q.zero_points):
        x = context.add("add", [x, _spread(context, q.zero_points, q.expressed, x, q)])
    x = context.add("round-nearest-even", [_clamp(context, x, q, q.expressed)])
    stored = convert(context, x, q.storage)
    return _clamp(context, stored, q, q.storage) if q.rounds_out_of_range() else stored


def requantize(context: Context, x: Instruction, old: Quantization | None, new: Quantization | None) -> Instruction:
    """The integers of another quantized type that stand for the same numbers."""
    if old is None or new is None or old.expressed is not new.expressed:
        raise context.error(f"{_text((old,))} does not become {_text((new,))}")
    return quantize(context, dequantize(context, x, old), new)


def convert(context: Context, x: Instruction, kind: ElementType) -> Instruction:
    return x if x.array_shape.element_type is kind else context.add("convert", [x], element_type=kind)


def _clamp(context: Context, x: Instruction, q: Quantization, kind: ElementType) -> Instruction:
    bounds = [context.constant(_numbers(v, kind)) for v in (q.storage_min, q.storage_max)]
    return context.add("clamp", [bounds[0], x, bounds[1]])


def _spread(
    context: Context, values: Sequence[float], kind: ElementType, x: Instruction, q: Quantization
) -> Instruction:
    """A parameter of the type as an array of x's shape."""
    if q.dimension is None:
        return context.broadcast(context.constant(_numbers(values[0], kind)), x.array_shape.dimensions)
    return context.broadcast(context.constant(_numbers(values, kind)), x.array_shape.dimensions, [q.dimension])


def _numbers(values: float | Sequence[float], kind: ElementType) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array(values).astype(kind.dtype)


# Conversions


def on_storage(context: Context, conversion: Conversion) -> list[Instruction]:
    """The conversion, of storage integers."""
    types = context.operation.result_types
    return with_result_types(
        context, conversion, [storage_shape(t) if isinstance(t, Shape | TupleShape) else t for t in types]
    )


def with_result_types(context: Context, conversion: Conversion, types: Sequence[object]) -> list[Instruction]:
    """The conversion, as if the text said these types of the results."""
    operation = context.operation
    context.operation = replace(operation, result_types=list(types))
    try:
        results = conversion(context)
    finally:
        context.operation = operation
    return [results] if isinstance(results, Instruction) else list(results)


def dequantize_op_quantize(context: Context, conversion: Conversion) -> list[Instruction]:
    """The specification's function of that name."""
    operands, results = operand_quantizations(context), result_quantizations(context)
    expressed = {q.expressed for q in (*operands, *results) if q}
    if len(expressed) > 1:
        raise context.error(f"its quantized types express {' and '.join(sorted(k.name for k in expressed))}")
    if is_elementwise(context.operation.name):
        _check_elementwise(context, operands, results)
    context.operands = [dequantize(context, x, q) if q else x for x, q in zip(context.operands, operands, strict=True)]
    types = [
        storage_shape(t).with_element_type(q.expressed) if q else t  # type: ignore[union-attr]
        for t, q in zip(context.operation.result_types, results, strict=True)
    ]
    values = with_result_types(context, conversion, types)
    for value, q in zip(values, results, strict=False):
        if q and value.array_shape.element_type is not q.expressed:
            raise context.error(f"it computes {value.shape}, the result's type expresses {q.expressed.name}")
    return [quantize(context, v, q) if q else v for v, q in zip(values, results, strict=True)]


def is_elementwise(name: str) -> bool:
    """Whether the operation is an elementwise HLO op by another name."""
    found = OPS.get(name.partition(".")[2].replace("_", "-"))
    return found is not None and found.elementwise


def _check_elementwise(
    context: Context, operands: Sequence[Quantization | None], results: Sequence[Quantization | None]
) -> None:
    """Elementwise ops take and give one `baseline_type`: scales and zero points may differ, nothing else. `add` lets
    the range differ too."""
    taking_part = [*operands, *results]
    first = next(q for q in taking_part if q)
    for number, q in enumerate(taking_part):
        what = f"operand {number}" if number < len(operands) else f"result {number - len(operands)}"
        if q is None:
            if number < len(operands) and context.operands[number].array_shape.element_type.is_float:
                raise context.error(f"{what} is not quantized", "stablehlo.uniform_quantize makes it so")
        elif context.operation.name == "stablehlo.add":
            if q.storage is not first.storage:
                raise context.error(f"{what} is stored as {q.storage.name}, others as {first.storage.name}")
        elif q.baseline != first.baseline:
            raise context.error(
                f"{what} is {q.text}, which differs from {first.text} in more than scales and zero points"
            )


@converts("stablehlo.uniform_quantize", "stablehlo.uniform_dequantize")
def _neither(context: Context) -> list[Instruction]:
    raise context.error("neither its operand nor its result is quantized")


@quantized_rule("stablehlo.uniform_quantize")
def _uniform_quantize(context: Context, conversion: Conversion) -> list[Instruction]:
    """From numbers, or from integers of another quantized type."""
    (x,), (old,), (new,) = context.operands, operand_quantizations(context), result_quantizations(context)
    if new is None:
        raise context.error("its result is not quantized", "stablehlo.uniform_dequantize gives numbers")
    if old is not None:
        return [requantize(context, x, old, new)]
    if x.array_shape.element_type is not new.expressed:
        raise context.error(f"it quantizes {x.array_shape}, the result's type expresses {new.expressed.name}")
    return [quantize(context, x, new)]


@quantized_rule("stablehlo.uniform_dequantize")
def _uniform_dequantize(context: Context, conversion: Conversion) -> list[Instruction]:
    (x,), (q,), (result,) = context.operands, operand_quantizations(context), result_quantizations(context)
    if q is None or result is not None:
        raise context.error("it takes a quantized tensor and gives numbers")
    return [dequantize(context, x, q)]


@quantized_rule("stablehlo.convert")
def _convert(context: Context, conversion: Conversion) -> list[Instruction]:
    raise context.error(
        "it takes no quantized tensors",
        "use stablehlo.uniform_quantize, stablehlo.uniform_dequantize or, for the integers, stablehlo.bitcast_convert",
    )
