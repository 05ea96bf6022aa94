"""Loop kernels as LLVM text: one function a phase, `void NAME.p(ptr buffers, i64 begin, i64 end)`.

Vector loops are emitted once with lane-typed values. What does not depend on the lane stays scalar; a load's flat offset,
as a linear form of loop variables, says whether it is one element for all lanes, a run of neighbours, or a gather.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusile.base.element_type import PRED, S64, ElementType
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
    Space,
    Stmt,
    Store,
    Var,
    While,
)
from fusile.loops.machine import Machine
from fusile.loops.math import expand, is_math
from fusile.targets.cpu.emit_scalar import ScalarEmitter, Value, mangled, memory_type, typed, value_type

LARGEST_STACK_BUFFER = 256 << 10
Linear = tuple[int, dict[Expr, int]]
"""A constant and coefficients of atoms (variables, and what isn't linear)."""


@dataclass
class Lanes:
    """The vector loop around the current statement: its variable, lane count and mask of live lanes (None: all)."""

    var: Var
    count: int
    mask: str | None


def emit_kernel(kernel: Kernel, machine: Machine) -> str:
    """The LLVM text of a kernel. Raises CompileError for what this target has no code for."""
    parts, declarations = [], set()
    shared = [s.buffer for s in kernel.body if isinstance(s, Alloc)]
    phases = [s for s in kernel.body if not isinstance(s, Alloc)]
    for number, phase in enumerate(phases):
        emitter = _PhaseEmitter(kernel, machine, shared)
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


class _PhaseEmitter(ScalarEmitter):
    def __init__(self, kernel: Kernel, machine: Machine, shared: list[Buffer]) -> None:
        super().__init__()
        self.kernel, self.machine = kernel, machine
        self.allocas: list[str] = []
        self.pointers: dict[Buffer, str] = {}
        self.per_lane: dict[Buffer, int] = {}
        self.values: dict[str, Value] = {}
        self.constants: dict[str, int] = {}
        self.lanes: Lanes | None = None
        self.depth = 0
        self.block = "entry"
        self.blocks = 0
        self.memo: dict[tuple[Expr, int], Value] = {}

    # -- functions and blocks -----------------------------------------------------------------------------------------

    def function(self, name: str, phase: Stmt) -> str:
        """Outer function reads the pointers; inner one has them as arguments, so that `noalias` can be said of each."""
        parameters = self.kernel.parameters
        offsets, _ = shared_offsets(self.kernel)
        alias = " noalias" if self.kernel.no_alias else ""
        arguments = []
        for i, buffer in enumerate(parameters):
            self.pointers[buffer] = f"%p{i}"
            read = "" if buffer in self.kernel.outputs else " readonly"
            arguments.append(f"ptr{alias}{read} %p{i}")
        self.lines = []
        for buffer, offset in offsets.items():
            self.pointers[buffer] = self.define(f"getelementptr i8, ptr %workspace, i64 {offset}")
        body = phase.body if isinstance(phase, For) and phase.kind is LoopKind.PARALLEL else (phase,)
        if isinstance(phase, For) and phase.kind is LoopKind.PARALLEL:
            self._loop(phase.var, "%begin", "%end", body, LoopKind.SERIAL)
        else:
            self._body(body)
        self.line("ret void")
        inner = [f"define internal void @{quoted(name + '.body')}({', '.join([*arguments, 'ptr noalias %workspace', 'i64 %begin', 'i64 %end'])}) alwaysinline nounwind {{"]
        inner += ["entry:", *self.allocas, *self.lines, "}"]
        return "\n".join([*inner, *self._outer(name, len(parameters)), ""])

    def _outer(self, name: str, count: int) -> list[str]:
        lines = [f"define void @{quoted(name)}(ptr %buffers, i64 %begin, i64 %end) nounwind {{", "entry:"]
        arguments = []
        for i in range(count + 1):
            lines.append(f"  %a{i} = getelementptr ptr, ptr %buffers, i64 {i}")
            lines.append(f"  %b{i} = load ptr, ptr %a{i}, align 8")
            arguments.append(f"ptr %b{i}")
        call = f"  call void @{quoted(name + '.body')}({', '.join([*arguments, 'i64 %begin', 'i64 %end'])})"
        return [*lines, call, "  ret void", "}"]

    def _label(self, name: str) -> str:
        self.blocks += 1
        return f"{name}{self.blocks}"

    def _start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label
        self.memo = {}

    def _body(self, body: Body) -> None:
        saved = dict(self.values), dict(self.constants)
        for statement in body:
            self._statement(statement)
        self.values, self.constants = saved

    def _statement(self, s: Stmt) -> None:
        if isinstance(s, Let):
            self.values[s.var.name] = replace(self._value(s.value), depth=self.depth)
        elif isinstance(s, Store):
            self._store(s.buffer, s.indices, self._value(s.value))
        elif isinstance(s, For):
            self._for(s)
        elif isinstance(s, Alloc):
            self._alloc(s.buffer)
        elif isinstance(s, Accumulate):
            self._accumulate(s)
        elif isinstance(s, If):
            self._if(s)
        elif isinstance(s, While):
            self._while(s)
        else:
            raise CompileError(f"no code for statement {type(s).__name__}")

    # -- loops --------------------------------------------------------------------------------------------------------

    def _for(self, s: For) -> None:
        if s.kind is LoopKind.UNROLLED:
            assert isinstance(s.extent, Const)
            for i in range(int(s.extent.value)):
                before = self.constants
                self.constants = {**before, s.var.name: i}
                self._body(s.body)
                self.constants = before
        elif s.kind is LoopKind.VECTOR:
            self._vector(s)
        elif s.extent == Const(1):
            before = self.constants
            self.constants = {**before, s.var.name: 0}
            self._body(s.body)
            self.constants = before
        else:
            self._loop(s.var, "0", self._value(s.extent).text, s.body, s.kind)

    def _loop(self, var: Var, begin: str, end: str, body: Body, kind: LoopKind) -> None:
        head, inside, after = self._label("head"), self._label("loop"), self._label("after")
        before = self.block
        self.line(f"br label %{head}")
        self._start(head)
        index, following = self.fresh(), self.fresh()
        back = f"%{inside}.end"
        self.lines.append(f"  {index} = phi i64 [ {begin}, %{before} ], [ {following}, {back} ]")
        more = self.define(f"icmp slt i64 {index}, {end}")
        self.line(f"br i1 {more}, label %{inside}, label %{after}")
        self._start(inside)
        self.depth += 1
        saved = self.values
        self.values = {**saved, var.name: Value(index, S64, 1, self.depth)}
        self._body(body)
        self.values = saved
        self.depth -= 1
        self.line(f"br label {back}")
        self._start(back[1:])
        self.lines.append(f"  {following} = add nuw nsw i64 {index}, 1")
        self.line(f"br label %{head}")
        self._start(after)

    def _vector(self, s: For) -> None:
        if self.lanes is not None:
            raise CompileError("a vector loop inside a vector loop")
        assert isinstance(s.extent, Const)
        count = int(s.extent.value)
        iota = f"<{', '.join(f'i64 {i}' for i in range(count))}>"
        mask = None
        if s.active is not None and not (isinstance(s.active, Const) and int(s.active.value) >= count):
            live = self.splat(self._value(s.active), count)
            mask = self.define(f"icmp slt <{count} x i64> {iota}, {live.text}") if count > 1 else self.define(f"icmp slt i64 0, {live.text}")
        self.lanes = Lanes(s.var, count, mask)
        saved = self.values
        self.values = {**saved, s.var.name: Value(iota if count > 1 else "0", S64, count, self.depth)}
        before, self.memo = self.memo, {}
        self._body(s.body)
        self.values, self.lanes = saved, None
        self.memo = {k: v for k, v in before.items() if not _loads(k[0])}

    def _if(self, s: If) -> None:
        condition = self._value(s.condition)
        if self.lanes is not None:
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
        flags = typed("i1", lanes.count)
        condition = self.splat(condition, lanes.count)
        for flag, body in ((condition.text, s.then), ("", s.otherwise)):
            if not body:
                continue
            if not flag:
                flag = self.define(f"xor {flags} {condition.text}, {self.constant(True, PRED, lanes.count).text}")
            mask = flag if lanes.mask is None else self.define(f"and {flags} {lanes.mask}, {flag}")
            self.lanes = replace(lanes, mask=mask)
            self.memo = {}
            self._body(body)
        self.lanes = lanes
        self.memo = {}

    def _while(self, s: While) -> None:
        if self.lanes is not None:
            raise CompileError("a while loop inside a vector loop")
        head, inside, after = self._label("head"), self._label("while"), self._label("after")
        self.line(f"br label %{head}")
        self._start(head)
        condition = self._value(s.condition)
        self.line(f"br i1 {condition.text}, label %{inside}, label %{after}")
        self._start(inside)
        self.depth += 1
        self._body(s.body)
        self.depth -= 1
        self.line(f"br label %{head}")
        self._start(after)

    # -- memory -------------------------------------------------------------------------------------------------------

    def _alloc(self, buffer: Buffer) -> None:
        name = f"%b{len(self.allocas)}_"
        base = memory_type(buffer.element_type)
        if buffer.space is Space.REGISTER and self.lanes is not None:
            self.per_lane[buffer] = self.lanes.count
            base = typed(base, self.lanes.count)
        elif buffer.space is Space.SHARED:
            raise CompileError(f"{buffer.name} is shared but not a phase of its kernel")
        elif buffer.elements * buffer.element_type.bytes > LARGEST_STACK_BUFFER:
            raise CompileError(f"scratch buffer {buffer} is too large for the stack; lowering must make it shared")
        self.allocas.append(f"  {name} = alloca [{max(1, buffer.elements)} x {base}], align 64")
        self.pointers[buffer] = name

    def _address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int | None]:
        """A pointer and the stride of lanes in elements: 0 and 1 as such, None when it isn't linear in the lane (the pointer is
        then one a lane)."""
        constant, terms = self._flat(buffer, indices)
        stride: int | None = 0
        uniform: list[tuple[int, str, int]] = []
        scattered: list[tuple[Value, int]] = []
        for atom, factor in terms.items():
            if self.lanes is not None and isinstance(atom, Var) and atom.name == self.lanes.var.name:
                stride = factor
                continue
            value = self._value(atom)
            if value.lanes > 1:
                scattered.append((value, factor))
            else:
                uniform.append((value.depth, value.text, factor))
        base = memory_type(buffer.element_type)
        if buffer in self.per_lane:
            base = typed(base, self.per_lane[buffer])
        pointer = self._offset_pointer(self.pointers[buffer], base, constant, uniform)
        if not scattered and stride in (0, 1):
            return pointer, stride
        return self._lane_pointers(pointer, base, stride or 0, scattered), None

    def _offset_pointer(self, pointer: str, base: str, constant: int, uniform: list[tuple[int, str, int]]) -> str:
        """Outer loops' parts first, so that LLVM hoists their sum out of the inner ones."""
        total = ""
        for _, text, factor in sorted(uniform, key=lambda t: t[0]):
            term = text if factor == 1 else self.define(f"mul nsw i64 {text}, {factor}")
            total = term if not total else self.define(f"add nsw i64 {total}, {term}")
        if total:
            pointer = self.define(f"getelementptr inbounds {base}, ptr {pointer}, i64 {total}")
        return self.define(f"getelementptr inbounds {base}, ptr {pointer}, i64 {constant}") if constant else pointer

    def _lane_pointers(self, pointer: str, base: str, stride: int, scattered: list[tuple[Value, int]]) -> str:
        assert self.lanes is not None
        count = self.lanes.count
        vector = f"<{count} x i64>"
        total = f"<{', '.join(f'i64 {i * stride}' for i in range(count))}>"
        for value, factor in scattered:
            term = value.text if factor == 1 else self.define(f"mul {vector} {value.text}, splat (i64 {factor})")
            total = self.define(f"add {vector} {total}, {term}")
        return self.define(f"getelementptr {base}, ptr {pointer}, {vector} {total}")

    def _flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Linear:
        constant, terms = 0, dict[Expr, int]()
        for index, stride in zip(indices, buffer.strides, strict=True):
            c, t = self._linear(index)
            constant += c * stride
            for atom, factor in t.items():
                terms[atom] = terms.get(atom, 0) + factor * stride
        return constant, {a: f for a, f in terms.items() if f}

    def _linear(self, e: Expr) -> Linear:
        if isinstance(e, Const):
            return int(e.value), {}
        if isinstance(e, Var):
            known = self.constants.get(e.name)
            return (known, {}) if known is not None else (0, {e: 1})
        if isinstance(e, Apply) and e.op in ("add", "subtract"):
            (c1, t1), (c2, t2) = (self._linear(a) for a in e.arguments)
            sign = 1 if e.op == "add" else -1
            merged = dict(t1)
            for atom, factor in t2.items():
                merged[atom] = merged.get(atom, 0) + sign * factor
            return c1 + sign * c2, merged
        if isinstance(e, Apply) and e.op == "multiply":
            (c1, t1), (c2, t2) = (self._linear(a) for a in e.arguments)
            if not t1:
                return c1 * c2, {a: f * c1 for a, f in t2.items()}
            if not t2:
                return c1 * c2, {a: f * c2 for a, f in t1.items()}
        return 0, {e: 1}

    def _load(self, e: Load) -> Value:
        buffer, element_type = e.buffer, e.element_type
        pointer, stride = self._address(buffer, e.indices)
        base, align = memory_type(element_type), element_type.bytes
        if buffer in self.per_lane:
            count = self.per_lane[buffer]
            text = self.define(f"load {typed(base, count)}, ptr {pointer}, align {align * count}")
            return self._from_memory(Value(text, element_type, count))
        if stride == 0 or self.lanes is None:
            return self._from_memory(Value(self.define(f"load {base}, ptr {pointer}, align {align}"), element_type))
        count, mask = self.lanes.count, self.lanes.mask
        vector = f"<{count} x {base}>"
        if count == 1:
            mask = None
        if stride == 1 and mask is None:
            text = self.define(f"load {vector if count > 1 else base}, ptr {pointer}, align {align}")
        elif stride == 1:
            text = self._memory_call("load", vector, element_type, f"ptr {pointer}", "ptr", align, mask or "")
        else:
            every = mask or "splat (i1 true)"
            text = self._memory_call("gather", vector, element_type, f"<{count} x ptr> {pointer}", f"<{count} x ptr>", align, every)
        return self._from_memory(Value(text, element_type, count))

    def _memory_call(self, kind: str, vector: str, element_type: ElementType, pointer: str, pointer_type: str, align: int, mask: str) -> str:
        assert self.lanes is not None
        count = self.lanes.count
        suffix = f"v{count}{_memory_mangled(element_type)}.{'p0' if kind == 'load' else f'v{count}p0'}"
        name = f"llvm.masked.{kind}.{suffix}"
        self.declarations.add(f"declare {vector} @{name}({pointer_type}, i32 immarg, <{count} x i1>, {vector})")
        return self.define(f"call {vector} @{name}({pointer}, i32 {align}, <{count} x i1> {mask}, {vector} zeroinitializer)")

    def _store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value) -> None:
        self.memo = {k: v for k, v in self.memo.items() if not _loads(k[0])}
        pointer, stride = self._address(buffer, indices)
        base, align = memory_type(buffer.element_type), buffer.element_type.bytes
        if buffer in self.per_lane:
            self._store_per_lane(buffer, pointer, value)
            return
        if self.lanes is None:
            self.line(f"store {base} {self._to_memory(value).text}, ptr {pointer}, align {align}")
            return
        count, mask = self.lanes.count, self.lanes.mask
        if stride == 0 and count > 1:
            raise CompileError(f"all lanes store to one element of {buffer.name}")
        value = self._to_memory(self.splat(value, count))
        vector = typed(base, count)
        if mask is not None and stride == 1 and buffer.space is Space.REGISTER and count > 1:
            old = self.define(f"load {vector}, ptr {pointer}, align {align}")
            value = replace(value, text=self.define(f"select <{count} x i1> {mask}, {vector} {value.text}, {vector} {old}"))
            mask = None
        if count == 1 and mask is not None:
            self._store_if(mask, f"store {base} {value.text}, ptr {pointer}, align {align}")
        elif stride in (0, 1) and mask is None:
            self.line(f"store {vector} {value.text}, ptr {pointer}, align {align}")
        else:
            kind, pointers = ("store", "ptr") if stride == 1 else ("scatter", f"<{count} x ptr>")
            suffix = f"v{count}{_memory_mangled(buffer.element_type)}.{'p0' if kind == 'store' else f'v{count}p0'}"
            self.declarations.add(f"declare void @llvm.masked.{kind}.{suffix}({vector}, {pointers}, i32 immarg, <{count} x i1>)")
            every = mask or "splat (i1 true)"
            self.line(f"call void @llvm.masked.{kind}.{suffix}({vector} {value.text}, {pointers} {pointer}, i32 {align}, <{count} x i1> {every})")

    def _store_if(self, mask: str, store: str) -> None:
        then, after = self._label("then"), self._label("after")
        self.line(f"br i1 {mask}, label %{then}, label %{after}")
        self._start(then)
        self.line(store)
        self.line(f"br label %{after}")
        self._start(after)

    def _store_per_lane(self, buffer: Buffer, pointer: str, value: Value) -> None:
        assert self.lanes is not None
        count, base = self.per_lane[buffer], memory_type(buffer.element_type)
        value = self._to_memory(self.splat(value, count))
        align = buffer.element_type.bytes * count
        if self.lanes.mask is not None:
            old = self.define(f"load {typed(base, count)}, ptr {pointer}, align {align}")
            text = self.define(f"select {typed('i1', count)} {self.lanes.mask}, {typed(base, count)} {value.text}, {typed(base, count)} {old}")
            value = replace(value, text=text)
        self.line(f"store {typed(base, count)} {value.text}, ptr {pointer}, align {align}")

    def _from_memory(self, value: Value) -> Value:
        t = value.element_type
        if t.bits >= 8:
            return value
        text = self.define(f"trunc {typed('i8', value.lanes)} {value.text} to {typed(value_type(t), value.lanes)}")
        return replace(value, text=text)

    def _to_memory(self, value: Value) -> Value:
        t = value.element_type
        if t.bits >= 8:
            return value
        code = "sext" if t.is_signed else "zext"
        return replace(value, text=self.define(f"{code} {typed(value_type(t), value.lanes)} {value.text} to {typed('i8', value.lanes)}"))

    # -- expressions --------------------------------------------------------------------------------------------------

    def _value(self, e: Expr) -> Value:
        """The value of an expression; equal ones in a block are computed once."""
        if isinstance(e, Const):
            return self.constant(e.value, e.element_type)
        if isinstance(e, Var):
            known = self.constants.get(e.name)
            if known is not None:
                return self.constant(known, S64)
            if e.name not in self.values:
                raise CompileError(f"{e.name} is used outside its scope in {self.kernel.name}")
            return self.values[e.name]
        key = (e, len(self.constants))
        if not self.constants and key in self.memo:
            return self.memo[key]
        value = self._load(e) if isinstance(e, Load) else self._apply(e)
        if not self.constants:
            self.memo[key] = value
        return value

    def _apply(self, e: Expr) -> Value:
        assert isinstance(e, Apply)
        if e.element_type is S64 and e.op in ("add", "subtract", "multiply"):
            constant, terms = self._linear(e)
            if not terms:
                return self.constant(constant, S64)
        arguments = [self._value(a) for a in e.arguments]
        if is_math(e.op, e.arguments[0].element_type):
            value = expand(self, e.op, arguments, e.arguments[0].element_type)
        else:
            value = self.apply(e.op, arguments, e.element_type)
        return replace(value, depth=max(a.depth for a in arguments))

    def _accumulate(self, s: Accumulate) -> None:
        """cells = combiner(cells, values). In a vector loop, when the cells are one for all lanes, lanes are joined first by halves."""
        values = [self._value(v) for v in s.values]
        loads = [Load(b, i) for b, i in s.cells]
        if self.lanes is not None and self.lanes.count > 1 and not any(b in self.per_lane for b, _ in s.cells):
            _, stride = self._address(*s.cells[0])
            if stride == 0:
                self._join_lanes(s, values)
                return
        left = [self._load(x) for x in loads]
        for (buffer, indices), result in zip(s.cells, self._combine(s, left, values), strict=True):
            self._store(buffer, indices, result)

    def _combine(self, s: Accumulate, left: list[Value], right: list[Value]) -> list[Value]:
        saved, memo = self.values, self.memo
        self.memo = {}
        names = {v.name: x for v, x in zip((*s.combiner.left, *s.combiner.right), (*left, *right), strict=True)}
        self.values = {**saved, **names}
        results = [self._value(r) for r in s.combiner.results]
        self.values, self.memo = saved, memo
        return results

    def _join_lanes(self, s: Accumulate, values: list[Value]) -> None:
        assert self.lanes is not None
        lanes = self.lanes
        values = [self.splat(v, lanes.count) for v in values]
        if lanes.mask is not None:
            values = [self._masked(v, i, lanes) for v, i in zip(values, s.identity, strict=True)]
        width = lanes.count
        self.lanes = None
        while width > 1:
            width //= 2
            halves = [self._half(v, 0, width) for v in values], [self._half(v, width, width) for v in values]
            values = self._combine(s, *halves)
        left = [self._load(Load(b, i)) for b, i in s.cells]
        for (buffer, indices), result in zip(s.cells, self._combine(s, left, values), strict=True):
            self._store(buffer, indices, result)
        self.lanes = lanes

    def _masked(self, value: Value, identity: Expr, lanes: Lanes) -> Value:
        base = typed(value_type(value.element_type), lanes.count)
        neutral = self.splat(self._value(identity), lanes.count)
        return replace(value, text=self.define(f"select {typed('i1', lanes.count)} {lanes.mask}, {base} {value.text}, {base} {neutral.text}"))

    def _half(self, value: Value, start: int, width: int) -> Value:
        base = typed(value_type(value.element_type), value.lanes)
        if width == 1:
            return replace(value, text=self.define(f"extractelement {base} {value.text}, i64 {start}"), lanes=1)
        picks = ", ".join(f"i32 {start + i}" for i in range(width))
        text = self.define(f"shufflevector {base} {value.text}, {base} poison, <{width} x i32> <{picks}>")
        return replace(value, text=text, lanes=width)


def _memory_mangled(element_type: ElementType) -> str:
    return "i8" if element_type.bits < 8 else mangled(element_type, 1)


def _loads(e: Expr) -> bool:
    if isinstance(e, Load):
        return True
    return isinstance(e, Apply) and any(_loads(a) for a in e.arguments)


def quoted(name: str) -> str:
    """A symbol name as LLVM text."""
    return f'"{name}"' if not name.replace("_", "").replace(".", "").isalnum() else name
