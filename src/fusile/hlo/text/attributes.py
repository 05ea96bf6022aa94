"""How each op's attributes are spelled in HLO text.

An op's fields print as `field=value` by the field's type (`CODECS`). `SPELLINGS` holds what XLA spells differently:
another name, several fields in one attribute. `FROM_SHAPE` holds fields that the result's shape already says.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fusile.base.element_type import element_type
from fusile.base.shape import AnyShape
from fusile.hlo.ir import OPS, Computation, Op
from fusile.hlo.text.dictionary import json_of_dictionary
from fusile.hlo.text.window import format_dim_labels, format_window, parse_dim_labels, parse_window


class Names(Protocol):
    """What codecs need to know of the text around them: computations by name, and names of computations."""

    def computation(self, name: str) -> Computation: ...

    def computation_name(self, computation: Computation) -> str: ...


@dataclass(frozen=True)
class Codec:
    """How one type's values are written and read. `missing` gives the meaning of an attribute left out."""

    write: Callable[[Any, Names], str]
    read: Callable[[str, Names], Any]
    missing: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Attribute:
    """One attribute as text: the fields it holds, and how."""

    name: str
    fields: tuple[str, ...]
    codec: Codec


_BARE = re.compile(r"[A-Za-z_][\w.\-]*")
_INTEGER = re.compile(r"-?\d{1,19}")


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def unquote(text: str) -> str:
    """The string that a quoted word stands for; the word itself when it has no quotes. Raises ValueError."""
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def write_integers(values: Any) -> str:
    """Integers, and tuples of them to any depth: `{1,2}`, `{{0,1},{2,3}}`."""
    if isinstance(values, tuple):
        return "{" + ",".join(map(write_integers, values)) + "}"
    return str(int(values))


def read_integers(text: str) -> Any:
    """The inverse of `write_integers`. Raises ValueError."""
    if re.fullmatch(r"[-\d,{}\s]*", text) is None or text.count("{") > 100_000 or "{" * 50 in text:
        raise ValueError(f"expected integers such as {{0,1}}, found {text!r}")
    try:
        return _tuples(json.loads(text.replace("{", "[").replace("}", "]")))
    except (ValueError, RecursionError):
        raise ValueError(f"expected integers such as {{0,1}}, found {text!r}") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def read_integer_tuple(text: str) -> tuple[int, ...]:
    value = read_integers(text)
    if not isinstance(value, tuple):
        raise ValueError(f"expected integers in braces, found {text!r}")
    return value


def read_integer(text: str) -> int:
    """One integer, which may stand in braces. Raises ValueError."""
    found = _INTEGER.fullmatch(text.strip("{} "))
    if found is None:
        raise ValueError(f"expected an integer, found {text!r}")
    return int(found[0])


def read_boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, found {text!r}")
    return text == "true"


def read_config(text: str) -> str:
    """A custom call's configuration: a string, JSON as it stands, or the dictionary that XLA writes for typed calls, as
    JSON."""
    return json_of_dictionary(text) if text.startswith("{") else unquote(text)


def write_word(value: str) -> str:
    return value if _BARE.fullmatch(value) else quote(value)


def _write_computation(value: Computation, names: Names) -> str:
    return "%" + names.computation_name(value)


def _write_computations(values: tuple[Computation, ...], names: Names) -> str:
    return "{" + ", ".join(_write_computation(v, names) for v in values) + "}"


def _read_computations(text: str, names: Names) -> tuple[Computation, ...]:
    return tuple(
        names.computation(word.strip().removeprefix("%")) for word in text.strip("{}").split(",") if word.strip()
    )


INTEGER = Codec(lambda v, _: str(int(v)), lambda t, _: read_integer(t))
INTEGERS = Codec(lambda v, _: write_integers(v), lambda t, _: read_integer_tuple(t), tuple)
BRACED = Codec(lambda v, _: f"{{{v}}}", lambda t, _: read_integer(t))
WORD = Codec(lambda v, _: write_word(v), lambda t, _: unquote(t))
QUOTED = Codec(lambda v, _: quote(v), lambda t, _: unquote(t), str)

CODECS: dict[str, Codec] = {
    "int": INTEGER,
    "bool": Codec(lambda v, _: "true" if v else "false", lambda t, _: read_boolean(t), bool),
    "float": Codec(lambda v, _: repr(float(v)), lambda t, _: float(t)),
    "str": WORD,
    "ElementType": Codec(lambda v, _: v.name, lambda t, _: element_type(t)),
    "ElementType | None": Codec(lambda v, _: v.name, lambda t, _: element_type(t), lambda: None),
    "Window": Codec(lambda v, _: format_window(v), lambda t, _: parse_window(t), lambda: parse_window("{}")),
    "ConvolutionDimensions": Codec(lambda v, _: format_dim_labels(v), lambda t, _: parse_dim_labels(t)),
    "Computation": Codec(_write_computation, lambda t, names: names.computation(t.removeprefix("%"))),
    "tuple[Computation, ...]": Codec(_write_computations, _read_computations),
}
"""By the text of a field's annotation; other tuples are integers to any depth."""

FROM_SHAPE: dict[tuple[str, str], Callable[[AnyShape], Any]] = {
    ("iota", "result"): lambda shape: shape,
    ("custom-call", "result"): lambda shape: shape,
    ("broadcast", "dimensions"): lambda shape: shape.dimensions,  # type: ignore[union-attr]
    ("reshape", "dimensions"): lambda shape: shape.dimensions,  # type: ignore[union-attr]
    ("rng-bit-generator", "result"): lambda shape: shape.shapes[1],  # type: ignore[union-attr]
    ("convert", "element_type"): lambda shape: shape.element_type,  # type: ignore[union-attr]
    ("bitcast-convert", "element_type"): lambda shape: shape.element_type,  # type: ignore[union-attr]
}
"""Fields that the result's shape says."""

RESULT_TYPED = ("dot", "convolution")
"""Ops whose optional `element_type` is printed as the result's shape only."""


def _write_slices(value: tuple[Any, ...], _: Names) -> str:
    parts = (f"[{a}:{b}]" if s == 1 else f"[{a}:{b}:{s}]" for a, b, s in zip(*value, strict=True))
    return "{" + ", ".join(parts) + "}"


def _read_slices(text: str, _: Names) -> tuple[Any, ...]:
    parts = re.findall(r"\[([^\]]*)\]", text)
    rows = [(*map(read_integer, part.split(":")), 1)[:3] for part in parts]
    if any(len(row) != 3 for row in rows):
        raise ValueError(f"expected slices such as {{[0:2], [1:5:2]}}, found {text!r}")
    return tuple(zip(*rows, strict=True)) if rows else ((), (), ())


def _write_padding(value: tuple[Any, ...], _: Names) -> str:
    parts = ((f"{a}_{b}" if i == 0 else f"{a}_{b}_{i}") for a, b, i in zip(*value, strict=True))
    return "x".join(parts) or "{}"


def _read_padding(text: str, _: Names) -> tuple[Any, ...]:
    rows = [(*map(read_integer, part.split("_")), 0)[:3] for part in text.strip("{}").split("x") if part]
    if any(len(row) != 3 for row in rows):
        raise ValueError(f"expected padding such as 0_0x1_2_0, found {text!r}")
    return tuple(zip(*rows, strict=True)) if rows else ((), (), ())


_TOTAL_ORDER = Codec(
    lambda v, _: "TOTALORDER" if v else "FLOAT", lambda t, _: t == "TOTALORDER", bool
)  # XLA writes the type of other comparisons too; it follows from the operands
_KIND = Codec(lambda v, _: write_word(v), lambda t, _: unquote(t))

SPELLINGS: dict[str, tuple[Attribute, ...]] = {
    "iota": (Attribute("iota_dimension", ("dimension",), INTEGER),),
    "compare": (Attribute("type", ("total_order",), _TOTAL_ORDER),),
    "broadcast": (Attribute("dimensions", ("broadcast_dimensions",), INTEGERS),),
    "transpose": (Attribute("dimensions", ("permutation",), INTEGERS),),
    "slice": (Attribute("slice", ("starts", "limits", "strides"), Codec(_write_slices, _read_slices)),),
    "pad": (
        Attribute("padding", ("low", "high", "interior"), Codec(_write_padding, _read_padding, lambda: ((), (), ()))),
    ),
    "concatenate": (Attribute("dimensions", ("dimension",), BRACED),),
    "dynamic-slice": (Attribute("dynamic_slice_sizes", ("sizes",), INTEGERS),),
    "scatter": (Attribute("to_apply", ("computation",), CODECS["Computation"]),),
    "reduce": (Attribute("to_apply", ("computation",), CODECS["Computation"]),),
    "reduce-window": (Attribute("to_apply", ("computation",), CODECS["Computation"]),),
    "all-reduce": (Attribute("to_apply", ("computation",), CODECS["Computation"]),),
    "reduce-scatter": (Attribute("to_apply", ("computation",), CODECS["Computation"]),),
    "sort": (
        Attribute("dimensions", ("dimension",), BRACED),
        Attribute("to_apply", ("computation",), CODECS["Computation"]),
    ),
    "dot": (
        Attribute("lhs_batch_dims", ("lhs_batch",), INTEGERS),
        Attribute("lhs_contracting_dims", ("lhs_contracting",), INTEGERS),
        Attribute("rhs_batch_dims", ("rhs_batch",), INTEGERS),
        Attribute("rhs_contracting_dims", ("rhs_contracting",), INTEGERS),
    ),
    "convolution": (Attribute("dim_labels", ("dimension_numbers",), CODECS["ConvolutionDimensions"]),),
    "call": (Attribute("to_apply", ("computation",), CODECS["Computation"]),),
    "conditional": (Attribute("branch_computations", ("branches",), CODECS["tuple[Computation, ...]"]),),
    "fusion": (Attribute("calls", ("computation",), CODECS["Computation"]),),
    "custom-call": (
        Attribute("custom_call_target", ("target",), QUOTED),
        Attribute("backend_config", ("config",), Codec(lambda v, _: quote(v), lambda t, _: read_config(t), str)),
        Attribute("custom_call_has_side_effect", ("has_effect",), CODECS["bool"]),
    ),
    "fft": (Attribute("fft_type", ("kind",), WORD), Attribute("fft_length", ("length",), INTEGERS)),
    "triangular-solve": (Attribute("transpose_a", ("transpose",), WORD),),
}


_KNOWN: dict[str, tuple[Attribute, ...]] = {}


def attributes_of(cls: type[Op]) -> tuple[Attribute, ...]:
    """The attributes of an op as text, in the order of its fields. The argument in parentheses (a constant's literal, a
    parameter's number) and what the result's shape says are not among them."""
    if cls.opcode not in _KNOWN:
        _KNOWN[cls.opcode] = _attributes(cls)
    return _KNOWN[cls.opcode]


def _attributes(cls: type[Op]) -> tuple[Attribute, ...]:
    special = {a.fields[0]: a for a in SPELLINGS.get(cls.opcode, ())}
    covered = {name for a in special.values() for name in a.fields}
    found: list[Attribute] = []
    for field in dataclasses.fields(cls):
        if field.name in special:
            found.append(special[field.name])
        elif field.name not in covered and not _elsewhere(cls.opcode, field.name):
            found.append(Attribute(field.name, (field.name,), codec_of(field)))
    return tuple(found)


def _elsewhere(opcode: str, field: str) -> bool:
    in_parentheses = (opcode, field) in (("constant", "literal"), ("parameter", "number"))
    return in_parentheses or (opcode, field) in FROM_SHAPE or (opcode in RESULT_TYPED and field == "element_type")


def codec_of(field: dataclasses.Field[Any]) -> Codec:
    annotation = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
    if annotation in CODECS:
        return CODECS[annotation]
    if annotation.startswith("tuple["):
        return INTEGERS
    raise TypeError(f"HLO text has no codec for a field of type {annotation}; add it to CODECS")


def default_of(cls: type[Op], field: str) -> Any:
    """The field's default; `dataclasses.MISSING` when it has none."""
    return next(f.default for f in dataclasses.fields(cls) if f.name == field)


def write_attributes(op: Op, names: Names) -> list[str]:
    """`name=value` for each attribute that is not at its default."""
    written = []
    for attribute in attributes_of(type(op)):
        values = tuple(getattr(op, name) for name in attribute.fields)
        if all(value == default_of(type(op), name) for value, name in zip(values, attribute.fields, strict=True)):
            continue
        value = values[0] if len(values) == 1 else values
        written.append(f"{attribute.name}={attribute.codec.write(value, names)}")
    return written


def read_attributes(opcode: str, texts: dict[str, str], shape: AnyShape, names: Names) -> dict[str, Any]:
    """The fields of an op from its attributes' texts (those used are removed from `texts`) and the result's shape.

    Raises ValueError for a missing or malformed attribute."""
    cls = OPS[opcode]
    fields = {field: get(shape) for (op, field), get in FROM_SHAPE.items() if op == opcode}
    for attribute in attributes_of(cls):
        text = texts.pop(attribute.name, None)
        if text is not None:
            value = attribute.codec.read(text, names)
        elif default_of(cls, attribute.fields[0]) is not dataclasses.MISSING:
            continue
        elif attribute.codec.missing is not None:
            value = attribute.codec.missing()
        else:
            raise ValueError(f"{opcode} lacks the attribute {attribute.name}=")
        fields.update(zip(attribute.fields, value if len(attribute.fields) > 1 else (value,), strict=True))
    if opcode in RESULT_TYPED:
        fields.setdefault("element_type", None)
    return fields
