"""Reductions: reduce, reduce_window, select_and_scatter, and sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import PRED
from fusile.base.errors import ShapeError
from fusile.base.shape import AnyShape, Shape, TupleShape
from fusile.hlo.ir import Computation, Instruction, Op, op
from fusile.hlo.opset.shape import array_operand, padded, require
from fusile.hlo.opset.window import Window


def combiner_opcode(computation: Computation) -> str | None:
    """The opcode when the computation is one commutative op of its two parameters, else None."""
    root = computation.root
    if (
        len(computation.parameters) == 2
        and len(root.operands) == 2
        and set(root.operands) == set(computation.parameters)
    ):
        return root.opcode
    return None


def _halves(opcode: str, inputs: Sequence[AnyShape]) -> tuple[list[Shape], list[Shape]]:
    require(
        len(inputs) % 2 == 0 and len(inputs) > 0,
        f"{opcode} takes inputs and as many initial values, not {len(inputs)} operands",
    )
    count = len(inputs) // 2
    arrays = [array_operand(opcode, s) for s in inputs[:count]]
    initial = [array_operand(opcode, s) for s in inputs[count:]]
    for a, i in zip(arrays, initial, strict=True):
        require(a.dimensions == arrays[0].dimensions, f"{opcode} of {arrays[0]} and {a}")
        require(
            i.is_scalar and i.element_type is a.element_type,
            f"{opcode}'s initial value {i} is no scalar of {a}'s element type",
        )
    return arrays, initial


def _check_combiner(opcode: str, computation: Computation, initial: Sequence[Shape]) -> None:
    expected = [Shape(s.element_type) for s in (*initial, *initial)]
    found = [p.shape for p in computation.parameters]
    require(found == expected, f"{opcode}'s computation {computation.name} takes {found}, not {expected}")
    results = list(computation.root.shape.leaves())
    require(results == expected[: len(initial)], f"{opcode}'s computation {computation.name} gives {results}")


def _pack(shapes: Sequence[Shape]) -> AnyShape:
    return shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes))


@op
class Reduce(Op):
    """Combines all elements along `dimensions` with an associative computation, from initial values (`reduce`).
    Operands: inputs, then as many scalars."""

    dimensions: tuple[int, ...]
    computation: Computation

    opcode = "reduce"

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        arrays, initial = _halves("reduce", operands)
        _check_combiner("reduce", self.computation, initial)
        rank = arrays[0].rank
        require(
            all(0 <= d < rank for d in self.dimensions) and len(set(self.dimensions)) == len(self.dimensions),
            f"reduce over {self.dimensions} of {arrays[0]}",
        )
        kept = [d for d in range(rank) if d not in self.dimensions]
        return _pack([a.with_dimensions(a.dimensions[d] for d in kept) for a in arrays])

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        count = len(operands) // 2
        kept = [d for d in range(operands[0].ndim) if d not in self.dimensions]
        order = [*self.dimensions, *kept]
        shape = [operands[0].shape[d] for d in kept]
        length = math.prod(operands[0].shape[d] for d in self.dimensions)
        columns = [o.transpose(order).reshape(length, *shape) for o in operands[:count]]
        results = fold(self.computation, columns, operands[count:], interpreter)
        return results[0] if count == 1 else tuple(results)


_FAST = {"add": np.add, "multiply": np.multiply, "and": np.logical_and, "or": np.logical_or}


def fold(computation: Computation, columns: Sequence[Any], initial: Sequence[Any], interpreter: Any) -> list[Any]:
    """Reduces axis 0 of every array together, pairwise; the initial value joins last."""
    shape = columns[0].shape[1:]
    start = [np.broadcast_to(np.asarray(i, c.dtype), shape) for i, c in zip(initial, columns, strict=True)]
    if columns[0].shape[0] == 0:
        return list(start)
    fast = _FAST.get(combiner_opcode(computation) or "")
    if fast is not None and (
        columns[0].dtype.kind in "fiu" or (columns[0].dtype == bool and fast in (np.logical_and, np.logical_or))
    ):
        if columns[0].dtype.itemsize >= 4 and fast in (np.add, np.multiply):
            wide = np.float64 if columns[0].dtype.kind == "f" else columns[0].dtype
            with np.errstate(all="ignore"):
                columns = [fast.reduce(columns[0], axis=0, dtype=wide)[None].astype(columns[0].dtype)]
        elif columns[0].dtype == bool:
            columns = [fast.reduce(columns[0], axis=0)[None]]
    while columns[0].shape[0] > 1:
        size = columns[0].shape[0]
        half = size // 2
        pairs = [c[: 2 * half].reshape(half, 2, *shape) for c in columns]
        merged = interpreter.call_elementwise(computation, [p[:, 0] for p in pairs] + [p[:, 1] for p in pairs])
        columns = [np.concatenate([m, c[2 * half :]]) if size % 2 else m for m, c in zip(merged, columns, strict=True)]
    results: list[Any] = interpreter.call_elementwise(computation, [*start, *(c[0] for c in columns)])
    return results


@op
class ReduceWindow(Op):
    """A reduction of the window at each position (`reduce_window`). Operands: inputs, then as many scalars."""

    window: Window
    computation: Computation

    opcode = "reduce-window"

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        arrays, initial = _halves("reduce-window", operands)
        _check_combiner("reduce-window", self.computation, initial)
        require(self.window.rank == arrays[0].rank, f"a window of {self.window.rank} dimensions on {arrays[0]}")
        sizes = [self.window.output_size(d, s) for d, s in enumerate(arrays[0].sizes)]
        return _pack([a.with_dimensions(sizes) for a in arrays])

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        count = len(operands) // 2
        sizes = instruction.shape.leaves()[0].sizes
        views = [
            window_elements(padded_input(x, i, self.window), self.window, sizes)
            for x, i in zip(operands[:count], operands[count:], strict=True)
        ]
        results = fold(self.computation, [np.stack(v) for v in views], operands[count:], interpreter)
        return results[0] if count == 1 else tuple(results)


def padded_input(x: Any, value: Any, window: Window) -> Any:
    """The input with the window's padding and base dilation applied."""
    return padded(x, value, window.padding_low, window.padding_high, [d - 1 for d in window.base_dilation])


def window_elements(x: Any, window: Window, sizes: Sequence[int]) -> list[Any]:
    """For each place in the window, the padded input's elements under it at all positions."""
    views = []
    for place in np.ndindex(*window.size):
        at = tuple(
            slice(p * d, p * d + (n - 1) * s + 1, s) if n else slice(0, 0)
            for p, d, n, s in zip(place, window.window_dilation, sizes, window.stride, strict=True)
        )
        views.append(x[at])
    return views


@op
class SelectAndScatter(Op):
    """Adds each source element to the place that `select` picks in its window (`select_and_scatter`). Operands: input,
    source, initial scalar."""

    window: Window
    select: Computation
    scatter: Computation

    opcode = "select-and-scatter"
    arity = 3

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x, source, initial = (array_operand("select-and-scatter", s) for s in operands)
        sizes = tuple(self.window.output_size(d, s) for d, s in enumerate(x.sizes))
        require(
            source.sizes == sizes and source.element_type is x.element_type,
            f"select-and-scatter of {x} has a source of {list(sizes)}, not {source}",
        )
        require(
            initial.is_scalar and initial.element_type is x.element_type,
            f"select-and-scatter's initial value {initial}",
        )
        _check_combiner("select-and-scatter", self.scatter, [initial])
        found = [s for c in ([p.shape for p in self.select.parameters], self.select.root.shape.leaves()) for s in c]
        require(
            found == [initial, initial, Shape(PRED)],
            f"select-and-scatter's computation {self.select.name} takes and gives {found}",
        )
        return x

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        x, source, initial = operands
        low, high = self.window.padding_low, self.window.padding_high
        inside = padded(np.ones(x.shape, bool), False, low, high, [0] * x.ndim)
        values = padded(x, np.zeros((), x.dtype), low, high, [0] * x.ndim)
        places = window_elements(np.arange(values.size).reshape(values.shape), self.window, source.shape)
        best_at, _, chosen = self._choose(values, inside, places, interpreter)
        result = np.full(values.size, initial, x.dtype)
        for at, value in zip(best_at[chosen].ravel().tolist(), np.asarray(source)[chosen].ravel(), strict=True):
            result[at] = interpreter.call_elementwise(self.scatter, [result[at : at + 1], value[None]])[0][0]
        crop = tuple(slice(lo, lo + n) for lo, n in zip(low, x.shape, strict=True))
        return result.reshape(values.shape)[crop]

    def _choose(self, values: Any, inside: Any, places: Sequence[Any], interpreter: Any) -> tuple[Any, Any, Any]:
        flat, flat_inside = values.ravel(), inside.ravel()
        best_at = places[0].copy()
        best, chosen = flat[best_at], flat_inside[best_at]
        for place in places[1:]:
            candidate, live = flat[place], flat_inside[place]
            keep = interpreter.call_elementwise(self.select, [best, candidate])[0]
            replace = live & (~chosen | ~keep)
            best_at, best = np.where(replace, place, best_at), np.where(replace, candidate, best)
            chosen = chosen | live
        return best_at, best, chosen


@op
class Sort(Op):
    """Orders all operands together along `dimension` by a comparator of pairs of elements (`sort`)."""

    dimension: int
    is_stable: bool
    computation: Computation

    opcode = "sort"

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        require(len(operands) > 0, "sort needs an operand")
        arrays = [array_operand("sort", s) for s in operands]
        for a in arrays:
            require(a.dimensions == arrays[0].dimensions, f"sort of {arrays[0]} and {a}")
        require(0 <= self.dimension < arrays[0].rank, f"sort along dimension {self.dimension} of {arrays[0]}")
        expected = [Shape(a.element_type) for a in arrays for _ in range(2)]
        found = [p.shape for p in self.computation.parameters]
        if found != expected:
            raise ShapeError(f"sort's comparator takes {found}, not {expected}")
        return _pack(arrays)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        axis = self.dimension
        outer = math.prod(s for d, s in enumerate(operands[0].shape) if d != axis)
        rows = [np.moveaxis(o, axis, -1).reshape(outer, o.shape[axis]) for o in operands]
        order = self._order(rows, interpreter)
        results = []
        for o, row in zip(operands, rows, strict=True):
            moved = np.moveaxis(o, axis, -1)
            results.append(
                np.ascontiguousarray(np.moveaxis(np.take_along_axis(row, order, 1).reshape(moved.shape), -1, axis))
            )
        return results[0] if len(results) == 1 else tuple(results)

    def _order(self, rows: Sequence[Any], interpreter: Any) -> Any:
        """A stable bottom-up merge sort of all rows at once; a step compares one pair of heads in every row and run."""
        count, size = rows[0].shape
        order = np.broadcast_to(np.arange(size), (count, size)).copy()
        width = 1
        while width < size:
            order = self._merge(rows, order, width, interpreter)
            width *= 2
        return order

    def _merge(self, rows: Sequence[Any], order: Any, width: int, interpreter: Any) -> Any:
        count, size = order.shape
        starts = np.arange(0, size, 2 * width)
        middle, end = np.minimum(starts + width, size), np.minimum(starts + 2 * width, size)
        left, right = np.tile(starts, (count, 1)), np.tile(middle, (count, 1))
        line = np.arange(count)[:, None]
        merged = np.empty_like(order)
        for step in range(2 * width):
            live = starts + step < end
            a, b = order[line, np.minimum(left, size - 1)], order[line, np.minimum(right, size - 1)]
            heads = [v for r in rows for v in (r[line, b], r[line, a])]
            right_first = interpreter.call_elementwise(self.computation, heads)[0]
            take_right = (left >= middle) | ((right < end) & right_first)
            merged[:, (starts + step)[live]] = np.where(take_right, b, a)[:, live]
            left, right = left + (live & ~take_right), right + (live & take_right)
        return merged
