"""The only room that imports llvmlite: the host's description, and LLVM text to object code or assembly."""

from fusile.llvm.compile import HostInfo, assembly, assembly_many, compile_many, compile_object, host, optimized_text

__all__ = ["HostInfo", "assembly", "assembly_many", "compile_many", "compile_object", "host", "optimized_text"]
