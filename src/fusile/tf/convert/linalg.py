"""Linear algebra: Cholesky factors and triangular solves in our own kernels, the rest by LAPACK."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fusile.base.element_type import C64, F32, F64, S32
from fusile.base.shape import Shape, TupleShape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.control import CustomCall
from fusile.hlo.opset.other import Cholesky, TriangularSolve
from fusile.tf.context import Context, shape_of
from fusile.tf.convert.indexing import take_along
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


def lapack(
    b: Builder, name: str, operands: Sequence[Instruction], results: Sequence[Shape], **attributes: str
) -> list[Instruction]:
    """A call of LAPACK's routine for the operands' type; attributes are LAPACK's letters."""
    of = operands[0].array_shape.element_type
    letter = {F32: "s", F64: "d", C64: "c"}.get(of, "z")
    if letter in "cz":
        name = {"orgqr": "ungqr", "syevd": "heevd"}.get(name, name)
    config = json.dumps({key: ord(value) for key, value in attributes.items()}, sort_keys=True)
    call = b.emit(CustomCall(f"lapack_{letter}{name}_ffi", TupleShape(tuple(results)), config), *operands)
    return [b.element(call, n) for n in range(len(results))]


def _checked(context: Context, x: Value) -> Value:
    if x.element_type.bits < 32:
        raise context.unsupported(f"linear algebra of {x.element_type}", "cast to float32")
    return x


def swapped(b: Builder, x: Instruction, conjugate: bool = False) -> Instruction:
    """Each matrix transposed, and conjugated if asked for."""
    rank = x.array_shape.rank
    result = b.transpose(x, (*range(rank - 2), rank - 1, rank - 2))
    if not (conjugate and x.array_shape.element_type.is_complex):
        return result
    return b.complex(b.real(result), b.negate(b.imag(result)))


def product(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    """Products of matrices, batch by batch."""
    rank = x.array_shape.rank
    batch = tuple(range(rank - 2))
    return b.dot(x, y, batch, batch, (rank - 1,), (rank - 2,))


def _iotas(b: Builder, sizes: Sequence[int]) -> tuple[Instruction, Instruction]:
    shape = shape_of(S32, sizes)
    return b.iota(shape, len(sizes) - 2), b.iota(shape, len(sizes) - 1)


def triangle(b: Builder, x: Instruction, lower: bool = True) -> Instruction:
    """Each matrix with zeros outside of a triangle."""
    row, column = _iotas(b, x.array_shape.sizes)
    return b.select(b.compare(row, column, "GE" if lower else "LE"), x, b.like(0, x))


def identity(b: Builder, like: Instruction) -> Instruction:
    row, column = _iotas(b, like.array_shape.sizes)
    return b.convert(b.compare(row, column, "EQ"), like.array_shape.element_type)


# -- factors -----------------------------------------------------------------------------------------------------------


@converter("Cholesky")
def cholesky(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """The lower factor; where a matrix is not positive definite it is NaN (TensorFlow raises)."""
    b = context.builder
    return triangle(b, b.emit(Cholesky(True), _checked(context, inputs[0]).instruction))


@converter("CholeskyGrad")
def cholesky_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Murray, "Differentiation of the Cholesky decomposition" (2016), equation 10."""
    b = context.builder
    factor, gradient = (v.instruction for v in inputs)
    row, column = _iotas(b, factor.array_shape.sizes)
    middle = triangle(b, product(b, swapped(b, factor, True), triangle(b, gradient)))
    half = b.multiply(middle, b.like(0.5, middle))
    middle = b.select(b.compare(row, column, "EQ"), half, middle)
    left = b.emit(TriangularSolve(True, True, False, "ADJOINT"), factor, middle)
    both = b.emit(TriangularSolve(False, True, False, "NO_TRANSPOSE"), factor, left)
    total = b.add(both, swapped(b, both, True))
    return b.multiply(total, b.like(0.5, total))


@converter("Qr")
def qr(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    b, x = context.builder, _checked(context, inputs[0])
    *batch, rows, columns = x.sizes
    of, least = x.element_type, min(rows, columns)
    form, tau = lapack(b, "geqrf", [x.instruction], [shape_of(of, x.sizes), shape_of(of, (*batch, least))])
    width = rows if node.attribute("full_matrices") else least
    start = [0] * len(batch)
    if width <= columns:
        reflectors = b.slice(form, (*start, 0, 0), (*batch, rows, width))
    else:
        zero = b.constant(0, of)
        reflectors = b.pad(form, zero, (*start, 0, 0), (*start, 0, width - columns))
    (q,) = lapack(b, "orgqr", [reflectors, tau], [shape_of(of, (*batch, rows, width))])
    r = triangle(b, form, lower=False)
    return [q, b.slice(r, (*start, 0, 0), (*batch, width, columns))]


@converter("SelfAdjointEigV2")
def self_adjoint_eigenvalues(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    b, x = context.builder, _checked(context, inputs[0])
    *batch, _, size = x.sizes
    of = x.element_type
    shapes = [shape_of(of, x.sizes), shape_of(of.real, (*batch, size)), shape_of(S32, batch)]
    wanted = bool(node.attribute("compute_v"))
    vectors, values, _ = lapack(b, "syevd", [x.instruction], shapes, mode="V" if wanted else "N", uplo="L")
    values = b.convert(values, of) if not of.is_complex else b.complex(values, b.like(0, values))
    return [values, vectors if wanted else b.full(0, shape_of(of, (*batch, 0, 0)))]


@converter("Svd")
def singular_values(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    b, x = context.builder, _checked(context, inputs[0])
    *batch, rows, columns = x.sizes
    of, least = x.element_type, min(rows, columns)
    full, wanted = bool(node.attribute("full_matrices")), bool(node.attribute("compute_uv"))
    u_sizes = (*batch, rows, rows if full else least)
    v_sizes = (*batch, columns if full else least, columns)
    shapes = [
        shape_of(of, x.sizes), shape_of(of.real, (*batch, least)), shape_of(of, u_sizes), shape_of(of, v_sizes),
        shape_of(S32, batch),
    ]  # fmt: skip
    mode = "N" if not wanted else "A" if full else "S"
    _, values, u, v, _ = lapack(b, "gesdd", [x.instruction], shapes, mode=mode)
    if not wanted:
        nothing = b.full(0, shape_of(of, (0,)))
        return [values, nothing, nothing]
    return [values, u, swapped(b, v, True)]


def _factored(b: Builder, x: Instruction) -> tuple[Instruction, Instruction]:
    """LU factors and which row of the matrix each of theirs is (s32[..., n])."""
    *batch, _, size = x.array_shape.sizes
    shapes = [x.array_shape, shape_of(S32, (*batch, size)), shape_of(S32, batch)]
    form, pivots, _ = lapack(b, "getrf", [x], shapes)
    order = b.iota(shape_of(S32, (*batch, size)), len(batch))
    number = order
    for step in range(size):
        # Row `step` and its pivot's row change places.
        last = len(batch)
        begin, end = [0] * last + [step], [*batch, step + 1]
        pivot = b.slice(pivots, begin, end)
        pivot = b.subtract(pivot, b.like(1, pivot))
        other = take_along(b, order, pivot, last)
        own = b.slice(order, begin, end)
        spread = [b.broadcast_to(v, (*batch, size)) for v in (pivot, other, own)]
        order = b.select(b.compare(number, b.like(step, number), "EQ"), spread[1],
                         b.select(b.compare(number, spread[0], "EQ"), spread[2], order))  # fmt: skip
    return form, order


def _rows_in_order(b: Builder, x: Instruction, order: Instruction) -> Instruction:
    """Each matrix's rows in an order of s32[..., n]."""
    sizes = x.array_shape.sizes
    spread = b.broadcast(order, (*order.array_shape.sizes, sizes[-1]), tuple(range(order.array_shape.rank)))
    return take_along(b, x, spread, len(sizes) - 2)


def _solved(b: Builder, form: Instruction, right: Instruction, transpose: str) -> Instruction:
    """The solution by LU factors, whose rows `right` is in order of (or the result will be, when transposed)."""
    first = TriangularSolve(True, True, True, transpose)
    second = TriangularSolve(True, False, False, transpose)
    steps = (first, second) if transpose == "NO_TRANSPOSE" else (second, first)
    for step in steps:
        right = b.emit(step, form, right)
    return right


@converter("MatrixSolve")
def solve(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    x, right = _checked(context, inputs[0]).instruction, inputs[1].instruction
    if node.attribute("adjoint"):
        x = swapped(b, x, True)
    form, order = _factored(b, x)
    return _solved(b, form, _rows_in_order(b, right, order), "NO_TRANSPOSE")


@converter("MatrixInverse")
def inverse(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, _checked(context, inputs[0]).instruction
    if node.attribute("adjoint"):
        x = swapped(b, x, True)
    form, order = _factored(b, x)
    return _solved(b, form, _rows_in_order(b, identity(b, x), order), "NO_TRANSPOSE")


@converter("MatrixTriangularSolve")
def triangular_solve(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    x, right = (_checked(context, v).instruction for v in inputs)
    batch = [max(p, q) for p, q in zip(x.array_shape.sizes[:-2], right.array_shape.sizes[:-2], strict=True)]
    x, right = (b.broadcast_to(v, (*batch, *v.array_shape.sizes[-2:])) for v in (x, right))
    transpose = "ADJOINT" if node.attribute("adjoint") else "NO_TRANSPOSE"
    return b.emit(TriangularSolve(True, bool(node.attribute("lower")), False, transpose), x, right)


def _diagonal(b: Builder, x: Instruction) -> Instruction:
    """The diagonals of square matrices."""
    row, column = _iotas(b, x.array_shape.sizes)
    kept = b.select(b.compare(row, column, "EQ"), x, b.like(0, x))
    return b.reduce_with("add", kept, (x.array_shape.rank - 1,))


def _sign_and_diagonal(b: Builder, x: Instruction) -> tuple[Instruction, Instruction]:
    """The sign of the permutation of a matrix's LU factors, and the diagonal whose product is the determinant but for
    it."""
    *batch, _, size = x.array_shape.sizes
    shapes = [x.array_shape, shape_of(S32, (*batch, size)), shape_of(S32, batch)]
    form, pivots, _ = lapack(b, "getrf", [x], shapes)
    number = b.iota(pivots.array_shape, len(batch))
    moved = b.compare(pivots, b.add(number, b.like(1, number)), "NE")
    count = b.reduce_with("add", b.convert(moved, S32), (len(batch),))
    odd = b.compare(b.and_(count, b.like(1, count)), b.like(1, count), "EQ")
    one = b.full(1, shape_of(x.array_shape.element_type, batch))
    return b.select(odd, b.negate(one), one), _diagonal(b, form)


@converter("MatrixDeterminant")
def determinant(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    sign, diagonal = _sign_and_diagonal(b, _checked(context, inputs[0]).instruction)
    return b.multiply(sign, b.reduce_with("multiply", diagonal, (diagonal.array_shape.rank - 1,)))


@converter("LogMatrixDeterminant")
def log_determinant(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    b = context.builder
    sign, diagonal = _sign_and_diagonal(b, _checked(context, inputs[0]).instruction)
    last = diagonal.array_shape.rank - 1
    size = b.abs(diagonal)
    if diagonal.array_shape.element_type.is_complex:
        unit = b.divide(diagonal, b.complex(size, b.like(0, size)))
    else:
        unit = b.sign(diagonal)
    logarithm = b.reduce_with("add", b.log(size), (last,))
    if diagonal.array_shape.element_type.is_complex:
        logarithm = b.complex(logarithm, b.like(0, logarithm))
    return [b.multiply(sign, b.reduce_with("multiply", unit, (last,))), logarithm]


@converter("Lu")
def lu(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    b = context.builder
    form, order = _factored(b, _checked(context, inputs[0]).instruction)
    return [form, b.convert(order, node.output_type(1))]
