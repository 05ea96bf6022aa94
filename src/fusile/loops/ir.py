"""The loop IR on one page: scalar expressions, statements over buffers, kernels.

A kernel is a list of *phases* (its top-level statements) that run one after the other; a phase that is a PARALLEL loop
is cut over threads, with a join after it. Loops count from 0 by 1 to an extent. Expressions have no effects and are
scalar; a VECTOR loop of constant extent L is what makes the code generator emit L lanes at once. Everything is frozen;
schedule transforms rebuild.

Text (see `loops/text.py`):

    kernel softmax.1(x: f32[8,100]) -> (y: f32[8,100])
      parallel i in 8:
        alloc m: f32[] register
        m[] = -inf
        serial j in 100:
          m[] maximum= x[i, j] (from -inf)
        ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from fusile.base.element_type import PRED, S64, ElementType


class Space(Enum):
    """Where a buffer lives. ARGUMENT: a pointer the caller gives. SCRATCH: memory of one task (cache-sized).
    REGISTER: small, constant-indexed once unrolled, expected to be promoted to registers; inside a VECTOR loop each
    lane has its own. SHARED: workspace that all phases and tasks of one launch see (the caller's arena)."""

    ARGUMENT = "argument"
    SCRATCH = "scratch"
    REGISTER = "register"
    SHARED = "shared"


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """A dense row-major array; compared by identity. Complex elements are lowered to a trailing dimension of size 2
    of the real type, predicates take a byte (0 or 1) each."""

    name: str
    element_type: ElementType
    dimensions: tuple[int, ...]
    space: Space = Space.ARGUMENT

    @property
    def elements(self) -> int:
        return math.prod(self.dimensions)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours, a dimension each."""
        return tuple(math.prod(self.dimensions[i + 1 :]) for i in range(len(self.dimensions)))

    def __repr__(self) -> str:
        return f"{self.name}: {self.element_type}[{','.join(map(str, self.dimensions))}]"


class Expr:
    """A scalar expression; every subclass has `element_type`."""

    __slots__ = ()
    element_type: ElementType


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A number of the given type. Floats compare by value and sign, so that -0.0 stays itself."""

    value: int | float | bool
    element_type: ElementType = S64

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Const)
            and self.element_type is other.element_type
            and repr(self.value) == repr(other.value)
        )

    def __hash__(self) -> int:
        return hash((repr(self.value), self.element_type.name))


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A loop index or a name bound by Let; names are unique in a kernel."""

    name: str
    element_type: ElementType = S64


@dataclass(frozen=True, slots=True)
class Apply(Expr):
    """A scalar op of `loops/scalar_ops.py` (`add`, `select`, `fma`, `exponential`, `convert`, ...) on arguments."""

    op: str
    arguments: tuple[Expr, ...]
    element_type: ElementType
    _hash: int = field(init=False, compare=False, repr=False, default=0)
    """Kept, since expressions are hashed often and share parts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.arguments, self.element_type.name)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """An element of a buffer. Indices are in bounds, or the statement around it is guarded."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def element_type(self) -> ElementType:  # type: ignore[override]
        return self.buffer.element_type

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.buffer.dimensions):
            raise ValueError(f"{len(self.indices)} indices into {self.buffer}")


class Stmt:
    """A statement; bodies are tuples of statements."""

    __slots__ = ()


Body = tuple[Stmt, ...]


class LoopKind(Enum):
    SERIAL = "serial"
    PARALLEL = "parallel"
    """Only as a phase. Iterations are independent."""
    VECTOR = "vector"
    """Constant extent, one lane an iteration; at most the first `active` lanes live."""
    UNROLLED = "unrolled"
    """Constant extent, emitted once an iteration with the index a constant."""
    PIPELINED = "pipelined"
    """Serial, and the code generator may overlap iterations (unroll by a few, prefetch)."""


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """`for var in range(extent)`. `active`, in VECTOR loops only: how many lanes live (the rest are masked off)."""

    var: Var
    extent: Expr
    body: Body
    kind: LoopKind = LoopKind.SERIAL
    active: Expr | None = None

    def __post_init__(self) -> None:
        fixed = self.kind in (LoopKind.VECTOR, LoopKind.UNROLLED)
        if fixed and not isinstance(self.extent, Const):
            raise ValueError(f"a {self.kind.value} loop needs a constant extent")
        if self.active is not None and self.kind is not LoopKind.VECTOR:
            raise ValueError("only a vector loop has active lanes")


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    """Names a value for the rest of the block, so that it is computed once."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    """Makes a SCRATCH, REGISTER or (as a phase) SHARED buffer for the rest of the block; contents undefined."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class If(Stmt):
    condition: Expr
    then: Body
    otherwise: Body = ()


@dataclass(frozen=True, slots=True)
class While(Stmt):
    """Runs `body` as long as `condition` (evaluated before each turn, it may load) holds."""

    condition: Expr
    body: Body


@dataclass(frozen=True, slots=True)
class Combiner:
    """An associative combination of n-tuples: `results`, as expressions of the n `left` and n `right` variables."""

    left: tuple[Var, ...]
    right: tuple[Var, ...]
    results: tuple[Expr, ...]

    @staticmethod
    def of(op: str, element_type: ElementType) -> Combiner:
        """The combiner of one binary scalar op."""
        a, b = Var("left", element_type), Var("right", element_type)
        return Combiner((a,), (b,), (Apply(op, (a, b), element_type),))


@dataclass(frozen=True, slots=True)
class Accumulate(Stmt):
    """`cells = combiner(cells, values)`: one step of a reduction. `identity` is neutral for the combiner; transforms
    use it for private accumulators. Cells are (buffer, indices)."""

    cells: tuple[tuple[Buffer, tuple[Expr, ...]], ...]
    values: tuple[Expr, ...]
    combiner: Combiner
    identity: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    """A hint that the element `distance` elements behind this one will soon be read (or written). In a vector loop: the
    first lane's. It may lie outside of the buffer, and has no meaning."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    distance: int = 0
    write: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A named list of phases over parameter buffers. `outputs` are those of `parameters` that it writes."""

    name: str
    parameters: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Body
    no_alias: bool = True
    """Whether outputs may be assumed not to overlap inputs (False when a buffer is updated in place)."""
    notes: dict[str, str] = field(default_factory=dict, compare=False)


def const(value: int | float | bool, element_type: ElementType = S64) -> Const:
    return Const(value, element_type)


def sub_expressions(expr: Expr) -> Iterator[Expr]:
    """`expr` and every expression inside it, outermost first."""
    stack = [expr]
    while stack:
        e = stack.pop()
        yield e
        if isinstance(e, Apply):
            stack.extend(reversed(e.arguments))
        elif isinstance(e, Load):
            stack.extend(reversed(e.indices))


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuilds `expr` bottom up; where `change` gives an expression it stands in."""
    if isinstance(expr, Apply):
        arguments = tuple(rewrite(a, change) for a in expr.arguments)
        if arguments != expr.arguments:
            expr = Apply(expr.op, arguments, expr.element_type)
    elif isinstance(expr, Load):
        indices = tuple(rewrite(i, change) for i in expr.indices)
        if indices != expr.indices:
            expr = Load(expr.buffer, indices)
    new = change(expr)
    return expr if new is None else new


def compare(direction: str, a: Expr, b: Expr) -> Apply:
    """A predicate: `direction` is eq, ne, lt, le, gt or ge."""
    return Apply(direction, (a, b), PRED)


def select(predicate: Expr, on_true: Expr, on_false: Expr) -> Apply:
    return Apply("select", (predicate, on_true, on_false), on_true.element_type)
