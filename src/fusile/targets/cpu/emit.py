"""Loop kernels as LLVM text: one function a phase, `void NAME.p(ptr buffers, i64 begin, i64 end)`.

Vector loops are emitted once with lane-typed values; what does not depend on the lane stays scalar. A condition that
differs between lanes becomes a mask. Expressions are in `emit_scalar`, memory in `emit_memory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fusile.base.element_type import PRED, S64
from fusile.base.errors import CompileError
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Body,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Stmt,
    Store,
    Var,
    While,
    sub_expressions,
)
from fusile.loops.machine import Machine
from fusile.targets.cpu.emit_memory import Lanes, MemoryEmitter, iota
from fusile.targets.cpu.values import Value, typed

PIPELINED_UNROLL = 4


def emit_kernel(kernel: Kernel, machine: Machine) -> str:
    """The LLVM text of a kernel. Raises CompileError for what this target has no code for."""
    parts, declarations = [], set()
    phases = [s for s in kernel.body if not isinstance(s, Alloc)]
    for number, phase in enumerate(phases):
        emitter = _PhaseEmitter(kernel, machine, number)
        parts.append(emitter.function(f"{kernel.name}.{number}", phase))
        declarations |= emitter.declarations
    return "\n".join([*sorted(declarations), "", *parts])


def shared_offsets(kernel: Kernel) -> tuple[dict[Buffer, int], int]:
    """Where each SHARED buffer lies in the launch's workspace, and the workspace's size, in bytes."""
    offsets, total = {}, 0
    for statement in kernel.body:
        if isinstance(statement, Alloc):
            offsets[statement.buffer] = total
            total += -(-statement.buffer.elements * statement.buffer.element_type.bytes // 64) * 64
    return offsets, total


class _PhaseEmitter(MemoryEmitter):
    def __init__(self, kernel: Kernel, machine: Machine, number: int) -> None:
        super().__init__()
        self.kernel, self.machine, self.number = kernel, machine, number
        self.depth = 0
        self.memo: dict[Expr, Value] = {}
        self.reads: dict[Expr, frozenset[Buffer]] = {}
        self.stored: set[Buffer] = set()
        self.streamed = streamed_results(kernel, machine)

    # -- functions and blocks -----------------------------------------------------------------------------------------

    def function(self, name: str, phase: Stmt) -> str:
        """Outer function reads the pointers; inner one has them as arguments, so that `noalias` can be said of each."""
        alias = " noalias" if self.kernel.no_alias else ""
        arguments = []
        for i, buffer in enumerate(self.kernel.parameters):
            self.pointers[buffer] = f"%p{i}"
            read = "" if buffer in self.kernel.outputs else " readonly"
            arguments.append(f"ptr{alias}{read} %p{i}")
        for buffer, offset in shared_offsets(self.kernel)[0].items():
            self.pointers[buffer] = self.define(f"getelementptr i8, ptr %workspace, i64 {offset}")
        if isinstance(phase, For) and phase.kind is LoopKind.PARALLEL:
            self._loop(phase.var, "%begin", "%end", phase.body, LoopKind.SERIAL)
        else:
            self._body((phase,))
        if self.streamed and self.machine.has_sfence:
            # Stores past the caches are seen in any order, until this.
            self.declarations.add("declare void @llvm.x86.sse.sfence()")
            self.line("call void @llvm.x86.sse.sfence()")
        self.line("ret void")
        signature = ", ".join([*arguments, "ptr noalias %workspace", "i64 %begin", "i64 %end"])
        head = f"define internal void @{quoted(name + '.body')}({signature}) alwaysinline nounwind {{"
        inner = [head, "entry:", *self.allocas, *self.lines, "}"]
        return "\n".join([*inner, *_outer_function(name, len(arguments)), ""])

    @contextmanager
    def _scope(self, forget_loads: bool = False) -> Iterator[None]:
        """Names and values found inside are gone after; loads found before, too, if what they read was stored to."""
        names = dict(self.values), dict(self.definitions), dict(self.constants)
        memo, stored = self.memo, self.stored
        self.memo = {e: v for e, v in memo.items() if not (forget_loads and self.reads[e])}
        self.stored = set()
        yield
        self.values, self.definitions, self.constants = names
        self.memo, inside = memo, self.stored
        self.stored = stored
        for buffer in inside:
            self._forget(buffer)

    def _forget(self, buffer: Buffer) -> None:
        """Loads that a store to the buffer may change are not known any more."""
        self.stored.add(buffer)
        if self.kernel.no_alias or buffer not in self.kernel.parameters:
            self.memo = {e: v for e, v in self.memo.items() if buffer not in self.reads[e]}
        else:
            self.memo = {e: v for e, v in self.memo.items() if not self.reads[e]}

    def _body(self, body: Body) -> None:
        with self._scope():
            for statement in body:
                self._statement(statement)

    def _statement(self, s: Stmt) -> None:
        if isinstance(s, Let):
            self._let(s)
        elif isinstance(s, Store):
            value = self.value(s.value)
            self.store(s.buffer, s.indices, value)
            self._forget(s.buffer)
        elif isinstance(s, For):
            self._for(s)
        elif isinstance(s, Alloc):
            self.alloc(s.buffer)
        elif isinstance(s, Accumulate):
            self._accumulate(s)
        elif isinstance(s, If):
            self._if(s)
        elif isinstance(s, While):
            self._while(s)
        elif isinstance(s, Prefetch):
            self.prefetch(s)
        else:
            raise CompileError(f"no code for statement {type(s).__name__}")

    def _let(self, s: Let) -> None:
        value = self.value(s.value)
        self.values[s.var.name] = replace(value, depth=self.depth)
        if value.lanes > 1 and s.var.element_type is S64 and isinstance(s.value, Apply | Var):
            self.definitions[s.var.name] = s.value

    # -- loops --------------------------------------------------------------------------------------------------------

    def _for(self, s: For) -> None:
        if s.kind is LoopKind.VECTOR:
            self._vector(s)
        elif s.kind is LoopKind.UNROLLED or s.extent == Const(1):
            assert isinstance(s.extent, Const)
            for i in range(int(s.extent.value)):
                with self._scope():
                    self.constants[s.var.name] = i
                    self._body(s.body)
        else:
            extent = self.value(s.extent)
            if extent.lanes > 1:
                raise CompileError(f"the extent of loop {s.var.name} differs between lanes")
            self._loop(s.var, "0", extent.text, s.body, s.kind)

    def _loop(self, var: Var, begin: str, end: str, body: Body, kind: LoopKind) -> None:
        head, inside, after = self._label("head"), self._label("loop"), self._label("after")
        before = self.block
        self.line(f"br label %{head}")
        self._start(head)
        index, following = self.fresh(), self.fresh()
        back = f"{inside}.end"
        self.lines.append(f"  {index} = phi i64 [ {begin}, %{before} ], [ {following}, %{back} ]")
        more = self.define(f"icmp slt i64 {index}, {end}")
        self.line(f"br i1 {more}, label %{inside}, label %{after}")
        self._start(inside)
        self.depth += 1
        with self._scope(forget_loads=True):
            self.values[var.name] = Value(index, S64, 1, self.depth, at_least_zero=True)
            self._body(body)
        self.depth -= 1
        self.line(f"br label %{back}")
        self._start(back)
        self.lines.append(f"  {following} = add nuw nsw i64 {index}, 1")
        self.line(f"br label %{head}{self._loop_metadata(kind)}")
        self._start(after)

    def _loop_metadata(self, kind: LoopKind) -> str:
        if kind is not LoopKind.PIPELINED:
            return ""
        node = self.number * 100_000 + int(self.fresh()[2:]) + 10
        self.declarations.add('!1 = !{!"llvm.loop.unroll.count", i32 ' + f"{PIPELINED_UNROLL}}}")
        self.declarations.add(f"!{node} = distinct !{{!{node}, !1}}")
        return f", !llvm.loop !{node}"

    def _vector(self, s: For) -> None:
        if self.lanes is not None:
            raise CompileError("a vector loop inside a vector loop")
        assert isinstance(s.extent, Const)
        count = int(s.extent.value)
        mask = None
        if s.active is not None and not (isinstance(s.active, Const) and int(s.active.value) >= count):
            live = self.splat(self.value(s.active), count)
            mask = self.define(f"icmp slt {iota(count)}, {live.text}")
        some = isinstance(s.active, Const) and int(s.active.value) > 0
        alone = isinstance(s.active, Const) and int(s.active.value) == 1 < count
        self.lanes = Lanes(s.var, count, mask, mask is None or some, alone)
        with self._scope():
            self.values[s.var.name] = iota(count)
            self._body(s.body)
        self.lanes = None

    def _if(self, s: If) -> None:
        condition = self.value(s.condition)
        if condition.lanes > 1:
            self._masked_if(s, condition)
            return
        then, otherwise, after = self._label("then"), self._label("else"), self._label("after")
        self.line(f"br i1 {condition.text}, label %{then}, label %{otherwise}")
        for label, body in ((then, s.then), (otherwise, s.otherwise)):
            self._start(label)
            self._body(body)
            self.line(f"br label %{after}")
        self._start(after)

    def _masked_if(self, s: If, condition: Value) -> None:
        assert self.lanes is not None
        lanes = self.lanes
        opposite = replace(condition, text="")
        for flag, body in ((condition, s.then), (opposite, s.otherwise)):
            if not body:
                continue
            if not flag.text:
                flag = self.apply("not", [condition], PRED)
            mask = flag.text if lanes.mask is None else self.define(f"and {flag}, {lanes.mask}")
            self.lanes = replace(lanes, mask=mask, some_live=False, first_alone=False)
            with self._scope(forget_loads=True):
                self._body(body)
        self.lanes = lanes

    def _while(self, s: While) -> None:
        """In a vector loop it runs while the condition holds in some lane; a lane whose turn ended is masked off."""
        head, inside, after = self._label("head"), self._label("while"), self._label("after")
        before, lanes = self.block, self.lanes
        self.line(f"br label %{head}")
        self._start(head)
        place = len(self.lines)
        live, still = self.fresh(), ""
        if lanes is not None:
            self.lanes = replace(lanes, mask=live, some_live=False, first_alone=False)
        with self._scope(forget_loads=True):
            condition = self.value(s.condition)
            going = condition.text
            if lanes is not None:
                condition = self.splat(condition, lanes.count)
                still = self.define(f"and {condition}, {live}")
                going = self.any_lane(replace(condition, text=still))
                self.lanes = replace(lanes, mask=still, some_live=False, first_alone=False)
            self.line(f"br i1 {going}, label %{inside}, label %{after}")
            self._start(inside)
            self.depth += 1
            self._body(s.body)
            self.depth -= 1
        self.line(f"br label %{head}")
        if lanes is not None:
            flags = typed("i1", lanes.count)
            first = lanes.mask or ("splat (i1 true)" if lanes.count > 1 else "true")
            phi = f"  {live} = phi {flags} [ {first}, %{before} ], [ {still}, %{self.block} ]"
            self.lines.insert(place, phi)
        self.lanes = lanes
        self._start(after)

    # -- expressions --------------------------------------------------------------------------------------------------

    def value(self, e: Expr) -> Value:
        """The value of an expression; equal ones in a scope are computed once."""
        if isinstance(e, Const):
            return self.constant(e.value, e.element_type)
        if isinstance(e, Var):
            return self._variable(e)
        found = self.memo.get(e)
        if found is None:
            if isinstance(e, Load):
                found, parts = replace(self.load(e), depth=self.depth), e.indices
            else:
                assert isinstance(e, Apply)
                found, parts = self._apply(e), e.arguments
            nothing = frozenset[Buffer]()
            inside = nothing.union(*(self.reads.get(p, nothing) for p in parts))
            self.reads[e] = inside | {e.buffer} if isinstance(e, Load) else inside
            self.memo[e] = found
        return found

    def _variable(self, e: Var) -> Value:
        known = self.constants.get(e.name)
        if known is not None:
            return self.constant(known, S64)
        if e.name not in self.values:
            raise CompileError(f"{e.name} is used outside its scope in {self.kernel.name}")
        return self.values[e.name]

    def _apply(self, e: Apply) -> Value:
        if e.element_type is S64 and e.op in ("add", "subtract", "multiply"):
            constant, terms = self.linear(e)
            if not any(terms.values()):
                return self.constant(constant, S64)
        arguments = [self.value(a) for a in e.arguments]
        value = self.apply(e.op, arguments, e.element_type)
        return replace(value, depth=max(a.depth for a in arguments))

    # -- reductions ---------------------------------------------------------------------------------------------------

    def _accumulate(self, s: Accumulate) -> None:
        """cells = combiner(cells, values). Cells that are one for all lanes get the lanes joined first."""
        values = [self.value(v) for v in s.values]
        if self.lanes is not None and not any(b in self.per_lane for b, _ in s.cells):
            addresses = [self.address(b, i) for b, i in s.cells]
            if all(a.stride == 0 and a.pointers is None for a in addresses):
                self._join_lanes(s, values)
                return
            if any(a.stride == 0 and a.pointers is None for a in addresses) and self.lanes.count > 1:
                raise CompileError("an accumulation whose cells are partly one for all lanes")
        self._combine_into(s, values)

    def _combine_into(self, s: Accumulate, values: list[Value]) -> None:
        left = [self.load(Load(b, i)) for b, i in s.cells]
        results = self._combine(s, left, values)
        for (buffer, indices), result in zip(s.cells, results, strict=True):
            self.store(buffer, indices, result)
        for buffer, _ in s.cells:
            self._forget(buffer)

    def _combine(self, s: Accumulate, left: list[Value], right: list[Value]) -> list[Value]:
        with self._scope():
            self.memo = {}
            for v, x in zip((*s.combiner.left, *s.combiner.right), (*left, *right), strict=True):
                self.values[v.name] = x
            return [self.value(r) for r in s.combiner.results]

    def _join_lanes(self, s: Accumulate, values: list[Value]) -> None:
        """By halves, in the same order whatever the data; dead lanes count as the identity."""
        assert self.lanes is not None
        lanes = self.lanes
        values = [self.splat(v, lanes.count) for v in values]
        if lanes.mask is not None:
            neutral = [self.splat(self.value(i), lanes.count) for i in s.identity]
            values = [replace(v, text=self.pick(lanes.mask, v, n)) for v, n in zip(values, neutral, strict=True)]
        self.lanes = None
        width = 1 << (lanes.count - 1).bit_length()
        if width > lanes.count:
            values = [self._padded(v, i, width) for v, i in zip(values, s.identity, strict=True)]
        while width > 1:
            width //= 2
            halves = [self._part(v, 0, width) for v in values], [self._part(v, width, width) for v in values]
            values = self._combine(s, *halves)
        self._combine_into(s, values)
        self.lanes = lanes

    def _part(self, value: Value, start: int, width: int) -> Value:
        if width == 1:
            return replace(value, text=self.define(f"extractelement {value}, i64 {start}"), lanes=1, number=None)
        return self._shuffled(value, f"{value.llvm_type} poison", range(start, start + width))

    def _padded(self, value: Value, identity: Expr, width: int) -> Value:
        """More lanes, holding the identity."""
        neutral = self.splat(self.value(identity), value.lanes)
        picks = [min(i, value.lanes) for i in range(width)]
        return self._shuffled(self.splat(value, value.lanes), str(neutral), picks)

    def _shuffled(self, value: Value, other: str, picks: Sequence[int]) -> Value:
        order = ", ".join(f"i32 {i}" for i in picks)
        text = self.define(f"shufflevector {value}, {other}, <{len(picks)} x i32> <{order}>")
        return replace(value, text=text, lanes=len(picks), number=None)


def streamed_results(kernel: Kernel, machine: Machine) -> frozenset[Buffer]:
    """Results that will not stay in the caches anyway, and that the kernel doesn't read. Written past the caches,
    their old lines need not be read first."""
    if not kernel.no_alias:
        return frozenset()
    large = {b for b in kernel.outputs if b.elements * b.element_type.bytes >= machine.l3_bytes // 2}
    return frozenset(large - set(_loaded(kernel.body))) if large else frozenset()


def _loaded(body: Body) -> Iterator[Buffer]:
    for s in body:
        for part in (getattr(s, "body", ()), getattr(s, "then", ()), getattr(s, "otherwise", ())):
            yield from _loaded(part)
        if isinstance(s, Accumulate):
            yield from (b for b, _ in s.cells)
        for value in (*getattr(s, "values", ()), getattr(s, "value", None), getattr(s, "condition", None)):
            if isinstance(value, Expr):
                yield from (x.buffer for x in sub_expressions(value) if isinstance(x, Load))


def _outer_function(name: str, count: int) -> list[str]:
    lines = [f"define void @{quoted(name)}(ptr %buffers, i64 %begin, i64 %end) nounwind {{", "entry:"]
    arguments = []
    for i in range(count + 1):
        lines.append(f"  %a{i} = getelementptr ptr, ptr %buffers, i64 {i}")
        lines.append(f"  %b{i} = load ptr, ptr %a{i}, align 8")
        arguments.append(f"ptr %b{i}")
    call = f"  call void @{quoted(name + '.body')}({', '.join([*arguments, 'i64 %begin', 'i64 %end'])})"
    return [*lines, call, "  ret void", "}"]


def quoted(name: str) -> str:
    """A symbol name as LLVM text."""
    return f'"{name}"' if not name.replace("_", "").replace(".", "").isalnum() else name
