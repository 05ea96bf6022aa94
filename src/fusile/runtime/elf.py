"""Loads relocatable ELF objects into memory: sections laid out, symbols resolved, relocations applied, then made
executable.

So machine code runs without a linker and without the compiler that made it. Everything in the file is checked against
its bounds first; what is wrong raises LoadError. Pages are written before they become executable, never both at once.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusile.base.errors import LoadError

_X86_64 = 62
_ALLOCATED, _NOBITS, _RELA, _SYMTAB = 2, 8, 4, 2
_ABS64, _PC32, _GOT32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX, _PC64 = 1, 2, 3, 4, 9, 41, 42, 24
_STUB = 16
_PROTECTION_READ_EXECUTE = 5


@dataclass
class _Section:
    name: str
    type: int
    flags: int
    data: memoryview
    size: int
    align: int
    link: int
    info: int
    offset: int = -1


@dataclass
class _Symbol:
    name: str
    section: int
    value: int
    is_global: bool


class _Object:
    """One parsed object file."""

    def __init__(self, data: bytes) -> None:
        view = memoryview(data)
        if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 16)[0] != 1:
            raise LoadError("the machine code is no little-endian 64-bit relocatable ELF object")
        if struct.unpack_from("<H", data, 18)[0] != _X86_64:
            raise LoadError("the machine code is for another kind of processor than this loader knows (x86-64)")
        start, (entry, count, names) = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<HHH", data, 58)
        if entry != 64 or start + count * 64 > len(data) or names >= count:
            raise LoadError("the object's section table is out of bounds")
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * 64) for i in range(count)]
        self.sections = [self._section(view, h) for h in headers]
        strings = self.sections[names].data
        for section, header in zip(self.sections, headers, strict=True):
            section.name = _string(strings, header[0])
        self.symbols = self._symbols()

    @staticmethod
    def _section(view: memoryview, h: Sequence[int]) -> _Section:
        _, kind, flags, _, offset, size, link, info, align, _ = h
        if kind != _NOBITS and offset + size > len(view):
            raise LoadError("a section of the object is out of bounds")
        if size > 1 << 31 or align > 1 << 16:
            raise LoadError("a section of the object is absurdly large")
        data = view[0:0] if kind == _NOBITS else view[offset : offset + size]
        return _Section("", kind, flags, data, size, max(1, align), link, info)

    def _symbols(self) -> list[_Symbol]:
        found: list[_Symbol] = []
        for section in self.sections:
            if section.type != _SYMTAB:
                continue
            if section.link >= len(self.sections):
                raise LoadError("the object's symbol names are out of bounds")
            strings = self.sections[section.link].data
            for at in range(0, len(section.data) - 23, 24):
                name, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", section.data, at)
                found.append(_Symbol(_string(strings, name), index, value, info >> 4 != 0))
        return found


def _string(data: memoryview, at: int) -> str:
    raw = bytes(data[at : at + 4096])
    end = raw.find(b"\0")
    if at >= len(data) or end < 0:
        raise LoadError("a name in the object is out of bounds")
    return raw[:end].decode("utf-8", "replace")


class Image:
    """Several objects as one piece of executable memory. `symbols` maps global names to addresses; the memory is
    released with the image, so whoever calls into it keeps it."""

    def __init__(self, objects: Sequence[bytes], externals: Mapping[str, int]) -> None:
        self.externals = externals
        self.objects = [_Object(o) for o in objects]
        self.symbols: dict[str, int] = {}
        size = self._lay_out()
        self.stubs_at = size
        undefined = sorted({s.name for o in self.objects for s in o.symbols if s.section == 0 and s.name})
        self.slots = {name: size + i * _STUB for i, name in enumerate(undefined)}
        self.got: dict[tuple[int, int], int] = {}
        got = sum(1 for o in self.objects for _ in o.symbols)
        self.got_at = size + len(undefined) * _STUB
        self.memory = mmap.mmap(-1, max(mmap.PAGESIZE, self.got_at + 8 * got))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._write()
        self._protect()

    def _lay_out(self) -> int:
        size = 0
        for o in self.objects:
            for section in o.sections:
                if section.flags & _ALLOCATED:
                    size = -(-size // section.align) * section.align
                    section.offset, size = size, size + section.size
        return -(-size // _STUB) * _STUB

    def _write(self) -> None:
        for o in self.objects:
            for section in o.sections:
                if section.flags & _ALLOCATED and section.type != _NOBITS:
                    self.memory[section.offset : section.offset + section.size] = bytes(section.data)
            for symbol in o.symbols:
                if symbol.is_global and 0 < symbol.section < len(o.sections) and o.sections[symbol.section].offset >= 0:
                    self.symbols[symbol.name] = self.base + o.sections[symbol.section].offset + symbol.value
        for name, at in self.slots.items():
            target = self.symbols.get(name) or self.externals.get(name)
            if target is None:
                raise LoadError(f"the machine code calls {name}, which nothing provides")
            self.memory[at : at + 14] = b"\xff\x25\0\0\0\0" + struct.pack("<Q", target)
        for number, o in enumerate(self.objects):
            for section in o.sections:
                if section.type == _RELA:
                    self._relocate(number, o, section)

    def _relocate(self, number: int, o: _Object, table: _Section) -> None:
        if table.info >= len(o.sections):
            raise LoadError("a relocation table is for no section")
        target = o.sections[table.info]
        if target.offset < 0:
            return
        for at in range(0, len(table.data) - 23, 24):
            offset, info, addend = struct.unpack_from("<QQq", table.data, at)
            kind, index = info & 0xFFFFFFFF, info >> 32
            if index >= len(o.symbols) or offset + (8 if kind in (_ABS64, _PC64) else 4) > target.size:
                raise LoadError("a relocation is out of bounds")
            self._apply(number, o, index, kind, target.offset + offset, addend)

    def _address(self, o: _Object, symbol: _Symbol) -> int:
        if symbol.section == 0:
            return self.symbols.get(symbol.name) or self.base + self.slots[symbol.name]
        if symbol.section >= len(o.sections) or o.sections[symbol.section].offset < 0:
            raise LoadError(f"symbol {symbol.name!r} lies in no loaded section")
        return self.base + o.sections[symbol.section].offset + symbol.value

    def _apply(self, number: int, o: _Object, index: int, kind: int, place: int, addend: int) -> None:
        address = self._address(o, o.symbols[index])
        here = self.base + place
        if kind == _ABS64:
            struct.pack_into("<Q", self.memory, place, (address + addend) & (1 << 64) - 1)
        elif kind == _PC64:
            struct.pack_into("<q", self.memory, place, address + addend - here)
        elif kind in (_PC32, _PLT32):
            self._distance(place, address + addend - here)
        elif kind in (_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX):
            slot = self.got.setdefault((number, index), self.got_at + 8 * len(self.got))
            if o.symbols[index].section == 0:
                name = o.symbols[index].name
                address = self.symbols.get(name) or self.externals.get(name) or address
            struct.pack_into("<Q", self.memory, slot, address)
            self._distance(place, self.base + slot + addend - here)
        else:
            raise LoadError(f"the machine code has a relocation of kind {kind}, which this loader does not know")

    def _distance(self, place: int, value: int) -> None:
        if not -(1 << 31) <= value < 1 << 31:
            raise LoadError("two parts of the machine code are too far apart")
        struct.pack_into("<i", self.memory, place, value)

    def _protect(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self.base), ctypes.c_size_t(len(self.memory)), _PROTECTION_READ_EXECUTE):
            raise LoadError(f"this system does not let memory become executable (errno {ctypes.get_errno()})")


def standard_externals() -> dict[str, int]:
    """The C functions that generated code may call."""
    libc = ctypes.CDLL(None)
    return {n: ctypes.cast(getattr(libc, n), ctypes.c_void_p).value or 0 for n in ("memcpy", "memmove", "memset")}
