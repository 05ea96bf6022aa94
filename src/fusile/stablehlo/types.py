"""MLIR's names of element types and shapes, both ways."""

from __future__ import annotations

from fusile.base.element_type import ALL, S64, ElementType, Kind
from fusile.base.shape import AnyShape, Shape


def mlir_element_name(kind: ElementType) -> str:
    """`i1`, `i32`, `ui8`, `bf16`, `f8E4M3FN`, `complex<f32>`."""
    if kind.kind is Kind.PREDICATE:
        return "i1"
    if kind.kind is Kind.COMPLEX:
        return f"complex<{kind.real.name}>"
    if kind.kind is Kind.FLOAT:
        return kind.name if kind.bits >= 16 else "f" + kind.name[1:].upper()
    return f"{'u' if kind.is_unsigned else ''}i{kind.bits}"


_BY_NAME = {mlir_element_name(kind): kind for kind in ALL if kind.kind is not Kind.TOKEN}


def mlir_element_type(name: str) -> ElementType:
    """The inverse; indices are s64, and signless integers are signed. Raises TypeError."""
    known = S64 if name == "index" else _BY_NAME.get(name.removeprefix("s"))
    if known is None:
        raise TypeError(f"no element type is {name}")
    return known


def mlir_type(shape: AnyShape) -> str:
    """`tensor<2x3xf32>`."""
    if not isinstance(shape, Shape):
        return f"tuple<{', '.join(map(mlir_type, shape.shapes))}>"
    if shape.is_token:
        return "!stablehlo.token"
    sizes = (str(d) if isinstance(d, int) else "?" for d in shape.dimensions)
    return f"tensor<{'x'.join((*sizes, mlir_element_name(shape.element_type)))}>"
