"""Where in the user's program something came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A front end's op name and the user's file and line. Takes no part in an instruction's identity."""

    op_name: str = ""
    op_type: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        name = f"{self.op_type} '{self.op_name}'" if self.op_type else (f"'{self.op_name}'" if self.op_name else "")
        return " at ".join(part for part in (name, place) if part)
