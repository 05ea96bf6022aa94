"""Ops that move elements: broadcast, reshape, transpose, slices, pad, concatenate, gather, scatter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.errors import ShapeError
from fusile.base.shape import AnyShape, Shape
from fusile.hlo.ir import Computation, Instruction, Op, op


def array_operand(opcode: str, shape: AnyShape) -> Shape:
    if not isinstance(shape, Shape) or shape.is_token:
        raise ShapeError(f"{opcode} takes an array, not {shape}")
    return shape


def require(condition: bool, message: str) -> None:
    """Raises ShapeError with `message` unless `condition` holds."""
    if not condition:
        raise ShapeError(message)


@op
class Broadcast(Op):
    """Operand dimension i becomes result dimension `broadcast_dimensions[i]`; the rest repeat (`broadcast_in_dim`,
    without the stretching of size-1 dimensions)."""

    dimensions: tuple[int, ...]
    broadcast_dimensions: tuple[int, ...]

    opcode = "broadcast"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("broadcast", operands[0])
        mapped = self.broadcast_dimensions
        require(len(mapped) == x.rank, f"broadcast of {x} maps {len(mapped)} dimensions")
        require(list(mapped) == sorted(set(mapped)), f"broadcast_dimensions {mapped} must increase")
        for i, d in enumerate(mapped):
            require(
                0 <= d < len(self.dimensions) and self.dimensions[d] == x.dimensions[i],
                f"broadcast of {x} to {list(self.dimensions)}: dimension {i} does not fit result dimension {d}",
            )
        return x.with_dimensions(self.dimensions)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        view = [1] * len(self.dimensions)
        for i, d in enumerate(self.broadcast_dimensions):
            view[d] = operands[0].shape[i]
        return np.broadcast_to(operands[0].reshape(view), self.dimensions)


@op
class Reshape(Op):
    """The same elements in row-major order, of other dimensions (`reshape`)."""

    dimensions: tuple[int, ...]

    opcode = "reshape"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("reshape", operands[0])
        result = x.with_dimensions(self.dimensions)
        require(
            x.elements == result.elements, f"reshape of {x} to {list(self.dimensions)} changes the number of elements"
        )
        return result

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return operands[0].reshape(self.dimensions)


@op
class Transpose(Op):
    """Result dimension i is operand dimension `permutation[i]` (`transpose`)."""

    permutation: tuple[int, ...]

    opcode = "transpose"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("transpose", operands[0])
        require(
            sorted(self.permutation) == list(range(x.rank)),
            f"{self.permutation} is no permutation of the dimensions of {x}",
        )
        return x.with_dimensions(x.dimensions[p] for p in self.permutation)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return np.transpose(operands[0], self.permutation)


@op
class Slice(Op):
    """Elements `starts[i] : limits[i] : strides[i]` of each dimension (`slice`)."""

    starts: tuple[int, ...]
    limits: tuple[int, ...]
    strides: tuple[int, ...]

    opcode = "slice"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("slice", operands[0])
        require(
            len(self.starts) == len(self.limits) == len(self.strides) == x.rank,
            f"slice of {x} needs {x.rank} starts, limits and strides",
        )
        for start, limit, stride, size in zip(self.starts, self.limits, self.strides, x.sizes, strict=True):
            require(
                0 <= start <= limit <= size and stride > 0,
                f"slice [{start}:{limit}:{stride}] of a dimension of size {size} in {x}",
            )
        return x.with_dimensions(
            -(-(limit - start) // stride)
            for start, limit, stride in zip(self.starts, self.limits, self.strides, strict=True)
        )

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return operands[0][tuple(map(slice, self.starts, self.limits, self.strides))]


@op
class Pad(Op):
    """Adds `low` and `high` elements of operand 1 (a scalar) around each dimension, `interior` between neighbours;
    negative amounts take elements away (`pad`)."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]

    opcode = "pad"
    arity = 2

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x, value = array_operand("pad", operands[0]), array_operand("pad", operands[1])
        require(
            value.is_scalar and value.element_type is x.element_type,
            f"pad's value {value} is no scalar of {x}'s element type",
        )
        require(len(self.low) == len(self.high) == len(self.interior) == x.rank, f"pad of {x} needs {x.rank} amounts")
        require(all(i >= 0 for i in self.interior), f"interior padding {self.interior} is negative")
        sizes = tuple(
            low + size + max(0, size - 1) * interior + high
            for low, high, interior, size in zip(self.low, self.high, self.interior, x.sizes, strict=True)
        )
        require(
            all(s >= 0 for s in sizes), f"pad of {x} by {self.low}, {self.high}, {self.interior} has a negative size"
        )
        return x.with_dimensions(sizes)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return padded(operands[0], operands[1], self.low, self.high, self.interior)


def padded(x: Any, value: Any, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Any:
    """`pad` on an array. A window's negative padding may take more than there is: then nothing is left."""
    dilated = [size + max(0, size - 1) * i for size, i in zip(x.shape, interior, strict=True)]
    sizes = [max(0, lo + d + hi) for lo, d, hi in zip(low, dilated, high, strict=True)]
    result = np.full(sizes, value, dtype=x.dtype)
    into, out = [], []
    for size, lo, i, total in zip(x.shape, low, interior, result.shape, strict=True):
        step = i + 1
        first = max(0, (step - 1 - lo) // step) if lo < 0 else 0
        last = min(size - 1, (total - 1 - lo) // step) if size else -1
        count = max(0, last - first + 1)
        out.append(slice(first, first + count))
        start = lo + first * step
        into.append(slice(start, start + (count - 1) * step + 1, step) if count else slice(0, 0))
    result[tuple(into)] = x[tuple(out)]
    return result


@op
class Concatenate(Op):
    """The operands one after the other along `dimension` (`concatenate`)."""

    dimension: int

    opcode = "concatenate"

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        require(len(operands) > 0, "concatenate needs an operand")
        shapes = [array_operand("concatenate", s) for s in operands]
        first, d = shapes[0], self.dimension
        require(0 <= d < first.rank, f"concatenate along dimension {d} of {first}")
        for s in shapes[1:]:
            same = s.rank == first.rank and s.element_type is first.element_type
            same = same and all(
                a == b for i, (a, b) in enumerate(zip(s.dimensions, first.dimensions, strict=True)) if i != d
            )
            require(same, f"concatenate along dimension {d} of {first} and {s}")
        return first.with_dimensions(
            (*first.dimensions[:d], sum(s.sizes[d] for s in shapes), *first.dimensions[d + 1 :])
        )

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return np.concatenate(operands, self.dimension)


@op
class Reverse(Op):
    """The order along `dimensions` turned around (`reverse`)."""

    dimensions: tuple[int, ...]

    opcode = "reverse"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("reverse", operands[0])
        require(
            all(0 <= d < x.rank for d in self.dimensions) and len(set(self.dimensions)) == len(self.dimensions),
            f"reverse {self.dimensions} of {x}",
        )
        return x

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return np.flip(operands[0], self.dimensions) if self.dimensions else operands[0]


def _check_starts(opcode: str, starts: Sequence[AnyShape], rank: int) -> None:
    require(len(starts) == rank, f"{opcode} needs {rank} start indices, not {len(starts)}")
    for s in starts:
        require(
            isinstance(s, Shape) and s.is_scalar and s.element_type.is_integer,
            f"{opcode}'s start index {s} is no integer scalar",
        )


def _clamped(starts: Sequence[Any], sizes: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    begin = [min(max(int(s), 0), total - size) for s, size, total in zip(starts, sizes, shape, strict=True)]
    return tuple(slice(b, b + size) for b, size in zip(begin, sizes, strict=True))


@op
class DynamicSlice(Op):
    """A window of `sizes` at start indices given as scalar operands, moved inside where it sticks out
    (`dynamic_slice`)."""

    sizes: tuple[int, ...]

    opcode = "dynamic-slice"

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("dynamic-slice", operands[0])
        _check_starts("dynamic-slice", operands[1:], x.rank)
        require(
            len(self.sizes) == x.rank and all(0 <= s <= d for s, d in zip(self.sizes, x.sizes, strict=True)),
            f"dynamic-slice of {list(self.sizes)} from {x}",
        )
        return x.with_dimensions(self.sizes)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return operands[0][_clamped(operands[1:], self.sizes, operands[0].shape)]


@op
class DynamicUpdateSlice(Op):
    """Operand 0 with operand 1 written at start indices, moved inside where it sticks out (`dynamic_update_slice`)."""

    opcode = "dynamic-update-slice"

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x, update = array_operand(self.opcode, operands[0]), array_operand(self.opcode, operands[1])
        _check_starts(self.opcode, operands[2:], x.rank)
        fits = (
            update.element_type is x.element_type
            and update.rank == x.rank
            and all(u <= d for u, d in zip(update.sizes, x.sizes, strict=True))
        )
        require(fits, f"dynamic-update-slice of {update} into {x}")
        return x

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        result = np.array(operands[0])
        result[_clamped(operands[2:], operands[1].shape, result.shape)] = operands[1]
        return result


@op
class Gather(Op):
    """Slices of operand 0 at places that operand 1 lists (`gather`); places that stick out are moved inside."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int
    slice_sizes: tuple[int, ...]
    indices_are_sorted: bool = False

    opcode = "gather"
    arity = 2

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x, indices = array_operand("gather", operands[0]), array_operand("gather", operands[1])
        require(indices.element_type.is_integer, f"gather's indices are {indices}, not integers")
        require(0 <= self.index_vector_dim <= indices.rank, f"index_vector_dim {self.index_vector_dim} of {indices}")
        width = indices.sizes[self.index_vector_dim] if self.index_vector_dim < indices.rank else 1
        require(
            width == len(self.start_index_map),
            f"start_index_map {self.start_index_map} for index vectors of {width} in {indices}",
        )
        fits = len(self.slice_sizes) == x.rank and all(
            0 <= s <= d for s, d in zip(self.slice_sizes, x.sizes, strict=True)
        )
        require(fits, f"gather of slices {list(self.slice_sizes)} from {x}")
        dropped = _batched_and_dropped(
            "gather", x, indices, self.collapsed_slice_dims, self.operand_batching_dims,
            self.start_indices_batching_dims, self.start_index_map, self.index_vector_dim,
        )  # fmt: skip
        require(
            all(self.slice_sizes[d] <= 1 for d in dropped),
            f"collapsed and batching slice sizes {self.slice_sizes} must be at most 1",
        )
        offsets = [s for d, s in enumerate(self.slice_sizes) if d not in dropped]
        require(
            len(offsets) == len(self.offset_dims), f"offset_dims {self.offset_dims} for {len(offsets)} slice dimensions"
        )
        batch = [s for d, s in enumerate(indices.sizes) if d != self.index_vector_dim]
        rank = len(batch) + len(offsets)
        require(
            list(self.offset_dims) == sorted({d for d in self.offset_dims if 0 <= d < rank}),
            f"offset_dims {self.offset_dims} of a result of rank {rank}",
        )
        take_offset, take_batch = iter(offsets), iter(batch)
        return x.with_dimensions(next(take_offset) if d in self.offset_dims else next(take_batch) for d in range(rank))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        x, indices = operands
        starts, batch_shape = index_vectors(indices, self.index_vector_dim)
        place: list[Any] = [0] * x.ndim
        for i, d in enumerate(self.start_index_map):
            place[d] = np.clip(
                starts[..., i].astype(np.int64, casting="unsafe")
                if starts.dtype != np.uint64
                else np.minimum(starts[..., i], 2**62).astype(np.int64),
                0,
                x.shape[d] - self.slice_sizes[d],
            )
        batch_dims = [d for d in range(indices.ndim) if d != self.index_vector_dim]
        for operand_dim, indices_dim in zip(self.operand_batching_dims, self.start_indices_batching_dims, strict=True):
            at = batch_dims.index(indices_dim)
            place[operand_dim] = np.arange(batch_shape[at]).reshape(
                [-1 if i == at else 1 for i in range(len(batch_shape))]
            )
        kept = [d for d in range(x.ndim) if d not in self.collapsed_slice_dims and d not in self.operand_batching_dims]
        lift = (slice(None),) * len(batch_shape) + (None,) * len(kept)
        full: list[Any] = []
        for d in range(x.ndim):
            base = np.broadcast_to(place[d], batch_shape)[lift]
            if d in kept:
                view = [1] * (len(batch_shape) + len(kept))
                view[len(batch_shape) + kept.index(d)] = -1
                base = base + np.arange(self.slice_sizes[d]).reshape(view)
            full.append(base)
        if math.prod(instruction.array_shape.sizes) == 0:
            return np.zeros(instruction.array_shape.sizes, x.dtype)
        gathered = x[tuple(full)] if full else np.broadcast_to(x, batch_shape)
        gathered = np.broadcast_to(gathered, (*batch_shape, *(self.slice_sizes[d] for d in kept)))
        rank = gathered.ndim
        others = [d for d in range(rank) if d not in self.offset_dims]
        order = [0] * rank
        for i, d in enumerate(others):
            order[d] = i
        for i, d in enumerate(self.offset_dims):
            order[d] = len(batch_shape) + i
        return np.transpose(gathered, order)


def _batched_and_dropped(
    opcode: str,
    x: Shape,
    indices: Shape,
    dropped: Sequence[int],
    batching: Sequence[int],
    indices_batching: Sequence[int],
    index_map: Sequence[int],
    index_vector_dim: int,
) -> set[int]:
    """The dimensions of `x` that a gather's or scatter's windows lack. Raises ShapeError when a list of dimensions
    names one that is not there, one twice, or batching dimensions of different sizes: their places are not checked
    when the program runs."""
    for dimensions, of in ((dropped, x), (batching, x), (index_map, x), (indices_batching, indices)):
        inside = len(set(dimensions)) == len(dimensions) and all(0 <= d < of.rank for d in dimensions)
        require(inside, f"{opcode}: {list(dimensions)} are no dimensions of {of}")
    require(
        not set(batching) & {*dropped, *index_map}, f"{opcode}: batching dimensions {list(batching)} are used otherwise"
    )
    require(index_vector_dim not in indices_batching, f"{opcode}: index vectors are no batching dimension")
    sizes, places = [x.sizes[d] for d in batching], [indices.sizes[d] for d in indices_batching]
    require(sizes == places, f"{opcode}: batching dimensions of sizes {sizes} and {places}")
    return {*dropped, *batching}


def index_vectors(indices: Any, index_vector_dim: int) -> tuple[Any, tuple[int, ...]]:
    """Index vectors moved to the last dimension, and the shape of the rest."""
    starts = (
        np.expand_dims(indices, -1) if index_vector_dim == indices.ndim else np.moveaxis(indices, index_vector_dim, -1)
    )
    return starts, starts.shape[:-1]


@op
class Scatter(Op):
    """Combines updates into operands at places that the indices list; what sticks out is dropped (`scatter`). Operands:
    inputs, indices, updates."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    input_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int
    computation: Computation
    indices_are_sorted: bool = False
    unique_indices: bool = False

    opcode = "scatter"

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        require(
            len(operands) % 2 == 1 and len(operands) >= 3,
            f"scatter takes inputs, indices and updates, not {len(operands)} operands",
        )
        count = len(operands) // 2
        inputs, updates = operands[:count], operands[count + 1 :]
        indices = array_operand("scatter", operands[count])
        require(indices.element_type.is_integer, f"scatter's indices are {indices}, not integers")
        for x, u in zip(inputs, updates, strict=True):
            x, u = array_operand("scatter", x), array_operand("scatter", u)
            require(x.element_type is u.element_type, f"scatter of {u} into {x}")
            self._check_updates(x, indices, u)
        from fusile.base.shape import TupleShape

        scalars = [Shape(array_operand("scatter", x).element_type) for x in inputs]
        taken = [p.shape for p in self.computation.parameters]
        given = list(self.computation.root.shape.leaves())
        require(
            taken == scalars * 2 and given == scalars,
            f"scatter's computation {self.computation.name} takes {taken} and gives {given}, not {scalars}",
        )
        return inputs[0] if count == 1 else TupleShape(tuple(inputs))

    def _check_updates(self, x: Shape, indices: Shape, update: Shape) -> None:
        require(0 <= self.index_vector_dim <= indices.rank, f"index_vector_dim {self.index_vector_dim} of {indices}")
        width = indices.sizes[self.index_vector_dim] if self.index_vector_dim < indices.rank else 1
        require(
            width == len(self.scatter_dims_to_operand_dims),
            f"scatter_dims_to_operand_dims for index vectors of {width} in {indices}",
        )
        dropped = _batched_and_dropped(
            "scatter", x, indices, self.inserted_window_dims, self.input_batching_dims,
            self.scatter_indices_batching_dims, self.scatter_dims_to_operand_dims, self.index_vector_dim,
        )  # fmt: skip
        require(
            list(self.update_window_dims) == sorted({d for d in self.update_window_dims if 0 <= d < update.rank}),
            f"update_window_dims {self.update_window_dims} of {update}",
        )
        batch = [s for d, s in enumerate(indices.sizes) if d != self.index_vector_dim]
        found = [s for d, s in enumerate(update.sizes) if d not in self.update_window_dims]
        require(
            batch == found,
            f"scatter's updates {update} do not have the batch dimensions {batch} of the indices {indices}",
        )
        kept = [d for d in range(x.rank) if d not in dropped]
        require(
            len(kept) == len(self.update_window_dims),
            f"update_window_dims {self.update_window_dims} for {len(kept)} window dimensions of {x}",
        )
        for d, w in zip(kept, self.update_window_dims, strict=True):
            require(
                update.sizes[w] <= x.sizes[d],
                f"scatter's window dimension {w} of {update} is larger than dimension {d} of {x}",
            )

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        count = len(operands) // 2
        results = [np.array(x) for x in operands[:count]]
        indices, updates = operands[count], operands[count + 1 :]
        for batch, window_start in self._places(results[0].shape, indices):
            self._combine_window(results, updates, batch, window_start, indices.ndim, interpreter)
        return results[0] if count == 1 else tuple(results)

    def _places(self, shape: Sequence[int], indices: Any) -> Any:
        starts, batch_shape = index_vectors(indices, self.index_vector_dim)
        batch_dims = [d for d in range(indices.ndim) if d != self.index_vector_dim]
        for batch in itertools.product(*map(range, batch_shape)):
            start = [0] * len(shape)
            for i, d in enumerate(self.scatter_dims_to_operand_dims):
                start[d] = int(starts[batch][i])
            for operand_dim, indices_dim in zip(
                self.input_batching_dims, self.scatter_indices_batching_dims, strict=True
            ):
                start[operand_dim] = batch[batch_dims.index(indices_dim)]
            yield batch, start

    def _combine_window(
        self,
        results: list[Any],
        updates: Sequence[Any],
        batch: Sequence[int],
        start: Sequence[int],
        _: int,
        interpreter: Any,
    ) -> None:
        shape = results[0].shape
        rest = iter(batch)
        at = tuple(slice(None) if d in self.update_window_dims else next(rest) for d in range(updates[0].ndim))
        windows = [u[at] for u in updates]
        kept = [
            d for d in range(len(shape)) if d not in self.inserted_window_dims and d not in self.input_batching_dims
        ]
        into, out = [], [slice(None)] * windows[0].ndim
        for d in range(len(shape)):
            size = windows[0].shape[kept.index(d)] if d in kept else 1
            first, last = max(start[d], 0), min(start[d] + size, shape[d])
            if first >= last:
                return
            into.append(slice(first, last) if d in kept else first)
            if d in kept:
                out[kept.index(d)] = slice(first - start[d], last - start[d])
        old = [r[tuple(into)] for r in results]
        new = interpreter.call_elementwise(self.computation, [*old, *(w[tuple(out)] for w in windows)])
        for r, value in zip(results, new, strict=True):
            r[tuple(into)] = value
