"""Every op prints as StableHLO that MLIR's own parser and verifier take, and that reads back as the same op."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fusile.base.element_type import ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import OPS
from fusile.stablehlo import parse, print_module

sys.path.insert(0, str(Path(__file__).parents[1] / "hlo"))
from op_instances import element_types, module_of

LACKING = {"bessel-i0e"}
"""Ops that neither StableHLO nor CHLO has."""

CASES = [(o, t) for o in sorted(set(OPS) - {"parameter"} - LACKING) for t in element_types(o) or [None]]


@pytest.mark.parametrize("opcode, element_type", CASES, ids=str)
def test_mlir_takes_what_is_printed(opcode: str, element_type: ElementType | None) -> None:
    pytest.importorskip("jaxlib")
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    module = module_of(opcode, element_type)
    printed = print_module(module)
    with mlir.make_ir_context():
        parsed = ir.Module.parse(printed)
        assert parsed.operation.verify()
        forms = [printed, parsed.operation.get_asm(print_generic_op_form=True), parsed.operation.get_asm()]
    for form in forms:
        again = parse(form)
        assert [p.shape for p in again.entry.parameters] == [
            leaf for p in module.entry.parameters for leaf in p.shape.leaves()
        ]
        assert again.entry.root.shape.leaves() == module.entry.root.shape.leaves()
        assert print_module(parse(print_module(again))) == print_module(again)
        found = {i.op for i in again.entry.instructions if i.opcode == opcode}
        original = module.entry.root.op
        if not original.computations() and found:
            assert found == {original}


@pytest.mark.parametrize("opcode, element_type", [c for c in CASES if c[1] is not None], ids=str)
def test_what_is_printed_means_the_same(opcode: str, element_type: ElementType) -> None:
    module = module_of(opcode, element_type)
    values = np.array([0, 1, 2, 0, 1, 3]).astype(element_type.dtype)
    arguments = [values, values[::-1].copy()][: len(module.entry.parameters)]
    for found, want in zip(
        interpret(parse(print_module(module)), arguments), interpret(module, arguments), strict=True
    ):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("opcode", sorted(LACKING))
def test_ops_that_stablehlo_lacks_are_named(opcode: str) -> None:
    with pytest.raises(UnsupportedOpError, match=f"StableHLO has no op {opcode}"):
        print_module(module_of(opcode))
