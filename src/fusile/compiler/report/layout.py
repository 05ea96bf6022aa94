"""Where the boxes and lines of a graph go: layers from top to bottom (Sugiyama, Tagawa and Toda, 1981).

A box lies below those that it reads. Lines over several layers get places of their own in each, so that they pass
between the boxes; the order in a layer follows the middle of each box's neighbours; and places are the least squares
from there which keep the order and the gaps.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
GAP_X, GAP_Y = 18.0, 34.0
LINE_WIDTH = LINE_GAP = 3.0
MOST_IN_LAYER = 60
"""A layer of more boxes (the arguments of an update of all weights) becomes several rows."""
LONGEST_ROUTED = 40
"""Lines over more layers are drawn straight, as are more than MOST_IN_LAYER lines into one box: their places would push
everything apart."""
ORDER_SWEEPS, PLACE_SWEEPS = 6, 8


@dataclass(frozen=True)
class Layout:
    """Middles of the boxes, points along each line from its source's bottom to its target's top, and the whole size."""

    boxes: list[Point]
    lines: list[list[Point]]
    width: float
    height: float


@dataclass
class _Item:
    """A box, or a line's place in one layer."""

    width: float
    height: float
    row: int
    above: list[int]
    below: list[int]
    x: float = 0.0

    @property
    def room(self) -> float:
        """Its width and the gap around it."""
        return self.width + (GAP_X if self.height else LINE_GAP)


def layered(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """The layout of boxes of these widths and heights. An edge goes from a box to one with a higher number."""
    rows = _split(_layers(len(sizes), edges))
    items = [_Item(w, h, row, [], []) for (w, h), row in zip(sizes, rows, strict=True)]
    lines_into = Counter(b for _, b in edges)
    paths = [_path(items, a, b, straight=lines_into[b] > MOST_IN_LAYER) for a, b in edges]
    order = _order(items)
    _place(items, order)
    left = min((i.x - i.width / 2 for i in items), default=0.0)
    for i in items:
        i.x -= left - GAP_X
    tops, height = [], GAP_Y / 2
    for row in order:
        tops.append(height)
        height += max((items[n].height for n in row), default=0.0) + GAP_Y
    heights = [max((items[n].height for n in row), default=0.0) for row in order]
    boxes = [(i.x, tops[i.row] + heights[i.row] / 2) for i in items[: len(sizes)]]
    lines = []
    for path in paths:
        first, *middle, last = path
        points = [(boxes[first][0], boxes[first][1] + sizes[first][1] / 2)]
        points += [(items[n].x, tops[items[n].row] + heights[items[n].row] / 2) for n in middle]
        lines.append([*points, (boxes[last][0], boxes[last][1] - sizes[last][1] / 2)])
    width = max((i.x + i.width / 2 for i in items), default=0.0) + GAP_X
    return Layout(boxes, lines, width, height)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Each box just above its first reader, so that weights and what is made of them lie beside their use; what nothing
    reads, one layer below the lowest that it reads."""
    reads: list[list[int]] = [[] for _ in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        reads[b].append(a)
        readers[a].append(b)
    layers = [0] * count
    for n in range(count):
        layers[n] = max((layers[a] + 1 for a in reads[n]), default=0)
    for n in reversed(range(count)):
        if readers[n]:
            layers[n] = min(layers[b] for b in readers[n]) - 1
    return layers


def _split(layers: Sequence[int]) -> list[int]:
    """Rows of at most MOST_IN_LAYER boxes: layers, without gaps, wide ones cut."""
    members: dict[int, list[int]] = {}
    for n, layer in enumerate(layers):
        members.setdefault(layer, []).append(n)
    rows, row = [0] * len(layers), 0
    for layer in sorted(members):
        for start in range(0, len(members[layer]), MOST_IN_LAYER):
            for n in members[layer][start : start + MOST_IN_LAYER]:
                rows[n] = row
            row += 1
    return rows


def _path(items: list[_Item], a: int, b: int, straight: bool) -> list[int]:
    """The items along an edge, with new ones in the rows between unless it is drawn straight."""
    between = range(items[a].row + 1, items[b].row)
    if straight or len(between) > LONGEST_ROUTED:
        return [a, b]
    path = [a]
    for row in between:
        items.append(_Item(LINE_WIDTH, 0.0, row, [], []))
        path.append(len(items) - 1)
    path.append(b)
    for one, two in itertools.pairwise(path):
        items[one].below.append(two)
        items[two].above.append(one)
    return path


def _order(items: Sequence[_Item]) -> list[list[int]]:
    """The items of each row from left to right: by the middle of their neighbours' positions, downward and upward."""
    order: list[list[int]] = [[] for _ in range(1 + max((i.row for i in items), default=-1))]
    for n, i in enumerate(items):
        order[i.row].append(n)
    position = [0.0] * len(items)

    def number(row: list[int]) -> None:
        for at, n in enumerate(row):
            position[n] = at - (len(row) - 1) / 2

    for row in order:
        number(row)
    for sweep in range(ORDER_SWEEPS):
        down = sweep % 2 == 0
        for row in order if down else reversed(order):
            middles = {}
            for n in row:
                near = items[n].above if down else items[n].below
                middles[n] = sum(position[m] for m in near) / len(near) if near else position[n]
            row.sort(key=middles.__getitem__)
            number(row)
    return order


def _place(items: Sequence[_Item], order: Sequence[list[int]]) -> None:
    """Gives each item its x: near its neighbours', in the row's order, with gaps."""
    for row in order:
        _spread(items, row, [0.0] * len(row))
    for sweep in range(PLACE_SWEEPS):
        down = sweep % 2 == 0
        for row in order if down else reversed(order):
            wanted = []
            for n in row:
                i = items[n]
                near = (i.above or i.below) if down else (i.below or i.above)
                wanted.append(sum(items[m].x for m in near) / len(near) if near else i.x)
            _spread(items, row, wanted)


def _spread(items: Sequence[_Item], row: Sequence[int], wanted: Sequence[float]) -> None:
    """The places nearest to the wanted ones (least squares) with the gaps kept: isotonic regression, by pooling
    neighbours that are out of order."""
    offset, offsets = 0.0, []
    for at, n in enumerate(row):
        if at:
            offset += (items[row[at - 1]].room + items[n].room) / 2
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for want, off in zip(wanted, offsets, strict=True):
        total, count = want - off, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            total, count = total + pools[-1][0], count + pools[-1][1]
            pools.pop()
        pools.append((total, count))
    at = 0
    for total, count in pools:
        for n in row[at : at + count]:
            items[n].x = total / count + offsets[at]
            at += 1
