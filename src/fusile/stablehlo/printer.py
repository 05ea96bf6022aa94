"""HLO -> StableHLO MLIR text, in generic form, which every MLIR tool reads."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import AnyShape, Shape, TupleShape
from fusile.base.source import Source
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.text.printer import unique_names
from fusile.stablehlo.op_attributes import quoted, written
from fusile.stablehlo.types import mlir_type


def print_module(module: Module) -> str:
    """The module as StableHLO text: the entry is `@main`, called and fused computations are private functions.

    Raises UnsupportedOpError for ops that StableHLO does not have (collectives of several devices, for example).
    """
    called = [c for c in module.computations() if c is not module.entry]
    names = dict(zip(called, unique_names(["main", *(c.name for c in called)])[1:], strict=True))
    printer = _Printer(names | {module.entry: "main"})
    functions = {
        i.op.computations()[0] for c in module.computations() for i in c.instructions if i.opcode in ("call", "fusion")
    }
    for computation in module.computations():
        if computation is module.entry or computation in functions:
            printer.function(computation, module if computation is module.entry else None)
    name = unique_names([module.name])[0]
    return "\n".join([f"module @{quoted(name)} {{", *printer.lines, "}"]) + "\n"


_Region = tuple[Computation, list[list[str]] | None]
"""A computation to write as a region, and the outer values that its parameters are; None for block arguments."""


class _Printer:
    """Writes lines. A value is the list of its leaves' names, so tuples are never written."""

    def __init__(self, names: dict[Computation, str]) -> None:
        self.names = names
        self.lines: list[str] = []
        self.count = 0
        self.indent = "    "

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"

    # Functions and regions

    def function(self, computation: Computation, module: Module | None) -> None:
        self.count = 0
        values, arguments = self._arguments(computation.parameters)
        outputs = {parameter: output for output, parameter in module.aliases.items()} if module else {}
        if outputs and len(arguments) == len(computation.parameters):
            arguments = [
                a + (f" {{tf.aliasing_output = {outputs[i]} : i32}}" if i in outputs else "")
                for i, a in enumerate(arguments)
            ]
        leaves = computation.root.shape.leaves()
        names = module.result_names if module and len(module.result_names) == len(leaves) else []
        notes = [f" {{jax.result_info = {quoted(n)}}}" for n in names] or [""] * len(leaves)
        results = ", ".join(mlir_type(s) + note for s, note in zip(leaves, notes, strict=True))
        visibility = "public" if module else "private"
        name = quoted(self.names[computation])
        self.lines.append(f"  func.func {visibility} @{name}({', '.join(arguments)}) -> ({results}) {{")
        self._instructions(computation, values)
        self._return("func.return", values[computation.root], leaves)
        self.lines.append("  }")

    def _arguments(self, parameters: Sequence[Instruction]) -> tuple[dict[Instruction, list[str]], list[str]]:
        values: dict[Instruction, list[str]] = {}
        texts: list[str] = []
        for parameter in parameters:
            values[parameter] = [self.fresh() for _ in parameter.shape.leaves()]
            leaves = zip(values[parameter], parameter.shape.leaves(), strict=True)
            texts += [f"{name}: {mlir_type(shape)}" for name, shape in leaves]
        return values, texts

    def _region(self, region: _Region) -> None:
        """The block's arguments, instructions and return, between braces."""
        computation, outer = region
        self.lines.append("{")
        if outer is None:
            values, arguments = self._arguments(computation.parameters)
            self.lines.append(f"{self.indent}^bb0({', '.join(arguments)}):")
        else:
            values = dict(zip(computation.parameters, outer, strict=True))
        self.indent += "  "
        self._instructions(computation, values)
        self._return("stablehlo.return", values[computation.root], computation.root.shape.leaves())
        self.indent = self.indent[:-2]
        self.lines.append(self.indent + "}")

    def _return(self, name: str, values: Sequence[str], shapes: Sequence[Shape]) -> None:
        types = f" : {', '.join(map(mlir_type, shapes))}" if shapes else ""
        self.lines.append(f"{self.indent}{name} {', '.join(values)}{types}".rstrip())

    # Instructions

    def _instructions(self, computation: Computation, values: dict[Instruction, list[str]]) -> None:
        for instruction in computation.post_order():
            if instruction not in values:
                values[instruction] = self._instruction(instruction, [values[o] for o in instruction.operands])

    def _instruction(self, instruction: Instruction, operands: list[list[str]]) -> list[str]:
        """The names of the leaves of its result."""
        opcode, computations = instruction.opcode, instruction.op.computations()
        if opcode == "tuple":
            return [leaf for operand in operands for leaf in operand]
        if opcode == "copy":
            return operands[0]
        if opcode in ("abs", "sign") and instruction.array_shape.element_type.is_unsigned:
            return operands[0] if opcode == "abs" else self._sign_of_unsigned(instruction, operands[0])
        if opcode == "get-tuple-element":
            return _element(instruction.operands[0].shape, operands[0], instruction.op.index)  # type: ignore[attr-defined]
        if opcode in ("call", "fusion"):
            callee = {"callee": f"@{quoted(self.names[computations[0]])}"}
            return self._write(instruction, "func.call", callee, operands, [])
        if opcode == "conditional":
            # Branches use their operands from outside: StableHLO's take none.
            is_if = instruction.operands[0].array_shape.element_type.is_predicate
            regions: list[_Region] = [(c, operands[1:]) for c in computations]
            return self._write(instruction, "stablehlo.if" if is_if else "stablehlo.case", {}, operands[:1], regions)
        found = ("stablehlo.while", {}) if opcode == "while" else written(instruction)
        if found is None:
            raise UnsupportedOpError(f"StableHLO has no op {opcode}", source=instruction.source)
        return self._write(instruction, *found, operands, [(c, None) for c in computations])

    def _sign_of_unsigned(self, instruction: Instruction, operand: list[str]) -> list[str]:
        """StableHLO's `sign` takes signed numbers only: of others it is the lesser of them and 1."""
        shape = instruction.array_shape
        one, kind = self.fresh(), mlir_type(shape)
        self.lines.append(f'{self.indent}{one} = "stablehlo.constant"() <{{value = dense<1> : {kind}}}> : () -> {kind}')
        name = self.fresh()
        self.lines.append(
            f'{self.indent}{name} = "stablehlo.minimum"({operand[0]}, {one}) : ({kind}, {kind}) -> {kind}'
            f"{_location(instruction.source)}"
        )
        return [name]

    def _write(
        self,
        instruction: Instruction,
        name: str,
        attributes: dict[str, str],
        operands: list[list[str]],
        regions: Sequence[_Region],
    ) -> list[str]:
        leaves = instruction.shape.leaves()
        head = self.fresh()
        flat = ", ".join(leaf for operand in operands for leaf in operand)
        shapes = [leaf for o in instruction.operands[: len(operands)] for leaf in o.shape.leaves()]
        texts = ", ".join(f"{k} = {v}" for k, v in attributes.items())
        results = f"{head} = " if len(leaves) == 1 else f"{head}:{len(leaves)} = " if leaves else ""
        start = len(self.lines)
        self.lines.append(f'{self.indent}{results}"{name}"({flat})' + (f" <{{{texts}}}>" if texts else ""))
        for number, region in enumerate(regions):
            self.lines.append(", " if number else " (")
            self._region(region)
        types = f"({', '.join(map(mlir_type, shapes))}) -> ({', '.join(map(mlir_type, leaves))})"
        self.lines.append(f"{')' if regions else ''} : {types}{_location(instruction.source)}")
        self._join(start)
        return [head] if len(leaves) == 1 else [f"{head}#{i}" for i in range(len(leaves))]

    def _join(self, start: int) -> None:
        """Joins the pieces of one operation into lines: what starts a region or follows it stays on the line before."""
        joined: list[str] = []
        for piece in self.lines[start:]:
            if joined and (piece.startswith((" (", ", ", ")", " :")) or piece == "{"):
                joined[-1] += piece
            else:
                joined.append(piece)
        self.lines[start:] = joined


def _element(shape: AnyShape, leaves: list[str], index: int) -> list[str]:
    """The leaves of one element of a tuple."""
    assert isinstance(shape, TupleShape)
    start = sum(len(s.leaves()) for s in shape.shapes[:index])
    return leaves[start : start + len(shape.shapes[index].leaves())]


def _location(source: Source | None) -> str:
    if source is None or not (source.file or source.op_name):
        return ""
    place = f"{quoted(source.file)}:{source.line}:0" if source.file else ""
    if not source.op_name:
        return f" loc({place})"
    return f" loc({quoted(source.op_name)}{f'({place})' if place else ''})"
