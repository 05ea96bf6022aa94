"""What compilation notes for people to look at. Here because rooms that must not know each other write, keep and show
it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassRecord:
    """One run of one pass: its seconds, whether it changed the module, how many instructions there were afterwards, and
    the name of the file that the module was dumped to, if it was."""

    name: str
    seconds: float
    changed: bool
    instructions: int = 0
    dumped: str = ""


@dataclass(frozen=True)
class Life:
    """A temporary value: `bytes` from `offset` on hold it from step `start` to step `end`, both included. `space`:
    "arena", or the argument or result whose buffer it lies in ("result 0")."""

    name: str
    space: str
    offset: int
    bytes: int
    start: int
    end: int
