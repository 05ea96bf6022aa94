"""Module -> HLO text."""

from __future__ import annotations

import json
import re
from typing import Any

from fusile.base.shape import AnyShape
from fusile.base.source import Source
from fusile.hlo.ir import Computation, Instruction, Literal, Module
from fusile.hlo.text.attributes import quote, write_attributes
from fusile.hlo.text.literal import format_literal

_NAME = re.compile(r"[A-Za-z_][\w.]*(?:-[\w.]+)*")
_BAD = re.compile(r"[^\w.]+")


def print_module(module: Module, elide: int | None = None) -> str:
    """The module as HLO text, callees before callers, the entry last; `parse_module` reads it back.

    With `elide`, constants of more elements than that print as `{...}`: for people, not to be read back.
    """
    computations = module.computations()
    return _Printer(computations, elide).print(module, computations)


def print_computation(computation: Computation, elide: int | None = 16) -> str:
    """One computation as HLO text, without those it calls: for messages and debugging."""
    called = [c for i in computation.instructions for c in i.op.computations()]
    return _Printer([*dict.fromkeys(called), computation], elide).print_computation(computation, is_entry=False)


class _Printer:
    def __init__(self, computations: list[Computation], elide: int | None) -> None:
        self.elide = elide
        self.names = dict(zip(computations, unique_names([c.name for c in computations]), strict=True))
        self._shapes: dict[AnyShape, str] = {}

    def computation_name(self, computation: Computation) -> str:
        return self.names[computation]

    def computation(self, name: str) -> Computation:
        raise NotImplementedError("a printer looks up no computations")

    def shape(self, shape: AnyShape) -> str:
        text = self._shapes.get(shape)
        if text is None:
            text = self._shapes[shape] = repr(shape)
        return text

    def print(self, module: Module, computations: list[Computation]) -> str:
        head = f"HloModule {sanitize(module.name)}{_aliases(module)}{_result_names(module)}"
        return "\n\n".join([head, *(self.print_computation(c, c is module.entry) for c in computations)]) + "\n"

    def print_computation(self, computation: Computation, is_entry: bool) -> str:
        order = computation.post_order()
        names = dict(zip(order, unique_names([i.name for i in order]), strict=True))
        parameters = ", ".join(f"{names[p]}: {self.shape(p.shape)}" for p in computation.parameters)
        head = (
            f"{'ENTRY ' * is_entry}%{self.names[computation]} ({parameters}) -> {self.shape(computation.root.shape)} {{"
        )
        lines = [self._line(i, names, i is computation.root) for i in order]
        return "\n".join([head, *lines, "}"])

    def _line(self, instruction: Instruction, names: dict[Instruction, str], is_root: bool) -> str:
        parts = [f"{self.shape(instruction.shape)} {instruction.opcode}({self._arguments(instruction, names)})"]
        parts += write_attributes(instruction.op, self)
        if instruction.source is not None:
            parts.append(_metadata(instruction.source))
        return f"  {'ROOT ' * is_root}%{names[instruction]} = {', '.join(parts)}"

    def _arguments(self, instruction: Instruction, names: dict[Instruction, str]) -> str:
        op: Any = instruction.op
        if instruction.opcode == "parameter":
            return str(op.number)
        if instruction.opcode == "constant":
            return self._constant(op.literal)
        return ", ".join(["%" + names[o] for o in instruction.operands])

    def _constant(self, literal: Literal) -> str:
        if self.elide is not None and literal.array.size > self.elide:
            return "{...}"
        return format_literal(literal.array)


def sanitize(name: str) -> str:
    """The name with characters that HLO text does not allow replaced."""
    if _NAME.fullmatch(name):
        return name
    name = _BAD.sub("_", name)
    return name if name[:1].isalpha() or name[:1] == "_" else "_" + name


def unique_names(names: list[str]) -> list[str]:
    """The names, sanitized, and numbered where two are the same."""
    given: set[str] = set()
    counts: dict[str, int] = {}
    found = []
    for name in map(sanitize, names):
        unique = name
        while unique in given:
            counts[name] = counts.get(name, 0) + 1
            unique = f"{name}.{counts[name]}"
        given.add(unique)
        found.append(unique)
    return found


def _metadata(source: Source) -> str:
    parts = []
    if source.op_type:
        parts.append(f"op_type={quote(source.op_type)}")
    if source.op_name:
        parts.append(f"op_name={quote(source.op_name)}")
    if source.file:
        parts.append(f"source_file={quote(source.file)}")
    if source.line:
        parts.append(f"source_line={source.line}")
    return "metadata={" + " ".join(parts) + "}"


def _aliases(module: Module) -> str:
    if not module.aliases:
        return ""
    leaf = "{{{}}}" if module.entry.root.shape.is_tuple else "{{}}"
    pairs = (f"{leaf.format(output)}: ({parameter}, {{}}, may-alias)" for output, parameter in module.aliases.items())
    return ", input_output_alias={ " + ", ".join(pairs) + " }"


def _result_names(module: Module) -> str:
    if not module.result_names:
        return ""
    return f", frontend_attributes={{result_names={quote(json.dumps(module.result_names))}}}"
