"""What a kernel means: each statement run on NumPy scalars, loops one iteration after the other.

VECTOR, UNROLLED, PIPELINED and PARALLEL loops run serially; only the active lanes of a VECTOR loop run. Both arms of a
`select` are evaluated, so that an index out of bounds in either is found. REGISTER buffers allocated inside a VECTOR
loop are one for each lane because each iteration allocates its own.

One difference to machine code is allowed: where a reduction over lanes meets one cell, machine code joins the lanes by
halves first (`Accumulate`), which rounds differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.errors import CompileError
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Body,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Prefetch,
    Stmt,
    Store,
    Var,
    While,
)
from fusile.loops.scalar_ops import scalar_op

Array = np.ndarray[Any, Any]
Names = dict[str, Any]


def run_kernel(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Runs a kernel on one array a parameter, of the buffer's dtype and element count; outputs are written in place.

    Raises CompileError for arrays that don't fit and for indices out of bounds.
    """
    interpreter = _Interpreter()
    for buffer, array in zip(kernel.parameters, arrays, strict=True):
        if array.dtype != buffer.element_type.dtype or array.size != buffer.elements:
            raise CompileError(f"{buffer} of {kernel.name} was given {array.dtype}{list(array.shape)}")
        interpreter.memory[buffer] = array.reshape(buffer.dimensions)
    interpreter.body(kernel.body, {})


class _Interpreter:
    def __init__(self) -> None:
        self.memory: dict[Buffer, Array] = {}

    def body(self, body: Body, names: Names) -> None:
        names = dict(names)
        for statement in body:
            self.statement(statement, names)

    def statement(self, s: Stmt, names: Names) -> None:
        if isinstance(s, Let):
            names[s.var.name] = self.value(s.value, names)
        elif isinstance(s, Store):
            value = self.value(s.value, names)
            self.memory[s.buffer][self.place(s.buffer, s.indices, names)] = value
        elif isinstance(s, For):
            self.loop(s, names)
        elif isinstance(s, Alloc):
            self.memory[s.buffer] = np.zeros(s.buffer.dimensions, s.buffer.element_type.dtype)
        elif isinstance(s, Accumulate):
            self.accumulate(s, names)
        elif isinstance(s, If):
            self.body(s.then if self.value(s.condition, names) else s.otherwise, names)
        elif isinstance(s, While):
            while self.value(s.condition, names):
                self.body(s.body, names)
        elif not isinstance(s, Prefetch):
            raise CompileError(f"statement {type(s).__name__} has no meaning")

    def loop(self, s: For, names: Names) -> None:
        extent = int(self.value(s.extent, names))
        live = extent if s.active is None else min(extent, int(self.value(s.active, names)))
        for i in range(live):
            self.body(s.body, {**names, s.var.name: np.int64(i)})

    def accumulate(self, s: Accumulate, names: Names) -> None:
        places = [(self.memory[b], self.place(b, i, names)) for b, i in s.cells]
        values = [self.value(v, names) for v in s.values]
        scope = dict(names)
        for variable, (array, place) in zip(s.combiner.left, places, strict=True):
            scope[variable.name] = array[place]
        for variable, value in zip(s.combiner.right, values, strict=True):
            scope[variable.name] = value
        results = [self.value(r, scope) for r in s.combiner.results]
        for (array, place), result in zip(places, results, strict=True):
            array[place] = result

    def place(self, buffer: Buffer, indices: tuple[Expr, ...], names: Names) -> tuple[int, ...]:
        found = tuple(int(self.value(i, names)) for i in indices)
        if any(not 0 <= i < size for i, size in zip(found, buffer.dimensions, strict=True)):
            raise CompileError(f"index {list(found)} is outside {buffer}")
        return found

    def value(self, e: Expr, names: Names, known: dict[int, Any] | None = None) -> Any:
        """`known`: values of the expression's parts by identity: parts are shared, and a tree of them may be huge."""
        known = {} if known is None else known
        if id(e) in known:
            return known[id(e)]
        if isinstance(e, Const):
            return np.asarray(e.value).astype(e.element_type.dtype)[()]
        if isinstance(e, Var):
            return names[e.name]
        if isinstance(e, Load):
            return self.memory[e.buffer][self.place(e.buffer, e.indices, names)]
        assert isinstance(e, Apply)
        value = scalar_op(e.op)(e.element_type, *[self.value(a, names, known) for a in e.arguments])[()]
        known[id(e)] = value
        return value
