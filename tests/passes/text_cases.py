"""Reads the files of text cases; `conftest.py` says what stands in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HEADINGS = ("case", "fires", "not", "numerics")


@dataclass
class Case:
    """One case as written; `expected` is the text below `// expect`."""

    attributes: dict[str, str] = field(default_factory=dict)
    module: str = ""
    expected: str = ""

    def names(self, heading: str) -> list[str]:
        return [n.strip() for n in self.attributes.get(heading, "").split(",") if n.strip()]

    def text(self) -> str:
        head = "".join(f"// {h}: {self.attributes[h]}\n" for h in HEADINGS if h in self.attributes)
        return f"{head}{self.module.strip()}\n// expect\n{self.expected.strip()}\n"


def read_cases(path: Path) -> tuple[str, list[Case]]:
    """The file's header and cases."""
    header, cases, expecting = "", [], False
    for line in path.read_text().splitlines():
        heading, colon, value = line.removeprefix("// ").partition(": ")
        if line.startswith("// case: "):
            cases.append(Case())
            expecting = False
        if not cases:
            header += line + "\n"
        elif line.strip() == "// expect":
            expecting = True
        elif line.startswith("// ") and colon and heading in HEADINGS:
            cases[-1].attributes[heading] = value
        elif expecting:
            cases[-1].expected += line + "\n"
        else:
            cases[-1].module += line + "\n"
    return header, cases


def header_value(header: str, heading: str) -> str:
    (line,) = [x for x in header.splitlines() if x.startswith(f"// {heading}: ")]
    return line.partition(": ")[2].strip()


def all_cases() -> Iterable[Case]:
    for path in sorted(Path(__file__).parent.glob("*.hlo")):
        yield from read_cases(path)[1]
