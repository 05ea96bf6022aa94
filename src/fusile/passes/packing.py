"""Packs the right-hand sides of products and convolutions into panels, and makes convolutions' padding explicit.

Before (K = 64 contracted, N = 100 columns, panels of 16 columns)::

    dot(x: f32[8,64], w: f32[64,100])

After::

    packed = transpose(reshape(pad(reshape(transpose(w)))))       # f32[7,64,16], one panel after the other
    w' = transpose(reshape(slice(reshape(transpose(optimization-barrier(packed))))))
    dot(x, w')

The chain that packs becomes a kernel of its own, or a constant when `w` is frozen. The chain that unpacks is pure index
arithmetic: fused into the contraction, it makes its loads walk the panels one cache line after the other. The meaning
is untouched and no new op is needed; the barrier only keeps the two chains from being simplified into nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fusile.hlo.ir import Computation, Instruction, Literal, Module
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.shape import Pad, Reshape, Reverse, Slice, Transpose
from fusile.hlo.opset.structure import Constant, OptimizationBarrier
from fusile.hlo.opset.window import Window
from fusile.passes.preparation import settled

STAGED_BYTES = 240 << 10
"""Right-hand sides of a batch element up to this size are packed by the product's own kernel."""


@dataclass(frozen=True)
class PackContractions:
    """The pass. `panel_bytes`: bytes of one panel's row, as accumulated (4 bytes an element for narrow types).
    `least_rows`: rows of the left-hand side from which packing an operand that is not constant pays. `stable`: the
    module's parameters whose packed values are kept from call to call, as good as constants."""

    panel_bytes: int
    least_rows: int = 24
    stable: frozenset[int] = frozenset()
    name: str = "pack-contractions"

    def __call__(self, module: Module) -> bool:
        changed = False
        kept = settled(module.entry, self.stable) if self.stable else set()
        for computation in module.computations():
            for instruction in computation.post_order():
                if isinstance(instruction.op, Convolution):
                    instruction, padded = explicit_padding(instruction)
                    changed |= padded
                if isinstance(instruction.op, Dot | Convolution):
                    changed |= self._pack(instruction, kept)
        return changed

    def _pack(self, instruction: Instruction, kept: set[Instruction]) -> bool:
        lhs, rhs = instruction.operands
        shape = rhs.array_shape
        roles = kernel_roles(instruction)
        columns = math.prod(shape.sizes[d] for d in roles.columns)
        panel = self.panel_bytes // max(4, shape.element_type.bytes)
        if shape.element_type.is_complex or not shape.elements or not lhs.array_shape.elements:
            return False
        if columns == 1 or (roles.groups > 1 and columns // roles.groups < panel):
            return False
        frozen = isinstance(rhs.op, Constant) or rhs in kept
        rows = instruction.array_shape.elements // max(1, columns * math.prod(shape.sizes[d] for d in roles.batch))
        if not frozen and (rows < self.least_rows or self._packs_itself(instruction, columns)):
            return False
        instruction.replace_operand(1, pack(rhs, roles, panel, instruction.computation))
        return True

    def _packs_itself(self, instruction: Instruction, columns: int) -> bool:
        """Whether the kernel of a product of batches packs each right-hand side in scratch memory, being so small."""
        op, shape = instruction.op, instruction.operands[1].array_shape
        if not isinstance(op, Dot) or not op.rhs_batch or not columns:
            return False
        depth = math.prod(shape.sizes[d] for d in op.rhs_contracting)
        return columns * depth * max(4, shape.element_type.bytes) <= STAGED_BYTES


@dataclass(frozen=True)
class KernelRoles:
    """Which dimensions of a contraction's right-hand side are batch, columns (kept) and contracted, in panel order.
    `groups`: the column dimension of a grouped convolution is (groups, columns)."""

    batch: tuple[int, ...]
    columns: tuple[int, ...]
    contracted: tuple[int, ...]
    groups: int = 1


def kernel_roles(instruction: Instruction) -> KernelRoles:
    """The roles of a Dot's or Convolution's right-hand side."""
    op, rank = instruction.op, instruction.operands[1].array_shape.rank
    if isinstance(op, Dot):
        taken = {*op.rhs_batch, *op.rhs_contracting}
        return KernelRoles(op.rhs_batch, tuple(d for d in range(rank) if d not in taken), op.rhs_contracting)
    assert isinstance(op, Convolution)
    numbers = op.dimension_numbers
    contracted = (*numbers.kernel_spatial, numbers.kernel_input_feature)
    groups = op.feature_group_count * op.batch_group_count
    return KernelRoles((), (numbers.kernel_output_feature,), contracted, groups)


def pack(rhs: Instruction, roles: KernelRoles, panel: int, computation: Computation | None) -> Instruction:
    """An instruction equal to `rhs`, read from a packed copy of it: [batch.., groups, columns/panel, contracted,
    panel]."""
    assert computation is not None
    sizes = rhs.array_shape.sizes
    batch = (math.prod(sizes[d] for d in roles.batch) * roles.groups,)
    columns = math.prod(sizes[d] for d in roles.columns) // roles.groups
    depth = math.prod(sizes[d] for d in roles.contracted)
    if columns < panel:
        panel = columns
    panels = -(-columns // panel)
    order = (*roles.batch, *roles.columns, *roles.contracted)
    ordered = tuple(sizes[d] for d in order)

    x = computation.add(Transpose(order), [rhs], source=rhs.source)
    x = computation.add(Reshape((*batch, columns, depth)), [x], source=rhs.source)
    if panels * panel != columns:
        zero = computation.add(Constant(Literal(np.zeros((), rhs.array_shape.element_type.dtype))))
        x = computation.add(Pad((0, 0, 0), (0, panels * panel - columns, 0), (0, 0, 0)), [x, zero], source=rhs.source)
    x = computation.add(Reshape((*batch, panels, panel, depth)), [x], source=rhs.source)
    x = computation.add(Transpose((0, 1, 3, 2)), [x], name="packed", source=rhs.source)

    x = computation.add(OptimizationBarrier(), [x], source=rhs.source)
    x = computation.add(Transpose((0, 1, 3, 2)), [x], source=rhs.source)
    x = computation.add(Reshape((*batch, panels * panel, depth)), [x], source=rhs.source)
    if panels * panel != columns:
        x = computation.add(Slice((0, 0, 0), (*batch, columns, depth), (1, 1, 1)), [x], source=rhs.source)
    x = computation.add(Reshape(ordered), [x], source=rhs.source)
    inverse = tuple(order.index(d) for d in range(len(order)))
    return computation.add(Transpose(inverse), [x], source=rhs.source)


def explicit_padding(instruction: Instruction) -> tuple[Instruction, bool]:
    """A convolution whose padding and base dilation are a Pad of its input and whose window isn't reversed, in the
    place of `instruction`; and whether anything changed."""
    op = instruction.op
    assert isinstance(op, Convolution) and instruction.computation is not None
    if not instruction.array_shape.elements:
        # Negative padding may take away more than the input has, which no Pad can.
        return instruction, False
    window, numbers, computation = op.window, op.dimension_numbers, instruction.computation
    lhs, rhs = instruction.operands
    spatial = numbers.input_spatial
    if any(window.reversal):
        turned = tuple(d for d, r in zip(numbers.kernel_spatial, window.reversal, strict=True) if r)
        rhs = computation.add(Reverse(turned), [rhs], source=instruction.source)
    padded = any(window.padding_low) or any(window.padding_high) or any(d != 1 for d in window.base_dilation)
    if padded:
        lhs = _padded_input(computation, lhs, window, spatial)
    elif rhs is instruction.operands[1]:
        return instruction, False
    none = (0,) * len(spatial)
    plain = replace(
        window, padding_low=none, padding_high=none, base_dilation=(1,) * len(spatial), reversal=(False,) * len(spatial)
    )
    new = computation.add(replace(op, window=plain), [lhs, rhs], name=instruction.name, source=instruction.source)
    instruction.replace_all_uses(new)
    computation.erase(instruction)
    return new, True


def _padded_input(computation: Computation, lhs: Instruction, window: Window, spatial: tuple[int, ...]) -> Instruction:
    shape = lhs.array_shape
    low, high, interior = [0] * shape.rank, [0] * shape.rank, [0] * shape.rank
    for i, d in enumerate(spatial):
        low[d], high[d], interior[d] = window.padding_low[i], window.padding_high[i], window.base_dilation[i] - 1
    zero = computation.add(Constant(Literal(np.zeros((), shape.element_type.dtype))))
    x = computation.add(Pad(tuple(low), tuple(high), tuple(interior)), [lhs, zero], source=lhs.source)
    return computation.add(OptimizationBarrier(), [x], source=lhs.source)
