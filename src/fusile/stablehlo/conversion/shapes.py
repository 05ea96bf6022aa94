"""Ops that move elements: constants, broadcasts, slices, gathers, and their like."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts, integers_of
from fusile.stablehlo.conversion.elementwise import stretch
from fusile.stablehlo.conversion.reductions import promoted
from fusile.stablehlo.syntax import Dense


@converts("stablehlo.constant", "chlo.constant", "arith.constant")
def _constant(context: Context) -> Instruction:
    """A splat is a scalar broadcast, so that it takes no memory whatever its size."""
    value = context.attribute("value")
    if not isinstance(value, Dense):
        raise ValueError("its value is not dense<...>")
    if value.is_splat and value.shape.elements:
        first = value.array[(slice(0, 1),) * value.array.ndim].reshape(()).copy()
        return context.broadcast(context.constant(first), value.shape.dimensions)
    return context.constant(value.array)


@converts("stablehlo.iota")
def _iota(context: Context) -> Instruction:
    return context.add("iota", result=context.result_shape(), dimension=context.integer("iota_dimension"))


@converts("stablehlo.broadcast_in_dim")
def _broadcast_in_dim(context: Context) -> Instruction:
    sizes = context.result_shape().sizes
    return stretch(context, context.operands[0], sizes, context.integers("broadcast_dimensions"))


@converts("stablehlo.broadcast")
def _broadcast(context: Context) -> Instruction:
    (x,) = context.operands
    sizes = (*context.integers("broadcast_sizes"), *x.array_shape.sizes)
    return stretch(context, x, sizes, range(len(sizes) - x.array_shape.rank, len(sizes)))


@converts("stablehlo.reshape")
def _reshape(context: Context) -> Instruction:
    return context.reshape(context.operands[0], context.result_shape().dimensions)


@converts("stablehlo.transpose")
def _transpose(context: Context) -> Instruction:
    return context.add("transpose", context.operands, permutation=context.integers("permutation"))


@converts("stablehlo.reverse")
def _reverse(context: Context) -> Instruction:
    return context.add("reverse", context.operands, dimensions=context.integers("dimensions"))


@converts("stablehlo.slice")
def _slice(context: Context) -> Instruction:
    starts = context.integers("start_indices")
    strides = context.integers("strides", (1,) * len(starts))
    limits = context.integers("limit_indices")
    return context.add("slice", context.operands, starts=starts, limits=limits, strides=strides)


@converts("stablehlo.pad")
def _pad(context: Context) -> Instruction:
    low, high = context.integers("edge_padding_low"), context.integers("edge_padding_high")
    interior = context.integers("interior_padding", (0,) * len(low))
    return context.add("pad", context.operands, low=low, high=high, interior=interior)


@converts("stablehlo.concatenate")
def _concatenate(context: Context) -> Instruction:
    return context.add("concatenate", context.operands, dimension=context.integer("dimension"))


@converts("stablehlo.dynamic_slice")
def _dynamic_slice(context: Context) -> Instruction:
    return context.add("dynamic-slice", context.operands, sizes=context.integers("slice_sizes"))


@converts("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(context: Context) -> Instruction:
    return context.add("dynamic-update-slice", context.operands)


def _field(fields: dict[str, Any], name: str) -> tuple[int, ...]:
    return integers_of(name, fields.get(name, []))


def gather(context: Context, operands: list[Instruction], slice_sizes: tuple[int, ...]) -> Instruction:
    fields = context.fields("dimension_numbers")
    names = (
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
    )
    dimensions = {name: _field(fields, name) for name in names}
    return context.add("gather", operands, **dimensions, index_vector_dim=int(fields.get("index_vector_dim", 0)),
                       slice_sizes=slice_sizes, indices_are_sorted=context.boolean("indices_are_sorted"))  # fmt: skip


@converts("stablehlo.gather")
def _gather(context: Context) -> Instruction:
    return gather(context, context.operands, context.integers("slice_sizes"))


@converts("stablehlo.torch_index_select")
def _torch_index_select(context: Context) -> Instruction:
    """The operand's slices at the indices along `dim`, for each index of the first `batch_dims` dimensions."""
    shape, rank = context.operands[0].array_shape, context.operands[1].array_shape.rank
    dim = context.integer("dim")
    dim += shape.rank if dim < 0 else 0
    count = context.integer("batch_dims", 0)
    count += rank if count < 0 else 0
    if not 0 <= count <= min(dim, rank) or dim >= shape.rank:
        raise ValueError(f"dim {dim} and {count} batch_dims of {shape}")
    batch = tuple(range(count))
    after = range(dim + rank - count, shape.rank - 1 + rank - count)
    sizes = tuple(1 if d in batch or d == dim else size for d, size in enumerate(shape.sizes))
    return context.add("gather", context.operands, offset_dims=(*range(count, dim), *after),
                       collapsed_slice_dims=(dim,), operand_batching_dims=batch, start_indices_batching_dims=batch,
                       start_index_map=(dim,), index_vector_dim=rank, slice_sizes=sizes)  # fmt: skip


@converts("stablehlo.scatter")
def _scatter(context: Context) -> list[Instruction]:
    fields = context.fields("scatter_dimension_numbers")
    names = ("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
             "scatter_dims_to_operand_dims")  # fmt: skip
    dimensions = {name: _field(fields, name) for name in names}
    computation, count = context.region(0), len(context.operands) // 2
    indices = context.operands[count]
    arrays = promoted(context, [*context.operands[:count], *context.operands[count + 1 :]], computation)
    result = context.add("scatter", [*arrays[:count], indices, *arrays[count:]], **dimensions,
                         index_vector_dim=int(fields.get("index_vector_dim", 0)), computation=computation,
                         indices_are_sorted=context.boolean("indices_are_sorted"),
                         unique_indices=context.boolean("unique_indices"))  # fmt: skip
    return context.parts(result, len(context.operation.result_types))


@converts("stablehlo.tuple")
def _tuple(context: Context) -> Instruction:
    return context.add("tuple", context.operands)


@converts("stablehlo.get_tuple_element")
def _get_tuple_element(context: Context) -> Instruction:
    return context.add("get-tuple-element", context.operands, index=context.integer("index"))


@converts("stablehlo.optimization_barrier")
def _optimization_barrier(context: Context) -> list[Instruction]:
    return [context.add("optimization-barrier", [o]) for o in context.operands]


@converts("sdy.sharding_constraint")
def _identity(context: Context) -> list[Instruction]:
    return context.operands


@converts("stablehlo.get_dimension_size")
def _get_dimension_size(context: Context) -> Instruction:
    shape = context.operands[0].array_shape
    return context.constant(np.array(shape.sizes[context.integer("dimension")], np.int32))
