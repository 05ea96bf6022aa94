"""What lowering and the math expansions need to know of the machine they write for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fusile.base.element_type import ElementType


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor core as the loop IR sees it. Sizes are in bytes; caches are one core's (`l3_bytes` is shared)."""

    vector_bytes: int = 32
    vector_registers: int = 16
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 16 << 20
    has_fma: bool = True
    """Whether `fma` is one instruction."""
    has_rounding: bool = True
    """Whether floats round to whole numbers in one instruction."""
    has_masks: bool = False
    """Whether vector loads, stores and arithmetic take a mask at no cost (AVX-512, SVE)."""
    has_sfence: bool = True
    """Whether stores past the caches need x86's fence to be seen in order."""
    native_float16: bool = False
    """Whether f16 converts to and from f32 in hardware."""
    native_bfloat16: bool = False
    """Whether f32 rounds to bf16 in hardware."""

    def lanes(self, element_type: ElementType) -> int:
        """Elements of one vector register; predicates count as bytes."""
        return max(1, self.vector_bytes // max(1, element_type.bytes))

    def replace(self, **changes: int) -> Machine:
        """A machine that differs in these fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


SSE2 = Machine(vector_bytes=16, has_fma=False, has_rounding=False)
AVX2 = Machine(vector_bytes=32, native_float16=True)
AVX512 = Machine(
    vector_bytes=64, vector_registers=32, l1_bytes=48 << 10, l2_bytes=2 << 20, has_masks=True, native_float16=True
)
NEON = Machine(
    vector_bytes=16, vector_registers=32, l1_bytes=64 << 10, l2_bytes=1 << 20, native_float16=True, has_sfence=False
)
