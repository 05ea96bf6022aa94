"""The runtime's native half for arguments, as LLVM text: checks a call's arrays and collects where their elements lie.

`i64 fusile_arrays(ptr tuple, i64 count, ptr specs, ptr array_type, ptr out)`: for each item of a Python tuple, the data
pointer goes to `out`. An item is as wanted when its type is `array_type` (NumPy's ndarray), its dtype is the very
object that its spec names, its sizes are the spec's and it is C-contiguous and aligned. Returns the number of the
first item that is not, or `count`; -1 when the tuple has another length. A spec is 24 bytes: the dtype's address, the
rank, the address of the sizes.

What it reads of CPython's and NumPy's objects are the fields that their headers let compiled extensions read. The
runtime checks once, before it relies on it, that they are where this expects them.
"""

from __future__ import annotations

LENGTH, TUPLE_ITEMS = 16, 24
TYPE = 8
DATA, RANK, SIZES, DTYPE, FLAGS = 16, 24, 32, 56, 64
CONTIGUOUS_ALIGNED = 0x101


def arrays_text() -> str:
    """The function's text, for any 64-bit target."""
    return f"""
define i64 @fusile_arrays(ptr %tuple, i64 %count, ptr %specs, ptr %array_type, ptr %out) nounwind {{
entry:
  %length.at = getelementptr i8, ptr %tuple, i64 {LENGTH}
  %length = load i64, ptr %length.at, align 8
  %as.many = icmp eq i64 %length, %count
  br i1 %as.many, label %start, label %end
start:
  %items = getelementptr i8, ptr %tuple, i64 {TUPLE_ITEMS}
  br label %turn
turn:
  %i = phi i64 [ 0, %start ], [ %next, %good ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %end
look:
  %cell = getelementptr ptr, ptr %items, i64 %i
  %array = load ptr, ptr %cell, align 8
  %spec.offset = mul i64 %i, 24
  %spec = getelementptr i8, ptr %specs, i64 %spec.offset
  %type.at = getelementptr i8, ptr %array, i64 {TYPE}
  %type = load ptr, ptr %type.at, align 8
  %is.array = icmp eq ptr %type, %array_type
  br i1 %is.array, label %kind, label %end
kind:
  %dtype.at = getelementptr i8, ptr %array, i64 {DTYPE}
  %dtype = load ptr, ptr %dtype.at, align 8
  %wanted.dtype = load ptr, ptr %spec, align 8
  %same.dtype = icmp eq ptr %dtype, %wanted.dtype
  %rank.at = getelementptr i8, ptr %array, i64 {RANK}
  %rank.short = load i32, ptr %rank.at, align 4
  %rank = sext i32 %rank.short to i64
  %wanted.rank.at = getelementptr i8, ptr %spec, i64 8
  %wanted.rank = load i64, ptr %wanted.rank.at, align 8
  %same.rank = icmp eq i64 %rank, %wanted.rank
  %flags.at = getelementptr i8, ptr %array, i64 {FLAGS}
  %flags = load i32, ptr %flags.at, align 4
  %set = and i32 %flags, {CONTIGUOUS_ALIGNED}
  %plain = icmp eq i32 %set, {CONTIGUOUS_ALIGNED}
  %same.kind = and i1 %same.dtype, %same.rank
  %fits = and i1 %same.kind, %plain
  br i1 %fits, label %sizes, label %end
sizes:
  %sizes.at = getelementptr i8, ptr %array, i64 {SIZES}
  %sizes.of = load ptr, ptr %sizes.at, align 8
  %wanted.sizes.at = getelementptr i8, ptr %spec, i64 16
  %wanted.sizes = load ptr, ptr %wanted.sizes.at, align 8
  br label %dimension
dimension:
  %d = phi i64 [ 0, %sizes ], [ %d.next, %compare ]
  %d.more = icmp ult i64 %d, %rank
  br i1 %d.more, label %compare, label %good
compare:
  %a.at = getelementptr i64, ptr %sizes.of, i64 %d
  %a = load i64, ptr %a.at, align 8
  %b.at = getelementptr i64, ptr %wanted.sizes, i64 %d
  %b = load i64, ptr %b.at, align 8
  %d.next = add i64 %d, 1
  %same.size = icmp eq i64 %a, %b
  br i1 %same.size, label %dimension, label %end
good:
  %data.at = getelementptr i8, ptr %array, i64 {DATA}
  %data = load ptr, ptr %data.at, align 8
  %out.at = getelementptr ptr, ptr %out, i64 %i
  store ptr %data, ptr %out.at, align 8
  %next = add i64 %i, 1
  br label %turn
end:
  %found = phi i64 [ -1, %entry ], [ %i, %turn ], [ %i, %look ], [ %i, %kind ], [ %i, %compare ]
  ret i64 %found
}}
"""
