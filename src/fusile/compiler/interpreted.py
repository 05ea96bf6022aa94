"""The interpreter behind the same face as an executable: slow, readable, and what every target is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.shape import TupleShape
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.hlo.text import print_module
from fusile.runtime.executable import as_array
from fusile.runtime.program import Memory


class Interpreted:
    """Runs a module's meaning on NumPy arrays."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.compile_times: dict[str, float] = {}
        self.kernels: list[Any] = []
        self.memory = Memory(0, 0, 0, 0, 0)

    def __call__(self, *arrays: Any) -> Any:
        results = self.call_flat([as_array(a) for a in arrays])
        return tuple(results) if isinstance(self.module.entry.root.shape, TupleShape) else results[0]

    def call_flat(self, arrays: Sequence[Any]) -> list[Any]:
        """The results' leaves for the arguments' leaves."""
        return [np.ascontiguousarray(r).reshape(r.shape) for r in interpret(self.module, arrays)]

    def text(self, stage: str) -> str:
        return print_module(self.module, elide=64)
