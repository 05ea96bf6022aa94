"""MLIR dictionaries, `{side = 76 : ui8, flags = [true], name = "a"}`, which XLA writes as configurations -> JSON."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[-+]?\d[\w.+-]*|[A-Za-z_][\w.$]*|[{}\[\]=,:<>])')
_MAX_DEPTH = 64


def json_of_dictionary(text: str) -> str:
    """The JSON of a dictionary; text that is JSON already stays as it is. Raises ValueError for what is neither."""
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(_Reader(text).read(), sort_keys=True)
    return text


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def read(self) -> dict[str, Any]:
        value = self._dictionary()
        if self.text[self.position :].strip():
            raise ValueError(f"unexpected {self.text[self.position :][:20]!r} after a dictionary")
        return value

    def _peek(self) -> str:
        found = _TOKEN.match(self.text, self.position)
        return found[1] if found else ""

    def _next(self) -> str:
        found = _TOKEN.match(self.text, self.position)
        if found is None:
            raise ValueError(f"unexpected {self.text[self.position :][:20]!r} in a dictionary")
        self.position = found.end()
        return found[1]

    def _accept(self, token: str) -> bool:
        found = self._peek() == token
        if found:
            self._next()
        return found

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise ValueError(f"expected {token!r}, found {self.text[self.position :][:20]!r}")

    def _dictionary(self) -> dict[str, Any]:
        self._expect("{")
        values: dict[str, Any] = {}
        while not self._accept("}"):
            if values:
                self._expect(",")
            name = self._next()
            values[json.loads(name) if name.startswith('"') else name] = self._value() if self._accept("=") else True
        return values

    def _value(self) -> Any:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError("a dictionary is nested too deeply")
        token = self._peek()
        if token == "{":
            value: Any = self._dictionary()
        elif token == "[":
            self._next()
            value = self._list("]")
        elif token == "array":
            value = self._array()
        else:
            value = self._scalar(self._next())
        if self._accept(":"):
            self._next()
        self.depth -= 1
        return value

    def _list(self, end: str) -> list[Any]:
        values: list[Any] = []
        while not self._accept(end):
            if values:
                self._expect(",")
            values.append(self._value())
        return values

    def _array(self) -> list[Any]:
        """`array<i64: 1, 2>`."""
        self._next()
        self._expect("<")
        self._next()
        self._accept(":")
        return self._list(">")

    def _scalar(self, token: str) -> Any:
        if token.startswith('"'):
            return json.loads(token)
        if token in ("true", "false"):
            return token == "true"
        for kind in (int, float):
            try:
                return kind(token)
            except ValueError:
                continue
        return token
