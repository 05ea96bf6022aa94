"""Work is counted, not timed: a count is the same on a busy machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest


def _calls(function: Callable[[], Any]) -> int:
    """How many calls, of Python functions and built-in ones, the current thread makes while `function` runs."""
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


@pytest.fixture
def count_calls() -> Callable[[Callable[[], Any]], int]:
    return _calls
