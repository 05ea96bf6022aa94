"""Ops that stand for whole algorithms, tokens, and calls to named routines."""

from __future__ import annotations

from fusile.base.shape import TupleShape
from fusile.hlo.ir import Instruction
from fusile.stablehlo.attributes import to_json
from fusile.stablehlo.conversion.context import Context, converts
from fusile.stablehlo.conversion.lapack import LAPACK
from fusile.stablehlo.conversion.program import APPROXIMATE_TOP_K
from fusile.stablehlo.parser import symbol_name
from fusile.stablehlo.syntax import Dense

IDENTITIES = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint", "annotate_device_placement"}
)
"""Custom calls that mean their operands: they guide partitioning and placement."""


@converts("stablehlo.custom_call")
def _custom_call(context: Context) -> list[Instruction]:
    target = str(context.attribute("call_target_name"))
    if target in IDENTITIES:
        return context.operands
    if target in LAPACK:
        return LAPACK[target](context)
    if target == APPROXIMATE_TOP_K:
        return _approximate_top_k(context)
    shapes = context.result_shapes()
    result = context.add("custom-call", context.operands, target=target,
                         result=shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes)), config=_config(context),
                         has_effect=context.boolean("has_side_effect"))  # fmt: skip
    return context.parts(result, len(shapes))


def _approximate_top_k(context: Context) -> list[Instruction]:
    """JAX's `approx_max_k`, exactly: the first of a sort by the computation that it calls, as many as the result has.
    Operands: arrays, then as many initial values, which only approximations need."""
    arrays = context.operands[: len(context.operands) // 2]
    config = context.attribute("mhlo.backend_config")
    dimension = config.get("reduction_dim") if isinstance(config, dict) else None
    called = context.attribute("called_computations")
    if not isinstance(dimension, int) or not isinstance(called, list) or len(called) != 1:
        raise ValueError("it lacks reduction_dim or the computation that it calls")
    order = context.program.computations[symbol_name(called[0])]
    result = context.add("sort", arrays, dimension=dimension, is_stable=True, computation=order)
    sizes = context.result_shape().sizes
    return [context.builder.slice(x, (0,) * len(sizes), sizes) for x in context.parts(result, len(arrays))]


def _config(context: Context) -> str:
    """The routine's attributes: a string as it is, a dictionary as JSON."""
    for name in ("mhlo.backend_config", "backend_config"):
        value = context.attribute(name)
        if value:
            return value if isinstance(value, str) else to_json(value)
    return ""


@converts("stablehlo.fft")
def _fft(context: Context) -> Instruction:
    return context.add("fft", context.operands, kind=context.word("fft_type"), length=context.integers("fft_length"))


@converts("stablehlo.cholesky")
def _cholesky(context: Context) -> Instruction:
    return context.add("cholesky", context.operands, lower=context.boolean("lower"))


@converts("stablehlo.triangular_solve")
def _triangular_solve(context: Context) -> Instruction:
    flags = {name: context.boolean(name) for name in ("left_side", "lower", "unit_diagonal")}
    return context.add(
        "triangular-solve", context.operands, **flags, transpose=context.word("transpose_a", "NO_TRANSPOSE")
    )


@converts("stablehlo.batch_norm_training", "stablehlo.batch_norm_inference", "stablehlo.batch_norm_grad")
def _batch_norm(context: Context) -> list[Instruction]:
    opcode = context.operation.name.partition(".")[2].replace("_", "-")
    result = context.add(opcode, context.operands, epsilon=float(context.attribute("epsilon")),
                         feature_index=context.integer("feature_index"))  # fmt: skip
    return context.parts(result, len(context.operation.result_types))


@converts("stablehlo.create_token", "stablehlo.after_all")
def _token(context: Context) -> Instruction:
    return context.add("after-all", context.operands)


@converts("check.expect_eq", "check.expect_eq_const", "check.expect_almost_eq", "check.expect_almost_eq_const",
          "check.expect_close", "check.eq", "check.almost_eq")  # fmt: skip
def _check(context: Context) -> list[Instruction]:
    """The custom call of that name; a constant to compare with becomes an operand."""
    value = context.attribute("value")
    operands = [*context.operands, context.constant(value.array)] if isinstance(value, Dense) else context.operands
    names = ("tolerance", "min_ulp_difference", "max_ulp_difference")
    settings = {name: context.attribute(name) for name in names if context.attribute(name) is not None}
    context.add("custom-call", operands, target=context.operation.name.removesuffix("_const"), result=TupleShape(()),
                config=to_json(settings) if settings else "", has_effect=True)  # fmt: skip
    return []


@converts("check.expect_serialized_eq")
def _check_of_probe(context: Context) -> list[Instruction]:
    raise context.unsupported("comparison with what a probe wrote to a file", "compare with check.expect_eq")


@converts("interpreter.probe")
def _probe(context: Context) -> list[Instruction]:
    """Shows its operand to people, and is that operand."""
    return context.operands


@converts("stablehlo.trace", "mhlo.trace")
def _trace(context: Context) -> list[Instruction]:
    """Marks a value for tools; it computes nothing."""
    return []
