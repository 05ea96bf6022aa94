"""The loader: whole objects load, damaged ones are refused, nothing else happens."""

from __future__ import annotations

import ctypes

import pytest

from fusile.base.errors import LoadError
from fusile.llvm import compile_object, host
from fusile.runtime.elf import Image, standard_externals

TEXT = """
@table = internal constant [4 x i64] [i64 2, i64 3, i64 5, i64 7]
declare ptr @memcpy(ptr, ptr, i64)
declare i64 @other(i64)
define i64 @prime(i64 %n) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %n
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @copied(ptr %to, ptr %from) {
  %r = call ptr @memcpy(ptr %to, ptr %from, i64 8)
  %v = load i64, ptr %to
  %w = call i64 @other(i64 %v)
  ret i64 %w
}
"""
OTHER = "define i64 @other(i64 %x) {\n  %y = mul i64 %x, 10\n  ret i64 %y\n}\n"

pytestmark = pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="the loader knows x86-64 objects")


def objects() -> list[bytes]:
    return [compile_object(TEXT, host()), compile_object(OTHER, host())]


def test_objects_call_each_other_and_the_c_library() -> None:
    image = Image(objects(), standard_externals())
    prime = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(image.symbols["prime"])
    assert [prime(i) for i in range(4)] == [2, 3, 5, 7]
    copied = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(image.symbols["copied"])
    source, target = ctypes.c_int64(12), ctypes.c_int64(0)
    assert copied(ctypes.byref(target), ctypes.byref(source)) == 120


def test_a_missing_function_is_named() -> None:
    with pytest.raises(LoadError, match="other"):
        Image(objects()[:1], standard_externals())


def test_damaged_objects_are_refused_or_load() -> None:
    whole = objects()[1]
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        try:
            Image([bytes(changed)], standard_externals())
        except LoadError:
            continue
    for length in range(0, len(whole), 37):
        with pytest.raises(LoadError):
            Image([whole[:length]], standard_externals())
