"""What a kernel computes and moves, from shapes alone: what people see (`Executable.kernels`, `fusile bench`, reports),
and what decides whether threads are worth waking."""

from __future__ import annotations

import math

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import Fusion
from fusile.hlo.opset.other import Cholesky, Fft, TriangularSolve
from fusile.hlo.opset.reduction import Reduce, ReduceWindow, SelectAndScatter
from fusile.hlo.opset.shape import DynamicSlice, DynamicUpdateSlice, Gather, Scatter, Slice
from fusile.hlo.opset.structure import Constant, GetTupleElement, Parameter, Tuple
from fusile.runtime.program import Kernel

TRANSCENDENTAL_FLOPS = 16
_NO_WORK = (Parameter, Constant, Tuple, GetTupleElement)


def flops_of(fusion: Instruction) -> int:
    """Arithmetic operations of one launch: a multiply-add counts as two, a function such as `exponential` as one, and
    what is computed again for each of several users once."""
    (body,) = fusion.op.computations()
    return sum(_flops(i) for i in body.instructions if not isinstance(i.op, _NO_WORK))


def _flops(i: Instruction) -> int:
    elements = sum(s.elements for s in i.shape.leaves())
    if isinstance(i.op, Dot):
        terms = math.prod(i.operands[0].array_shape.sizes[d] for d in i.op.lhs_contracting)
        return _multiply_adds(i, elements * terms)
    if isinstance(i.op, Convolution):
        kernel = i.operands[1].array_shape
        features = kernel.sizes[i.op.dimension_numbers.kernel_output_feature]
        return _multiply_adds(i, elements * (kernel.elements // max(1, features)))
    if isinstance(i.op, Reduce):
        return sum(o.array_shape.elements for o in i.operands[: len(i.operands) // 2])
    if isinstance(i.op, ReduceWindow):
        return elements * math.prod(i.op.window.size)
    if isinstance(i.op, SelectAndScatter):
        source = i.operands[1].array_shape.elements
        return source * (1 + math.prod(i.op.window.size))
    if isinstance(i.op, Scatter):
        return sum(u.array_shape.elements for u in i.operands[1 + len(i.operands) // 2 :])
    if isinstance(i.op, Fft | Cholesky | TriangularSolve):
        return _linear_algebra(i)
    return elements if i.op.elementwise else 0


def _multiply_adds(i: Instruction, count: int) -> int:
    """A complex multiply-add is four real ones."""
    return count * (8 if i.array_shape.element_type.is_complex else 2)


def _linear_algebra(i: Instruction) -> int:
    """The usual counts (Golub and Van Loan, Matrix Computations): 5 n log2 n, n^3 / 3 and n^2 for each right side."""
    sizes = i.operands[0].array_shape.sizes
    if isinstance(i.op, Fft):
        length = math.prod(i.op.length)
        transforms = max(i.operands[0].array_shape.elements, i.array_shape.elements) // max(1, length)
        return round(5 * transforms * length * math.log2(max(2, length)))
    matrices, n = math.prod(sizes[:-2]), sizes[-1]
    if isinstance(i.op, Cholesky):
        return matrices * n**3 // 3
    return n * i.array_shape.elements


def kernel_record(fusion: Instruction, code: str = "") -> Kernel:
    """The record of one launch of the function `code`. Each operand is read once: whole, or what slices and gathers
    take of it. Each result is written once: whole, or the part that is new where it lies in an operand's place."""
    (body,) = fusion.op.computations()
    ops = tuple(i.opcode for i in body.post_order() if not isinstance(i.op, _NO_WORK))
    assert isinstance(fusion.op, Fusion)
    in_place = {operand for _, operand in fusion.op.in_place}
    read = sum(_read(p, n in in_place) for n, p in enumerate(body.parameters))
    return Kernel(fusion.name, ops, flops_of(fusion), read, _written(fusion), code)


def _read(parameter: Instruction, in_place: bool) -> int:
    """Bytes of a kernel's operand that are read. `in_place`: a result lies where it does."""
    whole = sum(s.bytes for s in parameter.shape.leaves())
    taken = 0
    for user in parameter.users:
        op, only_first = user.op, parameter not in user.operands[1:]
        if isinstance(op, Slice | DynamicSlice | Gather) and only_first:
            taken += user.array_shape.bytes
        elif in_place and isinstance(op, Scatter) and parameter not in user.operands[len(user.operands) // 2 :]:
            taken += sum(u.array_shape.bytes for u in user.operands[1 + len(user.operands) // 2 :])
        elif not (in_place and isinstance(op, DynamicUpdateSlice) and only_first):
            return whole
    return min(whole, taken) if parameter.users and not parameter.is_root else whole


def _written(fusion: Instruction) -> int:
    """Bytes of a kernel's results that are written."""
    (body,) = fusion.op.computations()
    assert isinstance(fusion.op, Fusion)
    in_place = dict(fusion.op.in_place)
    roots = list(body.root.operands) if isinstance(body.root.op, Tuple) else [body.root]
    total = 0
    for number, shape in enumerate(fusion.shape.leaves()):
        root = roots[number] if number < len(roots) else body.root
        if number in in_place and isinstance(root.op, DynamicUpdateSlice):
            total += root.operands[1].array_shape.bytes
        elif number in in_place and isinstance(root.op, Scatter):
            total += min(shape.bytes, root.operands[-1].array_shape.bytes)
        else:
            total += shape.bytes
    return total


def work_of(fusion: Instruction) -> int:
    """Bytes moved and operations done, transcendental ones weighted."""
    from fusile.loops.lowering.elemental import transcendental

    (body,) = fusion.op.computations()
    record = kernel_record(fusion)
    costly = sum(i.array_shape.elements for i in body.instructions if not i.shape.is_tuple and transcendental(i))
    return record.bytes_read + record.bytes_written + record.flops + TRANSCENDENTAL_FLOPS * costly
