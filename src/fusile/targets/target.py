"""What a target is, and the registry of them.

A target is a record: the machine as the loop IR sees it, and a function from kernels to code. Packages add targets with
an entry point in the group `fusile.targets`, whose object is called as the built-in ones are: with the text after the
colon of the target's name (`cpu`, `cpu:aarch64`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from fusile.base.errors import ArgumentError
from fusile.loops.ir import Kernel
from fusile.loops.machine import Machine

GROUP = "fusile.targets"
_BUILT_IN = {"cpu": "fusile.targets.cpu.machine:cpu_target"}


@dataclass(frozen=True)
class Phase:
    """One native function of a kernel, `void symbol(ptr buffers, i64 begin, i64 end)`. `extent` is what `end` may be at
    most; `parallel` says that ranges of it may run at once."""

    symbol: str
    extent: int
    parallel: bool


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as relocatable object code. `workspace_bytes` is the SHARED memory that one launch needs, 64-byte
    aligned; `text` is what the code was made from (LLVM text on the CPU)."""

    name: str
    object: bytes
    phases: tuple[Phase, ...]
    workspace_bytes: int
    text: str


@dataclass(frozen=True)
class Target:
    """A kind of machine to compile for. `key` names everything that the code depends on, for caches."""

    name: str
    key: str
    machine: Machine
    compile_kernels: Callable[[Sequence[Kernel], int], list[CompiledKernel]]
    """Kernels and a number of threads to compile on; results in order. Raises CompileError."""
    details: Any = None
    """What only the target itself knows (the CPU's: an `llvm.HostInfo`)."""


@functools.cache
def target(name: str = "cpu") -> Target:
    """The target of that name. Raises ArgumentError when there is none."""
    if not isinstance(name, str):
        raise ArgumentError(f"a target is a name, not a {type(name).__name__}")
    kind, _, option = name.partition(":")
    if kind in _BUILT_IN:
        module, _, function = _BUILT_IN[kind].partition(":")
        create: Callable[[str], Target] = getattr(importlib.import_module(module), function)
        return create(option)
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            made = entry.load()(option)
            assert isinstance(made, Target)
            return made
    raise ArgumentError(f"there is no target {name!r}", hint=f"the targets are: {', '.join(target_names())}")


def target_names() -> list[str]:
    """The names of all installed targets."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})
