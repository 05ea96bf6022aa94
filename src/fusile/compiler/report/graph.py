"""Modules as graphs to be drawn: a box an instruction, a fusion with what it fuses, control flow with its parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusile.compiler.report.layout import layered
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.control import Fusion
from fusile.hlo.opset.structure import AfterAll, Constant, GetTupleElement, OptimizationBarrier, Parameter
from fusile.hlo.text.printer import print_computation

HIDDEN = (Constant, GetTupleElement, AfterAll, OptimizationBarrier)
"""What gets no box: lines go through it. Arguments that nothing reads get none either."""
CHARACTER, LINE, PADDING = 6.7, 15.0, 10.0
"""Sizes of a box's text, in the units of the drawing."""
MOST_LINES, MOST_CHARACTERS = 7, 34


@dataclass(frozen=True)
class Box:
    """What is drawn of an instruction: its title, the lines below it, a kind that chooses its colour, the instruction
    as text, the graphs that it opens, and where the user's program has it."""

    name: str
    title: str
    lines: tuple[str, ...]
    kind: str
    source: str
    opens: tuple[str, ...]

    @property
    def size(self) -> tuple[float, float]:
        longest = max(map(len, (self.title, *self.lines)))
        return PADDING * 2 + CHARACTER * longest, PADDING + LINE * (1 + len(self.lines))


@dataclass(frozen=True)
class Graph:
    """A computation to be drawn. `text`: the computation as HLO text."""

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    text: str

    def drawing(self) -> dict[str, Any]:
        """The graph with its layout, as the page's script takes it."""
        layout = layered([b.size for b in self.boxes], self.edges)
        boxes = [
            {
                "name": box.name, "title": box.title, "lines": box.lines, "kind": box.kind, "source": box.source,
                "opens": box.opens, "x": round(x, 1), "y": round(y, 1),
                "w": round(box.size[0], 1), "h": round(box.size[1], 1),
            }
            for box, (x, y) in zip(self.boxes, layout.boxes, strict=True)
        ]  # fmt: skip
        lines = [[round(v, 1) for point in line for v in point] for line in layout.lines]
        return {
            "title": self.title, "text": self.text, "boxes": boxes, "lines": lines, "edges": self.edges,
            "width": round(layout.width, 1), "height": round(layout.height, 1),
        }  # fmt: skip


def graphs(module: Module, prefix: str) -> dict[str, Graph]:
    """The graph of the entry (under `prefix`), and those of what it opens: fusions, loops, branches."""
    keys = {module.entry: prefix}
    for computation in reversed(module.computations()):
        for i in computation.instructions:
            if computation in keys and _opens(i):
                for number, called in enumerate(i.op.computations()):
                    keys.setdefault(called, f"{prefix}/{len(keys)}.{i.name}.{number}")
    return {key: graph(computation, keys) for computation, key in keys.items()}


def graph(computation: Computation, keys: dict[Computation, str]) -> Graph:
    """The graph of one computation. `keys`: the names of the graphs that its boxes open."""
    boxes: list[Box] = []
    edges: list[tuple[int, int]] = []
    behind: dict[Instruction, tuple[int, ...]] = {}
    for i in computation.post_order():
        near = tuple(dict.fromkeys(n for o in i.operands for n in behind[o]))
        unread = isinstance(i.op, Parameter) and not i.users and not i.is_root
        if isinstance(i.op, HIDDEN) or unread:
            behind[i] = near
            continue
        number = len(boxes)
        boxes.append(_box(i, keys))
        edges += [(n, number) for n in near]
        behind[i] = (number,)
    return Graph(computation.name, tuple(boxes), tuple(edges), print_computation(computation))


def _box(i: Instruction, keys: dict[Computation, str]) -> Box:
    opens = tuple(keys[c] for c in i.op.computations() if c in keys) if _opens(i) else ()
    shape = _short(repr(i.shape))
    if isinstance(i.op, Fusion):
        inside = [x for x in i.op.computation.post_order() if not isinstance(x.op, (Parameter, *HIDDEN))]
        lines = _wrapped([x.opcode for x in inside if x.opcode != "tuple"])
        return Box(i.name, _short(i.name), (*lines, shape), f"fusion {i.op.kind}", str(i.source or ""), opens)
    kind = "parameter" if isinstance(i.op, Parameter) else "control" if opens else "op"
    title = i.name if isinstance(i.op, Parameter) else i.opcode
    if i.is_root:
        kind += " root"
    return Box(i.name, _short(title), (shape,), kind, str(i.source or ""), opens)


def _opens(i: Instruction) -> bool:
    """Whether an instruction's computations are worth a drawing: not the scalar code of reductions."""
    return i.opcode in ("fusion", "while", "conditional", "call")


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def counted(words: Sequence[str]) -> list[str]:
    """Words, the same in a row as one with their number."""
    groups = ((word, len(list(group))) for word, group in itertools.groupby(words))
    return [word if count == 1 else f"{word}×{count}" for word, count in groups]


def _wrapped(words: Sequence[str]) -> list[str]:
    """Opcodes in lines."""
    lines = [""]
    for text in counted(words):
        if lines[-1] and len(lines[-1]) + 2 + len(text) > MOST_CHARACTERS:
            lines.append("")
        lines[-1] += (", " if lines[-1] else "") + text
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"… {len(words)} ops in all"]
    return lines
