"""How values cross into and out of computations: every value is zero or more arrays, its leaves.

A value that is *fixed* keeps what is known of it (a constant's array, a list's length) on both sides, without a leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusile.hlo.ir import Computation, Instruction
from fusile.tf.context import Context
from fusile.tf.value import GENERATOR_PREFIX, AnyValue, CompositeList, Optional, Resource, TensorList, Value


def leaves_of(value: AnyValue, fixed: bool) -> list[Value]:
    """The arrays that carry a value across."""
    if isinstance(value, Value):
        return [] if fixed and value.known is not None else [value]
    if isinstance(value, TensorList):
        buffer = [value.buffer] if value.buffer is not None else []
        return [*buffer, *([] if fixed and value.length.known is not None else [value.length])]
    if isinstance(value, CompositeList):
        return [leaf for column in value.columns for leaf in leaves_of(column, fixed)]
    if isinstance(value, Optional):
        return [leaf for values in value.alternatives for leaf in values]
    return []


def like(context: Context, value: AnyValue, fixed: bool, leaves: Iterator[Instruction]) -> AnyValue:
    """The value on the other side, from its leaves there."""
    if isinstance(value, Value):
        return value.within(context.builder) if fixed and value.known is not None else context.value(next(leaves))
    if isinstance(value, TensorList):
        buffer = context.value(next(leaves)) if value.buffer is not None else None
        known = fixed and value.length.known is not None
        length = value.length.within(context.builder) if known else context.value(next(leaves))
        return replace(value, buffer=buffer, length=length, change=0)
    if isinstance(value, CompositeList):
        return replace(value, columns=tuple(like(context, c, fixed, leaves) for c in value.columns))  # type: ignore[misc]
    if isinstance(value, Optional):
        return Optional(tuple(tuple(context.value(next(leaves)) for _ in values) for values in value.alternatives))
    return value


class Boundary:
    """The values that go into a computation, and the variables that it may use."""

    def __init__(self, context: Context, values: Sequence[AnyValue], fixed: Sequence[bool]) -> None:
        self.context, self.values, self.fixed = context, list(values), list(fixed)
        self.keys = list(dict.fromkeys(v.key for v in values if isinstance(v, Resource)))
        self.keys += [k for k in context.variables if k.startswith(GENERATOR_PREFIX)]

    def operands(self) -> list[Instruction]:
        """What is passed: the values' leaves, then the variables' arrays."""
        arrays = [leaf for v, f in zip(self.values, self.fixed, strict=True) for leaf in leaves_of(v, f)]
        arrays += [self.context.variables[k] for k in self.keys]
        return [a.instruction for a in arrays]

    def array_parameters(self, computation: Computation) -> Iterator[tuple[int, Instruction]]:
        """The position of each value that is an array, and its parameter in a computation entered."""
        number = 0
        for position, (value, fixed) in enumerate(zip(self.values, self.fixed, strict=True)):
            count = len(leaves_of(value, fixed))
            if isinstance(value, Value) and count:
                yield position, computation.parameters[number]
            number += count

    def enter(self, inner: Context) -> list[AnyValue]:
        """Gives the computation of `inner` its parameters; the values as seen inside."""
        parameters = iter([inner.builder.parameter(o.array_shape) for o in self.operands()])
        inside = self._rebuilt(inner, parameters)
        inner.node = self.context.node
        inner.variables = {k: inner.value(p) for k, p in zip(self.keys, parameters, strict=True)}
        return inside

    def _rebuilt(self, context: Context, leaves: Iterator[Instruction]) -> list[AnyValue]:
        return [like(context, v, f, leaves) for v, f in zip(self.values, self.fixed, strict=True)]
