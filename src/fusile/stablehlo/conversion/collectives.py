"""Communication between devices. A program here runs on one, number 0 of one replica and one partition, so a collective
among groups of one device is an identity; whatever needs another device, or the host while running, is unsupported."""

from __future__ import annotations

import numpy as np

from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts
from fusile.stablehlo.syntax import Dense

_LOWER_FOR_ONE = "lower the program for one device"


@converts("stablehlo.partition_id", "stablehlo.replica_id")
def _device_number(context: Context) -> Instruction:
    return context.constant(np.zeros((), np.uint32))


def _groups(context: Context, name: str = "replica_groups") -> list[list[int]]:
    """The rows of a table of device numbers, without the -1 that fills short rows. Raises UnsupportedOpError where a
    device exchanges data with another."""
    table = context.attribute(name)
    if not isinstance(table, Dense):
        if table is None:
            raise ValueError(f"{name} is missing")
        raise context.unsupported(f"{name} as axes of a mesh of devices", _LOWER_FOR_ONE)
    if table.shape.rank != 2:
        raise ValueError(f"{name} has rank {table.shape.rank}, not 2")
    groups = [[int(device) for device in row if device != -1] for row in table.array.tolist()]
    named = [device for group in groups for device in group]
    if min(named, default=0) < 0:
        raise ValueError(f"{name} names device {min(named)}")
    if any(set(group) != {group[0]} for group in groups if group):
        raise context.unsupported("communication between several devices", _LOWER_FOR_ONE)
    if name == "replica_groups" and len(set(named)) < len(named):
        raise ValueError(f"{name} names a device twice")
    return groups


@converts("stablehlo.all_gather", "stablehlo.all_to_all")
def _exchange(context: Context) -> list[Instruction]:
    """Empty groups mean one group of all devices, of which there is one."""
    _groups(context)
    return context.operands


@converts("stablehlo.all_reduce", "stablehlo.reduce_scatter", "stablehlo.cross-replica-sum")
def _reduction(context: Context) -> list[Instruction]:
    """Of one value, converted where the result's type is a wider one."""
    _groups(context)
    results = []
    for number, operand in enumerate(context.operands):
        kind = context.result_shape(number).element_type
        same = operand.array_shape.element_type is kind
        results.append(operand if same else context.add("convert", [operand], element_type=kind))
    return results


@converts("stablehlo.collective_broadcast", "stablehlo.collective_reduce")
def _to_or_from_first(context: Context) -> list[Instruction]:
    """A device that is in no group gets zeros."""
    named = [device for group in _groups(context) for device in group]
    return [operand if 0 in named else _zeros(context, operand) for operand in context.operands]


@converts("stablehlo.collective_permute")
def _permute(context: Context) -> Instruction:
    """A device that nobody sends to gets zeros."""
    pairs = _groups(context, "source_target_pairs")
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("source_target_pairs has rows that are no pairs")
    (operand,) = context.operands
    return operand if [0, 0] in pairs else _zeros(context, operand)


def _zeros(context: Context, like: Instruction) -> Instruction:
    zero = context.constant(np.zeros((), like.array_shape.element_type.dtype))
    return context.broadcast(zero, like.array_shape.dimensions)


@converts("stablehlo.async_start")
def _async_start(context: Context) -> list[Instruction]:
    """The operation at once; the future it gives is the value itself."""
    captured = context.program.captured_names(context, [context._region(0)])
    computation = context.program.region(context, context._region(0), captured, tuple_root=False)
    operands = [*context.operands[: len(context._region(0).arguments)], *map(context._operand, captured)]
    return [context.add("call", operands, computation=computation)]


@converts("stablehlo.async_done")
def _async_done(context: Context) -> list[Instruction]:
    (future,) = context.operands
    return context.parts(future, len(context.operation.result_types))


@converts("stablehlo.send", "stablehlo.recv")
def _channel(context: Context) -> list[Instruction]:
    raise context.unsupported("channels between programs", "pass the data as arguments and results of the program")


@converts("stablehlo.infeed", "stablehlo.outfeed")
def _host_queue(context: Context) -> list[Instruction]:
    raise context.unsupported("queues between host and device", "pass the data as arguments and results of the program")


@converts("interpreter.run_parallel")
def _run_parallel(context: Context) -> list[Instruction]:
    raise context.unsupported("several processes at once", "run each function as a program of its own")
