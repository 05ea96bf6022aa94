"""Slice, pad, concatenate, reverse, gather and the dynamic ops. Before/after: ``slice(slice(x)) => slice(x)``,
``dynamic-slice(x, 2) => slice(x)``, ``concatenate(slice(x), slice(x)) => slice(x)`` of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.shape import (
    Broadcast,
    Concatenate,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Pad,
    Reshape,
    Reverse,
    Scatter,
    Slice,
    index_vectors,
)
from fusile.passes.simplification.values import captured
from fusile.rewrite.constants import constant_array, splat
from fusile.rewrite.patterns import anything, of
from fusile.rewrite.rules import Match, Rule, moves

x, value = anything("x"), anything("value")


def _keeps_shape(instruction: Instruction) -> bool:
    return instruction.shape == instruction.operands[0].shape


def _slice_op(instruction: Instruction) -> Slice:
    assert isinstance(instruction.op, Slice)
    return instruction.op


def _pad_op(instruction: Instruction) -> Pad:
    assert isinstance(instruction.op, Pad)
    return instruction.op


def _slice_twice(m: Match) -> Instruction:
    outer, inner, sizes = _slice_op(m.root), _slice_op(m.inner), m.root.array_shape.sizes
    starts = tuple(i + o * s for i, o, s in zip(inner.starts, outer.starts, inner.strides, strict=True))
    strides = tuple(a * b for a, b in zip(outer.strides, inner.strides, strict=True))
    limits = tuple(b + (n - 1) * s + 1 if n else b for b, n, s in zip(starts, sizes, strides, strict=True))
    return m.add(Slice(starts, limits, strides), m.x)


def _slice_of_broadcast(m: Match) -> Instruction:
    op, inner = _slice_op(m.root), m.inner.op
    assert isinstance(inner, Broadcast)
    mapped = inner.broadcast_dimensions
    small = m.x
    if any(m.root.array_shape.sizes[d] != inner.dimensions[d] for d in mapped):
        small = m.add(Slice(*(tuple(v[d] for d in mapped) for v in (op.starts, op.limits, op.strides))), small)
    return m.add(Broadcast(m.root.array_shape.sizes, mapped), small)


def _slice_of_pad(m: Match) -> Instruction | str:
    op, pad, sizes = _slice_op(m.root), _pad_op(m.inner), m.x.array_shape.sizes
    if any(pad.interior) or any(low < 0 for low in pad.low) or any(high < 0 for high in pad.high):
        return "the padding is inside or negative"
    starts = tuple(s - low for s, low in zip(op.starts, pad.low, strict=True))
    limits = tuple(e - low for e, low in zip(op.limits, pad.low, strict=True))
    if all(s >= 0 and e <= n for s, e, n in zip(starts, limits, sizes, strict=True)):
        return m.add(Slice(starts, limits, op.strides), m.x)
    if any(e <= 0 or s >= n for s, e, n in zip(starts, limits, sizes, strict=True)):
        return m.add(Broadcast(m.root.array_shape.sizes, ()), m.value)
    return "it takes padding and elements"


def _slice_of_concatenate(m: Match) -> Instruction | str:
    op, inner = _slice_op(m.root), m.inner.op
    assert isinstance(inner, Concatenate)
    d = inner.dimension
    offset = first = 0
    kept: list[Instruction] = []
    for part in m.inner.operands:
        size = part.array_shape.sizes[d]
        if size and offset < op.limits[d] and offset + size > op.starts[d]:
            first = first if kept else offset
            kept.append(part)
        offset += size
    if not kept or len(kept) == len(m.inner.operands):
        return "it takes a part of every operand, or of none"
    source = kept[0] if len(kept) == 1 else m.add(Concatenate(d), *kept)
    starts = tuple(s - first if i == d else s for i, s in enumerate(op.starts))
    limits = tuple(e - first if i == d else e for i, e in enumerate(op.limits))
    return m.add(Slice(starts, limits, op.strides), source)


def _pads_nothing(instruction: Instruction) -> bool:
    op = _pad_op(instruction)
    return not any(op.low) and not any(op.high) and _keeps_shape(instruction)


def _pad_twice(m: Match) -> Instruction | str:
    outer, inner = _pad_op(m.root), _pad_op(m.inner)
    amounts = (*outer.low, *outer.high, *inner.low, *inner.high)
    if any(outer.interior) or any(inner.interior) or min(amounts, default=0) < 0:
        return "the padding is inside or negative"
    low = tuple(a + b for a, b in zip(outer.low, inner.low, strict=True))
    high = tuple(a + b for a, b in zip(outer.high, inner.high, strict=True))
    return m.add(Pad(low, high, outer.interior), m.x, m.value)


def _negative_pad(m: Match) -> Instruction | str:
    """A pad that only takes away is a slice."""
    op, sizes = _pad_op(m.root), m.x.array_shape.sizes
    if any(op.interior) or any(a > 0 for a in (*op.low, *op.high)):
        return "it adds elements"
    starts = tuple(-low for low in op.low)
    limits = tuple(n + high for n, high in zip(sizes, op.high, strict=True))
    return m.add(Slice(starts, limits, (1,) * len(sizes)), m.x)


def _pad_of_splat(m: Match) -> Instruction | str:
    a, b = splat(m.x), splat(m.value)
    if a is None or b is None or a.tobytes() != b.tobytes():
        return "the padding isn't what is padded"
    return m.add(Broadcast(m.root.array_shape.sizes, ()), m.value)


def _concatenated(m: Match, parts: Sequence[Instruction]) -> Instruction:
    assert isinstance(m.root.op, Concatenate)
    return parts[0] if len(parts) == 1 else m.add(m.root.op, *parts)


def _concatenate_of_empty(m: Match) -> Instruction | str:
    parts = [o for o in m.root.operands if o.array_shape.elements]
    if not parts or (len(parts) == len(m.root.operands) and len(parts) > 1):
        return "all operands have elements, or none has"
    return _concatenated(m, parts)


def _concatenate_flat(m: Match) -> Instruction | str:
    parts: list[Instruction] = []
    for operand in m.root.operands:
        inner = operand.op == m.root.op and len(operand.users) == 1
        parts += operand.operands if inner else [operand]
    return (
        _concatenated(m, parts) if len(parts) > len(m.root.operands) else "no operand is such a concatenate of its own"
    )


def _concatenate_of_neighbours(m: Match) -> Instruction | str:
    """Slices of one array that follow each other are one slice; so are broadcasts of one value one broadcast."""
    assert isinstance(m.root.op, Concatenate)
    parts = [m.root.operands[0]]
    for operand in m.root.operands[1:]:
        joined = _joined(m, parts[-1], operand, m.root.op.dimension)
        if joined is None:
            parts.append(operand)
        else:
            parts[-1] = joined
    return _concatenated(m, parts) if len(parts) < len(m.root.operands) else "no two operands follow each other"


def _joined(m: Match, a: Instruction, b: Instruction, d: int) -> Instruction | None:
    if isinstance(a.op, Broadcast) and isinstance(b.op, Broadcast) and a.operands == b.operands:
        sizes = tuple(s + b.array_shape.sizes[d] if i == d else s for i, s in enumerate(a.array_shape.sizes))
        same = a.op.broadcast_dimensions == b.op.broadcast_dimensions and d not in a.op.broadcast_dimensions
        return m.add(Broadcast(sizes, a.op.broadcast_dimensions), a.operands[0]) if same else None
    if not isinstance(a.op, Slice) or not isinstance(b.op, Slice) or a.operands != b.operands:
        return None
    rest = [(s.starts[:d], s.limits[:d], s.starts[d + 1 :], s.limits[d + 1 :], s.strides) for s in (a.op, b.op)]
    if rest[0] != rest[1] or a.op.limits[d] != b.op.starts[d] or a.op.strides[d] != 1:
        return None
    limits = tuple(b.op.limits[d] if i == d else e for i, e in enumerate(a.op.limits))
    return m.add(Slice(a.op.starts, limits, a.op.strides), a.operands[0])


def _reverse_less(m: Match) -> Instruction | str:
    """Reversing a dimension of size 1, or one that a broadcast repeats, does nothing."""
    assert isinstance(m.root.op, Reverse)
    sizes, inner = m.root.array_shape.sizes, m.x.op
    own = inner.broadcast_dimensions if isinstance(inner, Broadcast) else range(len(sizes))
    kept = tuple(d for d in m.root.op.dimensions if sizes[d] > 1 and d in own)
    if kept == m.root.op.dimensions and kept:
        return "every dimension it reverses has several elements"
    return m.add(Reverse(kept), m.x) if kept else m.x


def _reverse_twice(m: Match) -> Instruction:
    assert isinstance(m.root.op, Reverse) and isinstance(m.inner.op, Reverse)
    kept = set(m.root.op.dimensions) ^ set(m.inner.op.dimensions)
    return m.add(Reverse(tuple(sorted(kept))), m.x) if kept else m.x


def _static_starts(starts: Sequence[Instruction], sizes: Sequence[int], shape: Sequence[int]) -> list[int] | None:
    """The start indices, moved inside, when all are known: constants, or of a dimension with one place only."""
    known = []
    for start, size, total in zip(starts, sizes, shape, strict=True):
        at = splat(start)
        if at is None and size != total:
            return None
        known.append(0 if at is None else min(max(int(at), 0), total - size))
    return known


def _static_dynamic_slice(m: Match) -> Instruction | str:
    assert isinstance(m.root.op, DynamicSlice)
    source, sizes = m.root.operands[0], m.root.op.sizes
    starts = _static_starts(m.root.operands[1:], sizes, source.array_shape.sizes)
    if starts is None:
        return "a start index is computed"
    limits = tuple(s + n for s, n in zip(starts, sizes, strict=True))
    return m.add(Slice(tuple(starts), limits, (1,) * len(sizes)), source)


def _update_of_all(m: Match) -> Instruction | str:
    """The update covers everything, or nothing."""
    whole, update = m.root.operands[:2]
    if not update.array_shape.elements:
        return whole
    return update if update.shape == whole.shape else "the update is a part"


def _scatter_of_nothing(m: Match) -> Instruction | str:
    if len(m.root.operands) != 3 or m.root.operands[2].array_shape.elements:
        return "there are updates"
    return m.root.operands[0]


def _gather_as_slice(m: Match) -> Instruction | str:
    """A gather at evenly spaced constant places along one dimension is a slice, and a reshape."""
    op, indices = m.root.op, constant_array(m.indices)
    assert isinstance(op, Gather)
    if indices is None or op.operand_batching_dims or not m.root.array_shape.elements:
        return "the indices are computed"
    sizes = m.x.array_shape.sizes
    starts, batch = index_vectors(indices, op.index_vector_dim)
    if starts.dtype == np.uint64:
        starts = np.minimum(starts, np.uint64(1 << 62))
    rows = starts.reshape(-1, starts.shape[-1]).astype(np.int64)
    highest = np.array([sizes[d] - op.slice_sizes[d] for d in op.start_index_map], np.int64)
    rows = np.clip(rows, 0, highest)
    base = [0] * len(sizes)
    for i, d in enumerate(op.start_index_map):
        base[d] = int(rows[0, i])
    if len(rows) == 1:
        return _gathered(m, op, base, [b + n for b, n in zip(base, op.slice_sizes, strict=True)], [1] * len(sizes))
    step = _even_step(rows)
    if step is None or len(op.start_index_map) != 1 or op.collapsed_slice_dims != op.start_index_map:
        return "the places aren't evenly spaced along one collapsed dimension"
    if sum(b != 1 for b in batch) != 1 or not _is_in_place(op, op.start_index_map[0], batch):
        return "the gathered dimension moves"
    limits = [b + n for b, n in zip(base, op.slice_sizes, strict=True)]
    strides = [1] * len(sizes)
    d = op.start_index_map[0]
    limits[d], strides[d] = int(rows[-1, 0]) + 1, step
    return _gathered(m, op, base, limits, strides)


def _even_step(rows: np.ndarray[Any, Any]) -> int | None:
    steps = np.diff(rows[:, 0])
    return int(steps[0]) if steps[0] > 0 and (steps == steps[0]).all() else None


def _is_in_place(op: Gather, d: int, batch: Sequence[int]) -> bool:
    """True when the batch dimensions stand in the result where dimension `d` stood among the offset dimensions."""
    before = sum(1 for i in range(d) if i not in op.collapsed_slice_dims)
    batch_dims = [i for i in range(len(batch) + len(op.offset_dims)) if i not in op.offset_dims]
    long = batch_dims[[b != 1 for b in batch].index(True)]
    return sum(1 for o in op.offset_dims if o < long) == before


def _gathered(m: Match, op: Gather, starts: list[int], limits: list[int], strides: list[int]) -> Instruction:
    sliced = m.add(Slice(tuple(starts), tuple(limits), tuple(strides)), m.x)
    return m.add(Reshape(m.root.array_shape.sizes), sliced)


SLICE = (
    Rule("slice-nothing", of(Slice, x, where=(_keeps_shape,)), captured(), moves()),
    Rule("slice-twice", of(Slice, of(Slice, x, name="inner")), _slice_twice, moves()),
    Rule("slice-of-broadcast", of(Slice, of(Broadcast, x, name="inner")), _slice_of_broadcast, moves()),
    Rule("slice-of-pad", of(Slice, of(Pad, x, value, name="inner")), _slice_of_pad, moves()),
    Rule("slice-of-concatenate", of(Slice, of(Concatenate, name="inner")), _slice_of_concatenate, moves()),
)

PAD = (
    Rule("pad-nothing", of(Pad, x, value, where=(_pads_nothing,)), captured(), moves()),
    Rule("pad-twice", of(Pad, of(Pad, x, value, name="inner"), value), _pad_twice, moves()),
    Rule("pad-takes-away", of(Pad, x, value), _negative_pad, moves()),
    Rule("pad-of-splat", of(Pad, x, value), _pad_of_splat, moves()),
)

CONCATENATE = (
    Rule("concatenate-of-empty", of(Concatenate), _concatenate_of_empty, moves()),
    Rule("concatenate-flat", of(Concatenate), _concatenate_flat, moves()),
    Rule("concatenate-of-neighbours", of(Concatenate), _concatenate_of_neighbours, moves()),
)

REVERSE = (
    Rule("reverse-less", of(Reverse, x), _reverse_less, moves()),
    Rule("reverse-twice", of(Reverse, of(Reverse, x, name="inner")), _reverse_twice, moves()),
)

DYNAMIC = (
    Rule("dynamic-slice-static", of(DynamicSlice), _static_dynamic_slice, moves()),
    Rule("dynamic-update-of-all", of(DynamicUpdateSlice), _update_of_all, moves()),
    Rule("scatter-of-nothing", of(Scatter), _scatter_of_nothing, moves()),
    Rule("gather-as-slice", of(Gather, x, anything("indices")), _gather_as_slice, moves()),
)

RULES = SLICE + PAD + CONCATENATE + REVERSE + DYNAMIC
