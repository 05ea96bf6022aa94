"""The structure of a module or computation as a value: what an honest pass may not change without saying so."""

from __future__ import annotations

import dataclasses
from typing import Any

from fusile.hlo.ir import Computation, Instruction, Module, Op


def fingerprint(module: Module) -> int:
    """A hash of what the module computes and how: ops, operands, shapes, constants, aliases.

    Names, source positions and the order in which instructions were added take no part."""
    known: dict[Computation, int] = {}
    for computation in module.computations():
        known[computation] = _computation_hash(computation, known)
    return hash((known[module.entry], tuple(sorted(module.aliases.items())), tuple(module.result_names)))


def _computation_hash(computation: Computation, known: dict[Computation, int]) -> int:
    hashes: dict[Instruction, int] = {}
    for instruction in computation.post_order():
        operands = tuple(hashes[o] for o in instruction.operands)
        hashes[instruction] = hash((op_key(instruction.op, known), operands, instruction.shape))
    parameters = tuple(p.shape for p in computation.parameters)
    return hash((parameters, hashes[computation.root], tuple(sorted(hashes.values()))))


def op_key(op: Op, computations: dict[Computation, Any]) -> tuple[Any, ...]:
    """The op's class and attributes, each computation among them by its entry in `computations`."""

    def key(value: Any) -> Any:
        if isinstance(value, Computation):
            return computations[value]
        return tuple(map(key, value)) if isinstance(value, tuple) else value

    return (type(op), *(key(getattr(op, f.name)) for f in dataclasses.fields(op)))
