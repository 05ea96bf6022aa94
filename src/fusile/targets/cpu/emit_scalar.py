"""Scalar ops as LLVM instructions, on scalars or on whole vectors of lanes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fusile.base.element_type import ElementType
from fusile.base.errors import CompileError
from fusile.loops.machine import Machine
from fusile.targets.cpu.values import Value, literal, mangled, memory_type, typed, value_type

__all__ = ["ScalarEmitter", "Value", "mangled", "memory_type", "typed", "value_type"]


class TextEmitter:
    """Appends LLVM text to `lines`; `fresh()` names results, `declarations` are the module's other lines."""

    machine: Machine

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.allocas: list[str] = []
        self.block = "entry"
        self._count = 0

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def define(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def _label(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    def _start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def call(self, name: str, result: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Calls an LLVM intrinsic, declaring it once."""
        self.declarations.add(f"declare {result} @{name}({', '.join(t for t, _ in arguments)})")
        return self.define(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")

    def intrinsic(self, name: str, xs: Sequence[Value], *more: tuple[str, str]) -> str:
        """An intrinsic whose arguments and result are of one type, then immediate ones."""
        base = xs[0].llvm_type
        full = f"llvm.{name}.{mangled(xs[0].element_type, xs[0].lanes)}"
        return self.call(full, base, [*((base, x.text) for x in xs), *more])

    def constant(self, number: float | int | bool, element_type: ElementType, lanes: int = 1) -> Value:
        text = literal(number, element_type)
        if lanes > 1:
            text = f"splat ({value_type(element_type)} {text})"
        return Value(text, element_type, lanes, number=number, at_least_zero=number >= 0)

    def splat(self, value: Value, lanes: int) -> Value:
        """The value in all lanes."""
        if value.lanes == lanes:
            return value
        if value.number is not None:
            return self.constant(value.number, value.element_type, lanes)
        base = value_type(value.element_type)
        vector = typed(base, lanes)
        one = self.define(f"insertelement {vector} poison, {base} {value.text}, i64 0")
        text = self.define(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")
        return Value(text, value.element_type, lanes, value.depth, None, value.at_least_zero)

    def pick(self, flag: str, on_true: Value, on_false: Value) -> str:
        """A select; `flag` is the text of a predicate with as many lanes."""
        return self.define(f"select {typed('i1', on_true.lanes)} {flag}, {on_true}, {on_false}")

    def any_lane(self, predicate: Value) -> str:
        """Whether a predicate holds in some lane, an i1."""
        if predicate.lanes == 1:
            return predicate.text
        name = f"llvm.vector.reduce.or.v{predicate.lanes}i1"
        return self.call(name, "i1", [(predicate.llvm_type, predicate.text)])


class ScalarEmitter(TextEmitter):
    """Emits scalar ops; what it has no instructions for goes through `loops.math` or the conversions."""

    def apply(self, op: str, arguments: list[Value], result: ElementType) -> Value:
        """One scalar op. Raises CompileError when there is no code for it."""
        from fusile.targets.cpu.emit_ops import emit_op

        lanes = max(a.lanes for a in arguments)
        arguments = [self.splat(a, lanes) for a in arguments]
        text = emit_op(self, op, arguments, result)
        return Value(text, result, lanes, at_least_zero=_stays_non_negative(op, arguments, result))

    # -- control inside expressions: see loops/math/number.py ---------------------------------------------------------

    def in_rare_lanes(
        self,
        predicate: Value,
        slow: Callable[[Value], Value],
        argument: Value,
        fast: Value,
        element_type: ElementType,
    ) -> Value:
        lanes = max(predicate.lanes, fast.lanes)

        def one_by_one() -> Value:
            return self._lane_by_lane(self.splat(predicate, lanes), slow, self.splat(argument, lanes), fast)

        return self._rarely(predicate, one_by_one if lanes > 1 else lambda: slow(argument), fast)

    def _rarely(self, predicate: Value, slow: Callable[[], Value], fast: Value) -> Value:
        """`slow()` when the predicate holds in some lane, else `fast`."""
        rare, after = self._label("rare"), self._label("after")
        before, element_type = self.block, fast.element_type
        self.line(f"br i1 {self.any_lane(predicate)}, label %{rare}, label %{after}, !prof !0")
        self.declarations.add('!0 = !{!"branch_weights", i32 1, i32 1000}')
        self._start(rare)
        lanes = max(predicate.lanes, fast.lanes)
        value = self.splat(slow(), lanes)
        from_slow = self.block
        self.line(f"br label %{after}")
        self._start(after)
        fast = self.splat(fast, lanes)
        kind = typed(value_type(element_type), lanes)
        text = self.define(f"phi {kind} [ {fast.text}, %{before} ], [ {value.text}, %{from_slow} ]")
        return Value(text, element_type, lanes)

    def _lane_by_lane(self, predicate: Value, slow: Callable[[Value], Value], argument: Value, fast: Value) -> Value:
        """Through memory, so that the slow code is there once and is scalar."""
        given, made, flags = (self._slot(v) for v in (argument, fast, predicate))
        self.line(f"store {argument}, ptr {given}, align 64")
        self.line(f"store {fast}, ptr {made}, align 64")
        bytes_type = typed("i8", predicate.lanes)
        self.line(f"store {bytes_type} {self.define(f'zext {predicate} to {bytes_type}')}, ptr {flags}, align 64")
        with self._counted_loop(predicate.lanes) as lane:
            flag = self.define(f"load i8, ptr {self.define(f'getelementptr i8, ptr {flags}, i64 {lane}')}, align 1")
            then, after = self._label("slow"), self._label("after")
            wanted = self.define(f"icmp ne i8 {flag}, 0")
            self.line(f"br i1 {wanted}, label %{then}, label %{after}")
            self._start(then)
            base = value_type(argument.element_type)
            place = self.define(f"getelementptr {base}, ptr {given}, i64 {lane}")
            one = self.define(f"load {base}, ptr {place}, align {argument.element_type.bytes}")
            result = slow(Value(one, argument.element_type))
            place = self.define(f"getelementptr {value_type(fast.element_type)}, ptr {made}, i64 {lane}")
            self.line(f"store {result}, ptr {place}, align {fast.element_type.bytes}")
            self.line(f"br label %{after}")
            self._start(after)
        return Value(self.define(f"load {fast.llvm_type}, ptr {made}, align 64"), fast.element_type, fast.lanes)

    def _slot(self, value: Value) -> str:
        """Stack memory for a value."""
        name = self.fresh()
        base = memory_type(value.element_type)
        self.allocas.append(f"  {name} = alloca [{value.lanes} x {base}], align 64")
        return name

    @contextmanager
    def _counted_loop(self, count: int) -> Iterator[str]:
        head, after = self._label("lane"), self._label("done")
        before, index, following = self.block, self.fresh(), self.fresh()
        self.line(f"br label %{head}")
        self._start(head)
        place = len(self.lines)
        yield index
        self.lines.append(f"  {following} = add nuw nsw i64 {index}, 1")
        more = self.define(f"icmp ult i64 {following}, {count}")
        self.lines.insert(place, f"  {index} = phi i64 [ 0, %{before} ], [ {following}, %{self.block} ]")
        self.line(f"br i1 {more}, label %{head}, label %{after}")
        self._start(after)

    def repeat(
        self,
        values: list[Value],
        types: list[ElementType],
        more: Callable[[list[Value]], Value],
        turn: Callable[[list[Value]], list[Value]],
    ) -> list[Value]:
        lanes = max(v.lanes for v in values)
        values = [self.splat(v, lanes) for v in values]
        head, inside, after = self._label("head"), self._label("turn"), self._label("after")
        before = self.block
        self.line(f"br label %{head}")
        self._start(head)
        place = len(self.lines)
        state = [Value(self.fresh(), t, lanes) for t in types]
        self.line(f"br i1 {self.any_lane(more(state))}, label %{inside}, label %{after}")
        leave = self.block
        self._start(inside)
        following = [self.splat(v, lanes) for v in turn(state)]
        back = self.block
        self.line(f"br label %{head}")
        phis = [
            f"  {s.text} = phi {s.llvm_type} [ {v.text}, %{before} ], [ {f.text}, %{back} ]"
            for s, v, f in zip(state, values, following, strict=True)
        ]
        self.lines[place:place] = phis
        self._start(after)
        assert leave == head, "the condition of a repeat has no blocks of its own"
        return state

    def lookup(self, table: Sequence[int], index: Value, element_type: ElementType) -> Value:
        base, lanes = value_type(element_type), index.lanes
        entries = ", ".join(f"{base} {literal(v, element_type)}" for v in table)
        name = f"@table.{zlib.crc32(entries.encode()):08x}"
        self.declarations.add(f"{name} = private unnamed_addr constant [{len(table)} x {base}] [{entries}], align 64")
        pointers = self.define(f"getelementptr {base}, ptr {name}, {index}")
        if lanes == 1:
            return Value(self.define(f"load {base}, ptr {pointers}, align {element_type.bytes}"), element_type)
        kind = f"<{lanes} x {base}>"
        call = f"llvm.masked.gather.{mangled(element_type, lanes)}.v{lanes}p0"
        self.declarations.add(f"declare {kind} @{call}(<{lanes} x ptr>, i32 immarg, <{lanes} x i1>, {kind})")
        arguments = (
            f"<{lanes} x ptr> {pointers}, i32 {element_type.bytes}, <{lanes} x i1> splat (i1 true), {kind} poison"
        )
        return Value(self.define(f"call {kind} @{call}({arguments})"), element_type, lanes)


_KEEPS_SIGN = ("add", "multiply", "floor_divide", "modulo", "divide", "remainder", "minimum", "maximum", "and", "abs")


def _stays_non_negative(op: str, arguments: list[Value], result: ElementType) -> bool:
    """Index arithmetic on numbers that are at least 0 (index sums and products don't wrap)."""
    if not result.is_integer or result.bits < 64:
        return False
    return op == "modulo" or (op in _KEEPS_SIGN and all(a.at_least_zero for a in arguments))


def unsupported(op: str, element_type: ElementType) -> CompileError:
    return CompileError(f"the CPU target has no code for {op} of {element_type}")
