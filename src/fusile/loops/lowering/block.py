"""A block of statements under construction, with what has been computed in it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fusile.base.element_type import S64, ElementType
from fusile.hlo.ir import Instruction
from fusile.loops.ir import Body, Const, Expr, For, Let, LoopKind, Stmt, Var, const


@dataclass
class Names:
    """Fresh names for one kernel."""

    count: int = 0

    def var(self, name: str, element_type: ElementType = S64) -> Var:
        self.count += 1
        return Var(f"{name}{self.count}", element_type)


@dataclass
class Block:
    """Collects statements; values found in an enclosing block are known here too."""

    names: Names
    parent: Block | None = None
    statements: list[Stmt] = field(default_factory=list)
    known: dict[tuple[Instruction, tuple[Expr, ...]], Any] = field(default_factory=dict)

    def child(self) -> Block:
        return Block(self.names, self)

    def emit(self, statement: Stmt) -> None:
        self.statements.append(statement)

    def let(self, value: Expr, name: str = "t") -> Expr:
        """Names a value, unless it is one already."""
        if isinstance(value, Const | Var):
            return value
        var = self.names.var(name, value.element_type)
        self.emit(Let(var, value))
        return var

    def look_up(self, key: tuple[Instruction, tuple[Expr, ...]]) -> Any:
        block: Block | None = self
        while block is not None:
            if key in block.known:
                return block.known[key]
            block = block.parent
        return None

    def body(self) -> Body:
        return tuple(self.statements)

    def loop(
        self, var: Var, extent: Expr | int, inner: Block, kind: LoopKind = LoopKind.SERIAL, active: Expr | None = None
    ) -> None:
        """Appends a loop around what `inner` has collected."""
        self.emit(For(var, const(extent) if isinstance(extent, int) else extent, inner.body(), kind, active))
