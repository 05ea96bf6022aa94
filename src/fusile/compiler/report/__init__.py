"""Reports: what became of a program, as one self-contained page. `docs/seeing.md` says how to read one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusile.base.errors import ArgumentError
from fusile.base.settings import Settings
from fusile.compiler.pipeline import compile
from fusile.compiler.report.figures import Figures, figures
from fusile.compiler.report.page import frame, page
from fusile.hlo.ir import Module
from fusile.runtime.executable import Executable

RUNS = 10
"""Runs that are timed; the fastest is shown."""


class Report:
    """What became of a program. Shows itself in notebooks; `save` writes the page, `html` is its text. `figures` are
    the numbers in it."""

    def __init__(self, executable: Executable, inputs: Sequence[Any] | None = None) -> None:
        """With `inputs`, arrays for a call, kernels are timed. Raises ArgumentError when they don't fit, FusileError
        when the package jinja2 is missing."""
        self.executable = executable
        profile = None
        if inputs is not None:
            # Donated arguments are overwritten by a run.
            kept = [np.array(a) for a in inputs] if executable.program.aliases else list(inputs)
            profile = executable.profile(*kept, runs=RUNS)
        self.figures: Figures = figures(executable, profile)
        self.html: str = page(executable, self.figures)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page to a file, which needs nothing else."""
        path = Path(path)
        path.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        return frame(self.html)

    def __repr__(self) -> str:
        return f"Report({self.executable.program.name}: {len(self.executable.kernels)} kernels; .save(path) writes it)"


def report(source: Any, *arguments: Any, **keywords: Any) -> Report:
    """A report on `source`, compiled anew so that it says what compiling takes:

    - a function of `fusile.tf.jit` or `fusile.jax.jit`, for the arguments that are given;
    - a module, HLO or StableHLO text, or the path of a file, with arrays for a call or none;
    - an Executable, as it is, with arrays for a call or none.

    Kernels are timed when there are arrays to run on. Raises ArgumentError for what is none of these or only
    interpreted, and what compiling and running it raise.
    """
    if isinstance(source, Executable):
        return Report(source, arguments or None)
    inputs: Sequence[Any] | None
    if hasattr(source, "compile_anew"):
        executable, inputs = source.compile_anew(*arguments, **keywords)
    elif isinstance(source, Module | str | bytes | os.PathLike):
        executable = compile(source, settings=replace(Settings(), cache=False))
        inputs = arguments if arguments or not executable.program.parameters else None  # type: ignore[union-attr]
    else:
        raise ArgumentError(
            f"there is no report on a {type(source).__name__}",
            hint="give a function of fusile.tf.jit or fusile.jax.jit with its arguments, an executable or a program",
        )
    if not isinstance(executable, Executable):
        raise ArgumentError("the interpreter compiles nothing to report on", hint='compile with target="cpu"')
    return Report(executable, inputs)


__all__ = ["Figures", "Report", "report"]
