"""Ops that stand for whole algorithms, tokens, and calls to named routines."""

from __future__ import annotations

import numpy as np

from fusile.base.shape import TupleShape
from fusile.hlo.ir import Instruction
from fusile.stablehlo.attributes import to_json
from fusile.stablehlo.conversion.context import Context, converts
from fusile.stablehlo.conversion.lapack import LAPACK
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
    shapes = context.result_shapes()
    result = context.add("custom-call", context.operands, target=target,
                         result=shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes)), config=_config(context),
                         has_effect=context.boolean("has_side_effect"))  # fmt: skip
    return context.parts(result, len(shapes))


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


@converts("stablehlo.rng_bit_generator")
def _rng_bit_generator(context: Context) -> list[Instruction]:
    algorithm = "RNG_" + context.word("rng_algorithm")
    result = context.add("rng-bit-generator", context.operands, algorithm=algorithm, result=context.result_shape(1))
    return context.parts(result, 2)


@converts("stablehlo.batch_norm_training", "stablehlo.batch_norm_inference", "stablehlo.batch_norm_grad")
def _batch_norm(context: Context) -> list[Instruction]:
    opcode = context.operation.name.partition(".")[2].replace("_", "-")
    result = context.add(opcode, context.operands, epsilon=float(context.attribute("epsilon")),
                         feature_index=context.integer("feature_index"))  # fmt: skip
    return context.parts(result, len(context.operation.result_types))


@converts("stablehlo.create_token", "stablehlo.after_all")
def _token(context: Context) -> Instruction:
    return context.add("after-all", context.operands)


@converts("stablehlo.partition_id", "stablehlo.replica_id")
def _device_number(context: Context) -> Instruction:
    """Programs run on one device: it is number 0."""
    return context.constant(np.zeros((), np.uint32))


@converts(
    "stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.reduce_scatter",
    "stablehlo.collective_broadcast",
)  # fmt: skip
def _collective(context: Context) -> list[Instruction]:
    """Among groups of one device, which is all we have, collectives change nothing."""
    groups = context.attribute("replica_groups")
    if not isinstance(groups, Dense) or groups.shape.rank != 2 or groups.shape.dimensions[1] != 1:
        raise context.unsupported("communication between several devices", "lower the program for one device")
    return context.operands
