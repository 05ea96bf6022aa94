"""Values of a computation: which instruction's leaf a leaf is another name of, and who reads it last.

A value is (instruction, leaf). Reshapes, tuples and their elements, and what a loop hands through unchanged, are
other names of the same value and lie in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base.shape import TupleShape
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.control import While
from fusile.hlo.opset.shape import Reshape
from fusile.hlo.opset.structure import AfterAll, Copy, GetTupleElement, OptimizationBarrier, Tuple

ALIASES = (Reshape, Tuple, GetTupleElement, OptimizationBarrier, AfterAll, Copy)
"""Ops that are no work: their results are their operands under another name."""
ValueName = tuple[Instruction, int]


def origin(i: Instruction, leaf: int) -> ValueName:
    """The instruction and leaf that a leaf is another name of."""
    while i.operands:
        if isinstance(i.op, Tuple):
            for operand in i.operands:
                count = len(operand.shape.leaves())
                if leaf < count:
                    i = operand
                    break
                leaf -= count
        elif isinstance(i.op, GetTupleElement):
            leaf += first_leaf(i)
            i = i.operands[0]
        elif isinstance(i.op, While) and invariant(i.op)[leaf]:
            i, leaf = leaf_operands(i)[leaf]
        elif isinstance(i.op, ALIASES):
            i = i.operands[0]
        else:
            break
    return i, leaf


def first_leaf(element: Instruction) -> int:
    """The number, among the leaves of its tuple, of the first leaf of a get-tuple-element."""
    shape = element.operands[0].shape
    assert isinstance(shape, TupleShape) and isinstance(element.op, GetTupleElement)
    return sum(len(s.leaves()) for s in shape.shapes[: element.op.index])


def origins(i: Instruction) -> list[ValueName]:
    """The values that an instruction's leaves are."""
    return [origin(i, n) for n in range(len(i.shape.leaves()))]


def leaf_operands(i: Instruction) -> list[tuple[Instruction, int]]:
    """An instruction's operands, leaf by leaf."""
    return [(o, n) for o in i.operands for n in range(len(o.shape.leaves()))]


def reads(i: Instruction) -> list[ValueName]:
    """The values that an instruction reads, an entry for each leaf of its operands."""
    return [place for o in i.operands for place in origins(o)]


def parameter_leaves(computation: Computation) -> list[ValueName]:
    """The parameters of a computation, leaf by leaf."""
    return [(p, n) for p in computation.parameters for n in range(len(p.shape.leaves()))]


def invariant(loop: While) -> list[bool]:
    """Which leaves of a loop's state its body hands through unchanged."""
    own = parameter_leaves(loop.body)
    return [value == place for value, place in zip(origins(loop.body.root), own, strict=True)]


def last_readers(order: Sequence[Instruction], computation: Computation) -> dict[ValueName, int]:
    """For each value, the position of the last instruction that reads it, past the end for the root's."""
    last: dict[ValueName, int] = {}
    for position, i in enumerate(order):
        if not isinstance(i.op, ALIASES):
            last.update(dict.fromkeys(reads(i), position))
    last.update(dict.fromkeys(origins(computation.root), len(order)))
    return last
