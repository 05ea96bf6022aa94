"""Kernels as text, to be read by people (`docs/architecture.md` shows one)."""

from __future__ import annotations

from collections.abc import Iterator

from fusile.base.element_type import S64
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
    LoopKind,
    Prefetch,
    Stmt,
    Store,
    Var,
    While,
)

_SYMBOLS = {
    "add": ("+", 4), "subtract": ("-", 4), "multiply": ("*", 5), "divide": ("/", 5), "floor_divide": ("//", 5),
    "modulo": ("%", 5),
    "eq": ("==", 3), "ne": ("!=", 3), "lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "and": ("&", 2),
    "xor": ("^", 1), "or": ("|", 1),
}  # fmt: skip
"""Infix symbols with how tightly they bind."""


def print_kernel(kernel: Kernel) -> str:
    """The kernel as text, two spaces an indentation; ends with a newline."""
    inputs = [b for b in kernel.parameters if b not in kernel.outputs]
    head = f"kernel {kernel.name}({', '.join(map(repr, inputs))}) -> ({', '.join(map(repr, kernel.outputs))})"
    notes = "".join(f"  # {key}: {value}" for key, value in kernel.notes.items())
    aliased = "" if kernel.no_alias else "  # may alias"
    return "\n".join([head + aliased + notes, *_body(kernel.body, 1)]) + "\n"


def print_expr(e: Expr) -> str:
    """An expression as text."""
    return _expr(e, 0)


def print_body(body: Body) -> str:
    """Statements as text."""
    return "\n".join(_body(body, 0)) + "\n"


def _body(body: Body, depth: int) -> Iterator[str]:
    for statement in body:
        yield from _statement(statement, depth)


def _statement(s: Stmt, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(s, For):
        yield f"{indent}{_loop_head(s)}:"
        yield from _body(s.body, depth + 1)
    elif isinstance(s, If):
        yield f"{indent}if {print_expr(s.condition)}:"
        yield from _body(s.then, depth + 1)
        if s.otherwise:
            yield f"{indent}else:"
            yield from _body(s.otherwise, depth + 1)
    elif isinstance(s, While):
        yield f"{indent}while {print_expr(s.condition)}:"
        yield from _body(s.body, depth + 1)
    else:
        yield indent + _simple(s)


def _simple(s: Stmt) -> str:
    if isinstance(s, Let):
        return f"{s.var.name} = {print_expr(s.value)}"
    if isinstance(s, Store):
        return f"{_cell(s.buffer, s.indices)} = {print_expr(s.value)}"
    if isinstance(s, Alloc):
        return f"alloc {s.buffer!r} {s.buffer.space.value}"
    if isinstance(s, Prefetch):
        distance, purpose = f" + {s.distance}" if s.distance else "", " to write" if s.write else ""
        return f"prefetch {_cell(s.buffer, s.indices)}{distance}{purpose}"
    assert isinstance(s, Accumulate)
    cells = ", ".join(_cell(b, i) for b, i in s.cells)
    values = ", ".join(map(print_expr, s.values))
    identity = ", ".join(map(print_expr, s.identity))
    return f"{cells} {_combiner(s)}= {values} (from {identity})"


def _combiner(s: Accumulate) -> str:
    """The name of a one-op combiner, or the whole of it."""
    c = s.combiner
    if len(c.results) == 1 and isinstance(c.results[0], Apply) and c.results[0].arguments == (*c.left, *c.right):
        return c.results[0].op
    names = ", ".join(v.name for v in (*c.left, *c.right))
    return f"[{names} -> {', '.join(map(print_expr, c.results))}]"


def _loop_head(s: For) -> str:
    active = f" (active {print_expr(s.active)})" if s.active is not None else ""
    kind = "" if s.kind is LoopKind.SERIAL else f"{s.kind.value} "
    return f"{kind or 'serial '}{s.var.name} in {print_expr(s.extent)}{active}"


def _cell(buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(print_expr, indices))}]"


def _expr(e: Expr, around: int) -> str:
    if isinstance(e, Const):
        return (
            str(e.value).lower()
            if e.element_type is S64 or isinstance(e.value, bool)
            else f"{e.element_type}({e.value!r})"
        )
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Load):
        return _cell(e.buffer, e.indices)
    assert isinstance(e, Apply)
    if e.op in _SYMBOLS:
        symbol, tightness = _SYMBOLS[e.op]
        text = f"{_expr(e.arguments[0], tightness)} {symbol} {_expr(e.arguments[1], tightness + 1)}"
        return f"({text})" if tightness < around else text
    arguments = ", ".join(_expr(a, 0) for a in e.arguments)
    name = {"convert": repr(e.element_type), "bitcast": f"{e.element_type}.bits"}.get(e.op, e.op)
    return f"{name}({arguments})"
