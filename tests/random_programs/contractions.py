"""Products and convolutions."""

from __future__ import annotations

from fusile.base import element_type as e
from fusile.base.shape import Shape
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution
from fusile.hlo.opset.window import ConvolutionDimensions
from random_programs.elementwise import small_complex
from random_programs.generator import Generator, family
from random_programs.reductions import window_of


def fit(g: Generator, x: Instruction) -> Instruction:
    """An operand that sums of products may take."""
    return small_complex(g, x) if x.array_shape.element_type.is_complex else g.small(x)


def usable(g: Generator, x: Instruction | None) -> bool:
    """Whether products of x may be made here: sums of floats are rough."""
    return x is not None and (x.array_shape.element_type.is_integer or not (g.exact_only or g.rough(x) > 1))


@family(5)
def dot(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0 and not s.element_type.is_predicate)
    if not usable(g, x):
        return None
    sizes = x.array_shape.sizes
    dimensions = g.shuffled(range(len(sizes)))
    batch = dimensions[: g.integer(0, 1)] if len(sizes) > 1 else []
    contracting = dimensions[len(batch) : len(batch) + g.integer(0 if g.chance(0.2) else 1, 2)]
    free = list(g.sizes(g.integer(0, 2)))
    roles = g.shuffled([("batch", d) for d in batch] + [("sum", d) for d in contracting] + [("free", s) for s in free])
    other = tuple(value if role == "free" else sizes[value] for role, value in roles)
    y = g.of(Shape(x.array_shape.element_type, other))
    if not usable(g, y):
        return None
    place = {role: number for number, role in enumerate(roles) if role[0] != "free"}
    return g.b.dot(
        fit(g, x), fit(g, y), batch, [place["batch", d] for d in batch], contracting,
        [place["sum", d] for d in contracting],
    )  # fmt: skip


@family(3)
def convolution(g: Generator) -> Instruction | None:
    kind = g.pick((e.F32, e.F32, e.F64, e.S32, e.BF16, e.F16))
    if kind.is_float and g.exact_only:
        return None
    rank = g.integer(1, 2)
    groups, batch_groups = g.pick(((1, 1), (1, 1), (2, 1), (1, 2)))
    spatial, features_in, features_out = g.sizes(rank), g.integer(1, 3), g.integer(1, 3) * groups * batch_groups
    window = window_of(g, spatial)
    a_order, k_order, o_order = (g.shuffled(range(rank + 2)) for _ in range(3))
    a_sizes, k_sizes = [0] * (rank + 2), [0] * (rank + 2)
    parts = (g.integer(1, 2) * batch_groups, features_in * groups, *spatial)
    for at, size in zip(a_order, parts, strict=True):
        a_sizes[at] = size
    for at, size in zip(k_order, (features_in, features_out, *window.size), strict=True):
        k_sizes[at] = size
    numbers = ConvolutionDimensions(
        a_order[0], a_order[1], tuple(a_order[2:]), k_order[0], k_order[1], tuple(k_order[2:]), o_order[0], o_order[1],
        tuple(o_order[2:]),
    )  # fmt: skip
    a, k = g.of(Shape(kind, tuple(a_sizes))), g.of(Shape(kind, tuple(k_sizes)))
    if not usable(g, a) or not usable(g, k):
        return None
    return g.b.emit(Convolution(window, numbers, groups, batch_groups), fit(g, a), fit(g, k))
