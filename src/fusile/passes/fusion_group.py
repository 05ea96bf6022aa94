"""A group of instructions that becomes one kernel, and what it admits.

Three things bound a group: lowering must be able to write it as one kernel (rows of one shape, one contraction with an
epilogue of its shape), no element may be computed often at a high price, and a kernel has so many members and operands.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from fusile.hlo.ir import Instruction, Op
from fusile.hlo.opset import elementwise as ew
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import CustomCall
from fusile.hlo.opset.other import Cholesky, Fft, RngBitGenerator, TopK, TriangularSolve
from fusile.hlo.opset.reduction import Reduce, ReduceWindow, SelectAndScatter, Sort
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
    Transpose,
)
from fusile.hlo.opset.structure import Constant, GetTupleElement, Iota

KINDS: dict[type[Op], str] = {
    Scatter: "scatter",
    Sort: "sort",
    SelectAndScatter: "select_and_scatter",
    DynamicUpdateSlice: "update",
    Cholesky: "library",
    TriangularSolve: "library",
    Fft: "library",
    RngBitGenerator: "library",
    TopK: "library",
    CustomCall: "host",
}
"""Ops with kernels of their own, and the kind of fusion."""
IN_PLACE = ("update", "scatter")
WHOLE = (*IN_PLACE, "host")
"""Kinds of kernels that give all results of their op, used or not."""
EXPENSIVE = (
    ew.Exponential, ew.ExponentialMinusOne, ew.Log, ew.LogPlusOne, ew.Logistic, ew.Tanh, ew.Sine, ew.Cosine, ew.Tan,
    ew.Erf, ew.Erfc, ew.ErfInv, ew.Power, ew.Atan2, ew.Cbrt, ew.Asin, ew.Acos, ew.Atan, ew.Sinh, ew.Cosh, ew.Asinh,
    ew.Acosh, ew.Atanh, ew.Lgamma, ew.Digamma, ew.BesselI0e, ew.BesselI1e, ew.Remainder,
)  # fmt: skip
BEFORE_CONTRACTIONS = (Transpose, Reshape, Slice, Broadcast, Reverse)
"""Pure index arithmetic, which costs a contraction nothing."""
MOVES = (Transpose, Gather, Concatenate, Pad, Reverse, Slice, DynamicSlice)
"""Ops whose elements lie at other indices of the operand."""
BREAKS_ROWS = (Transpose, Gather, Concatenate, Pad, Reverse)
MOST_MEMBERS = 200
MOST_OPERANDS = 40
MOST_ROOTS = 16
MOST_REPEATS = 16
MOST_INDICES = 16
SMALL_ELEMENTS = 4096
LONG_ROW = 128 << 10
"""Rows of more elements are cut in pieces when there are few of them, which takes a kernel of its own."""
FEW_ROWS = 8
LEAST_PRODUCT_ROWS = 64
MOST_PRODUCT_COLUMNS = 4096
"""Of a product whose rows stay in cache until they are reduced: a tile of 14 rows takes 229 KiB."""


class Group:
    """Instructions that become one kernel. `roots` are those whose values others read; `kind` is the fusion's."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.roots: list[Instruction] = []
        self.members: dict[Instruction, int] = {}
        """Each with how often one of its elements is computed, at least."""
        self.indices: dict[Instruction, int] = {}
        """At how many indices each is computed for one element of the results, in code of its own for each."""
        self.row_reduction: Instruction | None = None
        self.hero: Instruction | None = None
        """The one Dot or Convolution of a contraction."""

    def add(self, i: Instruction, times: int) -> None:
        rows = isinstance(i.op, Reduce) and reduces_minor(i)
        # A row's reduction is computed once a row, whatever reads it.
        self.members[i] = 1 if rows else times
        self.indices[i] = 1 if rows else self.indices_of(i)
        if rows:
            self.row_reduction = self.row_reduction or i
        if isinstance(i.op, Dot | Convolution) and self.hero is None:
            self.hero, self.kind = i, "contraction"

    def times(self, i: Instruction) -> int:
        """How often an element of `i` would be computed for the members that use it."""
        return max((self.members[u] * repeats(u, i) for u in i.users if u in self.members), default=1)

    def indices_of(self, i: Instruction) -> int:
        """At how many indices `i` would be computed. In `x + pad(x)` two, and twice as many for what that x is made of
        in the same way: running sums by doubling steps would be computed anew for each of their terms."""
        inside = [u for u in i.users if u in self.members]
        same = max((self.indices[u] for u in inside if not isinstance(u.op, MOVES)), default=0)
        return max(1, same + sum(self.indices[u] for u in inside if isinstance(u.op, MOVES)))

    def operand_count(self, more: Instruction) -> int:
        """Operands that the group would read with one more member."""
        return _operand_count((*self.members, more))

    # -- joining as a producer -----------------------------------------------------------------------------------------

    def refuses(self, i: Instruction) -> str:
        """Why `i` can't be computed inside the group; empty when it can."""
        if len(self.members) >= MOST_MEMBERS:
            return "the kernel has enough members"
        if type(i.op) in KINDS:
            return f"{i.opcode} has a kernel of its own"
        if self.kind not in ("loop", "contraction"):
            return f"a {self.kind} kernel takes nothing in"
        if self.operand_count(i) > MOST_OPERANDS:
            return "the kernel has enough operands"
        if isinstance(i.op, Dot | Convolution):
            return self._refuses_hero(i)
        if isinstance(i.op, Reduce):
            return self._refuses_reduce(i)
        if isinstance(i.op, ReduceWindow):
            plain = self.kind == "loop" and self.row_reduction is None and self._is_map_of(_dimensions(i))
            return "" if plain else "its users are not elementwise on its shape"
        if self.hero is not None and self._leads_to_hero(i):
            return "" if isinstance(i.op, BEFORE_CONTRACTIONS) else "only index ops join before a contraction"
        return self._refuses_map(i)

    def _refuses_map(self, i: Instruction) -> str:
        times = self.times(i)
        if times > 1 and isinstance(i.op, EXPENSIVE):
            return f"each element would be computed {times} times"
        indices = self.indices_of(i)
        if indices > (2 if isinstance(i.op, EXPENSIVE) else MOST_INDICES):
            return f"it would be computed at {indices} indices"
        if times > 1 and isinstance(i.op, Gather | Concatenate | DynamicSlice):
            return "an indirect access would be repeated"
        if self.row_reduction is not None and isinstance(i.op, BREAKS_ROWS):
            return f"{i.opcode} would break the rows' runs of neighbours"
        cheap = isinstance(i.op, Broadcast | Iota) or i.array_shape.elements <= SMALL_ELEMENTS
        if times > MOST_REPEATS and not cheap:
            return f"each element would be computed {times} times"
        if isinstance(i.op, Transpose) and self.hero is not None:
            return "a transpose in an epilogue reads badly"
        return ""

    def _refuses_hero(self, i: Instruction) -> str:
        if self.hero is not None:
            return "the kernel has a contraction already"
        if self.row_reduction is not None:
            return _refuses_product_rows(i, self.row_reduction, self.members)
        if any(isinstance(m.op, Reduce | ReduceWindow) for m in self.members):
            return "the kernel reduces"
        after = self._after(i)
        for m in after:
            if not (m.op.elementwise or isinstance(m.op, Reshape)) or m.array_shape.elements != i.array_shape.elements:
                return f"{m.opcode} is no epilogue"
        if not all(r in after or r is i for r in self.roots):
            return "the kernel has results that do not come from it"
        return self._refuses_reshapes(after)

    def _refuses_reshapes(self, after: Iterable[Instruction]) -> str:
        """Around a reshape an epilogue must be one chain."""
        split = [m for m in after if sum(u in self.members for u in m.users) > 1]
        if split and any(isinstance(m.op, Reshape) for m in after):
            return "its result is used in several shapes"
        return ""

    def _after(self, i: Instruction) -> dict[Instruction, None]:
        """The members that come after `i`."""
        return _after(i, self.members)

    def _leads_to_hero(self, i: Instruction) -> bool:
        return self.hero in self._after(i)

    def _refuses_reduce(self, i: Instruction) -> str:
        if self.hero is not None:
            return "a reduction does not join an epilogue"
        if not reduces_minor(i):
            alone = self.row_reduction is None and self._is_map_of(_dimensions(i)) and self._reduces_like(i)
            return "" if alone else "a reduction over columns joins only ops on its own result"
        space = i.operands[0].array_shape.dimensions
        if self.row_reduction is not None and not _same_space(self.row_reduction, i):
            return "the kernel has rows of another shape"
        rows = _elements(i)
        columns = i.operands[0].array_shape.elements // max(1, rows)
        for member in self.members:
            if reason := _misaligned(member, space, rows):
                return reason
        if reason := self._crosses_rows(i, self._after(i)):
            return reason
        if rows < FEW_ROWS and columns > LONG_ROW and any(_elements(r) != rows for r in self.roots):
            return "rows this long are reduced in pieces"
        return ""

    def _crosses_rows(self, reduction: Instruction, after: Collection[Instruction]) -> str:
        """Why a value that a row has is asked for by other rows; empty when it isn't."""
        sizes = reduction.operands[0].array_shape.sizes
        outer = [d for d, size in enumerate(sizes) if size != 1 and d not in reduction.op.dimensions]  # type: ignore[attr-defined]
        for m in after:
            if not isinstance(m.op, Broadcast) or m.array_shape.sizes != sizes:
                continue
            kept = m.operands[0].array_shape.sizes
            along = [d for n, d in enumerate(m.op.broadcast_dimensions) if kept[n] != 1]
            comes = m.operands[0] is reduction or m.operands[0] in after
            if comes and along not in (outer, [d for d, size in enumerate(sizes) if size != 1]):
                return f"{m.name} gives rows the values of others"
        return ""

    def _is_map_of(self, dimensions: tuple[object, ...]) -> bool:
        """Whether all members are elementwise on one shape, or reductions to it."""
        for member in self.members:
            if isinstance(member.op, Broadcast | GetTupleElement | Iota):
                continue
            if not (member.op.elementwise or isinstance(member.op, Reduce)) or _dimensions(member) != dimensions:
                return False
        return True

    def _reduces_like(self, i: Instruction) -> bool:
        """Whether the group's reductions, if any, are over the same dimensions of the same space and not after `i`."""
        found = [m for m in self.members if isinstance(m.op, Reduce)]
        after = self._after(i) if found else {}
        return all(_same_space(m, i) and m not in after for m in found)

    # -- joining with another group ------------------------------------------------------------------------------------

    def refuses_group(self, other: Group) -> str:
        """Why two groups can't be one; empty when they can. Says nothing of cycles."""
        members = dict.fromkeys((*self.members, *other.members))
        if len(members) > MOST_MEMBERS or len(self.roots) + len(other.roots) > MOST_ROOTS:
            return "the kernel would have too many members"
        if _operand_count(members) > MOST_OPERANDS:
            return "the kernel would have too many operands"
        if self.hero is not None and other.kind == "loop":
            return self._refuses_epilogue(other) if other.row_reduction is None else self._refuses_rows_epilogue(other)
        if self.hero is not None and other.hero is not None:
            return self._refuses_chain(other)
        if self.kind != "loop" or other.kind != "loop":
            return "only loops become one kernel"
        for a, b in ((self, other), (other, self)):
            if not all(_shares_loops(u, r) for r in a.roots for u in r.users if u in b.members):
                return "one reads what the other gives in another order"
        rows = self.row_reduction or other.row_reduction
        return self._refuses_rows(other, rows) if rows is not None else self._refuses_map_group(other)

    def _refuses_epilogue(self, other: Group) -> str:
        """Why another group can't follow this contraction on its registers."""
        after: dict[Instruction, None] = {}
        for r in self.roots:
            after |= other._after(r)
        for m in other.members:
            # Biases are broadcast; the contraction's own results are at the registers' indices alone.
            beside = isinstance(m.op, Broadcast) and m not in after
            if not beside and not (m.op.elementwise and self._has_shape(m)):
                return f"{m.opcode} is no epilogue"
        if not all(map(self._has_shape, self.roots)):
            return "the contraction's results differ in shape"
        follows = all(r in after for r in other.roots)
        return "" if follows else "it has results that do not come from the contraction"

    def _refuses_rows_epilogue(self, other: Group) -> str:
        """Why a group that reduces rows can't follow this contraction row by row."""
        assert self.hero is not None and other.row_reduction is not None
        if self.row_reduction is not None and not _same_space(self.row_reduction, other.row_reduction):
            return "their rows differ"
        members = {*self.members, *other.members}
        if reason := _refuses_product_rows(self.hero, other.row_reduction, members):
            return reason
        total, rows = _elements(self.hero), _elements(other.row_reduction)
        if any(_elements(r) not in (total, rows) for r in (*self.roots, *other.roots)):
            return "its results are not of its rows"
        reductions = [m for m in members if isinstance(m.op, Reduce)]
        if any(not _same_space(m, other.row_reduction) for m in reductions):
            return "their rows differ"
        return next(filter(None, (self._crosses_rows(m, _after(m, members)) for m in reductions)), "")

    def _refuses_chain(self, other: Group) -> str:
        """Why another product can't multiply the rows that this one makes and reduces, as attention does."""
        first, second = self.hero, other.hero
        assert first is not None and second is not None
        if self.row_reduction is None or other.row_reduction is not None:
            return "the first product's rows are not what the second multiplies"
        if not (isinstance(first.op, Dot) and isinstance(second.op, Dot)):
            return "only products of matrices follow one another"
        if self.roots != [second.operands[0]] or any(u is not second for u in second.operands[0].users):
            return "the rows are needed elsewhere"
        rank = second.operands[0].array_shape.rank
        batch = tuple(range(len(second.op.lhs_batch)))
        if (
            second.op.lhs_batch != batch
            or second.op.lhs_contracting != (rank - 1,)
            or len(first.op.lhs_batch) != len(batch)
        ):
            return "the products have other batches"
        if _dimensions(first) != _dimensions(second.operands[0]):
            return "the rows have another shape than the first product"
        return ""

    def _has_shape(self, i: Instruction) -> bool:
        assert self.hero is not None
        return _dimensions(i) == _dimensions(self.hero)

    def _refuses_rows(self, other: Group, rows: Instruction) -> str:
        space, count = rows.operands[0].array_shape.dimensions, _elements(rows)
        for m in (*self.members, *other.members):
            if isinstance(m.op, Reduce):
                if not _same_space(m, rows):
                    return "their rows differ"
                if reason := self._crosses_rows(m, _after(m, {*self.members, *other.members})):
                    return reason
            if reason := _misaligned(m, space, count):
                return reason
        for r in (*self.roots, *other.roots):
            if _dimensions(r) != space and _elements(r) != count:
                return f"its rows are not those of {rows.name}"
            if count < FEW_ROWS and _elements(r) != count and rows.operands[0].array_shape.elements > LONG_ROW * count:
                return "rows this long are reduced in pieces"
        return ""

    def _refuses_map_group(self, other: Group) -> str:
        members = dict.fromkeys((*self.members, *other.members))
        reductions = [m for m in members if isinstance(m.op, Reduce)]
        if not all(_same_space(r, reductions[0]) for r in reductions):
            return "they reduce different spaces"
        after = {m for r in reductions for m in (*self._after(r), *other._after(r))}
        if any(r in after for r in reductions):
            return "one reduction waits for the other"
        result = _dimensions(self.roots[0])
        space = reductions[0].operands[0].array_shape.dimensions if reductions else result
        for m in members:
            if isinstance(m.op, Broadcast | Iota) and m not in after:
                continue
            shapes = (result,) if m in after else (result, space)
            if not (m.op.elementwise or isinstance(m.op, Reduce | GetTupleElement)) or _dimensions(m) not in shapes:
                return "they are not elementwise on one shape"
        return (
            ""
            if all(_dimensions(r) == result for r in (*self.roots, *other.roots))
            else "their results differ in shape"
        )

    def reads_in_its_loops(self, i: Instruction) -> bool:
        """Whether an array has the shape of the group's loops."""
        space = self.row_reduction.operands[0] if self.row_reduction is not None else self.roots[0]
        reductions = [m.operands[0] for m in self.members if isinstance(m.op, Reduce)]
        return any(_dimensions(i) == _dimensions(s) for s in (space, *reductions))


def is_written_in(i: Instruction) -> bool:
    """Whether an instruction is a constant that kernels hold in their code."""
    return isinstance(i.op, Constant) and i.array_shape.elements == 1


def _after(i: Instruction, members: Collection[Instruction]) -> dict[Instruction, None]:
    """Those of `members` that come after `i`."""
    found: dict[Instruction, None] = {}
    stack = [u for u in i.users if u in members]
    while stack:
        m = stack.pop()
        if m not in found:
            found[m] = None
            stack += [u for u in m.users if u in members]
    return found


def _operand_count(members: Collection[Instruction]) -> int:
    inside = set(members)
    return len({o for m in members for o in m.operands if o not in inside and not is_written_in(o)})


def _shares_loops(user: Instruction, i: Instruction) -> bool:
    """Whether `user` asks for `i` once an element, in the order in which its own elements come."""
    if isinstance(user.op, Broadcast):
        return repeats(user, i) == 1
    return user.op.elementwise or isinstance(user.op, Reduce | GetTupleElement)


def reduces_minor(i: Instruction) -> bool:
    """Whether a reduction runs along memory."""
    real = [d for d, s in enumerate(i.operands[0].array_shape.sizes) if s != 1]
    return bool(real) and real[-1] in i.op.dimensions  # type: ignore[attr-defined]


def _dimensions(i: Instruction) -> tuple[object, ...]:
    leaves = i.shape.leaves()
    return leaves[0].dimensions if leaves else ()


def _elements(i: Instruction) -> int:
    leaves = i.shape.leaves()
    return leaves[0].elements if leaves else 0


def _same_space(a: Instruction, b: Instruction) -> bool:
    """Whether two reductions make the same loops."""
    same = a.operands[0].array_shape.dimensions == b.operands[0].array_shape.dimensions
    return same and set(a.op.dimensions) == set(b.op.dimensions)  # type: ignore[attr-defined]


def _refuses_product_rows(i: Instruction, reduction: Instruction, members: Collection[Instruction]) -> str:
    """Why a kernel of `members`, which reduces rows, can't make them by the product i, row after row; empty when it
    can."""
    total, rows = _elements(i), _elements(reduction)
    columns = total // max(1, rows)
    sizes, dimensions = reduction.operands[0].array_shape.sizes, sorted(reduction.op.dimensions)  # type: ignore[attr-defined]
    if not isinstance(i.op, Dot) or i.array_shape.element_type.is_complex or not total:
        return "only products of matrices make rows"
    if dimensions != list(range(len(sizes) - len(dimensions), len(sizes))) or math.prod(sizes) != total:
        return "its rows are others"
    if product_columns(i) != columns:
        return "its columns are no rows of the kernel"
    if rows < LEAST_PRODUCT_ROWS:
        return "few rows are better cut in columns, for more threads to share"
    if columns > MOST_PRODUCT_COLUMNS:
        return "its rows are too long to keep"
    for m in _after(i, members):
        kept = m.op.elementwise or isinstance(m.op, Reshape | Broadcast | Reduce | GetTupleElement)
        if not kept or _elements(m) not in (total, rows):
            return f"{m.name} does not follow its rows"
    return ""


def product_columns(i: Instruction) -> int:
    """How many columns a Dot's result has."""
    assert isinstance(i.op, Dot)
    sizes = i.operands[1].array_shape.sizes
    taken = {*i.op.rhs_batch, *i.op.rhs_contracting}
    return math.prod(size for d, size in enumerate(sizes) if d not in taken)


def _misaligned(member: Instruction, space: tuple[object, ...], rows: int) -> str:
    """Why a member does not follow the rows of a space; empty when it does."""
    if isinstance(member.op, Reduce | GetTupleElement | Iota):
        return ""
    shape = member.array_shape
    if isinstance(member.op, Reshape):
        without_ones = [[s for s in x.array_shape.sizes if s != 1] for x in (member, member.operands[0])]
        same = without_ones[0] == without_ones[1]
        return "" if same or shape.elements == rows else f"{member.name} reshapes"
    fits = shape.dimensions == space or shape.elements == rows
    if isinstance(member.op, Broadcast):
        fits = fits or shape.elements == 1
    elif not member.op.elementwise:
        return f"{member.name} moves elements"
    return "" if fits else f"{member.name} has another shape"


def repeats(user: Instruction, operand: Instruction) -> int:
    """How often `user` asks for one element of `operand`."""
    if isinstance(user.op, Broadcast):
        if operand.array_shape.rank and user.op.broadcast_dimensions == tuple(range(operand.array_shape.rank)):
            # One value a row, which moves out of the loop over the row.
            return 1
        return max(1, user.array_shape.elements // max(1, operand.array_shape.elements))
    if isinstance(user.op, ReduceWindow):
        return max(1, math.prod(user.op.window.size) // math.prod(user.op.window.stride))
    if isinstance(user.op, Dot | Convolution):
        return 8
    if isinstance(user.op, Gather):
        return max(1, user.array_shape.elements // max(1, operand.array_shape.elements))
    return 1
