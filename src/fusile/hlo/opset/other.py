"""Composite ops that passes expand or that have kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import C64, C128, F32, F64, S32, U64
from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import AnyShape, Shape, TupleShape
from fusile.hlo.ir import Instruction, Op, op
from fusile.hlo.opset import random_bits
from fusile.hlo.opset.shape import array_operand, require


@op
class Fft(Op):
    """Discrete Fourier transform of the last dimensions (`fft`): kind FFT, IFFT, RFFT or IRFFT, with the lengths."""

    kind: str
    length: tuple[int, ...]

    opcode = "fft"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("fft", operands[0])
        require(
            self.kind in ("FFT", "IFFT", "RFFT", "IRFFT") and 1 <= len(self.length) <= 3 and len(self.length) <= x.rank,
            f"fft {self.kind} of {x} with lengths {self.length}",
        )
        outer = x.sizes[: x.rank - len(self.length)]
        if self.kind == "RFFT":
            require(x.element_type in (F32, F64), f"rfft takes f32 or f64, not {x}")
            return Shape(C64 if x.element_type is F32 else C128, (*outer, *self.length[:-1], self.length[-1] // 2 + 1))
        require(x.element_type in (C64, C128), f"{self.kind.lower()} takes complex numbers, not {x}")
        result = x.element_type.real if self.kind == "IRFFT" else x.element_type
        return Shape(result, (*outer, *self.length))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        axes = tuple(range(-len(self.length), 0))
        functions: dict[str, Any] = {
            "FFT": np.fft.fftn,
            "IFFT": np.fft.ifftn,
            "RFFT": np.fft.rfftn,
            "IRFFT": np.fft.irfftn,
        }
        shape = instruction.array_shape
        if 0 in shape.sizes:
            return np.zeros(shape.sizes, shape.element_type.dtype)
        return functions[self.kind](operands[0], s=self.length, axes=axes).astype(shape.element_type.dtype)


@op
class Cholesky(Op):
    """The triangular factor of each positive definite matrix in the last two dimensions (`cholesky`)."""

    lower: bool

    opcode = "cholesky"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = array_operand("cholesky", operands[0])
        require(x.rank >= 2 and x.dimensions[-1] == x.dimensions[-2], f"cholesky takes square matrices, not {x}")
        return x

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        a = operands[0]
        if not a.size:
            return a
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        if not self.lower:
            a = np.conj(np.swapaxes(a, -1, -2))
        flat = a.reshape(-1, *a.shape[-2:]).astype(wide)
        out = np.zeros_like(flat)
        for i, matrix in enumerate(flat):
            try:
                out[i] = np.linalg.cholesky(np.tril(matrix) + np.conj(np.tril(matrix, -1)).T)
            except np.linalg.LinAlgError:
                out[i] = np.nan
        result = out.reshape(a.shape).astype(operands[0].dtype)
        return result if self.lower else np.conj(np.swapaxes(result, -1, -2))


@op
class TriangularSolve(Op):
    """Solves op(a) x = b (or x op(a) = b) for triangular a (`triangular_solve`); `transpose`: NO_TRANSPOSE, TRANSPOSE
    or ADJOINT."""

    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose: str

    opcode = "triangular-solve"
    arity = 2

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        a, b = (array_operand("triangular-solve", s) for s in operands)
        side = -2 if self.left_side else -1
        require(
            a.rank == b.rank >= 2 and a.dimensions[-1] == a.dimensions[-2] == b.dimensions[side],
            f"triangular-solve of {a} and {b}",
        )
        return b

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        a, b = operands
        a = np.tril(a) if self.lower else np.triu(a)
        if self.unit_diagonal:
            eye = np.eye(a.shape[-1], dtype=bool)
            a = np.where(eye, a.dtype.type(1), a)
        if self.transpose != "NO_TRANSPOSE":
            a = np.swapaxes(a, -1, -2)
            a = np.conj(a) if self.transpose == "ADJOINT" else a
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a, wide_b = a.astype(wide), b.astype(wide)
        if self.left_side:
            return np.linalg.solve(a, wide_b).astype(b.dtype)
        return np.swapaxes(np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(wide_b, -1, -2)), -1, -2).astype(b.dtype)


@op
class BatchNormInference(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + offset along the feature dimension (`batch_norm_inference`)."""

    epsilon: float
    feature_index: int

    opcode = "batch-norm-inference"
    arity = 5

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        return array_operand(self.opcode, operands[0])

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        x, scale, offset, mean, variance = (_along(o, operands[0].ndim, self.feature_index) for o in operands)
        return ((x - mean) / np.sqrt(variance + self.epsilon) * scale + offset).astype(operands[0].dtype)


@op
class BatchNormTraining(Op):
    """Normalizes by the batch's own statistics (`batch_norm_training`): (result, mean, variance)."""

    epsilon: float
    feature_index: int

    opcode = "batch-norm-training"
    arity = 3

    def infer(self, operands: Sequence[AnyShape]) -> TupleShape:
        x, scale = array_operand(self.opcode, operands[0]), array_operand(self.opcode, operands[1])
        return TupleShape((x, scale, scale))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        x = operands[0].astype(np.float64)
        axes = tuple(d for d in range(x.ndim) if d != self.feature_index)
        mean, variance = x.mean(axes), x.var(axes)
        scale, offset, m, v = (
            _along(o, x.ndim, self.feature_index) for o in (operands[1], operands[2], mean, variance)
        )
        y = (x - m) / np.sqrt(v + self.epsilon) * scale + offset
        return tuple(r.astype(operands[0].dtype) for r in (y, mean, variance))


@op
class BatchNormGrad(Op):
    """Gradients of batch_norm_training (`batch_norm_grad`): of operand, scale and offset. Operands: x, scale, mean,
    variance, grad."""

    epsilon: float
    feature_index: int

    opcode = "batch-norm-grad"
    arity = 5

    def infer(self, operands: Sequence[AnyShape]) -> TupleShape:
        x, scale = array_operand(self.opcode, operands[0]), array_operand(self.opcode, operands[1])
        return TupleShape((x, scale, scale))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        x, scale, mean, variance, grad = (o.astype(np.float64) for o in operands)
        axes = tuple(d for d in range(x.ndim) if d != self.feature_index)
        count = x.size / max(1, x.shape[self.feature_index])
        m, v, s = (_along(o, x.ndim, self.feature_index) for o in (mean, variance, scale))
        centered, inverse = x - m, 1 / np.sqrt(v + self.epsilon)
        grad_scale, grad_offset = (grad * centered * inverse).sum(axes), grad.sum(axes)
        gs, go = (_along(o, x.ndim, self.feature_index) for o in (grad_scale, grad_offset))
        grad_x = s * inverse * (grad - go / count - centered * inverse * gs / count)
        return tuple(r.astype(operands[0].dtype) for r in (grad_x, grad_scale, grad_offset))


def _along(o: Any, rank: int, dimension: int) -> Any:
    if o.ndim == rank and rank != 1:
        return o
    view = [1] * rank
    view[dimension] = -1
    return o.reshape(view)


@op
class TopK(Op):
    """The k largest elements of the last dimension and their indices, NaN first as XLA has it (CHLO `top_k`)."""

    k: int

    opcode = "topk"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> TupleShape:
        x = array_operand("topk", operands[0])
        require(x.rank >= 1 and 0 <= self.k <= x.sizes[-1], f"topk of {self.k} from {x}")
        sizes = (*x.sizes[:-1], self.k)
        return TupleShape((Shape(x.element_type, sizes), Shape(S32, sizes)))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        x = operands[0]
        key = x.astype(np.float64) if x.dtype.kind not in "iub" else x
        order = np.argsort(-key if key.dtype.kind == "f" else np.invert(key), axis=-1, kind="stable")
        if key.dtype.kind == "f":
            nan = np.isnan(np.take_along_axis(key, order, -1))
            order = np.take_along_axis(order, np.argsort(~nan, axis=-1, kind="stable"), -1)
        order = order[..., : self.k]
        return np.take_along_axis(x, order, -1), order.astype(np.int32)


@op
class RngBitGenerator(Op):
    """Uniform random bits from a state (`rng_bit_generator`): (new state, bits). `algorithm`: RNG_PHILOX,
    RNG_THREE_FRY or RNG_DEFAULT. `opset/random_bits.py` says which bits."""

    algorithm: str
    result: Shape

    opcode = "rng-bit-generator"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> TupleShape:
        state = array_operand(self.opcode, operands[0])
        require(
            state.element_type is U64 and state.rank == 1, f"rng-bit-generator's state is u64[2] or u64[3], not {state}"
        )
        return TupleShape((state, self.result))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        (state,) = operands
        self.check(instruction)
        t = self.result.element_type
        new_state, values = random_bits.generate(self.algorithm, state, self.result.sizes, t.bits)
        narrow = values.astype(np.dtype(f"u{t.bytes}"))
        return new_state, narrow.view(t.dtype)

    def check(self, instruction: Instruction) -> None:
        """Raises UnsupportedOpError for what XLA does not generate either."""
        algorithm = random_bits.ALGORITHMS.get(self.algorithm)
        size, t = instruction.operands[0].array_shape.sizes[0], self.result.element_type
        if algorithm is None or size not in random_bits.STATE_SIZES[algorithm]:
            raise UnsupportedOpError(
                f"rng-bit-generator has no algorithm {self.algorithm} for a state of {size} words",
                source=instruction.source,
                hint="RNG_THREE_FRY takes u64[2], RNG_PHILOX u64[2] or u64[3]",
            )
        if t.is_complex or t.is_predicate or t.bits not in (8, 16, 32, 64):
            raise UnsupportedOpError(f"rng-bit-generator gives no {t}", source=instruction.source)
