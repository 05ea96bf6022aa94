"""Reports: pages that hold every kernel, are well formed, need nothing from outside and run nothing of the program's
names."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import programs
import pytest

import fusile
from fusile.base.settings import Settings
from fusile.compiler.report import Report, report
from fusile.compiler.report.layout import layered
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Module
from fusile.memory.places import aligned

sys.path.insert(0, str(Path(__file__).parents[1] / "passes"))
from pass_cases import argument
from random_modules import RandomModule

pytest.importorskip("jinja2")
VOID = {"meta", "input", "br", "link", "img"}


class Page(html.parser.HTMLParser):
    """A page's elements, checked to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, text: str) -> None:
        if self.open[-1:] == ["script"]:
            last = next(attributes for tag, attributes in reversed(self.found) if tag == "script")
            if last.get("id") == "data":
                self.data += text
        elif self.open[-1:] != ["style"]:
            self.words.append(text)


def arrays(module: Module) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [np.asarray(argument(p.array_shape, random, edges=False)) for p in module.entry.parameters]


def check(made: Report) -> tuple[Page, dict]:
    """The page and its data, checked for what every page must have."""
    page = Page(made.html)
    data = json.loads(page.data)
    program = made.executable.program
    rows = [attributes for tag, attributes in page.found if tag == "tr" and "data-kernel" in attributes]
    prepared = program.preparation.kernels if program.preparation else ()
    assert len(rows) == len(data["kernels"]) == len(program.kernels) + len(prepared)
    for kernel, row in zip(program.kernels, data["kernels"], strict=False):
        assert (row["name"], row["flops"]) == (kernel.name, kernel.flops)
        assert row["graph"] is not None, f"{kernel.name} has no box"
        if "host" not in kernel.code:
            assert data["codes"][kernel.code]["loops"] and data["codes"][kernel.code]["asm"]
    for tag, attributes in page.found:
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith("#"), f"<{tag} {name}> goes outside"
        assert not any(name.startswith("on") for name in attributes)
    assert "url(http" not in made.html and "@import" not in made.html
    for graph in data["graphs"].values():
        check_graph(graph)
    bars = [attributes for tag, attributes in page.found if tag == "g" and attributes.get("class") == "value"]
    inside = [life for life in program.lives if life.space == "arena"]
    assert len(bars) == len(inside)
    assert max((life.offset + aligned(life.bytes) for life in inside), default=0) == made.executable.memory.temp
    assert sum(aligned(life.bytes) for life in program.lives) == made.executable.memory.temp_unshared
    return page, data


def check_graph(graph: dict) -> None:
    """Lines join boxes downward; boxes lie inside and apart."""
    boxes = graph["boxes"]
    for (a, b), line in zip(graph["edges"], graph["lines"], strict=True):
        assert boxes[a]["y"] < boxes[b]["y"]
        assert line[:2] == pytest.approx([boxes[a]["x"], boxes[a]["y"] + boxes[a]["h"] / 2], abs=0.2)
        assert line[-2:] == pytest.approx([boxes[b]["x"], boxes[b]["y"] - boxes[b]["h"] / 2], abs=0.2)
    rows: dict[float, list[dict]] = {}
    for box in boxes:
        assert box["x"] - box["w"] / 2 >= -0.1 and box["x"] + box["w"] / 2 <= graph["width"] + 0.1
        assert box["y"] - box["h"] / 2 >= -0.1 and box["y"] + box["h"] / 2 <= graph["height"] + 0.1
        rows.setdefault(box["y"], []).append(box)
    for row in rows.values():
        row.sort(key=lambda box: box["x"])
        for left, right in itertools.pairwise(row):
            assert left["x"] + left["w"] / 2 < right["x"] - right["w"] / 2


@pytest.mark.parametrize(
    "module",
    [
        programs.softmax(8, 40),
        programs.dense(40, 70, 30),
        programs.counted_loop(3, 9),
        programs.sum_and_argmax(9, 17),
        programs.column_sums(0, 3),
    ],
    ids=lambda m: m.name,
)
def test_a_page_holds_every_kernel(module: Module, settings: Settings) -> None:
    made = report(module, *arrays(module))
    _, data = check(made)
    assert all(row["launches"] is not None and row["seconds"] is not None for row in data["kernels"])
    assert made.figures.seconds and made.figures.flops == sum(
        k.kernel.flops * (k.launches or 0) for k in made.figures.kernels
    )


def test_a_conditional_opens_its_branches(settings: Settings) -> None:
    text = """HloModule choose
yes { x = f32[8] parameter(0)  a = f32[8] exponential(x)  ROOT t = (f32[8]) tuple(a) }
no { x = f32[8] parameter(0)  a = f32[8] sine(x)  ROOT t = (f32[8]) tuple(a) }
ENTRY main {
  p = pred[] parameter(0)
  x = f32[8] parameter(1)
  c = (f32[8]) conditional(p, x, x), true_computation=yes, false_computation=no
  ROOT r = f32[8] get-tuple-element(c), index=0
}"""
    _, data = check(report(text, np.bool_(True), np.ones(8, np.float32)))
    (box,) = [b for b in data["graphs"]["after"]["boxes"] if b["kind"].startswith("control")]
    assert len(box["opens"]) == 2
    assert {row["launches"] for row in data["kernels"]} == {0, 1}, "one branch ran, the other did not"
    assert any(row["seconds"] == 0 for row in data["kernels"])


def test_a_program_without_kernels(settings: Settings) -> None:
    page, data = check(report("HloModule same\nENTRY main {\n  ROOT x = f32[3] parameter(0)\n}", np.ones(3, "f")))
    assert data["kernels"] == [] and any("no kernel" in word for word in page.words)


def test_calls_of_registered_functions(settings: Settings) -> None:
    fusile.register_custom_call("report_test_twice")(lambda operands, attributes, shapes: [2 * operands[0]])
    text = """HloModule calls
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] custom-call(x), custom_call_target="report_test_twice"
  ROOT z = f32[4] add(y, y)
}"""
    _, data = check(report(text, np.ones(4, np.float32)))
    assert any("custom-call" in row["ops"] for row in data["kernels"])


def test_names_are_text_and_never_markup(settings: Settings) -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    b = Builder(evil)
    x = b.parameter(programs.shape(8, 8), evil)
    with b.at(fusile.base.source.Source(op_name=evil, file=evil, line=3)):
        y = b.dot(b.tanh(x), x)
    made = report(b.module(b.add(y, y)), np.ones((8, 8), np.float32))
    page, _ = check(made)
    assert evil not in made.html and not any(tag == "img" for tag, _ in page.found)
    assert any(evil in word for word in page.words), "the name itself is shown"
    assert len(re.findall("<script", made.html)) == 2
    frame = Page(made._repr_html_())
    ((tag, attributes),) = frame.found
    assert tag == "iframe" and attributes["srcdoc"] == made.html


@pytest.mark.parametrize("seed", range(12))
def test_random_modules_have_pages(seed: int, settings: Settings) -> None:
    module = RandomModule(seed).module()
    check(report(module, *arrays(module)))


def test_an_executable_is_shown_as_it_is(settings: Settings, tmp_path: Path) -> None:
    executable = fusile.compile(programs.softmax(8, 40), settings=settings)
    made = report(executable)
    check(made)
    assert made.figures.seconds is None and made.figures.flops > 0
    executable.save(tmp_path / "softmax.fusile")
    loaded = report(fusile.load(tmp_path / "softmax.fusile"))
    assert "No assembly: a program loaded from a file" in loaded.html
    path = made.save(tmp_path / "page.html")
    assert path.read_text() == made.html and "page.html" not in repr(made)


def test_donated_arguments_survive(settings: Settings) -> None:
    module = programs.softmax(64, 64)
    x = np.ones((64, 64), np.float32)
    report(fusile.compile(module, settings=settings, donate=(0,)), x)
    assert (x == 1).all()


def test_what_has_no_report_is_refused(settings: Settings) -> None:
    with pytest.raises(fusile.ArgumentError, match="no report on a int"):
        report(3)
    with pytest.raises(fusile.ArgumentError, match="takes 1 arguments"):
        report(programs.softmax(4, 4), np.ones((4, 4), "f"), np.ones((4, 4), "f"))


def test_the_extra_is_named_when_its_package_is_missing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(fusile.FusileError, match=r"fusile\[report\]"):
        report(programs.softmax(4, 4))


@pytest.mark.parametrize("seed", range(20))
def test_layouts_of_random_graphs(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 200))
    sizes = [(float(random.integers(20, 200)), float(random.integers(20, 90))) for _ in range(count)]
    edges = [(int(random.integers(b)), b) for b in range(1, count) for _ in range(random.integers(0, 4))]
    layout = layered(sizes, edges)
    boxes = [{"x": x, "y": y, "w": w, "h": h} for (x, y), (w, h) in zip(layout.boxes, sizes, strict=True)]
    lines = [[v for point in line for v in point] for line in layout.lines]
    check_graph({"boxes": boxes, "edges": edges, "lines": lines, "width": layout.width, "height": layout.height})


def test_a_long_program_is_laid_out() -> None:
    """As many boxes as BERT has; wide layers become rows."""
    edges = [(n, n + 1) for n in range(4000)] + [(0, n) for n in range(100, 4000, 100)]
    layout = layered([(100.0, 40.0)] * 4001, edges)
    assert len(layout.boxes) == 4001
    fan = layered([(100.0, 40.0)] * 501, [(n, 500) for n in range(500)])
    assert fan.width < 70 * 118


def test_settings_for_reports_do_not_use_the_cache(settings: Settings) -> None:
    module = programs.softmax(4, 8)
    fusile.compile(module, settings=replace(Settings(), cache=True))
    assert report(module).executable.compile_times
