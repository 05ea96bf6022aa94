"""MLIR types, attributes and locations from tokens."""

from __future__ import annotations

import json
import re
from typing import Any

from fusile.base.errors import FusileError, UnsupportedOpError
from fusile.base.shape import TOKEN_SHAPE, AnyShape, Dimension, Shape, SymbolicDimension, TupleShape
from fusile.stablehlo.dense import from_resource, parse_dense
from fusile.stablehlo.lexer import Tokens
from fusile.stablehlo.quantization import Quantization, parse_uniform, quantized_shape
from fusile.stablehlo.syntax import Dense, DialectAttribute, FunctionType, Location, OtherType, Symbol
from fusile.stablehlo.types import mlir_element_type

_TENSOR = re.compile(r"\s*((?:(?:\d+|\?)\s*x\s*)*)([A-Za-z]\w*(?:<\w+>)?)\s*(?:,.*)?", re.DOTALL)
_QUANTIZED_TENSOR = re.compile(r"tensor<([^!<>]*)(![^<>]*(?:<.*>)?)\s*>", re.DOTALL)
_INTEGER = re.compile(r"-?\d+")
_NUMBER = re.compile(r"-?\d[\d.]*(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_][\w$.]*")
_RESOURCE = re.compile(r'([\w$.\-]+|"[^"]*")\s*:\s*"0x([0-9A-Fa-f]*)"')
_MAX_DEPTH = 64


class AttributeParser(Tokens):
    """Reads what stands around operations: types, attribute values, locations."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.aliases: dict[str, Any] = {}
        self._types: dict[str, Shape] = {}
        self._blobs: dict[str, bytes] | None = None
        self._depth = 0

    # Types

    def parse_type(self) -> Any:
        """A type: a Shape or TupleShape where our values can have it, else FunctionType or OtherType."""
        token = self.peek()
        if token.startswith("tensor<"):
            known = self._types.get(token)
            if known is None:
                known = self._types[token] = self._tensor(token)
            self.index += 1
            return known
        if token == "!stablehlo.token":
            self.index += 1
            return TOKEN_SHAPE
        if token == "(":
            return self._function_type()
        if token.startswith("!") and token in self.aliases:
            self.index += 1
            return self.aliases[token]
        if token == "!quant.uniform":
            return self._uniform()
        if token == "tuple":
            self.index += 1
            return self._tuple_type()
        if token == "!stablehlo.future":
            self.index += 1
            found = self._tuple_type()
            return found.shapes[0] if len(found.shapes) == 1 else found
        return self._other_type()

    def _tensor(self, token: str) -> Shape:
        if "!" in token:
            return self._quantized_tensor(token)
        found = _TENSOR.fullmatch(token, 7, len(token) - 1)
        if found is None:
            raise UnsupportedOpError(f"type {token[:80]} at line {self.line(self.position)}",
                                     hint="string types are not supported")  # fmt: skip
        try:
            kind = mlir_element_type(found[2])
        except TypeError as error:
            raise self.error(str(error)) from None
        sizes = [w.strip() for w in found[1].split("x")[:-1]]
        return Shape(kind, tuple(self._dimension(w, i) for i, w in enumerate(sizes)))

    def _quantized_tensor(self, token: str) -> Shape:
        """`tensor<2x!quant.uniform<..>>`, or with an alias of that type."""
        found = _QUANTIZED_TENSOR.fullmatch(token)
        if found is None:
            raise self.error(f"{token[:80]} is no type of a tensor")
        try:
            element = self.aliases.get(found[2].strip()) or parse_uniform(found[2].strip())
            if not isinstance(element, Quantization):
                raise ValueError(f"{found[2]} is no element type")
            return quantized_shape(self._tensor(f"tensor<{found[1]}i8>").dimensions, element)
        except ValueError as error:
            raise error if isinstance(error, FusileError) else self.error(str(error)) from None

    def _uniform(self) -> Quantization:
        """`!quant.uniform<..>` outside a tensor, where aliases name it."""
        start = self.index
        self.index += 1
        self.skip_balanced()
        try:
            return parse_uniform(self.text[self.positions[start] : self.positions[self.index - 1] + 1])
        except ValueError as error:
            raise self.error(str(error), position=self.positions[start]) from None

    def _dimension(self, word: str, number: int) -> Dimension:
        if word == "?":
            return SymbolicDimension(f"?{number}")
        if len(word) > 18:
            raise self.error(f"{word} is no dimension's size")
        return int(word)

    def _tuple_type(self) -> TupleShape:
        self.expect("<")
        shapes: list[AnyShape] = []
        with _Deeper(self):
            while not self.accept(">"):
                if shapes:
                    self.expect(",")
                shapes.append(self.parse_shape())
        return TupleShape(tuple(shapes))

    def _function_type(self) -> FunctionType:
        with _Deeper(self):
            inputs = self._type_group()
            self.expect("->")
            results = self._type_group() if self.peek() == "(" else [self.parse_type()]
        return FunctionType(tuple(inputs), tuple(results))

    def _type_group(self) -> list[Any]:
        self.expect("(")
        types: list[Any] = []
        while not self.accept(")"):
            if types:
                self.expect(",")
            types.append(self.parse_type())
        return types

    def _other_type(self) -> OtherType:
        token = self.peek()
        if not (_WORD.fullmatch(token) or token.startswith("!")):
            raise self.error(f"expected a type, found {token[:40]!r}")
        self.index += 1
        if self.peek() == "<":
            self.skip_balanced()
        return OtherType(token)

    def parse_shape(self) -> AnyShape:
        """A type that a value can have."""
        position = self.position
        found = self.parse_type()
        if isinstance(found, Shape | TupleShape):
            return found
        text = getattr(found, "text", "a function")
        raise UnsupportedOpError(f"values of type {text} at line {self.line(position)}")

    # Attributes

    def parse_attribute(self, typed: bool = True) -> Any:
        """An attribute's value: int, float, bool, str, list, dict, Dense, Symbol, a type, or DialectAttribute.

        Words such as `FFT` read as str. A type after a number is dropped; where the colon after it is not the number's
        own (pretty forms), `typed` is False.
        """
        token = self.peek()
        first = token[:1]
        if first == "[":
            return self._list()
        if first == "{":
            return self.parse_dictionary()
        if first == '"':
            return self.parse_string()
        if first == "@":
            return self._symbol()
        if first == "#":
            return self._dialect_attribute()
        if first == "<":
            return DialectAttribute("", tuple(self.skip_balanced()))
        if token.startswith("dense<"):
            return self._dense()
        if first.isdigit() or (first == "-" and len(token) > 1 and token != "->"):
            return self._number(typed)
        if first in ("!", "(") or token.startswith("tensor<"):
            return self.parse_type()
        if _WORD.fullmatch(token):
            return self._word(typed)
        raise self.error(f"expected an attribute, found {token[:40]!r}" if token else "the text ends in an attribute")

    def _word(self, typed: bool) -> Any:
        word = self.next()
        if word in ("true", "false"):
            if typed and self.accept(":"):
                self.parse_type()
            return word == "true"
        if word == "unit":
            return True
        if word == "array" and self.peek() == "<":
            return self._array()
        if word == "dense_resource" and self.peek() == "<":
            return self._dense_resource()
        if word == "loc" and self.peek() == "(":
            self.index -= 1
            return self.parse_location()
        if self.peek() == "<":
            return DialectAttribute(word, tuple(self.skip_balanced()))
        return word

    def _list(self) -> list[Any]:
        self.expect("[")
        values: list[Any] = []
        with _Deeper(self):
            while not self.accept("]"):
                if values:
                    self.expect(",")
                values.append(self.parse_attribute())
        return values

    def parse_dictionary(self) -> dict[str, Any]:
        """`{name = value, unit_name}`."""
        self.expect("{")
        values: dict[str, Any] = {}
        with _Deeper(self):
            while not self.accept("}"):
                if values:
                    self.expect(",")
                name = self.parse_string() if self.peek().startswith('"') else self.next()
                values[name] = self.parse_attribute() if self.accept("=") else True
        return values

    def parse_string(self) -> str:
        token = self.next()
        if not token.startswith('"') or len(token) < 2:
            self.index -= 1
            raise self.error(f"expected a string, found {token[:40]!r}")
        return unescape(token)

    def _symbol(self) -> Symbol:
        token = self.next()[1:]
        while self.accept("::"):
            token = self.next()[1:]
        return Symbol(unescape(token) if token.startswith('"') else token)

    def _number(self, typed: bool) -> int | float:
        token = self.next()
        kind = self.parse_type() if typed and self.accept(":") else None
        if token.startswith("0x"):
            return self._pattern(token, kind)
        if _INTEGER.fullmatch(token):
            return int(token) if len(token) < 40 else float(token)
        if _NUMBER.fullmatch(token) is None:
            self.index -= 1
            raise self.error(f"{token[:40]!r} is not a number")
        return float(token)

    def _pattern(self, token: str, kind: Any) -> int | float:
        """Hexadecimal: a float's bits when its type says so."""
        text = kind.text if isinstance(kind, OtherType) else ""
        if text.startswith(("f", "bf")):
            shape = Shape(mlir_element_type(text))
            return float(parse_dense(f"dense<{token}>", shape, self.error).array)
        return int(token, 16)

    def _array(self) -> list[Any]:
        """`array<i64: 1, 2>`."""
        self.expect("<")
        self.next()
        values: list[Any] = []
        if self.accept(":"):
            while self.peek() not in (">", ""):
                values.append(self.parse_attribute())
                if not self.accept(","):
                    break
        self.expect(">")
        return values

    def _dense(self) -> Dense:
        position = self.position
        token = self.next()
        self.expect(":")
        shape = self.parse_shape()
        if not isinstance(shape, Shape):
            raise self.error("a constant is a tensor", position=position)
        return parse_dense(token, shape, lambda message: self.error(message, position=position))

    def _dense_resource(self) -> Dense:
        position = self.position
        name = "".join(self.skip_balanced()).strip('"')
        self.expect(":")
        shape = self.parse_shape()
        if self._blobs is None:
            self._blobs = {m[1].strip('"'): bytes.fromhex(m[2]) for m in _RESOURCE.finditer(self.resources)}
        if name not in self._blobs or not isinstance(shape, Shape):
            raise self.error(f"the text holds no constant named {name}", "print it without eliding constants", position)
        return from_resource(self._blobs[name], shape, lambda message: self.error(message, position=position))

    def _dialect_attribute(self) -> Any:
        name = self.next()
        if self.peek() != "<":
            return self.aliases.get(name, Location(alias=name))
        start = self.index
        words = self.skip_balanced()
        end = self.index
        fields: dict[str, Any] = {}
        if len(words) > 1 and words[1] == "=":
            self.index = start + 1
            fields = self._fields()
        self.index = end
        return DialectAttribute(name[1:], tuple(words), fields)

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while _WORD.fullmatch(self.peek()) and self.peek(1) == "=":
            name = self.next()
            self.index += 1
            fields[name] = self.parse_attribute()
            self.accept(",")
        return fields

    # Locations

    def parse_location(self) -> Location:
        """`loc(...)`."""
        self.expect("loc")
        self.expect("(")
        with _Deeper(self):
            location = self._location()
        self.expect(")")
        return location

    def _location(self) -> Location:
        token = self.peek()
        if token.startswith("#"):
            self.index += 1
            return Location(alias=token)
        if token.startswith('"'):
            return self._named_location()
        if token == "callsite":
            self.index += 1
            self.expect("(")
            callee = self._nested_location()
            self.expect("at")
            caller = self._nested_location()
            self.expect(")")
            return Location(children=(callee, caller))
        if token == "fused":
            return self._fused_location()
        if _WORD.fullmatch(token):
            self.index += 1
            return Location()
        raise self.error(f"expected a location, found {token[:40]!r}")

    def _nested_location(self) -> Location:
        with _Deeper(self):
            if self.peek() == "loc":
                return self.parse_location()
            return self._location()

    def _named_location(self) -> Location:
        name = self.parse_string()
        if self.accept("("):
            child = self._nested_location()
            self.expect(")")
            return Location(name=name, children=(child,))
        if self.peek() != ":":
            return Location(name=name)
        line = 0
        while self.peek() in (":", "to") or _INTEGER.fullmatch(self.peek()):
            token = self.next()
            line = line or (int(token) if _INTEGER.fullmatch(token) and len(token) < 10 else 0)
        return Location(file=name, line=line)

    def _fused_location(self) -> Location:
        self.expect("fused")
        if self.peek() == "<":
            self.skip_balanced()
        self.expect("[")
        children: list[Location] = []
        while not self.accept("]"):
            if children:
                self.expect(",")
            children.append(self._nested_location())
        return Location(children=tuple(children))

    def enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error("nested too deeply")

    def leave(self) -> None:
        self._depth -= 1


class _Deeper:
    """A level of nesting, which malformed text must not make too deep for Python's stack."""

    def __init__(self, parser: AttributeParser) -> None:
        self.parser = parser

    def __enter__(self) -> None:
        self.parser.enter()

    def __exit__(self, *_: object) -> None:
        self.parser.leave()


def unescape(token: str) -> str:
    r"""The text of a quoted MLIR string: `\"`, `\\`, `\n`, `\t`, and two hexadecimal digits for other bytes."""
    body = token[1:-1]
    if "\\" not in body:
        return body
    known = {"n": b"\n", "t": b"\t", "\\": b"\\", '"': b'"'}

    def byte(found: re.Match[bytes]) -> bytes:
        text = found[1].decode()
        return known[text] if text in known else bytes([int(text, 16)])

    raw = re.sub(rb'\\([nt\\"]|[0-9A-Fa-f]{2})', byte, body.encode())
    return raw.decode(errors="replace")


def to_json(value: Any) -> str:
    """An attribute's value as JSON, for custom calls' configurations."""
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Dense):
        return value.array.tolist()
    return getattr(value, "name", None) or getattr(value, "text", None) or str(value)
