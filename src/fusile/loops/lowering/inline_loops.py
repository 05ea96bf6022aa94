"""Elements that take a loop of their own: reductions, windows, small products. Written where the value is asked for.

Inside a vector loop each lane has its own accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusile.base.element_type import F32, PRED, ElementType
from fusile.base.errors import CompileError, UnsupportedOpError
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.reduction import Reduce, ReduceWindow
from fusile.hlo.opset.structure import GetTupleElement, Tuple
from fusile.loops.ir import Accumulate, Alloc, Apply, Buffer, Const, Expr, Load, Space, Store, Var, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.complex_numbers import Field
from fusile.loops.lowering.contraction_shape import ContractionShape, contraction_shape
from fusile.loops.lowering.elemental import Elemental, Indices, Pair, chosen, converted, rule
from fusile.loops.lowering.index_ops import Guarded, guarded
from fusile.loops.lowering.scalar_bodies import accumulator_types, combiner_of, from_parts, part_types, parts_of


@rule(Reduce)
def _reduce(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """An inline loop over the reduced dimensions; lanes, if any, run along kept ones."""
    return _only(i, reduce_inline(e, i, at, block))


@rule(ReduceWindow)
def _reduce_window(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    return _only(i, window_inline(e, i, at, block))


def _only(i: Instruction, values: list[Any]) -> Any:
    if len(values) > 1:
        raise CompileError("a reduction of several arrays is asked for one value", source=i.source)
    return values[0]


INLINE = {Reduce: lambda *asked: reduce_inline(*asked), ReduceWindow: lambda *asked: window_inline(*asked)}
"""Ops with several results, and what writes all of them."""


@rule(GetTupleElement)
def _element(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, GetTupleElement)
    source = i.operands[0]
    if isinstance(source.op, Tuple):
        return e.value(source.operands[i.op.index], at, block)
    if source in e.overrides:
        return e.overrides[source](at)[i.op.index]
    if type(source.op) not in INLINE:
        raise UnsupportedOpError(f"{source.opcode} with several results has a kernel of its own", source=i.source)
    found = block.look_up((source, at))
    if found is None:
        found = block.known[source, at] = INLINE[type(source.op)](e, source, at, block)
    return found[i.op.index]


def reduce_inline(e: Elemental, i: Instruction, at: Indices, block: Block) -> list[Any]:
    """All results of a Reduce at one index."""
    assert isinstance(i.op, Reduce)
    sum_ = _Accumulator(e, i, block)
    sizes = i.operands[0].array_shape.sizes
    reduced = sorted(i.op.dimensions)
    loops = {d: e.math.bound(e.names.var("k"), sizes[d]) for d in reduced}
    kept = iter(at)
    place = tuple(loops[d] if d in loops else next(kept) for d in range(len(sizes)))
    inner = block.child()
    sum_.step(inner, sum_.operands(place, inner))
    nest(block, inner, [(loops[d], sizes[d]) for d in reduced])
    return sum_.results(block)


def window_inline(e: Elemental, i: Instruction, at: Indices, block: Block) -> list[Any]:
    """All results of a ReduceWindow at one index: a loop over the window, skipping what lies in the padding."""
    assert isinstance(i.op, ReduceWindow)
    window, sizes = i.op.window, i.operands[0].array_shape.sizes
    sum_ = _Accumulator(e, i, block)
    inner = block.child()
    loops: list[tuple[Var, int]] = []
    place: list[Expr] = []
    guard = Guarded()
    for d, index in enumerate(at):
        offset: Expr = const(0)
        if window.size[d] > 1:
            var = e.math.bound(e.names.var("w"), window.size[d])
            loops.append((var, window.size[d]))
            offset = e.math.scale(var, window.window_dilation[d])
        start = e.math.subtract(e.math.scale(index, window.stride[d]), const(window.padding_low[d]))
        place.append(guarded(e, e.math.add(start, offset), sizes[d], window.base_dilation[d], guard, inner))
    if i.operands[0].array_shape.elements:
        values = sum_.operands(tuple(place), inner)
        if guard.test is not None:
            test = inner.let(guard.test, "inside")
            values = [chosen(test, v, n, inner) for v, n in zip(values, sum_.initial, strict=True)]
        sum_.step(inner, values)
        nest(block, inner, loops)
    return sum_.results(block)


class _Accumulator:
    """The cells of one reduction at one index, which start as the initial values."""

    def __init__(self, e: Elemental, i: Instruction, block: Block) -> None:
        self.e, self.instruction = e, i
        self.types = accumulator_types(i)
        count = len(self.types)
        self.inputs = i.operands[:count]
        initial = [e.value(o, (), block) for o in i.operands[count:]]
        self.initial = [converted(v, t) for v, t in zip(initial, self.types, strict=True)]
        self.combiner = combiner_of(i.op.computations()[0], self.types, e.names)
        self.cells = cells_for(e, self.types, parts_of(self.initial), block)

    def operands(self, at: Indices, block: Block) -> list[Any]:
        return [converted(self.e.value(o, at, block), t) for o, t in zip(self.inputs, self.types, strict=True)]

    def step(self, block: Block, values: Sequence[Any]) -> None:
        cells = tuple((c, (const(0),)) for c in self.cells)
        block.emit(Accumulate(cells, tuple(parts_of(values)), self.combiner, tuple(parts_of(self.initial))))

    def results(self, block: Block) -> list[Any]:
        loaded = from_parts([Load(c, (const(0),)) for c in self.cells], self.types)
        leaves = self.instruction.shape.leaves()
        return [named(converted(v, s.element_type), block) for v, s in zip(loaded, leaves, strict=True)]


def cells_for(e: Elemental, types: Sequence[ElementType], initial: Sequence[Expr], block: Block) -> list[Buffer]:
    """Register cells of values of these types, complex ones in two, each holding its initial value."""
    cells = [Buffer(e.names.var("acc").name, t, (1,), Space.REGISTER) for t in part_types(types)]
    for cell, value in zip(cells, initial, strict=True):
        block.emit(Alloc(cell))
        block.emit(Store(cell, (const(0),), value))
    return cells


def named(value: Any, block: Block) -> Any:
    """The value, computed here."""
    if isinstance(value, Pair):
        return Pair(block.let(value.real, "v"), block.let(value.imag, "v"))
    return block.let(value, "v")


def nest(block: Block, inner: Block, loops: Sequence[tuple[Var, int]]) -> None:
    """Puts `inner` into loops, the first outermost, and them into `block`."""
    for number, (var, size) in enumerate(reversed(loops)):
        outer = block if number == len(loops) - 1 else block.child()
        outer.loop(var, size, inner)
        inner = outer
    if not loops:
        block.statements += inner.statements


@rule(Dot, Convolution)
def _product(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """A small product, or a convolution, as an inline loop."""
    shape = contraction_shape(i)
    batch, rows, columns = _coordinates(e, i, shape, at)
    t = i.array_shape.element_type
    accumulator = F32 if t.is_float and t.bits < 32 else t
    zero = Const(0.0 if not t.is_integer else 0, accumulator.real) if not t.is_predicate else Const(False, PRED)
    cells = cells_for(e, [accumulator], [zero] * (2 if t.is_complex else 1), block)
    loops = [e.math.bound(e.names.var("k"), size) for size in shape.depth]
    inner = block.child()
    a = converted(e.value(i.operands[0], shape.lhs(batch, rows, columns, loops), inner), accumulator)
    b = converted(e.value(i.operands[1], shape.rhs(batch, rows, columns, loops), inner), accumulator)
    (old,) = from_parts([Load(c, (const(0),)) for c in cells], [accumulator])
    new = named(_multiply_add(e, old, a, b, accumulator), inner)
    inner.statements += [Store(c, (const(0),), part) for c, part in zip(cells, parts_of([new]), strict=True)]
    nest(block, inner, list(zip(loops, shape.depth, strict=True)))
    (total,) = from_parts([Load(c, (const(0),)) for c in cells], [accumulator])
    return named(converted(total, t), block)


def _multiply_add(e: Elemental, total: Any, a: Any, b: Any, t: ElementType) -> Any:
    if t.is_predicate:
        return Apply("or", (total, Apply("and", (a, b), PRED)), PRED)
    if t.is_integer:
        return Apply("add", (total, Apply("multiply", (a, b), t)), t)
    return Field(t, e.machine.has_fma).add_product(total, a, b)


def _coordinates(
    e: Elemental, i: Instruction, shape: ContractionShape, at: Indices
) -> tuple[Indices, Indices, Indices]:
    """The batch, row and column coordinates of an element of the result: the inverse of `shape.output`."""
    if isinstance(i.op, Dot):
        first, second = len(shape.batch), len(shape.batch) + len(shape.rows)
        return at[:first], at[first:second], at[second:]
    assert isinstance(i.op, Convolution)
    window, numbers = i.op.window, i.op.dimension_numbers
    if any((*window.padding_low, *window.padding_high, *window.reversal)) or any(d != 1 for d in window.base_dilation):
        raise CompileError("a convolution's padding, base dilation or reversal was not made explicit", source=i.source)
    rows = (at[numbers.output_batch], *(at[d] for d in numbers.output_spatial))
    feature = at[numbers.output_feature]
    if not shape.batch:
        return (), rows, (feature,)
    (size,) = shape.columns
    return (e.math.floor_divide(feature, size),), rows, (e.math.modulo(feature, size),)
