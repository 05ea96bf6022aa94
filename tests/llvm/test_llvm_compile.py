"""LLVM text to object code and assembly."""

import threading
import time

import pytest

from fusile.base.errors import CompileError
from fusile.llvm import HostInfo, assembly, compile_many, compile_object, host, optimized_text

ADD = """
define float @NAME(float %x) {
  %y = fadd float %x, 1.0
  ret float %y
}
"""
AARCH64 = HostInfo("aarch64-unknown-linux-gnu", "generic", "+neon")


def test_the_host_is_described():
    info = host()
    assert info.triple and info.cpu and info.architecture == info.triple.split("-")[0]
    features = info.features.split(",")
    assert features == sorted(features, key=lambda f: f[1:]) and all(f[0] in "+-" for f in features)
    assert info.has(next(f for f in features if f[0] == "+")[1:]) and not info.has("nonsense")


def test_objects_are_elf_for_the_wanted_machine():
    here, there = compile_object(ADD), compile_object(ADD, AARCH64)
    assert here[:4] == there[:4] == b"\x7fELF"
    assert int.from_bytes(there[18:20], "little") == 183  # EM_AARCH64
    assert b"NAME" in here


def test_assembly_and_optimized_text():
    assert "fadd" in assembly(ADD, AARCH64)
    text = "define i32 @f() {\n  %x = add i32 40, 2\n  ret i32 %x\n}\n"
    assert "ret i32 42" in optimized_text(text)


@pytest.mark.parametrize(
    "text", ["nonsense", "define void @f() {\n  ret i32 1\n}\n", ADD.replace("%x, 1.0", "%gone, 1.0")]
)
def test_wrong_text_is_a_compile_error(text):
    with pytest.raises(CompileError, match="LLVM"):
        compile_object(text)


def test_unknown_triple_is_a_compile_error():
    with pytest.raises(CompileError, match="code generator"):
        compile_object(ADD, HostInfo("nowhere-unknown-none", "", ""))


def test_verifier_errors_are_compile_errors():
    phi = "%x = phi i32 [ 1, %entry ], [ 2, %c ]"
    unverified = f"define void @f() {{\nentry:\n  br label %b\nb:\n  {phi}\n  ret void\nc:\n  ret void\n}}\n"
    with pytest.raises(CompileError, match="LLVM"):
        compile_object(unverified)


def test_many_keep_their_order_and_do_not_depend_on_threads():
    texts = [ADD.replace("NAME", f"f{i}") for i in range(7)]
    one = compile_many(texts, threads=1)
    assert one == compile_many(texts, threads=3)
    assert [f"f{i}".encode() in code for i, code in enumerate(one)] == [True] * 7
    assert compile_many([]) == []


def test_python_runs_while_llvm_works():
    """Calls release Python's lock, so two threads compile at once."""
    body = "".join(f"  %y{i + 1} = call float @llvm.sin.f32(float %y{i})\n" for i in range(3000))
    text = f"declare float @llvm.sin.f32(float)\ndefine float @f(float %y0) {{\n{body}  ret float %y3000\n}}\n"
    done = threading.Event()
    worker = threading.Thread(target=lambda: (compile_object(text), done.set()))
    worker.start()
    turns = 0
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    worker.join()
    assert turns > 3
