"""A report as a page: what the template is given, and how numbers are written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fusile.base.errors import ArgumentError, FusileError
from fusile.base.records import Life
from fusile.base.version import VERSION
from fusile.compiler.report.figures import Figures, KernelFigures
from fusile.compiler.report.graph import Graph, counted, graphs
from fusile.hlo.text import parse_module
from fusile.hlo.text.printer import sanitize
from fusile.runtime.executable import Executable
from fusile.runtime.program import Program, parts_of

TEMPLATES = Path(__file__).parent / "templates"
CHART_WIDTH, CHART_HEIGHT = 1200, 360
COLOURS = 12
MOVING = ("reshape", "broadcast", "transpose", "copy")
"""Ops that are left out of a kernel's line when it has others."""


def page(executable: Executable, figures: Figures) -> str:
    """The whole page. Raises FusileError when the package jinja2 is missing."""
    program = executable.program
    drawn = _graphs(program)
    rows = [_row(n, k, figures) for n, k in enumerate(figures.kernels)]
    boxes = {key: graph.drawing() for key, graph in drawn.items()}
    _join(boxes, rows)
    codes, without_assembly = _codes(executable)
    data = {"graphs": boxes, "kernels": rows, "codes": codes, "decisions": _decisions(program)}
    template = _environment().get_template("report.html")
    return str(
        template.render(
            program=program,
            version=VERSION,
            memory=executable.memory,
            figures=figures,
            rows=rows,
            kinds=len({k.code for k in program.kernels}),
            data=data,
            tabs=[(key, title) for key, title in _TABS if key in boxes],
            stages=executable.compile_times,
            passes=executable.passes,
            chart=_chart(program.lives, program.timeline, program.arena_bytes),
            outside=sum(life.space != "arena" for life in program.lives),
            without_assembly=without_assembly,
        )
    )


_TABS = (("after", "After: kernels"), ("before", "Before: the program"), ("prepared", "Prepared once"))


def frame(html: str) -> str:
    """A page inside another: its styles and scripts stay its own."""
    return str(_environment().from_string(_FRAME).render(html=html))


_FRAME = (
    '<iframe srcdoc="{{ html }}" style="width: 100%; height: 820px; border: 1px solid #d5dae1" '
    'sandbox="allow-scripts" title="report"></iframe>'
)


def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise FusileError(
            "reports need the package jinja2 for their page", hint="pip install 'fusile[report]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "size": size, "duration": duration, "percent": percent}
    return environment


# -- numbers as text ---------------------------------------------------------------------------------------------------


def _scaled(value: float, step: float, units: Iterable[str]) -> str:
    *smaller, largest = units
    for unit in smaller:
        if abs(value) < step:
            return f"{value:.3g} {unit}".rstrip() if abs(value) < 1000 else f"{value:.0f} {unit}".rstrip()
        value /= step
    return f"{value:,.3g} {largest}"


def count(value: float) -> str:
    """A number with a unit's prefix: 4.19 G."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T", "P"))


def size(value: float) -> str:
    """Bytes: 1.5 MiB."""
    return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def duration(seconds: float | None) -> str:
    """A time: 12.3 µs."""
    if seconds is None:
        return "–"
    return _scaled(seconds * 1e9, 1000, ("ns", "µs", "ms", "s")) if seconds else "0"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


# -- the parts ---------------------------------------------------------------------------------------------------------


def _graphs(program: Program) -> dict[str, Graph]:
    """The drawings of the program before and after, from the texts that were kept."""
    texts = [("before", program.texts.get("hlo")), ("after", program.texts.get("optimized"))]
    if program.preparation is not None:
        texts.append(("prepared", program.preparation.texts.get("optimized")))
    found: dict[str, Graph] = {}
    for prefix, text in texts:
        if text is not None:
            found |= graphs(parse_module(text, elided=True), prefix)
    return found


def _row(number: int, k: KernelFigures, figures: Figures) -> dict[str, Any]:
    """A kernel, for the table and the page's script."""
    whole = sum(other.seconds or 0.0 for other in figures.run)
    share = k.seconds / whole if k.seconds is not None and whole else None
    working = [op for op in k.kernel.ops if op not in MOVING]
    return {
        "number": number,
        "name": k.kernel.name,
        "code": ("prepared/" if k.prepared else "") + k.kernel.code,
        "ops": counted(working or k.kernel.ops),
        "flops": k.kernel.flops,
        "read": k.kernel.bytes_read,
        "written": k.kernel.bytes_written,
        "bytes": k.bytes,
        "launches": k.launches,
        "seconds": k.seconds,
        "estimate": k.estimate,
        "bound": k.bound,
        "of_roofline": k.of_roofline,
        "share": share,
        "prepared": k.prepared,
        "graph": None,
        "facts": [
            ["fuses", " ".join(counted(k.kernel.ops))],
            ["computes", f"{count(k.kernel.flops)} operations"],
            ["reads", size(k.kernel.bytes_read)],
            ["writes", size(k.kernel.bytes_written)],
            ["roofline estimate", f"{duration(k.estimate)}, bound by {k.bound}"],
            ["measured", f"{duration(k.seconds)} in {k.launches} launches" if k.launches else "not run"],
            ["of the roofline", percent(k.of_roofline)],
        ],
    }


def _join(boxes: dict[str, dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    """Links fusions' boxes and kernels, and marks in which kernel each instruction of the program before ended up."""
    free: dict[tuple[bool, str], list[int]] = {}
    for row in rows:
        free.setdefault((row["prepared"], sanitize(row["name"])), []).append(row["number"])
    within: dict[str, int] = {}
    for key, graph in boxes.items():
        for number, box in enumerate(graph["boxes"]):
            prepared = key.partition("/")[0] == "prepared"
            found = free.get((prepared, box["name"]), []) if box["kind"].startswith("fusion") else []
            box["kernel"] = found.pop(0) if len(found) > 1 else found[0] if found else None
            if box["kernel"] is not None:
                rows[box["kernel"]]["graph"] = [key, number]
                for opened in box["opens"]:
                    within |= {
                        inner["name"]: box["kernel"]
                        for inner in boxes[opened]["boxes"]
                        if not inner["kind"].startswith("parameter")
                    }
    for key, graph in boxes.items():
        if key.partition("/")[0] == "before":
            for box in graph["boxes"]:
                box["kernel"] = within.get(box["name"])


def _codes(executable: Executable) -> tuple[dict[str, dict[str, str]], str]:
    """The loop text and the assembly of each kernel's code; and why there is no assembly, if so."""
    found: dict[str, dict[str, str]] = {}
    program = executable.program
    why = _texts(executable, "", found)
    if program.preparation is not None and executable.preparation is not None:
        _texts(executable.preparation, "prepared/", found)
    return found, why


def _texts(executable: Executable, prefix: str, found: dict[str, dict[str, str]]) -> str:
    parts: list[tuple[str, Callable[[], str]]] = [
        ("loops", lambda: executable.text("loops")),
        ("asm", lambda: executable.text("asm")),
    ]
    why = ""
    for stage, text in parts:
        try:
            for name, part in parts_of(text()).items():
                found.setdefault(prefix + name, {})[stage] = part
        except ArgumentError as error:
            why = error.message
    return why


def _decisions(program: Program) -> dict[str, list[str]]:
    """What fusion decided about each instruction, and why."""
    found: dict[str, list[str]] = {}
    for line in program.texts.get("decisions", "").splitlines():
        verdict, _, rest = line.partition(": ")
        name, _, reason = rest.partition(", ")
        found.setdefault(sanitize(name), []).append(f"{verdict}: {reason}")
    return found


def _chart(lives: tuple[Life, ...], timeline: tuple[str, ...], arena: int) -> dict[str, Any]:
    """The arena over the program's steps, in a drawing's units: bytes downward, steps to the right."""
    steps = max(1, len(timeline) - 1)
    across, down = CHART_WIDTH / steps, CHART_HEIGHT / max(1, arena)
    bars = []
    for life in lives:
        if life.space != "arena":
            continue
        width, height = (life.end - life.start + 1) * across, max(1.0, life.bytes * down)
        room = int(width / 7)
        bars.append(
            {
                "x": round((life.start - 1) * across, 2),
                "y": round(life.offset * down, 2),
                "width": round(width, 2),
                "height": round(height, 2),
                "colour": zlib.crc32(life.name.encode()) % COLOURS,
                "label": life.name[:room] if room > 4 and height > 11 else "",
                "life": life,
                "first": timeline[life.start],
                "last": timeline[life.end],
            }
        )
    columns = [
        {"x": round(n * across, 2), "width": round(across, 2), "name": name} for n, name in enumerate(timeline[1:])
    ]
    return {"bars": bars, "columns": columns, "width": CHART_WIDTH, "height": CHART_HEIGHT, "steps": steps}
