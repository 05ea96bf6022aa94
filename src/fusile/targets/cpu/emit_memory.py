"""Loads and stores: flat offsets as linear forms of variables, which say how the lanes of a vector loop lie in memory.

An element for all lanes is a scalar load; neighbours are a vector load, forwards or backwards; lanes a few elements
apart are a wide load and a shuffle; the rest is a gather. Under a mask no lane touches memory that isn't live.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusile.base.element_type import PRED, S64, U8, ElementType
from fusile.base.errors import CompileError
from fusile.loops.ir import Apply, Buffer, Const, Expr, Load, Prefetch, Space, Var
from fusile.targets.cpu.emit_scalar import ScalarEmitter
from fusile.targets.cpu.values import Value, mangled, memory_type, typed

LARGEST_STACK_BUFFER = 256 << 10
LARGEST_SHUFFLED_STRIDE = 4
Linear = tuple[int, dict[Expr, int]]
"""A constant and coefficients of atoms (variables, and what isn't linear)."""


@dataclass(frozen=True)
class Lanes:
    """The vector loop around the current statement: its variable, lane count, mask of live lanes (None: all live),
    whether at least one is known to be live, and whether it is known that the first lives alone."""

    var: Var
    count: int
    mask: str | None = None
    some_live: bool = True
    first_alone: bool = False


@dataclass(frozen=True)
class Address:
    """A pointer (to lane 0) and the lanes' distance in elements; `pointers` instead, one a lane, when that varies."""

    pointer: str
    stride: int = 0
    pointers: str | None = None


class MemoryEmitter(ScalarEmitter):
    """Buffers' addresses, loads and stores."""

    def __init__(self) -> None:
        super().__init__()
        self.pointers: dict[Buffer, str] = {}
        self.per_lane: dict[Buffer, int] = {}
        self.values: dict[str, Value] = {}
        self.definitions: dict[str, Expr] = {}
        self.constants: dict[str, int] = {}
        self.lanes: Lanes | None = None
        self.streamed: frozenset[Buffer] = frozenset()
        """Results written past the caches."""

    def value(self, e: Expr) -> Value:
        """The value of an expression."""
        raise NotImplementedError

    def alloc(self, buffer: Buffer) -> None:
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

    # -- addresses ----------------------------------------------------------------------------------------------------

    def address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Address:
        """Where an element lies. Terms equal for all lanes are summed first, outer loops' before inner ones'."""
        constant, terms = self._flat(buffer, indices)
        stride, uniform, scattered = 0, list[tuple[Value, int]](), list[tuple[Value, int]]()
        for atom, factor in terms.items():
            if self.lanes is not None and isinstance(atom, Var) and atom.name == self.lanes.var.name:
                stride = factor
                continue
            value = self.value(atom)
            (scattered if value.lanes > 1 else uniform).append((value, factor))
        base = memory_type(buffer.element_type)
        if buffer in self.per_lane:
            if scattered or stride:
                raise CompileError(f"the index into {buffer.name}, which each lane has its own of, depends on the lane")
            base = typed(base, self.per_lane[buffer])
        pointer = self._offset_pointer(self.pointers[buffer], base, constant, uniform)
        if not scattered:
            return Address(pointer, stride)
        return Address(pointer, stride, self._lane_pointers(pointer, base, stride, scattered))

    def prefetch(self, s: Prefetch) -> None:
        """Asks for a cache line. The address may be anything, so nothing is promised of it."""
        base = self.address(s.buffer, s.indices).pointer
        pointer = self.define(f"getelementptr {memory_type(s.buffer.element_type)}, ptr {base}, i64 {s.distance}")
        self.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(s.write)}, i32 3, i32 1)")

    def _offset_pointer(self, pointer: str, base: str, constant: int, uniform: list[tuple[Value, int]]) -> str:
        total = ""
        for value, factor in sorted(uniform, key=lambda t: t[0].depth):
            term = value.text if factor == 1 else self.define(f"mul nsw i64 {value.text}, {factor}")
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

    def _every_pointer(self, address: Address, base: str) -> str:
        return address.pointers or self._lane_pointers(address.pointer, base, address.stride, [])

    def _flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Linear:
        constant, terms = 0, dict[Expr, int]()
        for index, stride in zip(indices, buffer.strides, strict=True):
            c, t = self.linear(index)
            constant += c * stride
            for atom, factor in t.items():
                terms[atom] = terms.get(atom, 0) + factor * stride
        return constant, {a: f for a, f in terms.items() if f}

    def linear(self, e: Expr) -> Linear:
        """The linear form of an index. Names of values that differ between lanes are looked through."""
        if isinstance(e, Const):
            return int(e.value), {}
        if isinstance(e, Var):
            known = self.constants.get(e.name)
            if known is not None:
                return known, {}
            defined = self.definitions.get(e.name)
            return (0, {e: 1}) if defined is None else self.linear(defined)
        if isinstance(e, Apply) and e.op in ("add", "subtract"):
            (c1, t1), (c2, t2) = (self.linear(a) for a in e.arguments)
            sign = 1 if e.op == "add" else -1
            merged = dict(t1)
            for atom, factor in t2.items():
                merged[atom] = merged.get(atom, 0) + sign * factor
            return c1 + sign * c2, merged
        if isinstance(e, Apply) and e.op == "multiply":
            (c1, t1), (c2, t2) = (self.linear(a) for a in e.arguments)
            if not t1:
                return c1 * c2, {a: f * c1 for a, f in t2.items()}
            if not t2:
                return c1 * c2, {a: f * c2 for a, f in t1.items()}
        return 0, {e: 1}

    # -- loads --------------------------------------------------------------------------------------------------------

    def load(self, e: Load) -> Value:
        buffer, t = e.buffer, e.element_type
        address = self.address(buffer, e.indices)
        if buffer in self.per_lane:
            count = self.per_lane[buffer]
            text = self.define(f"load {typed(memory_type(t), count)}, ptr {address.pointer}, align {t.bytes * count}")
            return self._from_memory(Value(text, t, count))
        if self.lanes is None or (address.stride == 0 and address.pointers is None):
            return self._from_memory(Value(self._load_one(t, address.pointer), t))
        if self.lanes.count == 1:
            return self._from_memory(Value(self._load_one(t, address.pointer), t))
        return self._from_memory(Value(self._load_lanes(buffer, e.indices, address), t, self.lanes.count))

    def _load_one(self, t: ElementType, pointer: str) -> str:
        if self.lanes is not None and self.lanes.mask is not None and not self.lanes.some_live:
            pointer = self._live_pointer(pointer)
        return self.define(f"load {memory_type(t)}, ptr {pointer}, align {t.bytes}")

    def _live_pointer(self, pointer: str) -> str:
        """The pointer, or one to some bytes of our own when no lane is live."""
        assert self.lanes is not None
        if not any(line.startswith("  %nothing =") for line in self.allocas):
            self.allocas.append("  %nothing = alloca [16 x i8], align 16")
        flag = self.any_lane(Value(self.lanes.mask or "true", PRED, self.lanes.count))
        return self.define(f"select i1 {flag}, ptr {pointer}, ptr %nothing")

    def _load_lanes(self, buffer: Buffer, indices: tuple[Expr, ...], address: Address) -> str:
        assert self.lanes is not None
        t, count, mask = buffer.element_type, self.lanes.count, self.lanes.mask
        if mask is not None and self._is_padded(buffer, indices):
            mask = None
        vector = typed(memory_type(t), count)
        if address.pointers is None and address.stride == 1:
            if mask is None:
                return self.define(f"load {vector}, ptr {address.pointer}, align {t.bytes}")
            return self._masked_read("load", t, f"ptr {address.pointer}", mask)
        if address.pointers is None and address.stride == -1:
            first = self.define(f"getelementptr {memory_type(t)}, ptr {address.pointer}, i64 {1 - count}")
            if mask is None:
                return self.reversed(self.define(f"load {vector}, ptr {first}, align {t.bytes}"), vector, count)
            flags = self.reversed(mask, f"<{count} x i1>", count)
            return self.reversed(self._masked_read("load", t, f"ptr {first}", flags), vector, count)
        if address.pointers is None and mask is None and 1 < abs(address.stride) <= LARGEST_SHUFFLED_STRIDE:
            return self._load_apart(t, address, count)
        pointers = self._every_pointer(address, memory_type(t))
        return self._masked_read("gather", t, f"<{count} x ptr> {pointers}", mask or "splat (i1 true)")

    def _load_apart(self, t: ElementType, address: Address, count: int) -> str:
        """One load from the first lane's element to the last one's, then a shuffle."""
        stride, base = abs(address.stride), memory_type(t)
        width = (count - 1) * stride + 1
        pointer = address.pointer
        if address.stride < 0:
            pointer = self.define(f"getelementptr {base}, ptr {pointer}, i64 {1 - width}")
        text = self.define(f"load <{width} x {base}>, ptr {pointer}, align {t.bytes}")
        picks = [i * stride for i in range(count)]
        order = ", ".join(f"i32 {p}" for p in (picks if address.stride > 0 else picks[::-1]))
        return self.define(
            f"shufflevector <{width} x {base}> {text}, <{width} x {base}> poison, <{count} x i32> <{order}>"
        )

    def reversed(self, text: str, vector: str, count: int) -> str:
        order = ", ".join(f"i32 {i}" for i in reversed(range(count)))
        return self.define(f"shufflevector {vector} {text}, {vector} poison, <{count} x i32> <{order}>")

    def _masked_read(self, kind: str, t: ElementType, pointer: str, mask: str) -> str:
        assert self.lanes is not None
        count = self.lanes.count
        vector, pointer_type = f"<{count} x {memory_type(t)}>", pointer.rpartition(" ")[0]
        suffix = f"{mangled(t, count, in_memory=True)}.{'p0' if kind == 'load' else f'v{count}p0'}"
        name = f"llvm.masked.{kind}.{suffix}"
        self.declarations.add(f"declare {vector} @{name}({pointer_type}, i32 immarg, <{count} x i1>, {vector})")
        return self.define(
            f"call {vector} @{name}({pointer}, i32 {t.bytes}, <{count} x i1> {mask}, {vector} zeroinitializer)"
        )

    def _is_padded(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether dead lanes of a buffer of our own may be touched: it is whole vectors, and this is one of them."""
        assert self.lanes is not None
        own = buffer.space in (Space.REGISTER, Space.SCRATCH)
        return own and buffer.elements % self.lanes.count == 0 and self._starts_at(buffer, indices, self.lanes.count)

    def _starts_at(self, buffer: Buffer, indices: tuple[Expr, ...], multiple: int) -> bool:
        """Whether the first lane's flat index is sure to be a multiple of a number."""
        assert self.lanes is not None
        constant, terms = self._flat(buffer, indices)
        lane = self.lanes.var
        return constant % multiple == 0 and all(f % multiple == 0 for a, f in terms.items() if a != lane)

    # -- stores -------------------------------------------------------------------------------------------------------

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value) -> None:
        address = self.address(buffer, indices)
        t = buffer.element_type
        if buffer in self.per_lane:
            self._store_per_lane(buffer, address.pointer, value)
        elif self.lanes is None:
            self._store_one(t, address.pointer, value)
        elif self.lanes.count == 1 or (address.stride == 0 and address.pointers is None):
            self._store_if_live(t, address.pointer, self._last_live(value))
        else:
            self._store_lanes(buffer, indices, address, self.splat(value, self.lanes.count))

    def _store_one(self, t: ElementType, pointer: str, value: Value) -> None:
        self.line(f"store {memory_type(t)} {self._to_memory(value)}, ptr {pointer}, align {t.bytes}")

    def _last_live(self, value: Value) -> Value:
        """Of the lanes that store to one element the last live one's value stays."""
        assert self.lanes is not None
        if value.lanes == 1:
            return value
        place = str(value.lanes - 1)
        if self.lanes.mask is not None:
            bits = self.define(f"bitcast <{value.lanes} x i1> {self.lanes.mask} to i{value.lanes}")
            wide = self.define(f"zext i{value.lanes} {bits} to i64") if value.lanes < 64 else bits
            zeros = self.call("llvm.ctlz.i64", "i64", [("i64", wide), ("i1", "false")])
            last = self.define(f"sub i64 63, {zeros}")
            place = self.define(f"and i64 {last}, {value.lanes - 1}")
        return replace(value, text=self.define(f"extractelement {value}, i64 {place}"), lanes=1)

    def _store_if_live(self, t: ElementType, pointer: str, value: Value) -> None:
        assert self.lanes is not None
        if self.lanes.mask is not None and not self.lanes.some_live:
            pointer = self._live_pointer(pointer)
        self._store_one(t, pointer, value)

    def _store_lanes(self, buffer: Buffer, indices: tuple[Expr, ...], address: Address, value: Value) -> None:
        assert self.lanes is not None
        t, count, mask = buffer.element_type, self.lanes.count, self.lanes.mask
        vector, text = typed(memory_type(t), count), self._to_memory(value)
        in_row = address.pointers is None and abs(address.stride) == 1
        pointer = address.pointer
        if in_row and self.lanes.first_alone:
            # LLVM makes 4-byte stores of masked stores of one narrow element (22.1, AVX-512), over the next one.
            one = self.define(f"extractelement {vector} {text}, i64 0")
            self.line(f"store {memory_type(t)} {one}, ptr {pointer}, align {t.bytes}")
            return
        if in_row and address.stride == -1:
            pointer = self.define(f"getelementptr {memory_type(t)}, ptr {pointer}, i64 {1 - count}")
            text = self.reversed(text, vector, count)
            mask = mask and self.reversed(mask, f"<{count} x i1>", count)
        if in_row and mask is not None and self._is_padded(buffer, indices):
            old = self.define(f"load {vector}, ptr {pointer}, align {t.bytes}")
            text = self.define(f"select <{count} x i1> {mask}, {vector} {text}, {vector} {old}")
            mask = None
        if in_row and mask is None:
            size = t.bytes * count
            if (
                buffer in self.streamed
                and size == self.machine.vector_bytes
                and self._starts_at(buffer, indices, size // t.bytes)
            ):
                self.declarations.add("!2 = !{i32 1}")
                self.line(f"store {vector} {text}, ptr {pointer}, align {size}, !nontemporal !2")
            else:
                self.line(f"store {vector} {text}, ptr {pointer}, align {t.bytes}")
            return
        kind, pointers = ("store", "ptr") if in_row else ("scatter", f"<{count} x ptr>")
        where = pointer if in_row else self._every_pointer(address, memory_type(t))
        name = f"llvm.masked.{kind}.{mangled(t, count, in_memory=True)}.{'p0' if in_row else f'v{count}p0'}"
        self.declarations.add(f"declare void @{name}({vector}, {pointers}, i32 immarg, <{count} x i1>)")
        flags = mask or "splat (i1 true)"
        self.line(f"call void @{name}({vector} {text}, {pointers} {where}, i32 {t.bytes}, <{count} x i1> {flags})")

    def _store_per_lane(self, buffer: Buffer, pointer: str, value: Value) -> None:
        assert self.lanes is not None
        count, t = self.per_lane[buffer], buffer.element_type
        vector, text = typed(memory_type(t), count), self._to_memory(self.splat(value, count))
        align = t.bytes * count
        if self.lanes.mask is not None:
            old = self.define(f"load {vector}, ptr {pointer}, align {align}")
            text = self.define(f"select {typed('i1', count)} {self.lanes.mask}, {vector} {text}, {vector} {old}")
        self.line(f"store {vector} {text}, ptr {pointer}, align {align}")

    def _from_memory(self, value: Value) -> Value:
        """Predicates are a byte in memory; integers below a byte may have any upper bits there."""
        from fusile.targets.cpu.emit_convert import wrapped_below_byte

        if value.element_type.is_predicate:
            text = self.define(f"trunc {typed('i8', value.lanes)} {value.text} to {value.llvm_type}")
            return replace(value, text=text)
        return replace(value, text=wrapped_below_byte(self, value))

    def _to_memory(self, value: Value) -> str:
        """Integers below a byte have zeros above them in memory, as ml_dtypes stores them."""
        kind = value.element_type
        if kind.is_signed and kind.bits < 8:
            return self.define(f"and {value}, {self.constant((1 << kind.bits) - 1, U8, value.lanes).text}")
        if not kind.is_predicate:
            return value.text
        return self.define(f"zext {value} to {typed('i8', value.lanes)}")


def iota(count: int) -> Value:
    """The lane numbers."""
    text = f"<{', '.join(f'i64 {i}' for i in range(count))}>" if count > 1 else "0"
    return Value(text, S64, count, at_least_zero=True)
