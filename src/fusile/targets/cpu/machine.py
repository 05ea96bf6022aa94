"""CPUs as targets: what lowering must know of one, from its LLVM features and, for this one, its caches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fusile.base.errors import ArgumentError
from fusile.llvm import HostInfo, host
from fusile.loops.ir import Kernel
from fusile.loops.machine import AVX2, AVX512, NEON, SSE2, Machine
from fusile.targets.cpu.compile import compile_kernels
from fusile.targets.target import CompiledKernel, Target

_NAMED = {
    "x86-64": HostInfo("x86_64-unknown-linux-gnu", "x86-64", ""),
    "x86-64-v3": HostInfo("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2,+fma,+f16c,+bmi2,+lzcnt,+popcnt"),
    "x86-64-v4": HostInfo(
        "x86_64-unknown-linux-gnu",
        "x86-64-v4",
        "+avx2,+fma,+f16c,+bmi2,+lzcnt,+popcnt,+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,-prefer-256-bit",
    ),
    "aarch64": HostInfo("aarch64-unknown-linux-gnu", "generic", "+neon"),
}


def cpu_target(option: str = "") -> Target:
    """This machine, or a named kind (`x86-64`, `x86-64-v3`, `x86-64-v4`, `aarch64`), else an ArgumentError."""
    if option and option not in _NAMED:
        raise ArgumentError(f"there is no CPU kind {option!r}", hint=f"the kinds are: {', '.join(_NAMED)}")
    info = _NAMED[option] if option else _with_wide_vectors(host())
    machine = machine_of(info) if option else with_caches(machine_of(info))
    key = f"{info.triple} {info.cpu} {info.features} {machine}"
    compiled: Callable[[Sequence[Kernel], int], list[CompiledKernel]] = partial(compile_kernels, machine, info)
    return Target(f"cpu:{option}" if option else "cpu", key, machine, compiled, info)


def machine_of(info: HostInfo) -> Machine:
    """The machine record of a CPU with these features; cache sizes are typical ones."""
    if info.architecture in ("aarch64", "arm64"):
        return NEON
    if all(map(info.has, ("avx512f", "avx512bw", "avx512dq", "avx512vl"))):
        return AVX512
    return AVX2 if info.has("avx2") and info.has("fma") and info.has("f16c") else SSE2


def _with_wide_vectors(info: HostInfo) -> HostInfo:
    """Some AVX-512 processors are tuned to 256 bits, where LLVM splits wider vectors; kernels here mean their width."""
    if not info.has("avx512f"):
        return info
    return HostInfo(info.triple, info.cpu, info.features + ",-prefer-256-bit")


def with_caches(machine: Machine, folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> Machine:
    """The machine with this one's data cache sizes, where the kernel tells them."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        found = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind != "Instruction" and found and level in "123":
            sizes[f"l{level}_bytes"] = int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2]]
    return machine.replace(**sizes)
