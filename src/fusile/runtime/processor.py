"""What this machine's processor can do, so that code for another one is refused before it runs."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path

from fusile.base.errors import LoadError

_FLAGS = {
    "sse3": "pni", "lzcnt": "abm", "bmi": "bmi1", "sse4.1": "sse4_1", "sse4.2": "sse4_2",
    "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    **{same: same for same in ("ssse3", "popcnt", "avx", "avx2", "fma", "f16c", "bmi2", "movbe", "gfni", "vaes",
                               "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi", "avx512ifma")},
}  # fmt: skip
"""LLVM's names of what compiled code may use, and Linux's names of the same."""
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@functools.cache
def flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Linux's names of what an x86 processor can do; empty where the system doesn't tell."""
    try:
        found = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(found[1].split()) if found else frozenset()


@functools.cache
def model(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name; empty where the system doesn't tell."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", path.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


@functools.cache
def require(target: str) -> None:
    """Raises LoadError when this machine can't run code for `target`: LLVM's triple, processor and features, as in a
    program's `target`."""
    triple, _, features = [*target.split(" "), "", ""][:3]
    architecture, here = triple.partition("-")[0], platform.machine().lower()
    if architecture != _ARCHITECTURES.get(here, here):
        raise LoadError(f"the program is for {architecture} processors, this is {here}", hint="compile it here")
    needed = [f[1:] for f in features.split(",") if f.startswith("+")]
    missing = [f for f in needed if f in _FLAGS and _FLAGS[f] not in flags()] if flags() else []
    if missing:
        raise LoadError(
            f"the program needs a processor with {', '.join(missing)}",
            hint="compile it here, or with target='cpu:x86-64', 'cpu:x86-64-v3' or 'cpu:x86-64-v4'",
        )
