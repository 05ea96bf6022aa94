"""Runs modules with their fusions lowered to loop kernels, under the loop interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusile.hlo.interpreter import Interpreter, interpret, leaves_of
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.control import Fusion
from fusile.loops.interpreter import run_kernel
from fusile.loops.ir import Kernel
from fusile.loops.lowering import lower_fusion
from fusile.loops.machine import AVX2, Machine
from fusile.passes.fusion import Fuse

Array = np.ndarray[Any, Any]


def fusions_of(module: Module) -> list[Instruction]:
    """Every fusion, callees' first."""
    return [i for c in module.computations() for i in c.post_order() if isinstance(i.op, Fusion)]


def fused(module: Module) -> Module:
    """A copy of the module with its work in fusions."""
    copy = module.clone()
    Fuse()(copy)
    return copy


def parts(array: Array) -> Array:
    """An array as kernels see it: flat, complex numbers as pairs."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind != "c":
        return flat
    return flat.view(np.float32 if flat.dtype.itemsize == 8 else np.float64)


class KernelInterpreter(Interpreter):
    """The HLO interpreter, but fusions run as lowered kernels."""

    def __init__(self, module: Module, machine: Machine) -> None:
        super().__init__()
        self.fusion_of: dict[Computation, Instruction] = {f.op.computations()[0]: f for f in fusions_of(module)}
        self.machine = machine
        self.kernels: list[Kernel] = []

    def call(self, computation: Computation, operands: Any) -> Any:
        fusion = self.fusion_of.get(computation)
        if fusion is None:
            return super().call(computation, operands)
        return self._launch(fusion, list(leaves_of(tuple(operands))))

    def _launch(self, fusion: Instruction, operands: list[Array]) -> Any:
        kernel = lower_fusion(fusion, fusion.name, self.machine)
        self.kernels.append(kernel)
        results = [np.zeros(s.sizes, s.element_type.dtype) for s in fusion.shape.leaves()]
        for result in results:
            # Whatever was in the buffer must not matter.
            result.reshape(-1).view(np.uint8)[...] = 0 if result.dtype == np.bool_ else 0x7B
        for result, operand in getattr(fusion.op, "in_place", ()):
            results[result][...] = operands[operand]
        flat = [parts(r).copy() for r in results]
        run_kernel(kernel, [*map(parts, operands), *flat])
        arrays = [f.view(r.dtype).reshape(r.shape) for f, r in zip(flat, results, strict=True)]
        return tuple(arrays) if fusion.shape.is_tuple else arrays[0]


def run_fused(module: Module, arguments: list[Array], machine: Machine = AVX2) -> tuple[list[Array], list[Kernel]]:
    """The results of the module's kernels, and the kernels in the order of launch."""
    copy = fused(module)
    interpreter = KernelInterpreter(copy, machine)
    return leaves_of(interpreter.call(copy.entry, [np.asarray(a) for a in arguments])), interpreter.kernels


def arguments_of(module: Module, seed: int = 0) -> list[Array]:
    """Small values of every parameter's type."""
    random = np.random.default_rng(seed)
    given = []
    for p in module.entry.parameters:
        shape = p.array_shape
        kind = shape.element_type
        plain: Array = np.asarray(random.normal(size=shape.sizes) * 2)
        if kind.is_complex:
            plain = plain + 1j * random.normal(size=shape.sizes)
        elif kind.is_predicate:
            plain = plain > 0
        elif kind.is_integer:
            low, high = (0, 3) if kind.bits < 8 else (0 if kind.is_unsigned else -9, 10)
            plain = random.integers(low, high, shape.sizes)
        given.append(np.asarray(plain).astype(kind.dtype))
    return given


def close(a: Array, b: Array, tolerance: float = 1e-5) -> bool:
    """Integers equal; floats within a tolerance of each other, relative to the largest value."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    finite = np.abs(y[np.isfinite(y)])
    scale = float(np.max(finite, initial=1.0))
    return bool(np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def check(
    module: Module, arguments: list[Array] | None = None, tolerance: float = 1e-5, machine: Machine = AVX2
) -> list[Kernel]:
    """Fails unless the kernels give what the HLO interpreter gives; the kernels, in order of launch."""
    given = arguments_of(module) if arguments is None else [np.asarray(a) for a in arguments]
    expected = interpret(module, given)
    actual, kernels = run_fused(module, given, machine)
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert close(a, np.asarray(e), tolerance), f"result {number} of {module.name}:\n{a}\nnot\n{e}"
    return kernels
