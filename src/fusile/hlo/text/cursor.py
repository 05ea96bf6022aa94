"""A position in HLO text, and the parts that every rule of the grammar needs: names, shapes, attributes, errors."""

from __future__ import annotations

import re

from fusile.base.element_type import TOKEN, element_type
from fusile.base.errors import ParseError
from fusile.base.shape import AnyShape, Dimension, Shape, SymbolicDimension, TupleShape

_BLANK = r"(?:\s|/\*.*?\*/|//[^\n]*)*"
BLANK = re.compile(_BLANK, re.DOTALL)
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_ARRAY_SHAPE = re.compile(r"([a-z]\w*)\[([^\[\]]*)\](\{[^{}]*\})?")
_ATTRIBUTE = re.compile(
    rf"\s*,{_BLANK}([\w\-]+)=({_STRING}|\{{[^{{}}\"]*(?:{_STRING}[^{{}}\"]*)*\}}|[^\s,{{}}\"()]+(?=[\s,]|$))", re.DOTALL
)
_ATTRIBUTE_NAME = re.compile(rf"\s*,{_BLANK}([\w\-]+)=")
_NESTED = re.compile(rf"{_STRING}|[{{}}]", re.DOTALL)
_SYMBOL = re.compile(r"(?:(\w+|\?)?(?:<=(\d+))?)")
_MAX_DEPTH = 100


class Cursor:
    """Text and a position in it. Each `read_...` moves past what it read, or raises ParseError."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self._shapes: dict[str, Shape] = {}

    def error(self, message: str, hint: str = "", position: int | None = None) -> ParseError:
        """A ParseError at `position` (here when None)."""
        at = self.position if position is None else position
        line = self.text.count("\n", 0, at) + 1
        return ParseError(message, line=line, column=at - (self.text.rfind("\n", 0, at) + 1) + 1, hint=hint)

    def skip_blank(self) -> None:
        found = BLANK.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Moves past `pattern` if it stands here."""
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found

    def take_text(self, text: str) -> bool:
        """Moves past blanks and then `text` if it stands there."""
        self.skip_blank()
        if not self.text.startswith(text, self.position):
            return False
        self.position += len(text)
        return True

    def expect(self, text: str, where: str) -> None:
        if not self.take_text(text):
            raise self.error(f"expected {text!r} {where}, found {self.next_word()}")

    def next_word(self) -> str:
        word = self.text[self.position : self.position + 20].split("\n")[0]
        return repr(word) if word else "the end of the text"

    def read_shape(self, depth: int = 0) -> AnyShape:
        """A shape: `f32[2,3]{1,0}`, `(f32[2], s32[])`, `token[]`."""
        self.skip_blank()
        if self.text.startswith("(", self.position):
            return self._read_tuple_shape(depth)
        found = self.take(_ARRAY_SHAPE)
        if found is None:
            raise self.error(f"expected a shape such as f32[2,3], found {self.next_word()}")
        known = self._shapes.get(found[0])
        if known is None:
            known = self._shapes[found[0]] = self._array_shape(found)
        return known

    def _read_tuple_shape(self, depth: int) -> TupleShape:
        if depth > _MAX_DEPTH:
            raise self.error("tuples nested too deeply")
        self.position += 1
        shapes: list[AnyShape] = []
        while not self.take_text(")"):
            if shapes:
                self.expect(",", "between the shapes of a tuple")
            shapes.append(self.read_shape(depth + 1))
        return TupleShape(tuple(shapes))

    def _array_shape(self, found: re.Match[str]) -> Shape:
        try:
            kind = element_type(found[1])
        except TypeError:
            raise self.error(f"{found[1]!r} is not an element type", position=found.start()) from None
        if kind is TOKEN:
            return Shape(TOKEN)
        words = [w.strip() for w in found[2].split(",")] if found[2].strip() else []
        return Shape(kind, tuple(self._dimension(w, found.start()) for w in words), _layout(found[3], len(words)))

    def _dimension(self, word: str, position: int) -> Dimension:
        if word.isdecimal() and len(word) < 19:
            return int(word)
        found = _SYMBOL.fullmatch(word)
        if not word or found is None or word.isdecimal():
            raise self.error(f"{word!r} is not the size of a dimension", position=position)
        return SymbolicDimension(found[1] or "?", int(found[2]) if found[2] else None)

    def read_attributes(self) -> dict[str, str]:
        """`, name=value` as often as it stands here: each value as the text that writes it."""
        attributes: dict[str, str] = {}
        while True:
            found = self.take(_ATTRIBUTE)
            if found is not None:
                attributes[found[1]] = found[2]
                continue
            found = self.take(_ATTRIBUTE_NAME)
            if found is None:
                return attributes
            attributes[found[1]] = self._read_nested()

    def _read_nested(self) -> str:
        """A value in braces that hold braces."""
        start, depth = self.position, 0
        if not self.text.startswith("{", start):
            raise self.error(f"expected an attribute's value, found {self.next_word()}")
        for found in _NESTED.finditer(self.text, start):
            depth += {"{": 1, "}": -1}.get(found[0], 0)
            if depth == 0:
                self.position = found.end()
                return self.text[start : self.position]
        raise self.error("this brace is never closed", "was the text cut off?", position=start)


def _layout(text: str | None, rank: int) -> tuple[int, ...] | None:
    """Minor-to-major dimensions; None when row-major, as no layout means. Tiles and memory spaces are dropped."""
    if text is None:
        return None
    words = text[1:-1].split(":")[0].replace(" ", "").split(",")
    order = tuple(int(w) for w in words if w.isdecimal())
    return None if order == tuple(range(rank))[::-1] or sorted(order) != list(range(rank)) else order


def plain(shape: AnyShape) -> AnyShape:
    """The shape without layouts, which never change what is computed."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(plain(s) for s in shape.shapes))
    return shape if shape.layout is None else Shape(shape.element_type, shape.dimensions)
