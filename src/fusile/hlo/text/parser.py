"""HLO text -> Module: recursive descent over compiled patterns; first records of what is written, then instructions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import numpy as np

from fusile.base.errors import FusileError, ParseError, UnsupportedOpError
from fusile.base.shape import AnyShape, Shape
from fusile.base.source import Source
from fusile.hlo import opset as _opset  # noqa: F401  the ops enter themselves in OPS
from fusile.hlo.ir import OPS, Computation, Instruction, Literal, Module, Op
from fusile.hlo.text import xla
from fusile.hlo.text.attributes import RESULT_TYPED, read_attributes, unquote
from fusile.hlo.text.cursor import Cursor, plain
from fusile.hlo.text.frames import read_stack_frames
from fusile.hlo.text.literal import parse_literal

_HEADER = re.compile(r"\s*HloModule\s+([\w.\-]+)")
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*(?=[({])")
_NAMED = re.compile(r"\s*%?[\w.\-]+\s*:")
_INSTRUCTION = re.compile(r"\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_COMMENT = r"\s*(?:/\*.*?\*/\s*)*"
_OPERAND = re.compile(
    rf"{_COMMENT}(?:[a-z]\w*\[[^\[\]]*\](?:\{{[^{{}}]*\}})?\s+)?%?([\w.\-]+){_COMMENT}([,)])", re.DOTALL
)
_LITERAL = re.compile(r"([^()]*+(?:\([^()]*+(?:\([^()]*+\)[^()]*+)*+\)[^()]*+)*+)\)")
_METADATA = re.compile(r'(\w+)=("[^"\\]*(?:\\.[^"\\]*)*"|[^\s{}"]+)', re.DOTALL)
_ALIAS = re.compile(r"\{\s*(\d*)\s*\}:\s*\((\d+),\s*\{\s*\}")
_MAX_CALL_DEPTH = 100

IGNORED = frozenset({
    "sharding", "frontend_attributes", "backend_config", "operand_precision", "control-predecessors", "channel_id",
    "operand_layout_constraints", "api_version", "output_to_operand_aliasing", "statistics", "origin", "algorithm",
    "result_accuracy", "original_value", "execution_thread", "is_host_transfer", "parameter_replication",
    "use_global_device_ids", "constrain_layout", "called_computations", "largest",
})  # fmt: skip
"""Attributes of XLA that do not change what an instruction computes."""


@dataclass(slots=True)
class Record:
    """One instruction as written."""

    name: str
    shape: AnyShape
    opcode: str
    operands: list[str]
    argument: str
    attributes: dict[str, str]
    position: int
    is_root: bool


@dataclass(slots=True)
class Text:
    """One computation as written."""

    name: str
    is_entry: bool
    position: int
    records: list[Record] = field(default_factory=list)


def parse_module(text: str, elided: bool = False) -> Module:
    """The module that HLO text (ours, or a dump of XLA's) writes. With `elided`, constants whose elements were left out
    are zeros: for looking at the module, not for running it.

    Raises ParseError with line and column for text that is not a module, and UnsupportedOpError for ops we don't have.
    """
    return _Parser(text, elided).parse()


class _Parser:
    def __init__(self, text: str, elided: bool) -> None:
        self.cursor = Cursor(text)
        self.elided = elided
        self.texts: dict[str, Text] = {}
        self.built: dict[str, Computation] = {}
        self.building: list[str] = []
        self.frames: dict[int, tuple[str, int]] = {}

    # What is written

    def parse(self) -> Module:
        head = self.cursor.take(_HEADER)
        if head is None:
            raise self.cursor.error(
                "HLO text starts with 'HloModule name'", "is this StableHLO? use fusile.stablehlo.parse"
            )
        attributes = self.cursor.read_attributes()
        self.frames = read_stack_frames(self.cursor)
        while not self._at_end():
            self._read_computation()
        for name in self.texts:
            self.computation(name)
        entries = [t for t in self.texts.values() if t.is_entry] or list(self.texts.values())
        if len(entries) != 1:
            raise self.cursor.error(f"one computation must be marked ENTRY, not {sum(t.is_entry for t in entries)}")
        module = Module(head[1], self.computation(entries[0].name))
        for computation in module.computations():
            for instruction in computation.instructions:
                instruction.shape = plain(instruction.shape)  # bitcasts, which alone ask for layouts, are read by now
        self._finish(module, attributes)
        return module

    def _at_end(self) -> bool:
        self.cursor.skip_blank()
        return self.cursor.position >= len(self.cursor.text)

    def _read_computation(self) -> None:
        start = self.cursor.position
        head = self.cursor.take(_COMPUTATION)
        if head is None:
            raise self.cursor.error(f"expected a computation, found {self.cursor.next_word()}")
        if head[2] in self.texts:
            raise self.cursor.error(f"a second computation is named {head[2]}", position=start)
        if self.cursor.take_text("("):
            self._skip_signature()
        self.cursor.expect("{", "at the start of a computation")
        text = self.texts[head[2]] = Text(head[2], head[1] is not None, start)
        while not self.cursor.take_text("}"):
            text.records.append(self._read_instruction())
        self.cursor.read_attributes()

    def _skip_signature(self) -> None:
        """Parameter names and shapes, which the parameters repeat, and the result's shape."""
        while not self.cursor.take_text(")"):
            self.cursor.take_text(",")
            if self.cursor.take(_NAMED) is None:
                raise self.cursor.error(f"expected a parameter's name, found {self.cursor.next_word()}")
            self.cursor.read_shape()
        self.cursor.expect("->", "after a computation's parameters")
        self.cursor.read_shape()

    def _read_instruction(self) -> Record:
        cursor = self.cursor
        head = cursor.take(_INSTRUCTION)
        if head is None:
            hint = "was the text cut off?" if self._at_end() else ""
            raise cursor.error(f"expected an instruction or '}}', found {cursor.next_word()}", hint)
        shape = cursor.read_shape()
        opcode = cursor.take(_OPCODE)
        if opcode is None:
            cursor.skip_blank()
            raise cursor.error(f"expected an opcode and '(', found {cursor.next_word()}")
        operands, argument = self._read_arguments(opcode[1])
        attributes = cursor.read_attributes()
        return Record(head[2], shape, opcode[1], operands, argument, attributes, head.start(2), head[1] is not None)

    def _read_arguments(self, opcode: str) -> tuple[list[str], str]:
        """Operands' names; or, of a constant and a parameter, the text in the parentheses."""
        cursor = self.cursor
        if opcode in ("constant", "parameter"):
            found = cursor.take(_LITERAL)
            if found is None:
                raise cursor.error(f"the parenthesis of this {opcode} is never closed", "was the text cut off?")
            return [], found[1]
        operands: list[str] = []
        if cursor.take_text(")"):
            return operands, ""
        while True:
            found = cursor.take(_OPERAND)
            if found is None:
                cursor.read_shape()
                found = cursor.take(_OPERAND)
            if found is None:
                raise cursor.error(f"expected an operand, found {cursor.next_word()}")
            operands.append(found[1])
            if found[2] == ")":
                return operands, ""

    # Instructions

    def computation(self, name: str) -> Computation:
        """The computation of this name, built on first use."""
        if name in self.built:
            return self.built[name]
        if name not in self.texts:
            raise ValueError(f"no computation is named {name}")
        text = self.texts[name]
        if name in self.building or len(self.building) > _MAX_CALL_DEPTH:
            problem = "calls itself" if name in self.building else "stands too deep in calls"
            raise self.cursor.error(f"computation {name} {problem}", position=text.position)
        self.building.append(name)
        computation = self.built[name] = self._build(text)
        self.building.pop()
        return computation

    def computation_name(self, computation: Computation) -> str:
        return computation.name

    def _build(self, text: Text) -> Computation:
        computation = Computation(text.name)
        values: dict[str, Instruction] = {}
        parameters = [r for r in text.records if r.opcode == "parameter"]
        for number, record in enumerate(sorted(parameters, key=self._number)):
            if self._number(record) != number:
                raise self._error(record, f"parameter({record.argument}) where parameter {number} was expected")
            values[record.name] = computation.parameter(record.shape, record.name, self._source(record))
        for record in text.records:
            if record.opcode != "parameter":
                if record.name in values:
                    raise self._error(record, f"a second instruction is named {record.name}")
                values[record.name] = self._instruction(computation, record, values)
        roots = [r for r in text.records if r.is_root] or text.records[-1:]
        if len(roots) != 1 or len(values) != len(text.records):
            raise self.cursor.error(
                f"computation {text.name} has no single root, or a name twice", position=text.position
            )
        computation.root = values[roots[0].name]
        return computation

    def _number(self, record: Record) -> int:
        if re.fullmatch(r"\s*\d{1,9}\s*", record.argument) is None:
            raise self._error(record, f"parameter({record.argument[:20]}) is not a parameter's number")
        return int(record.argument)

    def _instruction(self, computation: Computation, record: Record, values: dict[str, Instruction]) -> Instruction:
        try:
            operands = [values[name] for name in record.operands]
        except KeyError as missing:
            raise self._error(record, f"operand {missing} of {record.name} is not defined above it") from None
        try:
            return self._add(computation, record, operands)
        except (ParseError, UnsupportedOpError):
            raise
        except FusileError as error:
            raise self._error(record, f"{record.opcode}: {error.message}", error.hint) from error
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, OverflowError) as error:
            raise self._error(record, f"{record.opcode} does not take these operands or attributes: {error}") from error

    def _add(self, computation: Computation, record: Record, operands: list[Instruction]) -> Instruction:
        source = self._source(record)
        texts = {k: v for k, v in record.attributes.items() if k != "metadata"}
        adapted = xla.adapt(
            xla.Foreign(record.opcode, record.shape, operands, texts, source, record.name), computation, self
        )
        if adapted is not None:
            return adapted
        if record.opcode not in OPS:
            raise UnsupportedOpError(f"HLO op {record.opcode} at line {self._error(record, '').line}", source=source,
                                     hint="see `fusile ops` for those supported")  # fmt: skip
        op = self._op(record, texts, operands)
        unknown = texts.keys() - IGNORED
        if unknown:
            raise ValueError(f"unknown attribute {', '.join(sorted(unknown))}")
        return computation.add(op, operands, name=record.name, source=source, shape=record.shape)

    def _op(self, record: Record, texts: dict[str, str], operands: list[Instruction]) -> Op:
        """The op, whose inferred shape is the one written."""
        cls = OPS[record.opcode]
        fields = read_attributes(record.opcode, texts, plain(record.shape), self)
        if record.opcode == "constant":
            fields["literal"] = self._literal(record)
        if cls.arity is not None and cls.arity != len(operands):
            raise ValueError(f"{cls.arity} operands expected, {len(operands)} given")
        op, shapes, written = cls(**fields), [plain(o.shape) for o in operands], plain(record.shape)
        inferred = op.infer(shapes)
        if record.opcode in RESULT_TYPED and inferred != written and isinstance(written, Shape):
            op = cls(**fields | {"element_type": written.element_type})
            inferred = op.infer(shapes)
        if plain(inferred) != written:
            raise ValueError(f"its result is {inferred}, the text says {written}")
        return op

    def _literal(self, record: Record) -> Literal:
        if not isinstance(record.shape, Shape) or not record.shape.is_static:
            raise ValueError(f"a constant of shape {record.shape}")
        if self.elided and record.argument.strip() == "{...}":
            # Memory that nobody touches takes no place.
            return Literal(np.zeros(record.shape.sizes, record.shape.element_type.dtype))
        return Literal(parse_literal(record.argument, record.shape, lambda m, h: self._error(record, m, h)))

    def _source(self, record: Record) -> Source | None:
        text = record.attributes.get("metadata")
        if text is None:
            return None
        parts = {name: unquote(value) for name, value in _METADATA.findall(text)}
        line, frame = parts.get("source_line", ""), parts.get("stack_frame_id", "")
        file, number = self.frames.get(int(frame) if frame.isdecimal() else 0, ("", 0))
        return Source(parts.get("op_name", ""), parts.get("op_type", ""), parts.get("source_file", file),
                      int(line) if line.isdecimal() else number)  # fmt: skip

    def _error(self, record: Record, message: str, hint: str = "") -> ParseError:
        return self.cursor.error(message, hint, record.position)

    def _finish(self, module: Module, attributes: dict[str, str]) -> None:
        leaves, parameters = len(module.entry.root.shape.leaves()), len(module.entry.parameters)
        for output, parameter in _ALIAS.findall(attributes.get("input_output_alias", "")):
            if int(output or 0) < leaves and int(parameter) < parameters:
                module.aliases[int(output or 0)] = int(parameter)
        names = dict(_METADATA.findall(attributes.get("frontend_attributes", ""))).get("result_names", "")
        if names:
            module.result_names = [str(n) for n in json.loads(unquote(names))]
