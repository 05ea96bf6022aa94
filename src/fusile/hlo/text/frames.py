"""The tables of source positions that stand in front of the computations in newer dumps of XLA."""

from __future__ import annotations

import re

from fusile.hlo.text.cursor import Cursor

_TABLE = re.compile(r"\s*(FileNames|FunctionNames|FileLocations|StackFrames)\s*\n((?:\d+ [^\n]*\n)*)")
_ROW = re.compile(r"(\d+) ([^\n]*)")
_FIELD = re.compile(r"(\w+)=(\d+)")


def read_stack_frames(cursor: Cursor) -> dict[int, tuple[str, int]]:
    """File and line by the number of a stack frame; empty when there are no tables."""
    tables: dict[str, dict[str, str]] = {}
    while (found := cursor.take(_TABLE)) is not None:
        tables[found[1]] = dict(_ROW.findall(found[2]))
    locations = {n: dict(_FIELD.findall(row)) for n, row in tables.get("FileLocations", {}).items()}
    frames: dict[int, tuple[str, int]] = {}
    for number, row in tables.get("StackFrames", {}).items():
        location = locations.get(dict(_FIELD.findall(row)).get("file_location_id", ""), {})
        file = tables.get("FileNames", {}).get(location.get("file_name_id", ""), "").strip('"')
        frames[int(number)] = (file, int(location.get("line", 0)))
    return frames
