"""Writes computations: a thin layer over `Computation.add` with conveniences for scalars, constants and source
positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType, element_type
from fusile.base.shape import AnyShape, Shape
from fusile.base.source import Source
from fusile.hlo.ir import OPS, Computation, Instruction, Literal, Module, Op
from fusile.hlo.opset import contraction, control, elementwise, reduction, shape, structure

PLAIN = {
    o.replace("-", "_"): o
    for o, cls in OPS.items()
    if issubclass(cls, elementwise.Elementwise) or o in ("select", "clamp")
}


class Builder:
    """Builds one computation. Every elementwise op is a method by its opcode (`b.add(x, y)`, `b.exponential(x)`,
    `b.not_(x)`)."""

    def __init__(self, name: str) -> None:
        self.computation = Computation(name)
        self.source: Source | None = None

    @classmethod
    def on(cls, computation: Computation, source: Source | None = None) -> Builder:
        """Adds to a computation that exists already."""
        builder = cls(computation.name)
        builder.computation, builder.source = computation, source
        return builder

    @contextmanager
    def at(self, source: Source | None) -> Iterator[None]:
        """Instructions made inside carry this source position."""
        before, self.source = self.source, source
        try:
            yield
        finally:
            self.source = before

    def emit(self, op: Op, *operands: Instruction, name: str = "") -> Instruction:
        return self.computation.add(op, operands, source=self.source, name=name)

    def build(self, root: Instruction) -> Computation:
        self.computation.root = root
        return self.computation

    def module(self, root: Instruction) -> Module:
        return Module(self.computation.name, self.build(root))

    def __getattr__(self, name: str) -> Callable[..., Instruction]:
        opcode = PLAIN.get(name.rstrip("_"))
        if opcode is None:
            raise AttributeError(name)
        op = OPS[opcode]()
        return lambda *operands: self.emit(op, *operands)

    # -- leaves
    def parameter(self, of: AnyShape, name: str = "") -> Instruction:
        return self.computation.parameter(of, name, self.source)

    def constant(self, value: Any, of: ElementType | None = None) -> Instruction:
        array = np.asarray(value)
        if of is not None:
            array = array.astype(of.dtype)
        element_type(array.dtype)
        return self.emit(structure.Constant(Literal(array)))

    def iota(self, of: Shape, dimension: int) -> Instruction:
        return self.emit(structure.Iota(of, dimension))

    def full(self, value: Any, of: Shape) -> Instruction:
        """A constant scalar broadcast to a shape."""
        return self.broadcast(self.constant(value, of.element_type), of.sizes, ())

    def like(self, value: Any, x: Instruction) -> Instruction:
        """A constant scalar broadcast to x's shape, of its element type."""
        return self.full(value, x.array_shape)

    # -- shapes
    def broadcast(self, x: Instruction, sizes: Sequence[int], dimensions: Sequence[int]) -> Instruction:
        if tuple(sizes) == x.array_shape.dimensions and tuple(dimensions) == tuple(range(len(sizes))):
            return x
        return self.emit(shape.Broadcast(tuple(sizes), tuple(dimensions)), x)

    def broadcast_to(self, x: Instruction, sizes: Sequence[int]) -> Instruction:
        """NumPy's broadcasting: missing leading dimensions, and sizes of 1 stretched."""
        own = x.array_shape.sizes
        offset = len(sizes) - len(own)
        kept = [d for d, s in enumerate(own) if s == sizes[offset + d]]
        if len(kept) < len(own):
            x = self.reshape(x, [own[d] for d in kept])
        return self.broadcast(x, sizes, [offset + d for d in kept])

    def reshape(self, x: Instruction, sizes: Sequence[int]) -> Instruction:
        return x if tuple(sizes) == x.array_shape.dimensions else self.emit(shape.Reshape(tuple(sizes)), x)

    def transpose(self, x: Instruction, permutation: Sequence[int]) -> Instruction:
        return (
            x
            if tuple(permutation) == tuple(range(len(permutation)))
            else self.emit(shape.Transpose(tuple(permutation)), x)
        )

    def slice(
        self, x: Instruction, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
    ) -> Instruction:
        return self.emit(shape.Slice(tuple(starts), tuple(limits), tuple(strides or (1,) * len(starts))), x)

    def pad(
        self,
        x: Instruction,
        value: Instruction,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
    ) -> Instruction:
        return self.emit(shape.Pad(tuple(low), tuple(high), tuple(interior or (0,) * len(low))), x, value)

    def concatenate(self, xs: Sequence[Instruction], dimension: int) -> Instruction:
        return xs[0] if len(xs) == 1 else self.emit(shape.Concatenate(dimension), *xs)

    def reverse(self, x: Instruction, dimensions: Sequence[int]) -> Instruction:
        return self.emit(shape.Reverse(tuple(dimensions)), x)

    def dynamic_slice(self, x: Instruction, starts: Sequence[Instruction], sizes: Sequence[int]) -> Instruction:
        return self.emit(shape.DynamicSlice(tuple(sizes)), x, *starts)

    def dynamic_update_slice(self, x: Instruction, update: Instruction, starts: Sequence[Instruction]) -> Instruction:
        return self.emit(shape.DynamicUpdateSlice(), x, update, *starts)

    # -- types and comparisons
    def convert(self, x: Instruction, to: ElementType) -> Instruction:
        return x if x.array_shape.element_type is to else self.emit(elementwise.Convert(to), x)

    def bitcast_convert(self, x: Instruction, to: ElementType) -> Instruction:
        return self.emit(elementwise.BitcastConvert(to), x)

    def compare(self, a: Instruction, b: Instruction, direction: str, total_order: bool = False) -> Instruction:
        return self.emit(elementwise.Compare(direction, total_order), a, b)

    # -- tuples and calls
    def tuple(self, xs: Sequence[Instruction]) -> Instruction:
        return self.emit(structure.Tuple(), *xs)

    def element(self, x: Instruction, index: int) -> Instruction:
        return (
            x.operands[index] if isinstance(x.op, structure.Tuple) else self.emit(structure.GetTupleElement(index), x)
        )

    def call(self, computation: Computation, operands: Sequence[Instruction]) -> Instruction:
        return self.emit(control.Call(computation), *operands)

    def while_loop(self, condition: Computation, body: Computation, state: Sequence[Instruction]) -> list[Instruction]:
        loop = self.emit(control.While(condition, body), *state)
        return [self.element(loop, i) for i in range(len(state))]

    def conditional(
        self, index: Instruction, branches: Sequence[Computation], operands: Sequence[Instruction]
    ) -> Instruction:
        return self.emit(control.Conditional(tuple(branches)), index, *operands)

    # -- reductions and products
    def reduce(
        self,
        xs: Sequence[Instruction],
        initial: Sequence[Instruction],
        dimensions: Sequence[int],
        computation: Computation,
    ) -> Instruction:
        return self.emit(reduction.Reduce(tuple(dimensions), computation), *xs, *initial)

    def reduce_with(self, opcode: str, x: Instruction, dimensions: Sequence[int]) -> Instruction:
        """Reduces by one op (`add`, `maximum`, `and`, ...) from its neutral element."""
        of = x.array_shape.element_type
        return self.reduce([x], [self.constant(neutral(opcode, of), of)], dimensions, scalar_computation(opcode, of))

    def dot(
        self,
        a: Instruction,
        b: Instruction,
        lhs_batch: Sequence[int] = (),
        rhs_batch: Sequence[int] = (),
        lhs_contracting: Sequence[int] = (1,),
        rhs_contracting: Sequence[int] = (0,),
        element_type: ElementType | None = None,
    ) -> Instruction:
        return self.emit(
            contraction.Dot(
                tuple(lhs_batch), tuple(rhs_batch), tuple(lhs_contracting), tuple(rhs_contracting), element_type
            ),
            a,
            b,
        )

    def sort(self, xs: Sequence[Instruction], dimension: int, computation: Computation) -> Instruction:
        return self.emit(reduction.Sort(dimension, True, computation), *xs)


def scalar_computation(opcode: str, of: ElementType) -> Computation:
    """The computation of one binary op on scalars."""
    b = Builder(opcode)
    x, y = b.parameter(Shape(of), "left"), b.parameter(Shape(of), "right")
    return b.build(b.emit(OPS[opcode](), x, y))


def neutral(opcode: str, of: ElementType) -> Any:
    """The neutral element of an op used in a reduction."""
    if opcode in ("add", "or", "xor"):
        return 0
    if opcode == "multiply":
        return 1
    if opcode == "and":
        return True if of.is_predicate else -1
    lowest = opcode == "maximum"
    if of.is_predicate:
        return not lowest
    if of.is_float:
        return -math.inf if lowest else math.inf
    if of.is_unsigned:
        return 0 if lowest else (1 << of.bits) - 1
    return -(1 << (of.bits - 1)) if lowest else (1 << (of.bits - 1)) - 1
