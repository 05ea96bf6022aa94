"""Row-wise lowering: a fusion as parallel rows, each a sequence of inner loops over what stays in cache.

A fusion has a *space*, the dimensions of its full-sized instructions, cut in outer dimensions (rows) and inner ones. A
reduction over the inner dimensions gives one value a row. Reductions that do not wait for one another share a loop;
each loop is a stage; a last stage writes the results. Expensive values that several stages use are kept in a row-sized
buffer, the rest is computed again. Softmax, layer normalization, log-sum-exp and `reduce_sum + argmax` are one kernel
that way, and a fusion without reductions is the case of one stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fusile.base.element_type import F32, PRED, S64, ElementType
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.reduction import Reduce, combiner_opcode
from fusile.hlo.opset.structure import Iota
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Buffer,
    Combiner,
    Const,
    Expr,
    For,
    Kernel,
    Load,
    LoopKind,
    Space,
    Stmt,
    Store,
    Var,
    const,
    sub_expressions,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental, accumulator_types, transcendental
from fusile.loops.lowering.vector_loops import UNROLL, VectorLoops, lanes_for
from fusile.loops.machine import Machine

TASK_ELEMENTS = 16 << 10
"""Elements that one parallel iteration works on, at least."""
LARGEST_ROW_BUFFER = 64 << 10
SPLIT_ELEMENTS = 64 << 10
"""A reduction to few values is cut in pieces of this many elements."""


def lower_rows(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a `loop` fusion."""
    writer = _Writer(fusion, machine)
    if not writer.elemental.results:
        return writer.elemental.kernel(name)
    if any(b.elements == 0 for _, b in writer.elemental.results) and all(
        b.elements == 0 for _, b in writer.elemental.results
    ):
        return writer.elemental.kernel(name)
    phases = writer.phases()
    return writer.elemental.kernel(name, *phases)


@dataclass
class RowSpace:
    """The dimensions of a fusion's full-sized instructions, and which of them are inner."""

    sizes: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def outer(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.sizes)) if d not in self.inner)


@dataclass
class Stage:
    """Reductions whose loops are one."""

    reductions: list[Instruction] = field(default_factory=list)


def row_reductions(roots: Sequence[Instruction]) -> list[Instruction]:
    """The reductions that give a fusion its rows: all of one space and one set of dimensions that holds the minor one."""
    order = reachable(roots)
    found = [i for i in order if isinstance(i.op, Reduce) and _reduces_minor(i)]
    if not found:
        return []
    # The last one in program order decides; others of the same space join it, the rest are computed where they are used.
    largest = max(found, key=lambda i: i.operands[0].array_shape.elements)
    space, inner = largest.operands[0].array_shape.dimensions, _kept_set(largest)
    return [i for i in found if i.operands[0].array_shape.dimensions == space and _kept_set(i) == inner]


def _kept_set(i: Instruction) -> tuple[int, ...]:
    assert isinstance(i.op, Reduce)
    return tuple(sorted(i.op.dimensions))


def _reduces_minor(i: Instruction) -> bool:
    """Whether a reduction runs along memory: its minor dimension that isn't of size 1 is reduced."""
    assert isinstance(i.op, Reduce)
    sizes = i.operands[0].array_shape.sizes
    if any(s.element_type.is_complex for s in i.shape.leaves()):
        return False
    real = [d for d, s in enumerate(sizes) if s != 1]
    return bool(real) and real[-1] in i.op.dimensions


def reachable(roots: Sequence[Instruction]) -> list[Instruction]:
    """What the roots need, operands first."""
    order: list[Instruction] = []
    seen: set[Instruction] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        i, done = stack.pop()
        if done:
            order.append(i)
        elif i not in seen:
            seen.add(i)
            stack.append((i, True))
            stack += [(o, False) for o in reversed(i.operands)]
    return order


class _Writer:
    def __init__(self, fusion: Instruction, machine: Machine) -> None:
        self.machine = machine
        self.elemental = Elemental(fusion, machine)
        self.roots = self.elemental.roots
        self.order = reachable(self.roots)
        self.reductions = row_reductions(self.roots)
        self.space = self._space()
        self.lanes = lanes_for(self.order, machine)
        self._vectorized = VectorLoops(self.elemental, self.lanes).run

    # -- the space ----------------------------------------------------------------------------------------------------

    def _space(self) -> RowSpace:
        if self.reductions:
            first = self.reductions[0]
            return RowSpace(first.operands[0].array_shape.sizes, _kept_set(first))
        largest = max((r.array_shape for r in self.roots), key=lambda s: s.elements)
        return RowSpace(largest.sizes, self._inner_of_map(largest.sizes))

    def _inner_of_map(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """As many trailing dimensions in one loop as leave all loads runs of neighbours or single elements."""
        best, best_cost = tuple(range(max(0, len(sizes) - 1), len(sizes))), math.inf
        for first in range(len(sizes)):
            inner = tuple(range(first, len(sizes)))
            cost = self._gathers(RowSpace(sizes, inner))
            if cost < best_cost and (math.prod(sizes[first:]) >= 4 or best_cost == math.inf):
                best, best_cost = inner, cost
            if cost == 0:
                break
        return best

    def _gathers(self, space: RowSpace) -> int:
        """How many loads of a probe body are neither one element nor neighbours along the lanes."""
        probe = self.elemental
        lane = probe.math.bound(probe.names.var("probe"), 1 << 40)
        outer = [probe.math.bound(probe.names.var("o"), max(1, space.sizes[d])) for d in space.outer]
        probe.math.bound(lane, max(1, math.prod(space.sizes[d] for d in space.inner)))
        inner = probe.math.unflatten(lane, [space.sizes[d] for d in space.inner])
        at = _place(space, outer, inner)
        block = probe.block()
        for root, buffer in probe.results:
            if root.array_shape.sizes != space.sizes:
                at_root = self._root_indices(root, space, at)
                if at_root is None:
                    return 1 << 20
                probe.store(buffer, root, at_root, probe.value(root, at_root, block), block)
            else:
                probe.store(buffer, root, at, probe.value(root, at, block), block)
        return _irregular(block.statements, lane)

    def _root_indices(self, root: Instruction, space: RowSpace, at: Sequence[Expr]) -> tuple[Expr, ...] | None:
        """Where a root of another shape but as many elements has the space's element."""
        if root.array_shape.elements != math.prod(space.sizes):
            return None
        math_ = self.elemental.math
        return math_.unflatten(math_.flatten(at, space.sizes), root.array_shape.sizes)

    # -- phases -------------------------------------------------------------------------------------------------------

    def phases(self) -> list[Stmt]:
        rows = math.prod(self.space.sizes[d] for d in self.space.outer)
        columns = math.prod(self.space.sizes[d] for d in self.space.inner)
        if self.reductions:
            if rows < 8 and columns > 2 * SPLIT_ELEMENTS and self._single_level():
                return self._split_reduction(rows, columns)
            return [self._row_phase(rows, columns)]
        split = self._split_columns()
        if split is not None:
            return split
        return self._map_phases(rows, columns)

    def _map_phases(self, rows: int, columns: int) -> list[Stmt]:
        """No rows' reductions: every root over its space; a long row is cut in pieces."""
        block_columns = columns
        if rows < 64 and columns > TASK_ELEMENTS:
            block_columns = -(-TASK_ELEMENTS // (self.lanes * UNROLL)) * self.lanes * UNROLL
        pieces = -(-columns // block_columns)
        group = 1 if pieces > 1 else max(1, TASK_ELEMENTS // max(1, columns * self._work()))
        tasks = -(-rows // group) * pieces
        task = self.elemental.math.bound(self.elemental.names.var("task"), tasks)
        block = self.elemental.block()
        if pieces > 1:
            row, piece = self.elemental.math.unflatten(task, (rows, pieces))
            self._final_stage(block, row, columns, self.elemental.math.scale(piece, block_columns), block_columns)
        else:
            self._grouped(
                block, task, rows, group, lambda b, row: self._final_stage(b, row, columns, const(0), columns)
            )
        return [For(task, const(tasks), block.body(), LoopKind.PARALLEL)]

    def _work(self) -> int:
        """Roughly how many elements are touched for one of the space: reductions inside count theirs."""
        total = 1
        for i in self.order:
            if isinstance(i.op, Reduce) and i not in self.reductions:
                kept = max(1, i.shape.leaves()[0].elements)
                total = max(total, i.operands[0].array_shape.elements // kept)
        return total

    def _grouped(self, block: Block, task: Expr, rows: int, group: int, body: Callable[[Block, Expr], None]) -> None:
        """`group` rows a task; the last task may have fewer."""
        math_ = self.elemental.math
        if group == 1:
            body(block, task)
            return
        index = math_.bound(self.elemental.names.var("row"), group)
        row = math_.add(math_.scale(task, group), index)
        extent: Expr = const(group)
        if rows % group:
            extent = Apply("minimum", (const(group), math_.subtract(const(rows), math_.scale(task, group))), S64)
        inner = block.child()
        named = inner.let(row, "r")
        if isinstance(named, Var):
            math_.ranges[named.name] = (0, rows - 1)
        body(inner, named)
        block.loop(index, extent, inner)

    def _row_phase(self, rows: int, columns: int) -> For:
        group = max(1, TASK_ELEMENTS // max(1, columns))
        tasks = -(-rows // group)
        task = self.elemental.math.bound(self.elemental.names.var("task"), tasks)
        block = self.elemental.block()
        self._grouped(block, task, rows, group, lambda b, row: self._row(b, row, columns))
        return For(task, const(tasks), block.body(), LoopKind.PARALLEL)

    # -- one row ------------------------------------------------------------------------------------------------------

    def _stages(self) -> list[Stage]:
        level: dict[Instruction, int] = {}
        stages: list[Stage] = []
        for i in self.order:
            below = max((level[o] for o in i.operands), default=0)
            if i in self.reductions:
                while len(stages) <= below:
                    stages.append(Stage())
                stages[below].reductions.append(i)
                below += 1
            level[i] = below
        self.level = level
        return stages

    def _single_level(self) -> bool:
        return len(self._stages()) == 1 and all(self._is_row_value(r) for r in self.roots)

    def _is_row_value(self, i: Instruction) -> bool:
        outer = tuple(self.space.sizes[d] for d in self.space.outer)
        return i.array_shape.elements == math.prod(outer) and self._below_a_reduction(i)

    def _below_a_reduction(self, i: Instruction) -> bool:
        """Whether an instruction comes after a reduction by row-sized ops alone."""
        return any(o in self.reductions for o in reachable([i]))

    def _row(self, block: Block, row: Expr, columns: int) -> None:
        stages = self._stages()
        kept = self._kept_values(stages, columns)
        saved = dict(self.elemental.overrides)
        for number, stage in enumerate(stages):
            stores = [(i, b) for i, (b, first) in kept.items() if first == number]
            for _, buffer in stores:
                block.emit(Alloc(buffer))
            self._reduction_stage(block, row, columns, stage, stores)
            for i, buffer in stores:
                self._read_from(i, buffer)
        self._final_stage(block, row, columns, const(0), columns, in_rows=True)
        self.elemental.overrides = saved

    def _kept_values(self, stages: Sequence[Stage], columns: int) -> dict[Instruction, tuple[Buffer, int]]:
        """Expensive full-sized values that several stages need, each with a row buffer and the first stage that has it."""
        users: dict[Instruction, set[int]] = {}
        for number, stage in enumerate(stages):
            for i in self._needed([o for r in stage.reductions for o in r.operands[: len(r.operands) // 2]]):
                users.setdefault(i, set()).add(number)
        for i in self._needed([r for r in self.roots if r.array_shape.sizes == self.space.sizes]):
            users.setdefault(i, set()).add(len(stages))
        kept: dict[Instruction, tuple[Buffer, int]] = {}
        total = 0
        for i in self.order:
            stages_of = users.get(i, set())
            t = i.shape.leaves()[0].element_type if i.shape.leaves() else F32
            size = columns * t.bytes
            if (
                len(stages_of) < 2
                or i.shape.is_tuple
                or i.array_shape.sizes != self.space.sizes
                or not transcendental(i)
                or t.is_complex
            ):
                continue
            if total + size > LARGEST_ROW_BUFFER:
                continue
            total += size
            kept[i] = (Buffer(self.elemental.names.var("row").name, t, (columns,), Space.SCRATCH), min(stages_of))
        return kept

    def _needed(self, roots: Sequence[Instruction]) -> list[Instruction]:
        """What is computed for each element of these: the way stops at this fusion's reductions."""
        seen: dict[Instruction, None] = {}
        stack = list(roots)
        while stack:
            i = stack.pop()
            if i in seen or i in self.reductions:
                continue
            seen[i] = None
            stack += i.operands
        return list(seen)

    def _read_from(self, i: Instruction, buffer: Buffer) -> None:
        """From now on the instruction's value comes from its row buffer."""
        inner = [self.space.sizes[d] for d in self.space.inner]

        def read(at: tuple[Expr, ...]) -> Expr:
            return Load(buffer, (self.elemental.math.flatten([at[d] for d in self.space.inner], inner),))

        self.elemental.override(i, read)

    def _reduction_stage(
        self, block: Block, row: Expr, columns: int, stage: Stage, stores: Sequence[tuple[Instruction, Buffer]]
    ) -> None:
        """One loop over the row for all reductions of a stage; their results become named scalars."""
        groups = [_Accumulators(self, r, block) for r in stage.reductions]
        outer = self.elemental.math.unflatten(row, [self.space.sizes[d] for d in self.space.outer])

        def body(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            at = _place(
                self.space,
                outer,
                self.elemental.math.unflatten(column, [self.space.sizes[d] for d in self.space.inner]),
            )
            for instruction, buffer in stores:
                b.emit(Store(buffer, (column,), self.elemental.value(instruction, at, b)))
            for group in groups:
                group.accumulate(b, at, slot, lane)

        self._vectorized(block, columns, const(0), body)
        for group in groups:
            group.finish(block)

    def _final_stage(
        self, block: Block, row: Expr, columns: int, start: Expr, count: int, in_rows: bool = False
    ) -> None:
        """Writes every root: full-sized ones in a loop over the row, row-sized ones once."""
        outer = self.elemental.math.unflatten(row, [self.space.sizes[d] for d in self.space.outer])
        full = [
            (r, b)
            for r, b in self.elemental.results
            if not (in_rows and r.array_shape.sizes != self.space.sizes and self._is_row_value(r))
        ]
        for root, buffer in self.elemental.results:
            if (root, buffer) not in full:
                at = self.elemental.math.unflatten(row, root.array_shape.sizes)
                self.elemental.store(buffer, root, at, self.elemental.value(root, at, block), block)
        if not full:
            return
        inner = [self.space.sizes[d] for d in self.space.inner]

        def body(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            at = _place(self.space, outer, self.elemental.math.unflatten(column, inner))
            for root, buffer in full:
                place = at if root.array_shape.sizes == self.space.sizes else self._root_indices(root, self.space, at)
                if place is None:
                    raise AssertionError(f"root {root.name} does not fit the space {self.space}")
                self.elemental.store(buffer, root, place, self.elemental.value(root, place, b), b)

        self._vectorized(block, count, start, body, unroll=1, total=columns)

    # -- reductions to few values -------------------------------------------------------------------------------------

    def _split_reduction(self, rows: int, columns: int) -> list[Stmt]:
        """Rows long enough to be cut: pieces reduce to a shared buffer in parallel, then one task joins them in order."""
        e, math_ = self.elemental, self.elemental.math
        pieces = -(-columns // SPLIT_ELEMENTS)
        stage = self._stages()[0]
        shared = {
            r: [Buffer(e.names.var("part").name, t, (rows * pieces,), Space.SHARED) for t in accumulator_types(r)]
            for r in stage.reductions
        }
        task = math_.bound(e.names.var("task"), rows * pieces)
        row, piece = math_.unflatten(task, (rows, pieces))
        block = e.block()
        outer = math_.unflatten(row, [self.space.sizes[d] for d in self.space.outer])
        inner_sizes = [self.space.sizes[d] for d in self.space.inner]
        groups = [_Accumulators(self, r, block) for r in stage.reductions]

        def body(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            at = _place(self.space, outer, math_.unflatten(column, inner_sizes))
            for group in groups:
                group.accumulate(b, at, slot, lane)

        whole, rest = divmod(columns, SPLIT_ELEMENTS)
        start = math_.scale(piece, SPLIT_ELEMENTS)
        if rest == 0:
            self._vectorized(block, SPLIT_ELEMENTS, start, body, total=columns)
        else:
            self._either(block, piece, whole, lambda b: self._vectorized(b, SPLIT_ELEMENTS, start, body, total=SPLIT_ELEMENTS),
                         lambda b: self._vectorized(b, rest, const(whole * SPLIT_ELEMENTS), body))  # fmt: skip
        for group in groups:
            for buffer, value in zip(shared[group.instruction], group.joined(block), strict=True):
                block.emit(Store(buffer, (task,), value))
        first = For(task, const(rows * pieces), block.body(), LoopKind.PARALLEL)
        return [*(Alloc(b) for bs in shared.values() for b in bs), first, self._join_pieces(rows, pieces, shared)]

    def _either(
        self, block: Block, piece: Expr, whole: int, usual: Callable[[Block], None], last: Callable[[Block], None]
    ) -> None:
        from fusile.loops.ir import If, compare

        a, b = block.child(), block.child()
        usual(a)
        last(b)
        block.emit(If(compare("lt", piece, const(whole)), a.body(), b.body()))

    def _join_pieces(self, rows: int, pieces: int, shared: dict[Instruction, list[Buffer]]) -> For:
        e, math_ = self.elemental, self.elemental.math
        row = math_.bound(e.names.var("row"), rows)
        block = e.block()
        for r, buffers in shared.items():
            group = _Accumulators(self, r, block, vector=False)
            index = math_.bound(e.names.var("part"), pieces)
            inner = block.child()
            at = math_.add(math_.scale(row, pieces), index)
            group.join(inner, [Load(b, (at,)) for b in buffers])
            block.loop(index, pieces, inner)
            group.finish(block)
        for root, buffer in e.results:
            place = math_.unflatten(row, root.array_shape.sizes)
            e.store(buffer, root, place, e.value(root, place, block), block)
        return For(row, const(rows), block.body(), LoopKind.SERIAL)

    def _split_columns(self) -> list[Stmt] | None:
        """Sums over the leading dimensions to few columns (bias gradients, batch statistics): chunks of rows in parallel, each
        to a row of a shared buffer, then the chunks joined in order."""
        e, math_ = self.elemental, self.elemental.math
        found = [i for i in self.order if isinstance(i.op, Reduce)]
        if (
            not found
            or any(not _leading(i) for i in found)
            or len({i.operands[0].array_shape.dimensions for i in found}) != 1
        ):
            return None
        if any(o in found for i in found for o in reachable(i.operands)):
            return None
        sizes = found[0].operands[0].array_shape.sizes
        cut = len(found[0].op.dimensions)  # type: ignore[attr-defined]
        rows, columns = math.prod(sizes[:cut]), math.prod(sizes[cut:])
        if (
            any(r.array_shape.elements != columns for r in self.roots)
            or rows < 64
            or rows * columns < 4 * TASK_ELEMENTS
            or columns > 16 * rows
        ):
            return None
        chunk = max(16, -(-rows // 64), TASK_ELEMENTS // max(1, columns))
        chunks = -(-rows // chunk)
        shared = {
            r: [Buffer(e.names.var("part").name, t, (chunks * columns,), Space.SHARED) for t in accumulator_types(r)]
            for r in found
        }
        task = math_.bound(e.names.var("task"), chunks)
        block = e.block()
        first = math_.scale(task, chunk)
        count: Expr = (
            const(chunk)
            if rows % chunk == 0
            else block.let(Apply("minimum", (const(chunk), math_.subtract(const(rows), first)), S64), "count")
        )

        def piece(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            groups = [_Accumulators(self, r, b, vector=False) for r in found]
            index = math_.bound(e.names.var("i"), chunk)
            inner = b.child()
            row = inner.let(math_.add(first, index), "row")
            if isinstance(row, Var):
                math_.ranges[row.name] = (0, rows - 1)
            at = (*math_.unflatten(row, sizes[:cut]), *math_.unflatten(column, sizes[cut:]))
            for group in groups:
                group.join(inner, group.operands(at, inner))
            b.loop(index, count, inner)
            for group in groups:
                for buffer, value in zip(shared[group.instruction], group.cells(), strict=True):
                    b.emit(Store(buffer, (math_.add(math_.scale(task, columns), column),), value))

        self._vectorized(block, columns, const(0), piece, unroll=1)
        second = e.block()

        def join(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            for r, buffers in shared.items():
                group = _Accumulators(self, r, b, vector=False)
                index = math_.bound(e.names.var("part"), chunks)
                inner = b.child()
                group.join(inner, [Load(x, (math_.add(math_.scale(index, columns), column),)) for x in buffers])
                b.loop(index, chunks, inner)
                group.finish(b)
            for root, buffer in e.results:
                place = math_.unflatten(column, root.array_shape.sizes)
                e.store(buffer, root, place, e.value(root, place, b), b)

        self._vectorized(second, columns, const(0), join, unroll=1)
        zero = e.names.var("once")
        return [*(Alloc(b) for bs in shared.values() for b in bs), For(task, const(chunks), block.body(), LoopKind.PARALLEL),
                For(zero, const(1), second.body(), LoopKind.SERIAL)]  # fmt: skip


def _leading(i: Instruction) -> bool:
    assert isinstance(i.op, Reduce)
    if any(s.element_type.is_complex for s in i.shape.leaves()):
        return False
    return (
        tuple(sorted(i.op.dimensions)) == tuple(range(len(i.op.dimensions)))
        and len(i.op.dimensions) < i.operands[0].array_shape.rank
    )


class _Accumulators:
    """The accumulators of one reduction in a loop: UNROLL vectors of lanes, or one cell."""

    def __init__(self, writer: _Writer, instruction: Instruction, block: Block, vector: bool = True) -> None:
        self.writer, self.instruction, self.vector = writer, instruction, vector
        e = writer.elemental
        self.types = accumulator_types(instruction)
        self.computation = instruction.op.computations()[0]
        self.combiner = e.combiner(self.computation, self.types)
        self.initial = [
            _converted(e.value(o, (), block), t)
            for o, t in zip(instruction.operands[len(self.types) :], self.types, strict=True)
        ]
        self.joining = self._ordered()
        self.identity = tuple(self._neutral(t, i) for t, i in zip(self.types, self.initial, strict=True))
        size = (UNROLL * writer.lanes,) if vector else (1,)
        self.buffers = [Buffer(e.names.var("acc").name, t, size, Space.REGISTER) for t in self.types]
        for buffer, identity in zip(self.buffers, self.identity, strict=True):
            block.emit(Alloc(buffer))
            if not vector:
                block.emit(Store(buffer, (const(0),), identity))
                continue
            for slot in range(UNROLL):
                lane = e.names.var("lane")
                at = e.math.add(e.math.bound(lane, writer.lanes), const(slot * writer.lanes))
                block.emit(For(lane, const(writer.lanes), (Store(buffer, (at,), identity),), LoopKind.VECTOR))

    def _ordered(self) -> Combiner:
        """The combiner for joining accumulators. With a running index among the operands, the side whose index is lower counts as
        the left one: what an argmax does with several NaNs then doesn't depend on how lanes interleave."""
        inputs = self.instruction.operands[: len(self.types)]
        index = next(
            (n for n, o in enumerate(inputs) if isinstance(o.op, Iota) and o.array_shape.element_type.is_integer), None
        )
        if index is None or len(inputs) == 1:
            return self.combiner
        left, right = self.combiner.left, self.combiner.right
        first = Apply("le", (left[index], right[index]), PRED)
        swapped = {a: Apply("select", (first, a, b), a.element_type) for a, b in zip(left, right, strict=True)}
        swapped |= {b: Apply("select", (first, b, a), a.element_type) for a, b in zip(left, right, strict=True)}
        return Combiner(left, right, tuple(_substituted(r, swapped) for r in self.combiner.results))

    def _neutral(self, t: ElementType, initial: Expr) -> Expr:
        """The op's own neutral element where it is known; else the initial value, which must be neutral."""
        from fusile.hlo.builder import neutral

        opcode = combiner_opcode(self.computation)
        if opcode in ("add", "multiply", "maximum", "minimum", "and", "or", "xor"):
            value = neutral(opcode, t)
            return Const(float(value) if t.is_float else bool(value) if t.is_predicate else int(value), t)
        return initial

    def operands(self, at: Sequence[Expr], block: Block) -> list[Expr]:
        e = self.writer.elemental
        inputs = self.instruction.operands[: len(self.types)]
        return [_converted(e.value(o, at, block), t) for o, t in zip(inputs, self.types, strict=True)]

    def accumulate(self, block: Block, at: Sequence[Expr], slot: int, lane: Expr) -> None:
        """One vector of elements into the accumulators of a slot."""
        place = self.writer.elemental.math.add(lane, const(slot * self.writer.lanes))
        self._step(block, place, self.operands(at, block))

    def join(self, block: Block, values: Sequence[Expr]) -> None:
        """Values into the one cell."""
        self._step(block, const(0), values, self.joining)

    def _step(self, block: Block, place: Expr, values: Sequence[Expr], combiner: Combiner | None = None) -> None:
        block.emit(
            Accumulate(
                tuple((b, (place,)) for b in self.buffers), tuple(values), combiner or self.combiner, self.identity
            )
        )

    def cells(self) -> list[Expr]:
        return [Load(b, (const(0),)) for b in self.buffers]

    def joined(self, block: Block) -> list[Expr]:
        """The slots joined in pairs, then the lanes by halves: a tree that never changes."""
        if not self.vector:
            return self.cells()
        e, lanes = self.writer.elemental, self.writer.lanes
        width = UNROLL
        while width > 1:
            width //= 2
            for slot in range(width):
                lane = e.math.bound(e.names.var("lane"), lanes)
                inner = block.child()
                values = [Load(b, (e.math.add(lane, const((slot + width) * lanes)),)) for b in self.buffers]
                self._step(inner, e.math.add(lane, const(slot * lanes)), values, self.joining)
                block.loop(lane, lanes, inner, LoopKind.VECTOR)
        cells = [Buffer(e.names.var("cell").name, t, (1,), Space.REGISTER) for t in self.types]
        for cell, identity in zip(cells, self.identity, strict=True):
            block.emit(Alloc(cell))
            block.emit(Store(cell, (const(0),), identity))
        lane = e.math.bound(e.names.var("lane"), lanes)
        step = Accumulate(
            tuple((c, (const(0),)) for c in cells),
            tuple(Load(b, (lane,)) for b in self.buffers),
            self.joining,
            self.identity,
        )
        block.emit(For(lane, const(lanes), (step,), LoopKind.VECTOR))
        return [Load(c, (const(0),)) for c in cells]

    def finish(self, block: Block) -> None:
        """Names the results and makes them the reduction's value."""
        e = self.writer.elemental
        values = self.joined(block)
        if combiner_opcode(self.computation) in (
            "add",
            "multiply",
            "maximum",
            "minimum",
            "and",
            "or",
            "xor",
        ) and self.initial != list(self.identity):
            values = self._with_initial(values)
        results = [
            block.let(_converted(v, s.element_type), "total")
            for v, s in zip(values, self.instruction.shape.leaves(), strict=True)
        ]
        if len(results) == 1:
            e.override(self.instruction, results[0])
        else:
            e.override(self.instruction, lambda _: results)

    def _with_initial(self, values: Sequence[Expr]) -> list[Expr]:
        from fusile.loops.ir import rewrite

        (value,), (initial,), (result,) = values, self.initial, self.combiner.results
        left, right = self.combiner.left[0], self.combiner.right[0]
        return [rewrite(result, lambda x: value if x == left else initial if x == right else None)]


def _substituted(e: Expr, values: dict[Var, Apply]) -> Expr:
    """`e` with variables replaced, all at once."""
    if isinstance(e, Var):
        return values.get(e, e)
    if isinstance(e, Apply):
        return Apply(e.op, tuple(_substituted(a, values) for a in e.arguments), e.element_type)
    return e


def _converted(value: Expr, t: ElementType) -> Expr:
    return value if value.element_type is t else Apply("convert", (value,), t)


def _place(space: RowSpace, outer: Sequence[Expr], inner: Sequence[Expr]) -> tuple[Expr, ...]:
    at: list[Expr] = [const(0)] * len(space.sizes)
    for d, x in zip(space.outer, outer, strict=True):
        at[d] = x
    for d, x in zip(space.inner, inner, strict=True):
        at[d] = x
    return tuple(at)


def _irregular(statements: Sequence[Stmt], lane: Var) -> int:
    """Loads and stores whose address isn't constant or consecutive in `lane`; statements inside loops count more."""
    total = 0
    varying = {lane.name}
    for s in statements:
        expressions: list[Expr] = []
        if isinstance(s, Store):
            expressions = [s.value]
            total += _bad(s.indices, lane, varying) * 2
        elif hasattr(s, "value"):
            expressions = [s.value]
            if _mentions(s.value, varying):
                varying.add(s.var.name)
        elif isinstance(s, Accumulate):
            expressions = list(s.values)
        elif isinstance(s, For):
            total += 4 * _irregular(s.body, lane)
        for expression in expressions:
            for x in sub_expressions(expression):
                if isinstance(x, Load):
                    total += _bad(x.indices, lane, varying)
                elif isinstance(x, Apply) and x.op in ("floor_divide", "modulo") and _mentions(x, varying):
                    total += 1
    return total


def _bad(indices: Sequence[Expr], lane: Var, varying: set[str]) -> int:
    from fusile.loops.simplify import IndexMath

    for index in indices:
        _, terms = IndexMath().linear(index)
        for atom, factor in terms.items():
            if atom == lane:
                if factor != 1:
                    return 2 if factor > 0 else 1
            elif _mentions(atom, varying):
                return 3
    return 0


def _mentions(e: Expr, names: set[str]) -> bool:
    return any(isinstance(x, Var) and x.name in names for x in sub_expressions(e))


__all__ = ["lower_rows", "row_reductions"]
