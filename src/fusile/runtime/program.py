"""A compiled program as data: all that is needed to run it, to bytes and back.

Layout: magic, version, length of the JSON index, digest of everything after it, the index, then blobs at multiples
of 64 bytes. No pickle: reading a file runs nothing. A truncated, changed or foreign file raises LoadError.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusile.base.digest import digest
from fusile.base.element_type import element_type
from fusile.base.errors import LoadError
from fusile.base.records import Life
from fusile.base.version import VERSION

_MAGIC = b"FUSILE\r\n"
_HEADER = struct.Struct("<8sIQ32s")
_FORMAT = 4


@dataclass(frozen=True)
class ArraySpec:
    """A parameter or result: its name, element type and sizes."""

    name: str
    element_type: str
    sizes: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return element_type(self.element_type).dtype

    def __str__(self) -> str:
        return f"{self.element_type}[{','.join(map(str, self.sizes))}]"


def _specs(rows: Iterable[Any]) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(name, of, tuple(sizes)) for name, of, sizes in rows)


@dataclass(frozen=True)
class Kernel:
    """One kernel launch: its name, the ops it fuses, floating-point operations, and the bytes it must move, from
    shapes. `code`: the part of the texts "loops" and "llvm" that it runs; equal kernels share one."""

    name: str
    ops: tuple[str, ...]
    flops: int
    bytes_read: int
    bytes_written: int
    code: str = ""


@dataclass(frozen=True)
class HostCall:
    """A call out of the program: the symbol that native code calls, the custom call's target and configuration, and the
    arrays that its table of pointers names. `arguments`: which of the operands each argument of the call is."""

    symbol: str
    target: str
    config: str
    operands: tuple[ArraySpec, ...]
    results: tuple[ArraySpec, ...]
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Memory:
    """Bytes of arguments, outputs, constants (with what was prepared from arguments), temporaries (the arena) and of
    temporaries if none shared a place."""

    arguments: int
    outputs: int
    constants: int
    temp: int
    temp_unshared: int


@dataclass
class Program:
    """What a compiled module runs from. `is_tuple`: whether it gives a tuple. `aliases`: pairs (result, parameter) that
    may have one buffer."""

    name: str
    target: str
    parameters: tuple[ArraySpec, ...]
    results: tuple[ArraySpec, ...]
    is_tuple: bool
    objects: tuple[bytes, ...]
    pool_object: bytes
    constants: tuple[np.ndarray[Any, Any], ...]
    arena_bytes: int
    temp_unshared: int
    kernels: tuple[Kernel, ...]
    texts: dict[str, str] = field(default_factory=dict)
    aliases: tuple[tuple[int, int], ...] = ()
    host_calls: tuple[HostCall, ...] = ()
    preparation: Program | None = None
    """What makes the last parameters from others that seldom change, those numbered `prepared_from`."""
    prepared_from: tuple[int, ...] = ()
    lives: tuple[Life, ...] = ()
    """What lies where in the arena, on a timeline whose steps `timeline` names."""
    timeline: tuple[str, ...] = ()

    @property
    def kept_bytes(self) -> int:
        """How much memory its code, constants and texts take, about."""
        own = sum(len(o) for o in self.objects) + sum(c.nbytes for c in self.constants)
        own += sum(len(t) for t in self.texts.values())
        return own + (0 if self.preparation is None else self.preparation.kept_bytes)

    def to_bytes(self) -> bytes:
        """The program as one block of bytes."""
        blobs: list[bytes | memoryview] = [*self.objects, self.pool_object]
        blobs += [np.ascontiguousarray(c).reshape(-1).view(np.uint8).data if c.size else b"" for c in self.constants]
        if self.preparation is not None:
            blobs.append(self.preparation.to_bytes())
        index = {
            "version": VERSION,
            "name": self.name,
            "target": self.target,
            "is_tuple": self.is_tuple,
            "parameters": [dataclasses.astuple(p) for p in self.parameters],
            "results": [dataclasses.astuple(r) for r in self.results],
            "kernels": [dataclasses.astuple(k) for k in self.kernels],
            "arena_bytes": self.arena_bytes,
            "temp_unshared": self.temp_unshared,
            "objects": len(self.objects),
            "constants": [[element_type(c.dtype).name, list(c.shape)] for c in self.constants],
            "texts": self.texts,
            "aliases": self.aliases,
            "host_calls": [dataclasses.astuple(c) for c in self.host_calls],
            "prepared": self.preparation is not None,
            "prepared_from": self.prepared_from,
            "lives": [dataclasses.astuple(life) for life in self.lives],
            "timeline": self.timeline,
            "sizes": [len(b) for b in blobs],
        }
        head = json.dumps(index).encode()
        parts: list[bytes | memoryview] = [head, bytes(_padding(_HEADER.size + len(head)))]
        for blob in blobs:
            parts += [blob, bytes(_padding(len(blob)))]
        body = b"".join(parts)
        return _HEADER.pack(_MAGIC, _FORMAT, len(head), digest(body)) + body

    @staticmethod
    def from_bytes(data: bytes) -> Program:
        """The program in these bytes. Raises LoadError when they are not one, whole and of this version."""
        if len(data) < _HEADER.size:
            raise LoadError("the file is too short to be a compiled program")
        magic, version, length, expected = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _FORMAT:
            raise LoadError("the file is no compiled program of this format")
        view = memoryview(data)
        if digest(view[_HEADER.size :]) != expected:
            raise LoadError("the compiled program is damaged: its checksum does not fit")
        try:
            index = json.loads(bytes(view[_HEADER.size : _HEADER.size + length]))
            return Program._from_index(index, view, _HEADER.size + length)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise LoadError(f"the compiled program is damaged: {error}") from error

    @staticmethod
    def _from_index(index: dict[str, Any], view: memoryview, at: int) -> Program:
        if index["version"] != VERSION:
            raise LoadError(
                f"the program was compiled by version {index['version']}, this is {VERSION}", hint="compile it again"
            )
        at += _padding(at)
        blobs = []
        for size in index["sizes"]:
            blobs.append(view[at : at + size])
            at += size + _padding(size)
        count = index["objects"]
        preparation = Program.from_bytes(bytes(blobs.pop())) if index["prepared"] else None
        constants = []
        for (name, sizes), blob in zip(index["constants"], blobs[count + 1 :], strict=True):
            constants.append(np.frombuffer(blob, np.uint8).view(element_type(name).dtype).reshape(sizes))
        return Program(
            name=index["name"],
            target=index["target"],
            is_tuple=index["is_tuple"],
            parameters=_specs(index["parameters"]),
            results=_specs(index["results"]),
            objects=tuple(bytes(b) for b in blobs[:count]),
            pool_object=bytes(blobs[count]),
            constants=tuple(constants),
            arena_bytes=index["arena_bytes"],
            temp_unshared=index["temp_unshared"],
            kernels=tuple(Kernel(n, tuple(o), f, r, w, c) for n, o, f, r, w, c in index["kernels"]),
            texts=index["texts"],
            aliases=tuple((r, p) for r, p in index["aliases"]),
            host_calls=tuple(
                HostCall(s, t, c, _specs(o), _specs(r), tuple(a)) for s, t, c, o, r, a in index["host_calls"]
            ),
            preparation=preparation,
            prepared_from=tuple(index["prepared_from"]),
            lives=tuple(Life(*life) for life in index["lives"]),
            timeline=tuple(index["timeline"]),
        )


_PART = re.compile(r"^(?:#|;) -- (.+)\n", re.MULTILINE)


def join_parts(parts: Mapping[str, str], comment: str) -> str:
    """Texts of one stage as one, each under a comment with its name."""
    return "\n".join(f"{comment} -- {name}\n{text}" for name, text in parts.items())


def parts_of(text: str) -> dict[str, str]:
    """The texts that `join_parts` joined, by name."""
    pieces = _PART.split(text)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _padding(size: int) -> int:
    return -size % 64
