"""The runner: verification, honesty, dumps, disabled passes, repetition, errors."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fusile.base.errors import CompileError, ShapeError
from fusile.base.settings import Settings
from fusile.hlo.ir import Module
from fusile.hlo.opset.elementwise import Abs, Negate
from fusile.hlo.text import parse_module
from fusile.rewrite.passes import Repeat, dump_records, run_passes

TEXT = "HloModule small\n\nENTRY main {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] negate(x)\n}\n"
SETTINGS = replace(Settings(), verify=True, dump="", disabled_passes=())


@dataclass(frozen=True)
class Scripted:
    """A pass that does what it is told."""

    name: str
    action: Callable[[Module], bool]

    def __call__(self, module: Module) -> bool:
        return self.action(module)


def negate_once_more(module: Module) -> bool:
    module.entry.root = module.entry.add(Negate(), [module.entry.root])
    return True


def nothing(module: Module) -> bool:
    return False


def rename(module: Module) -> bool:
    """Names take no part in a module's structure."""
    module.entry.root.name = "other"
    return False


def test_records_say_what_ran_and_changed():
    module = parse_module(TEXT)
    records = run_passes(
        module, [Scripted("a", nothing), Scripted("b", negate_once_more), Scripted("c", rename)], SETTINGS
    )
    assert [(r.name, r.changed) for r in records] == [("a", False), ("b", True), ("c", False)]
    assert all(r.seconds >= 0 for r in records)


@pytest.mark.parametrize("said", [True, False])
def test_a_pass_that_lies_is_caught(said: bool):
    def lie(module: Module) -> bool:
        if not said:
            negate_once_more(module)
        return said

    with pytest.raises(CompileError, match="the pass liar reported"):
        run_passes(parse_module(TEXT), [Scripted("liar", lie)], SETTINGS)
    run_passes(parse_module(TEXT), [Scripted("liar", lie)], replace(SETTINGS, verify=False))


def test_a_pass_that_breaks_the_module_is_named():
    def break_it(module: Module) -> bool:
        module.entry.root.users[module.entry.root] = 1
        return True

    with pytest.raises(CompileError, match="the pass breaker broke the module small"):
        run_passes(parse_module(TEXT), [Scripted("breaker", break_it)], SETTINGS)


def test_a_failing_pass_is_named_with_a_way_out():
    def fail(module: Module) -> bool:
        raise KeyError("lost")

    with pytest.raises(CompileError, match="the pass failing failed on small") as caught:
        run_passes(parse_module(TEXT), [Scripted("failing", fail)], SETTINGS)
    assert "FUSILE_DISABLE_PASSES=failing" in str(caught.value)


def test_our_own_errors_keep_their_class():
    def fail(module: Module) -> bool:
        raise ShapeError("no fit")

    with pytest.raises(ShapeError) as caught:
        run_passes(parse_module(TEXT), [Scripted("failing", fail)], SETTINGS)
    assert caught.value.__notes__ == ["while running the pass failing on small"]


@pytest.mark.parametrize(
    ("disabled", "runs"), [((), 3), (("n",), 0), (("n#2",), 2), (("n#1", "n#3"), 1), (("m", "n#4"), 3)]
)
def test_passes_are_disabled_by_name_and_occurrence(disabled: tuple[str, ...], runs: int):
    records = run_passes(parse_module(TEXT), [Scripted("n", nothing)] * 3, replace(SETTINGS, disabled_passes=disabled))
    assert len(records) == runs


def test_a_group_repeats_until_nothing_changes():
    left = [2]

    def twice(module: Module) -> bool:
        left[0] -= 1
        return negate_once_more(module) if left[0] >= 0 else False

    group = Repeat((Scripted("twice", twice), Scripted("idle", nothing)))
    records = run_passes(parse_module(TEXT), [group], SETTINGS)
    assert [r.changed for r in records] == [True, False, True, False, False, False]


def test_a_group_that_does_not_settle_stops_at_its_limit():
    records = run_passes(parse_module(TEXT), [Repeat((Scripted("more", negate_once_more),), limit=4)], SETTINGS)
    assert len(records) == 4


def test_dumps_follow_the_passes_that_changed_something(tmp_path: Path):
    settings = replace(SETTINGS, dump=str(tmp_path))

    def to_abs(module: Module) -> bool:
        module.entry.root = module.entry.add(Abs(), [module.entry.root])
        return True

    module = parse_module(TEXT)
    run_passes(
        module, [Scripted("first", negate_once_more), Scripted("idle", nothing), Scripted("second", to_abs)], settings
    )
    folder = tmp_path / "small"
    assert sorted(p.name for p in folder.iterdir()) == ["000-input.hlo", "001-first.hlo", "002-second.hlo"]
    assert "abs" not in (folder / "001-first.hlo").read_text()
    assert "abs" in (folder / "002-second.hlo").read_text()
    run_passes(module, [Scripted("third", negate_once_more)], settings)
    assert not list(folder.glob("003-input.hlo")), "what the last file holds is not written again"
    assert (folder / "003-third.hlo").exists(), "numbers go on, nothing is overwritten"
    run_passes(parse_module(TEXT), [], settings)
    assert (folder / "004-input.hlo").exists()


def test_the_table_of_passes_says_what_each_did(tmp_path: Path):
    settings = replace(SETTINGS, dump=str(tmp_path))
    module = parse_module(TEXT)
    records = run_passes(module, [Scripted("more", negate_once_more), Scripted("idle", nothing)], settings)
    assert [(r.name, r.instructions, r.dumped) for r in records] == [("more", 3, "001-more.hlo"), ("idle", 3, "")]
    path = dump_records(module, records, tmp_path)
    lines = path.read_text().splitlines()
    assert [line.split()[1:] for line in lines[1:3]] == [["3", "more", "->", "001-more.hlo"], ["-", "idle"]]
    assert "total of 2 runs" in lines[-1]
    dump_records(module, records, tmp_path)
    assert len(path.read_text().splitlines()) == 2 * len(lines), "each compilation adds its own table"
