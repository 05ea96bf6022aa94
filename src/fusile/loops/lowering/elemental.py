"""The value of any instruction of a fusion at any index, as expressions: the pull-based half of lowering.

`Elemental.value(instruction, indices, block)` asks operands at the indices that the op maps to, down to the fusion's
parameters. One function an op class, in a registry; elementwise ops need only their scalar op. Complex values are
pairs. What needs loops of its own (a reduction inside) emits them into the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusile.base.element_type import F32, PRED, S64, ElementType
from fusile.base.errors import CompileError, UnsupportedOpError
from fusile.hlo.ir import Computation, Instruction, Op
from fusile.hlo.opset import elementwise as ew
from fusile.hlo.opset import shape as sh
from fusile.hlo.opset import structure as st
from fusile.hlo.opset.contraction import Dot
from fusile.hlo.opset.reduction import Reduce, ReduceWindow
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Buffer,
    Combiner,
    Const,
    Expr,
    Kernel,
    Load,
    Space,
    Stmt,
    Store,
    Var,
    compare,
    const,
    select,
)
from fusile.loops.lowering.block import Block, Names
from fusile.loops.machine import Machine
from fusile.loops.math import is_transcendental
from fusile.loops.simplify import IndexMath

Indices = tuple[Expr, ...]


@dataclass(frozen=True)
class Pair:
    """A complex value: two real expressions."""

    real: Expr
    imag: Expr


Value = Expr | Pair
Rule = Callable[["Elemental", Instruction, Indices, Block], Any]
RULES: dict[type[Op], Rule] = {}


def rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        for cls in classes:
            RULES[cls] = function
        return function

    return enter


class Elemental:
    """The elements of one fusion's instructions. Buffers are flat: parameters, then results, as the kernel has them."""

    def __init__(self, fusion: Instruction, machine: Machine) -> None:
        (self.computation,) = fusion.op.computations()
        self.machine = machine
        self.names = Names()
        self.math = IndexMath()
        self.parameters = [_buffer(f"p{i}", p) for i, p in enumerate(self.computation.parameters)]
        root = self.computation.root
        self.roots = list(root.operands) if isinstance(root.op, st.Tuple) else [root]
        self.results = [(r, _buffer(f"r{i}", r)) for i, r in enumerate(self.roots)]
        self.overrides: dict[Instruction, Callable[[Indices], Any]] = {}
        self.in_place = bool(getattr(fusion.op, "in_place", ()))

    def kernel(self, name: str, *phases: Stmt) -> Kernel:
        outputs = tuple(b for _, b in self.results)
        return Kernel(name, (*self.parameters, *outputs), outputs, phases, no_alias=not self.in_place)

    def block(self) -> Block:
        return Block(self.names)

    def override(self, instruction: Instruction, value: Expr | Callable[[Indices], Any]) -> None:
        """From now on the instruction's value is this, whatever leads to it."""
        self.overrides[instruction] = value if callable(value) else lambda _: value

    def value(self, instruction: Instruction, indices: Sequence[Expr], block: Block) -> Any:
        """The element at `indices`: an Expr, or a Pair when complex. Emits what it needs into `block`."""
        key = (instruction, tuple(indices))
        found = block.look_up(key)
        if found is not None:
            return found
        if instruction in self.overrides:
            return self.overrides[instruction](key[1])
        function = RULES.get(type(instruction.op))
        if function is None:
            raise UnsupportedOpError(
                f"the CPU target has no kernel for {instruction.opcode}", source=instruction.source
            )
        value = function(self, instruction, key[1], block)
        if isinstance(value, Pair):
            value = Pair(block.let(value.real), block.let(value.imag))
        elif len(instruction.users) > 1 or _weight(value) > 24:
            value = block.let(value)
        block.known[key] = value
        return value

    def load(self, buffer: Buffer, instruction: Instruction, indices: Sequence[Expr]) -> Any:
        """An element of a parameter."""
        flat = self.math.flatten(indices, instruction.array_shape.sizes)
        return self.read(buffer, flat, instruction.array_shape.element_type.is_complex)

    def read(self, buffer: Buffer, flat: Expr, is_complex: bool) -> Any:
        """An element of a flat buffer; a complex one is two neighbours."""
        if not is_complex:
            return Load(buffer, (flat,))
        twice = self.math.scale(flat, 2)
        return Pair(Load(buffer, (twice,)), Load(buffer, (self.math.add(twice, const(1)),)))

    def store(
        self, buffer: Buffer, instruction: Instruction, indices: Sequence[Expr], value: Any, block: Block
    ) -> None:
        """Stores an element of a result."""
        self.write(buffer, self.math.flatten(indices, instruction.array_shape.sizes), value, block)

    def write(self, buffer: Buffer, flat: Expr, value: Any, block: Block) -> None:
        """Stores an element of a flat buffer."""
        if isinstance(value, Pair):
            twice = self.math.scale(flat, 2)
            block.emit(Store(buffer, (twice,), value.real))
            block.emit(Store(buffer, (self.math.add(twice, const(1)),), value.imag))
        else:
            block.emit(Store(buffer, (flat,), value))

    def combiner(self, computation: Computation, types: Sequence[ElementType]) -> Combiner:
        """A computation of scalars as a Combiner on accumulators of the given types."""
        count = len(types)
        variables = [Var(f"c{self.names.var('x').name}", t) for t in (*types, *types)]
        inner = _ScalarBody(self, computation, variables)
        root = computation.root
        roots = list(root.operands) if isinstance(root.op, st.Tuple) else [root]
        results = tuple(_as(inner.value(r), t) for r, t in zip(roots, types, strict=True))
        return Combiner(tuple(variables[:count]), tuple(variables[count:]), results)

    def scalar(self, computation: Computation, arguments: Sequence[Expr]) -> list[Any]:
        """The results of a computation of scalars, as expressions of its arguments."""
        inner = _ScalarBody(self, computation, arguments)
        root = computation.root
        roots = list(root.operands) if isinstance(root.op, st.Tuple) else [root]
        return [inner.value(r) for r in roots]


class _ScalarBody:
    """A scalar computation (of a reduction or a comparator) as expressions."""

    def __init__(self, elemental: Elemental, computation: Computation, arguments: Sequence[Expr]) -> None:
        self.elemental = elemental
        self.found: dict[Instruction, Any] = dict(zip(computation.parameters, arguments, strict=True))
        for parameter, argument in list(self.found.items()):
            self.found[parameter] = _as(argument, parameter.array_shape.element_type)

    def value(self, instruction: Instruction) -> Any:
        if instruction not in self.found:
            operands = [self.value(o) for o in instruction.operands]
            if isinstance(instruction.op, st.Constant):
                self.found[instruction] = _constant(instruction, instruction.op.literal.array.item())
            else:
                self.found[instruction] = scalar_value(instruction, operands)
        return self.found[instruction]


def _as(value: Any, element_type: ElementType) -> Any:
    if isinstance(value, Pair) or value.element_type is element_type:
        return value
    return Apply("convert", (value,), element_type)


def _buffer(name: str, instruction: Instruction) -> Buffer:
    shape = instruction.array_shape
    t = shape.element_type
    if t.is_complex:
        return Buffer(name, t.real, (2 * shape.elements,))
    return Buffer(name, t, (shape.elements,))


def _weight(value: Expr) -> int:
    """Roughly how many ops an expression has, counted up to a bound."""
    total, stack = 0, [value]
    while stack and total < 64:
        e = stack.pop()
        total += 1
        if isinstance(e, Apply):
            stack.extend(e.arguments)
    return total


# -- elementwise ----------------------------------------------------------------------------------------------------------


def scalar_value(instruction: Instruction, operands: Sequence[Any]) -> Any:
    """An elementwise op on elements. Narrow floats are computed in f32 and rounded after each op."""
    op, result = instruction.op, instruction.array_shape.element_type
    if result.is_complex or any(isinstance(o, Pair) for o in operands):
        from fusile.loops.lowering.complex_numbers import complex_value

        return complex_value(instruction, operands)
    if isinstance(op, ew.Convert):
        return _as(operands[0], result)
    if isinstance(op, ew.BitcastConvert):
        return Apply("bitcast", tuple(operands), result)
    if isinstance(op, ew.Select):
        return select(operands[0], operands[1], operands[2])
    if isinstance(op, ew.Real):
        return operands[0]
    if isinstance(op, ew.Imag):
        return Const(0.0, result)
    wide = [_widened(o) for o in operands]
    if isinstance(op, ew.Compare):
        return _comparison(op, wide)
    if isinstance(op, ew.IsFinite):
        return Apply("is_finite", tuple(wide), PRED)
    computed = F32 if result.is_float and result.bits < 32 else result
    value = _native(op, wide, computed, result)
    return _as(value, result)


def _widened(value: Expr) -> Expr:
    t = value.element_type
    return Apply("convert", (value,), F32) if t.is_float and t.bits < 32 else value


def _native(op: Op, xs: Sequence[Expr], computed: ElementType, result: ElementType) -> Expr:
    if isinstance(op, ew.Clamp):
        return Apply("minimum", (Apply("maximum", (xs[0], xs[1]), computed), xs[2]), computed)
    if isinstance(op, ew.ReducePrecision):
        return _reduce_precision(op, xs[0])
    name = op.opcode.replace("-", "_")
    if computed.is_predicate and name in ("add", "multiply"):
        name = "or" if name == "add" else "and"
    return Apply(name, tuple(xs), computed)


def _comparison(op: ew.Compare, xs: Sequence[Expr]) -> Expr:
    t = xs[0].element_type
    if op.total_order and t.is_float:
        from fusile.base.element_type import S32

        keys = tuple(Apply("total_order_key", (x,), S32 if t.bits == 32 else S64) for x in xs)
        return compare(op.direction.lower(), keys[0], keys[1])
    return compare(op.direction.lower(), xs[0], xs[1])


def _reduce_precision(op: ew.ReducePrecision, x: Expr) -> Expr:
    from fusile.base.element_type import S32

    if x.element_type is not F32 or op.exponent_bits > 8 or op.mantissa_bits > 23:
        if op.exponent_bits >= 8 and op.mantissa_bits >= 23 and x.element_type is F32:
            return x
        raise UnsupportedOpError(
            f"reduce-precision of {x.element_type} to {op.exponent_bits}, {op.mantissa_bits} bits has no code yet"
        )
    drop = 23 - op.mantissa_bits
    bits: Expr = Apply("bitcast", (x,), S32)

    def i(v: int) -> Const:
        return Const(v, S32)

    if drop:
        odd = Apply("and", (Apply("shift_right_logical", (bits, i(drop)), S32), i(1)), S32)
        bits = Apply("add", (bits, Apply("add", (odd, i((1 << (drop - 1)) - 1)), S32)), S32)
        bits = Apply("and", (bits, i(~((1 << drop) - 1))), S32)
    rounded: Expr = Apply("bitcast", (bits,), F32)
    size = Apply("abs", (rounded,), F32)
    bias = (1 << (op.exponent_bits - 1)) - 1
    if op.exponent_bits < 8:
        infinite = Apply("copysign", (Const(float("inf"), F32), x), F32)
        rounded = select(compare("ge", size, Const(2.0 ** (bias + 1), F32)), infinite, rounded)
        rounded = select(
            compare("lt", size, Const(2.0 ** (1 - bias), F32)), Apply("copysign", (Const(0.0, F32), x), F32), rounded
        )
    return select(compare("ne", x, x), x, rounded)


def _elementwise(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    operands = []
    for operand in i.operands:
        scalar = operand.array_shape.is_scalar and not i.array_shape.is_scalar
        operands.append(e.value(operand, () if scalar else at, block))
    return scalar_value(i, operands)


for _cls in [c for c in vars(ew).values() if isinstance(c, type) and issubclass(c, Op) and c.opcode and c.elementwise]:
    RULES[_cls] = _elementwise


@rule(ew.BitcastConvert)
def _bitcast(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    (x,) = i.operands
    if x.array_shape.element_type.bits == i.array_shape.element_type.bits:
        return scalar_value(i, [e.value(x, at, block)])
    return _bitcast_width(e, i, at, block)


def _bitcast_width(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """To narrower: shift and truncate; to wider: put the parts together."""
    from fusile.base.element_type import element_type

    (x,), new, old = i.operands, i.array_shape.element_type, i.operands[0].array_shape.element_type
    if new.bits < old.bits:
        wide, narrow = element_type(f"u{old.bits}"), element_type(f"u{new.bits}")
        bits = Apply("bitcast", (e.value(x, at[:-1], block),), wide)
        amount = Apply("convert", (e.math.scale(at[-1], new.bits),), wide)
        part = Apply("convert", (Apply("shift_right_logical", (bits, amount), wide),), narrow)
        return Apply("bitcast", (part,), new)
    wide, narrow = element_type(f"u{new.bits}"), element_type(f"u{old.bits}")
    total: Expr = Const(0, wide)
    for part in range(new.bits // old.bits):
        bits = Apply("convert", (Apply("bitcast", (e.value(x, (*at, const(part)), block),), narrow),), wide)
        total = Apply("or", (total, Apply("shift_left", (bits, Const(part * old.bits, wide)), wide)), wide)
    return Apply("bitcast", (total,), new)


# -- leaves ---------------------------------------------------------------------------------------------------------------


@rule(st.Parameter)
def _parameter(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, st.Parameter)
    return e.load(e.parameters[i.op.number], i, at)


@rule(st.Constant)
def _constant_rule(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, st.Constant)
    array = i.op.literal.array
    if array.size != 1:
        raise CompileError(f"constant {i.name} of {i.shape} is inside a fusion; it must be an operand", source=i.source)
    return _constant(i, array.reshape(()).item())


def _constant(i: Instruction, value: Any) -> Any:
    t = i.array_shape.element_type
    if t.is_complex:
        return Pair(Const(float(value.real), t.real), Const(float(value.imag), t.real))
    if t.is_float:
        return Const(float(value), t)
    return Const(bool(value) if t.is_predicate else int(value), t)


@rule(st.Iota)
def _iota(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, st.Iota)
    t = i.array_shape.element_type
    count = at[i.op.dimension]
    if t.is_complex:
        return Pair(Apply("convert", (count,), t.real), Const(0.0, t.real))
    return _as(count, t)


@rule(st.Copy, st.OptimizationBarrier)
def _same(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    return e.value(i.operands[0], at, block)


# -- shapes ---------------------------------------------------------------------------------------------------------------


@rule(sh.Broadcast)
def _broadcast(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Broadcast)
    return e.value(i.operands[0], tuple(at[d] for d in i.op.broadcast_dimensions), block)


@rule(sh.Reshape)
def _reshape(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    return e.value(i.operands[0], reshaped(e.math, at, i.array_shape.sizes, i.operands[0].array_shape.sizes), block)


def reshaped(math: IndexMath, at: Sequence[Expr], sizes: Sequence[int], wanted: Sequence[int]) -> Indices:
    """Indices of the same element under other dimensions; groups of dimensions that line up are kept apart."""
    result: list[Expr] = []
    i = j = 0
    while i < len(sizes) or j < len(wanted):
        a, b, first, start = 1, 1, i, j
        if i < len(sizes):
            a, i = sizes[i], i + 1
        if j < len(wanted):
            b, j = wanted[j], j + 1
        while a != b or (i < len(sizes) and sizes[i] == 1) or (j < len(wanted) and wanted[j] == 1 and i >= len(sizes)):
            if a < b or (a == b and i < len(sizes) and sizes[i] == 1):
                if i >= len(sizes):
                    break
                a, i = a * sizes[i], i + 1
            else:
                if j >= len(wanted):
                    break
                b, j = b * wanted[j], j + 1
        flat = math.flatten(at[first:i], sizes[first:i])
        result += math.unflatten(flat, wanted[start:j])
    return tuple(result)


@rule(sh.Transpose)
def _transpose(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Transpose)
    source: list[Expr] = [const(0)] * len(at)
    for d, p in enumerate(i.op.permutation):
        source[p] = at[d]
    return e.value(i.operands[0], tuple(source), block)


@rule(sh.Slice)
def _slice(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Slice)
    source = tuple(
        e.math.add(e.math.scale(x, stride), const(start))
        for x, start, stride in zip(at, i.op.starts, i.op.strides, strict=True)
    )
    return e.value(i.operands[0], source, block)


@rule(sh.Reverse)
def _reverse(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Reverse)
    sizes = i.array_shape.sizes
    source = tuple(e.math.subtract(const(sizes[d] - 1), x) if d in i.op.dimensions else x for d, x in enumerate(at))
    return e.value(i.operands[0], source, block)


@rule(sh.Pad)
def _pad(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """Inside, the operand at an index moved inside; outside, the padding value. Loads never leave the operand."""
    assert isinstance(i.op, sh.Pad)
    x, padding = i.operands
    inside: Expr | None = None
    source: list[Expr] = []
    for d, size in enumerate(x.array_shape.sizes):
        step = i.op.interior[d] + 1
        moved = e.math.subtract(at[d], const(i.op.low[d]))
        low, high = e.math.range_of(moved)
        tests: list[Expr] = []
        if low < 0:
            tests.append(compare("ge", moved, const(0)))
        if high >= (size - 1) * step + 1:
            tests.append(compare("le", moved, const((size - 1) * step)))
        if tests:
            moved = Apply("maximum", (Apply("minimum", (moved, const(max(0, (size - 1) * step))), S64), const(0)), S64)
        if step > 1:
            tests.append(compare("eq", e.math.modulo(moved, step), const(0)))
            moved = e.math.floor_divide(moved, step)
        source.append(block.let(moved, "at") if tests else moved)
        for test in tests:
            inside = test if inside is None else Apply("and", (inside, test), PRED)
    if x.array_shape.elements == 0:
        return e.value(padding, (), block)
    value = e.value(x, tuple(source), block)
    return value if inside is None else chosen(inside, value, e.value(padding, (), block), block)


def chosen(test: Expr, a: Any, b: Any, block: Block) -> Any:
    """`select` for values that may be pairs."""
    if isinstance(a, Pair):
        test = block.let(test)
        return Pair(select(test, a.real, b.real), select(test, a.imag, b.imag))
    return select(test, a, b)


@rule(sh.Concatenate)
def _concatenate(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """A chain of selects; each operand is asked at an index moved inside it."""
    assert isinstance(i.op, sh.Concatenate)
    d = i.op.dimension
    start, value = 0, None
    low, high = e.math.range_of(at[d])
    for operand in i.operands:
        size = operand.array_shape.sizes[d]
        if size and low < start + size and high >= start:
            moved = e.math.subtract(at[d], const(start))
            if low < start:
                moved = Apply("maximum", (moved, const(0)), S64)
            if high >= start + size:
                moved = Apply("minimum", (moved, const(size - 1)), S64)
            part = e.value(
                operand,
                (*at[:d], block.let(moved, "at") if low < start or high >= start + size else moved, *at[d + 1 :]),
                block,
            )
            value = part if value is None else chosen(compare("ge", at[d], const(start)), part, value, block)
        start += size
    return value


def clamped_start(e: Elemental, value: Expr, room: int, block: Block) -> Expr:
    """A start index moved into [0, room], as an s64."""
    if isinstance(value, Const):
        return const(min(max(int(value.value), 0), room))
    if room == 0:
        return const(0)
    t = value.element_type
    if t.is_unsigned and t.bits == 64:
        value = Apply("minimum", (value, Const(room, t)), t)
    wide = _as(value, S64)
    var = block.let(Apply("maximum", (Apply("minimum", (wide, const(room)), S64), const(0)), S64), "start")
    if isinstance(var, Var):
        e.math.ranges[var.name] = (0, room)
    return var


@rule(sh.DynamicSlice)
def _dynamic_slice(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.DynamicSlice)
    x, *starts = i.operands
    source = []
    for index, start, size, total in zip(at, starts, i.op.sizes, x.array_shape.sizes, strict=True):
        source.append(e.math.add(index, clamped_start(e, e.value(start, (), block), total - size, block)))
    return e.value(x, tuple(source), block)


@rule(sh.DynamicUpdateSlice)
def _dynamic_update_slice(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """Not in place: the update where the index is inside its window, else the operand."""
    x, update, *starts = i.operands
    if update.array_shape.elements == 0:
        return e.value(x, at, block)
    inside: Expr | None = None
    source = []
    for index, start, size, total in zip(at, starts, update.array_shape.sizes, x.array_shape.sizes, strict=True):
        begin = clamped_start(e, e.value(start, (), block), total - size, block)
        moved = e.math.subtract(index, begin)
        low, high = e.math.range_of(moved)
        if low < 0 or high >= size:
            test = Apply("and", (compare("ge", moved, const(0)), compare("lt", moved, const(size))), PRED)
            inside = test if inside is None else Apply("and", (inside, test), PRED)
            moved = block.let(Apply("maximum", (Apply("minimum", (moved, const(size - 1)), S64), const(0)), S64), "at")
        source.append(moved)
    value = e.value(update, tuple(source), block)
    return value if inside is None else chosen(inside, value, e.value(x, at, block), block)


@rule(sh.Gather)
def _gather(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    op = i.op
    assert isinstance(op, sh.Gather)
    x, indices = i.operands
    batch = [at[d] for d in range(len(at)) if d not in op.offset_dims]
    offsets = iter([at[d] for d in op.offset_dims])
    source: list[Expr] = []
    for d in range(x.array_shape.rank):
        dropped = d in op.collapsed_slice_dims or d in op.operand_batching_dims
        source.append(const(0) if dropped else next(offsets))
    for number, d in enumerate(op.start_index_map):
        place = list(batch)
        if op.index_vector_dim < indices.array_shape.rank:
            place.insert(op.index_vector_dim, const(number))
        start = clamped_start(
            e, e.value(indices, tuple(place), block), x.array_shape.sizes[d] - op.slice_sizes[d], block
        )
        source[d] = e.math.add(source[d], start)
    batch_dims = [d for d in range(indices.array_shape.rank) if d != op.index_vector_dim]
    for d, from_dim in zip(op.operand_batching_dims, op.start_indices_batching_dims, strict=True):
        source[d] = batch[batch_dims.index(from_dim)]
    return e.value(x, tuple(source), block)


# -- loops inside ---------------------------------------------------------------------------------------------------------


def accumulator_types(instruction: Instruction) -> list[ElementType]:
    """Sums of narrow floats accumulate in f32."""
    types = [s.element_type for s in instruction.shape.leaves()]
    return [F32 if t.is_float and t.bits < 32 else t for t in types]


@rule(Reduce)
def _reduce(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """An inline loop over the reduced dimensions; lanes, if any, run along kept ones."""
    values = reduce_inline(e, i, at, block)
    if len(values) > 1:
        raise CompileError("a reduction of several arrays is asked for one value", source=i.source)
    return values[0]


@rule(st.GetTupleElement)
def _element(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, st.GetTupleElement)
    source = i.operands[0]
    if isinstance(source.op, st.Tuple):
        return e.value(source.operands[i.op.index], at, block)
    if source in e.overrides:
        return e.overrides[source](at)[i.op.index]
    if not isinstance(source.op, Reduce | ReduceWindow):
        raise UnsupportedOpError(
            f"the CPU target has no kernel for {source.opcode} with several results", source=i.source
        )
    key = (source, at)
    found = block.look_up(key)
    if found is None:
        found = (
            reduce_inline(e, source, at, block)
            if isinstance(source.op, Reduce)
            else window_inline(e, source, at, block)
        )
        block.known[key] = found
    return found[i.op.index]


def _start_accumulators(
    e: Elemental, i: Instruction, block: Block
) -> tuple[list[Buffer], tuple[Expr, ...], list[ElementType]]:
    types = accumulator_types(i)
    count = len(types)
    initial = tuple(_as(e.value(o, (), block), t) for o, t in zip(i.operands[count:], types, strict=True))
    cells = [Buffer(e.names.var("acc").name, t, (1,), Space.REGISTER) for t in types]
    for cell, value in zip(cells, initial, strict=True):
        block.emit(Alloc(cell))
        block.emit(Store(cell, (const(0),), value))
    return cells, initial, types


def _finish(i: Instruction, cells: Sequence[Buffer], block: Block) -> list[Expr]:
    results = []
    for cell, shape in zip(cells, i.shape.leaves(), strict=True):
        results.append(block.let(_as(Load(cell, (const(0),)), shape.element_type), "sum"))
    return results


def _no_pairs(i: Instruction) -> None:
    if any(s.element_type.is_complex for s in i.shape.leaves()):
        raise UnsupportedOpError(f"the CPU target has no code for {i.opcode} of complex numbers yet", source=i.source)


def reduce_inline(e: Elemental, i: Instruction, at: Indices, block: Block) -> list[Expr]:
    """All results of a Reduce at one index."""
    assert isinstance(i.op, Reduce)
    _no_pairs(i)
    cells, initial, types = _start_accumulators(e, i, block)
    sizes = i.operands[0].array_shape.sizes
    loops = [e.math.bound(e.names.var("k"), sizes[d]) for d in i.op.dimensions]
    place: list[Expr] = []
    kept = iter(at)
    for d in range(len(sizes)):
        place.append(loops[i.op.dimensions.index(d)] if d in i.op.dimensions else next(kept))
    inner = block.child()
    values = tuple(
        _as(e.value(o, tuple(place), inner), t) for o, t in zip(i.operands[: len(types)], types, strict=True)
    )
    inner.emit(Accumulate(tuple((c, (const(0),)) for c in cells), values, e.combiner(i.op.computation, types), initial))
    order = sorted(range(len(loops)), key=lambda n: i.op.dimensions[n])  # type: ignore[attr-defined]
    _nest(block, inner, [(loops[n], sizes[i.op.dimensions[n]]) for n in order])
    return _finish(i, cells, block)


def _nest(block: Block, inner: Block, loops: Sequence[tuple[Var, int]]) -> None:
    """Puts `inner` into loops, the first outermost, and them into `block`."""
    for number, (var, size) in enumerate(reversed(loops)):
        outer = block if number == len(loops) - 1 else block.child()
        outer.loop(var, size, inner)
        inner = outer
    if not loops:
        block.statements += inner.statements


@rule(ReduceWindow)
def _reduce_window(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    return window_inline(e, i, at, block)[0]


def window_inline(e: Elemental, i: Instruction, at: Indices, block: Block) -> list[Expr]:
    """All results of a ReduceWindow at one index: a loop over the window, skipping what lies in the padding."""
    assert isinstance(i.op, ReduceWindow)
    _no_pairs(i)
    window, sizes = i.op.window, i.operands[0].array_shape.sizes
    cells, initial, types = _start_accumulators(e, i, block)
    loops, place, inside = [], [], None
    inner = block.child()
    for d, index in enumerate(at):
        offset: Expr = const(0)
        if window.size[d] > 1:
            var = e.math.bound(e.names.var("w"), window.size[d])
            loops.append((var, window.size[d]))
            offset = e.math.scale(var, window.window_dilation[d])
        moved = e.math.subtract(e.math.add(e.math.scale(index, window.stride[d]), offset), const(window.padding_low[d]))
        low, high = e.math.range_of(moved)
        dilation, last = window.base_dilation[d], (sizes[d] - 1) * window.base_dilation[d]
        tests: list[Expr] = []
        if low < 0:
            tests.append(compare("ge", moved, const(0)))
        if high > last:
            tests.append(compare("le", moved, const(last)))
        if tests:
            moved = inner.let(
                Apply("maximum", (Apply("minimum", (moved, const(max(0, last))), S64), const(0)), S64), "at"
            )
        if dilation > 1:
            tests.append(compare("eq", e.math.modulo(moved, dilation), const(0)))
            moved = e.math.floor_divide(moved, dilation)
        place.append(moved)
        for test in tests:
            inside = test if inside is None else Apply("and", (inside, test), PRED)
    values = tuple(
        _as(e.value(o, tuple(place), inner), t) for o, t in zip(i.operands[: len(types)], types, strict=True)
    )
    if inside is not None:
        inside = inner.let(inside, "inside")
        values = tuple(select(inside, v, n) for v, n in zip(values, initial, strict=True))
    inner.emit(Accumulate(tuple((c, (const(0),)) for c in cells), values, e.combiner(i.op.computation, types), initial))
    _nest(block, inner, loops)
    return _finish(i, cells, block)


@rule(Dot)
def _dot(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """A small product, as an inline loop."""
    from fusile.loops.lowering.contraction_shape import contraction_shape

    shape = contraction_shape(i)
    batch, rest = at[: len(shape.batch)], at[len(shape.batch) :]
    rows, columns = rest[: len(shape.rows)], rest[len(shape.rows) :]
    t = i.array_shape.element_type
    if t.is_complex:
        from fusile.loops.lowering.complex_numbers import complex_dot

        return complex_dot(e, i, shape, batch, rows, columns, block)
    accumulator = F32 if t.is_float and t.bits < 32 else t
    cell = Buffer(e.names.var("acc").name, accumulator, (1,), Space.REGISTER)
    zero = Const(0.0 if t.is_float else 0, accumulator)
    block.emit(Alloc(cell))
    block.emit(Store(cell, (const(0),), zero))
    loops = [e.math.bound(e.names.var("k"), size) for size in shape.depth]
    inner = block.child()
    a = _as(e.value(i.operands[0], shape.lhs(batch, rows, columns, loops), inner), accumulator)
    b = _as(e.value(i.operands[1], shape.rhs(batch, rows, columns, loops), inner), accumulator)
    if accumulator.is_predicate:
        step = Apply("or", (Load(cell, (const(0),)), Apply("and", (a, b), PRED)), PRED)
    elif accumulator.is_float and e.machine.has_fma:
        step = Apply("fma", (a, b, Load(cell, (const(0),))), accumulator)
    else:
        step = Apply("add", (Load(cell, (const(0),)), Apply("multiply", (a, b), accumulator)), accumulator)
    inner.emit(Store(cell, (const(0),), step))
    _nest(block, inner, list(zip(loops, shape.depth, strict=True)))
    return block.let(_as(Load(cell, (const(0),)), t), "sum")


def transcendental(instruction: Instruction) -> bool:
    """Whether one element costs many instructions."""
    return is_transcendental(instruction.opcode.replace("-", "_"))


__all__ = ["Elemental", "Pair", "accumulator_types", "clamped_start", "reshaped", "rule", "transcendental"]
