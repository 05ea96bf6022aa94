"""Every error that Fusile raises on purpose: what, where (the user's line and op), and what to do next."""

from __future__ import annotations

from fusile.base.source import Source


class FusileError(Exception):
    """The base of all of them. `source` is the user's position, `hint` what to do next; both show in the message."""

    def __init__(self, message: str, *, source: Source | None = None, hint: str = "") -> None:
        self.message, self.source, self.hint = message, source, hint
        place = f"\n  at {source}" if source is not None and str(source) else ""
        super().__init__(message + place + (f"\n  hint: {hint}" if hint else ""))


class ShapeError(FusileError, ValueError):
    """Operands whose shapes or element types an op does not take."""


class VerificationError(FusileError):
    """A module that breaks a rule of the IR."""


class ParseError(FusileError, ValueError):
    """Text that is not a program. `line` and `column` count from 1."""

    def __init__(self, message: str, *, line: int = 0, column: int = 0, file: str = "", hint: str = "") -> None:
        self.line, self.column, self._plain = line, column, message
        super().__init__(f"{file or '<text>'}:{line}:{column}: {message}" if line else message, hint=hint)

    def in_file(self, file: str) -> ParseError:
        """The error as one of a file's text."""
        return ParseError(self._plain, line=self.line, column=self.column, file=file, hint=self.hint)


class ArgumentError(FusileError, TypeError):
    """Arguments of a call that do not fit the compiled program's parameters."""


class SettingsError(FusileError, ValueError):
    """An option or an environment variable with a value that it can't have."""


class OutOfMemoryError(FusileError, MemoryError):
    """Arrays for which there is no memory."""


class UnsupportedOpError(FusileError, NotImplementedError):
    """An op that can't be compiled yet; says which, where, and what to do."""


class CompileError(FusileError):
    """A failure inside the compiler: a bug to report."""


class LoadError(FusileError):
    """A saved program that can't be loaded: corrupt, of another version, for another machine, or in a format whose
    reader is missing."""
