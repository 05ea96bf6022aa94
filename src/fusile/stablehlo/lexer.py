"""MLIR text -> tokens. A tensor type is one token, and so is a `dense<...>`, whose megabytes are never looked into."""

from __future__ import annotations

import re

from fusile.base.errors import ParseError

_NESTED = r"[^<>]*+(?:<[^<>]*+(?:<[^<>]*+>[^<>]*+)*+>[^<>]*+)*+"
_TOKEN = re.compile(
    r"(?:\s+|//[^\n]*)*+"
    r"(tensor<" + _NESTED + r">"
    r"|dense<"
    r"|%[\w$.\-]+(?:\#\d+)?"
    r"|[A-Za-z_][\w$.]*"
    r"|\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*+\""
    r"|-?\d+\.\d*(?:[eE][+-]?\d+)?"
    r"|0x[0-9A-Fa-f]+"
    r"|-?\d+(?:[eE][+-]?\d+)?"
    r"|->|::|\{-\#"
    r"|@(?:\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"|[\w$.\-]+)"
    r"|[\#!\^][A-Za-z_0-9][\w$.\-]*"
    r"|\S)"
)


class Tokens:
    """A program's tokens and a place among them. Errors say line and column."""

    def __init__(self, text: str) -> None:
        self.text, self.index = text, 0
        self.tokens: list[str] = []
        self.positions: list[int] = []
        self.resources = ""
        """The text of `{-# ... #-}`, where large constants may stand."""
        self._scan()

    def _scan(self) -> None:
        text, tokens, positions = self.text, self.tokens, self.positions
        start = 0
        while start < len(text):
            for found in _TOKEN.finditer(text, start):
                token = found[1]
                tokens.append(token)
                positions.append(found.start(1))
                if token == "dense<" or token == "{-#":
                    start = self._scan_long(token, found.start(1))
                    break
            else:
                break
        tokens.append("")
        positions.append(len(text))

    def _scan_long(self, token: str, position: int) -> int:
        """Ends the last token where its text ends; returns that place."""
        if token == "{-#":
            self.tokens.pop()
            self.positions.pop()
            self.resources = self.text[position:]
            return len(self.text)
        end = self.text.find(">", position)
        if end < 0:
            raise self.error("this dense<...> is never closed", "was the text cut off?", position)
        self.tokens[-1] = self.text[position : end + 1]
        return end + 1

    def error(self, message: str, hint: str = "", position: int | None = None) -> ParseError:
        """A ParseError at `position` (at the current token when None)."""
        at = self.positions[self.index] if position is None else position
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return ParseError(message, line=self.line(at), column=column, hint=hint)

    def line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    @property
    def position(self) -> int:
        return self.positions[self.index]

    def peek(self, ahead: int = 0) -> str:
        index = self.index + ahead
        return self.tokens[index] if index < len(self.tokens) else ""

    def next(self) -> str:
        token = self.tokens[self.index]
        if not token:
            raise self.error("the text ends in the middle of an operation", "was the text cut off?")
        self.index += 1
        return token

    def accept(self, token: str) -> bool:
        if self.tokens[self.index] == token:
            self.index += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if self.tokens[self.index] != token:
            found = self.tokens[self.index]
            raise self.error(
                f"expected {token!r}, found {found[:40]!r}" if found else f"the text ends where {token!r} was expected"
            )
        self.index += 1

    def skip_balanced(self) -> list[str]:
        """The tokens from an opening bracket here to the one that closes it, both left out."""
        pairs = {"(": ")", "[": "]", "{": "}", "<": ">"}
        if self.peek() not in pairs:
            raise self.error(f"expected an opening bracket, found {self.peek()[:40]!r}")
        start, position, open_brackets = self.index + 1, self.position, [pairs[self.next()]]
        while open_brackets:
            token = self.tokens[self.index]
            if not token:
                raise self.error("this bracket is never closed", "was the text cut off?", position)
            self.index += 1
            if token in pairs:
                open_brackets.append(pairs[token])
            elif token == open_brackets[-1]:
                open_brackets.pop()
        return self.tokens[start : self.index - 1]
