"""Virtual buffers with lifetimes, and their places in the arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusile.hlo.ir import Computation

ALIGNMENT = 64


@dataclass(frozen=True)
class Slice:
    """Where an array lies: in `argument`, `result` or `constant` number `index`, or in the `arena`, from `offset`
    bytes on."""

    space: str
    index: int
    offset: int
    bytes: int


@dataclass(eq=False)
class Buffer:
    """A virtual buffer, live from `start` to `end`. `fixed`: it lies outside the arena. `owner`: the computation that
    may overwrite it."""

    bytes: int
    start: int
    end: int
    fixed: Slice | None = None
    owner: Computation | None = None
    offset: int = -1

    def slice(self) -> Slice:
        return self.fixed if self.fixed is not None else Slice("arena", 0, self.offset, self.bytes)


def aligned(size: int) -> int:
    """The bytes that a buffer of this size takes."""
    return -(-max(1, size) // ALIGNMENT) * ALIGNMENT


_ORDERS: tuple[Callable[[Buffer], tuple[int, ...]], ...] = (
    lambda b: (-b.bytes, b.start),
    lambda b: (-b.bytes * (b.end - b.start + 1), b.start),
    lambda b: (b.start - b.end, -b.bytes),
    lambda b: (b.start, -b.bytes),
)
"""The orders in which buffers are placed; which one leaves the least gaps can't be told beforehand."""
MOST_TRIED = 2000
"""With more buffers than this, only the first order is tried: each takes time in the square of their number."""


def assign(buffers: Sequence[Buffer]) -> int:
    """Gives every buffer an offset so that no two that live at once overlap; the arena's size."""
    bound = _most_live(buffers)
    best, offsets = -1, [0] * len(buffers)
    for order in _ORDERS if len(buffers) <= MOST_TRIED else _ORDERS[:1]:
        total = _place(sorted(buffers, key=order))
        if best < 0 or total < best:
            best, offsets = total, [b.offset for b in buffers]
        if best <= bound:
            break
    for buffer, offset in zip(buffers, offsets, strict=True):
        buffer.offset = offset
    return max(0, best)


def _place(buffers: Sequence[Buffer]) -> int:
    """Gives each buffer in turn the smallest gap that is free for its whole life and fits, the lowest of equal ones."""
    placed: list[Buffer] = []
    total = 0
    for buffer in buffers:
        size = aligned(buffer.bytes)
        busy = sorted(
            (p.offset, p.offset + aligned(p.bytes)) for p in placed if p.start <= buffer.end and buffer.start <= p.end
        )
        gaps, low = [], 0
        for begin, end in busy:
            if begin - low >= size:
                gaps.append((begin - low, low))
            low = max(low, end)
        buffer.offset = min(gaps)[1] if gaps else low
        placed.append(buffer)
        total = max(total, buffer.offset + size)
    return total


def _most_live(buffers: Sequence[Buffer]) -> int:
    """The most bytes that live at once, which no placing can go below."""
    changes: list[tuple[int, int]] = []
    for b in buffers:
        changes += [(b.start, aligned(b.bytes)), (b.end + 1, -aligned(b.bytes))]
    most = live = 0
    for _, change in sorted(changes):
        live += change
        most = max(most, live)
    return most
