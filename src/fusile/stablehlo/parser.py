"""MLIR text -> operations in generic form. Recursive descent; pretty forms are read by `assembly`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fusile.base.shape import AnyShape
from fusile.stablehlo.attributes import AttributeParser
from fusile.stablehlo.syntax import FunctionType, Location, Operation, Region, Symbol

_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
MODULES = ("module", "builtin.module")
_MAX_RESULTS = 100_000

Assembly = Callable[["Parser", Operation], None]

ASSEMBLY: dict[str, Assembly] = {}
"""Readers of pretty forms, by op name; `assembly.py` fills it. The one under "" reads every other op's."""


class Parser(AttributeParser):
    """Reads a whole program: its functions, and aliases of attributes and locations."""

    program_name = ""

    def parse_program(self) -> list[Operation]:
        """The program's functions."""
        operations: list[Operation] = []
        while self.peek():
            if self.peek()[0] in "#!" and self.peek(1) == "=":
                self._alias()
            else:
                operations.append(self.parse_operation())
        return [f for o in operations for f in (self._functions(o) if o.name in MODULES else [o])]

    def _functions(self, module: Operation) -> list[Operation]:
        self.program_name = self.program_name or symbol_name(module.attributes.get("sym_name", ""))
        return [o for region in module.regions for o in region.operations]

    def _alias(self) -> None:
        name = self.next()
        self.expect("=")
        self.aliases[name] = self.parse_type() if name.startswith("!") else self.parse_attribute()

    def parse_operation(self) -> Operation:
        """One operation, pretty or generic, with its location."""
        operation = Operation("", self.position)
        if self.peek().startswith("%"):
            self._results(operation)
        token = self.next()
        if token.startswith('"'):
            operation.name = token[1:-1]
            self.parse_generic(operation)
        elif token[0].isalpha():
            operation.name = token
            ASSEMBLY.get(token, ASSEMBLY[""])(self, operation)
        else:
            self.index -= 1
            raise self.error(f"expected an operation, found {token[:40]!r}")
        self.parse_trailing_location(operation)
        return operation

    def parse_trailing_location(self, operation: Operation) -> None:
        if self.peek() == "loc" and self.peek(1) == "(":
            operation.location = self.parse_location()

    def _results(self, operation: Operation) -> None:
        while True:
            name = self.parse_value()
            if self.accept(":"):
                count = self.next()
                if not count.isdecimal() or int(count[:9]) > _MAX_RESULTS:
                    raise self.error(f"{count[:20]!r} is not a number of results")
                operation.results += [f"{name}#{i}" for i in range(int(count))]
            else:
                operation.results.append(name)
            if not self.accept(","):
                break
        self.expect("=")

    def parse_value(self) -> str:
        token = self.next()
        if _VALUE.fullmatch(token) is None:
            self.index -= 1
            raise self.error(f"expected a value such as %0, found {token[:40]!r}")
        return token

    def parse_generic(self, operation: Operation) -> None:
        """`(operands) <{properties}> ({regions}) {attributes} : (types) -> types`."""
        self.expect("(")
        while not self.accept(")"):
            if operation.operands:
                self.expect(",")
            operation.operands.append(self.parse_value())
        if self.accept("<"):
            operation.attributes.update(self.parse_dictionary())
            self.expect(">")
        if self.peek() == "(" and self.peek(1) == "{":
            self.index += 1
            operation.regions.append(self.parse_region())
            while self.accept(","):
                operation.regions.append(self.parse_region())
            self.expect(")")
        if self.peek() == "{":
            operation.attributes.update(self.parse_dictionary())
        self.expect(":")
        kind = self.parse_type()
        if not isinstance(kind, FunctionType):
            raise self.error("expected types such as (tensor<f32>) -> tensor<f32>")
        operation.operand_types, operation.result_types = list(kind.inputs), list(kind.results)

    def parse_region(self, arguments: list[tuple[str, AnyShape, Location | None]] | None = None) -> Region:
        """`{ ^bb0(%a: type): operations }`; `arguments` are those that a pretty form names before the brace."""
        self.expect("{")
        region = Region(list(arguments or ()))
        self.enter()
        if self.peek().startswith("^"):
            self.index += 1
            if self.peek() == "(":
                region.arguments += self.parse_arguments()
            self.expect(":")
        while not self.accept("}"):
            if self.peek().startswith("^"):
                raise self.error("a region of several blocks", "control flow is stablehlo.while, case and if")
            region.operations.append(self.parse_operation())
        self.leave()
        return region

    def parse_arguments(self) -> list[tuple[str, AnyShape, Location | None]]:
        """`(%a: type, %b: type loc(...))`."""
        self.expect("(")
        arguments: list[tuple[str, AnyShape, Location | None]] = []
        while not self.accept(")"):
            if arguments:
                self.expect(",")
            name = self.parse_value()
            self.expect(":")
            shape = self.parse_shape()
            arguments.append((name, shape, self.parse_location() if self.peek() == "loc" else None))
        return arguments

    def parse_types(self, operation: Operation) -> None:
        """What stands after the colon of a pretty form: a function type, `a, b -> c`, or the result's type last."""
        if not self.accept(":"):
            return
        types = [self.parse_type()]
        if isinstance(types[0], FunctionType):
            operation.operand_types, operation.result_types = list(types[0].inputs), list(types[0].results)
            return
        while self.accept(","):
            types.append(self.parse_type())
        if self.accept("->"):
            results = [self.parse_type()] if self.peek() != "(" else self._type_group()
            operation.operand_types, operation.result_types = types, results
        elif len(operation.results) > 1 or operation.name in ("return", "func.return", "stablehlo.return"):
            operation.result_types = types
        else:
            operation.result_types = types[-1:]


def symbol_name(value: Any) -> str:
    """The name that a symbol or a string gives."""
    return value.name if isinstance(value, Symbol) else str(value)
