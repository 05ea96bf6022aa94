"""Loops, branches and calls. What their regions use from outside becomes an operand; constants are copied in."""

from __future__ import annotations

from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts
from fusile.stablehlo.parser import symbol_name
from fusile.stablehlo.syntax import Operation, Region


@converts("stablehlo.while")
def _while(context: Context) -> list[Instruction]:
    """Captured values are carried round the loop unchanged, after the loop's own."""
    condition, body = context._region(0), context._region(1)
    captured = context.program.captured_names(context, (condition, body))
    end = body.operations[-1] if body.operations else None
    if end is None or len(end.operands) != len(context.operands):
        raise ValueError(f"its body does not return {len(context.operands)} values")
    carried = Operation(end.name, end.position, operands=[*end.operands, *captured], location=end.location)
    whole = Region(body.arguments, [*body.operations[:-1], carried])
    result = context.add(
        "while",
        [*context.operands, *(context._operand(name) for name in captured)],
        condition=context.program.region(context, condition, captured, tuple_root=False),
        body=context.program.region(context, whole, captured, tuple_root=True),
    )
    return context.parts(result, len(context.operands))


@converts("stablehlo.case", "stablehlo.if")
def _conditional(context: Context) -> list[Instruction]:
    regions = context.operation.regions
    captured = context.program.captured_names(context, regions)
    branches = tuple(context.program.region(context, r, captured, tuple_root=True) for r in regions)
    operands = [*context.operands, *(context._operand(name) for name in captured)]
    result = context.add("conditional", operands, branches=branches)
    return context.parts(result, len(context.operation.result_types))


@converts("func.call", "call")
def _call(context: Context) -> list[Instruction]:
    return _called(context, symbol_name(context.attribute("callee")))


@converts("stablehlo.composite")
def _composite(context: Context) -> list[Instruction]:
    """A composite means what its decomposition does."""
    return _called(context, symbol_name(context.attribute("decomposition")))


def _called(context: Context, name: str) -> list[Instruction]:
    result = context.add("call", context.operands, computation=context.program.computations[name])
    return context.parts(result, len(context.operation.result_types))
