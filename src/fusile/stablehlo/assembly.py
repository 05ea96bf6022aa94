"""StableHLO's pretty forms. Most are operands, words and `name = value` pairs in some order, which one reader takes;
the others have a reader each. All give the generic form's attribute names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fusile.base.shape import AnyShape, Shape
from fusile.stablehlo.parser import ASSEMBLY, Assembly, Parser
from fusile.stablehlo.syntax import DialectAttribute, FunctionType, Location, Operation, Region, Symbol

_WORD = re.compile(r"[A-Za-z_][\w$.]*")
_FORMAT = re.compile(r"e(\d{1,3})m(\d{1,3})")

KEYWORDS: dict[str, dict[str, str]] = {
    "stablehlo.iota": {"dim": "iota_dimension"},
    "stablehlo.dynamic_iota": {"dim": "iota_dimension"},
    "stablehlo.broadcast_in_dim": {"dims": "broadcast_dimensions"},
    "stablehlo.dynamic_broadcast_in_dim": {"dims": "broadcast_dimensions"},
    "stablehlo.broadcast": {"sizes": "broadcast_sizes"},
    "stablehlo.transpose": {"dims": "permutation"},
    "stablehlo.reverse": {"dims": "dimensions"},
    "stablehlo.dynamic_slice": {"sizes": "slice_sizes"},
    "stablehlo.pad": {"low": "edge_padding_low", "high": "edge_padding_high", "interior": "interior_padding"},
    "stablehlo.concatenate": {"dim": "dimension"},
    "stablehlo.get_dimension_size": {"dim": "dimension"},
    "stablehlo.set_dimension_size": {"dim": "dimension"},
    "stablehlo.fft": {"type": "fft_type", "length": "fft_length"},
    "stablehlo.rng": {"distribution": "rng_distribution"},
    "stablehlo.rng_bit_generator": {"algorithm": "rng_algorithm"},
}
"""The generic form's name of an attribute, where the pretty form has a shorter one."""


def assembly(*names: str) -> Callable[[Assembly], Assembly]:
    """Enters the reader of these ops' pretty forms."""

    def enter(reader: Assembly) -> Assembly:
        for name in names:
            ASSEMBLY[name] = reader
        return reader

    return enter


@assembly("")
def ordinary(parser: Parser, operation: Operation) -> None:
    """`op WORD, %a, %b, name = value, other = value x value {attributes} : types`."""
    words: list[str] = []
    renamed = KEYWORDS.get(operation.name, {})
    while (token := parser.peek()) and token != ":":
        if token[0] == "%":
            operation.operands.append(parser.parse_value())
        elif token in ",()":
            parser.index += 1
        elif token == "{":
            operation.attributes.update(parser.parse_dictionary())
        elif parser.peek(1) == "=" and _WORD.fullmatch(token):
            parser.index += 2
            operation.attributes[renamed.get(token, token)] = _pair(parser)
        elif _WORD.fullmatch(token):
            words.append(parser.next())
        else:
            raise parser.error(f"unexpected {token[:40]!r} in {operation.name}")
    if words:
        operation.attributes["words"] = words
    parser.parse_types(operation)


def _pair(parser: Parser) -> Any:
    """A value, or two of them as in `[0] x [1]`."""
    first = parser.parse_attribute(typed=False)
    return (first, parser.parse_attribute(typed=False)) if parser.accept("x") else first


@assembly("return", "func.return", "stablehlo.return")
def _return(parser: Parser, operation: Operation) -> None:
    while parser.peek().startswith("%"):
        operation.operands.append(parser.parse_value())
        if not parser.accept(","):
            break
    parser.parse_types(operation)


@assembly("stablehlo.create_token", "stablehlo.partition_id", "stablehlo.replica_id")
def _no_operands(parser: Parser, operation: Operation) -> None:
    parser.parse_types(operation)


@assembly("stablehlo.constant", "chlo.constant", "arith.constant")
def _constant(parser: Parser, operation: Operation) -> None:
    """Or `stablehlo.constant() <{value = ...}> : () -> type`, which gives the integers of a quantized type."""
    if parser.peek() == "(":
        parser.parse_generic(operation)
        return
    if parser.peek() == "{":
        operation.attributes.update(parser.parse_dictionary())
    operation.attributes["value"] = value = parser.parse_attribute()
    operation.result_types = [getattr(value, "shape", None)]


@assembly("stablehlo.compare")
def _compare(parser: Parser, operation: Operation) -> None:
    ordinary(parser, operation)
    words = operation.attributes.pop("words", [])
    if len(words) not in (1, 2):
        raise parser.error("compare takes a direction and a type", position=operation.position)
    operation.attributes["comparison_direction"] = words[0]
    if len(words) == 2:
        operation.attributes["compare_type"] = words[1]


@assembly("stablehlo.slice")
def _slice(parser: Parser, operation: Operation) -> None:
    operation.operands.append(parser.parse_value())
    parser.expect("[")
    rows: list[list[int]] = []
    while not parser.accept("]"):
        if rows:
            parser.expect(",")
        row = [_integer(parser)]
        while parser.accept(":"):
            row.append(_integer(parser))
        rows.append(row)
    if any(len(row) not in (2, 3) for row in rows):
        raise parser.error("a slice is start:limit or start:limit:stride", position=operation.position)
    operation.attributes.update(
        start_indices=[r[0] for r in rows],
        limit_indices=[r[1] for r in rows],
        strides=[r[2] if len(r) == 3 else 1 for r in rows],
    )
    _attributes_and_types(parser, operation)


def _integer(parser: Parser) -> int:
    token = parser.next()
    if re.fullmatch(r"-?\d{1,18}", token) is None:
        parser.index -= 1
        raise parser.error(f"expected an integer, found {token[:40]!r}")
    return int(token)


def _attributes_and_types(parser: Parser, operation: Operation) -> None:
    if parser.peek() == "{":
        operation.attributes.update(parser.parse_dictionary())
    parser.parse_types(operation)


@assembly("stablehlo.get_tuple_element")
def _get_tuple_element(parser: Parser, operation: Operation) -> None:
    operation.operands.append(parser.parse_value())
    parser.expect("[")
    operation.attributes["index"] = _integer(parser)
    parser.expect("]")
    _attributes_and_types(parser, operation)


@assembly("stablehlo.reduce_precision")
def _reduce_precision(parser: Parser, operation: Operation) -> None:
    ordinary(parser, operation)
    found = _FORMAT.fullmatch(str(operation.attributes.pop("format", "")))
    if found is None:
        raise parser.error("reduce_precision has a format such as e5m10", position=operation.position)
    operation.attributes.update(exponent_bits=int(found[1]), mantissa_bits=int(found[2]))


@assembly("call", "func.call")
def _call(parser: Parser, operation: Operation) -> None:
    operation.attributes["callee"] = _symbol(parser)
    ordinary(parser, operation)


def _symbol(parser: Parser) -> Symbol:
    symbol = parser.parse_attribute()
    if not isinstance(symbol, Symbol):
        raise parser.error("expected a name such as @function")
    return symbol


@assembly("stablehlo.custom_call")
def _custom_call(parser: Parser, operation: Operation) -> None:
    operation.attributes["call_target_name"] = _symbol(parser).name
    ordinary(parser, operation)


@assembly("stablehlo.composite")
def _composite(parser: Parser, operation: Operation) -> None:
    operation.attributes["name"] = parser.parse_string()
    ordinary(parser, operation)


@assembly(
    "check.expect_eq", "check.expect_eq_const", "check.expect_almost_eq", "check.expect_almost_eq_const",
    "check.expect_close", "check.eq", "check.almost_eq",
)  # fmt: skip
def _check(parser: Parser, operation: Operation) -> None:
    """`check.expect_eq_const %a, dense<..> : type {..}`, or with a second operand and `name = value` pairs."""
    while (token := parser.peek()).startswith(("%", "dense<")) or token in (",", "(", ")") or parser.peek(1) == "=":
        if token.startswith("%"):
            operation.operands.append(parser.parse_value())
        elif token.startswith("dense<"):
            operation.attributes["value"] = parser.parse_attribute()
        else:
            parser.index += 1
            if token not in (",", "(", ")"):
                parser.expect("=")
                operation.attributes[token] = parser.parse_attribute(typed=False)
    _attributes_and_types(parser, operation)
    operation.result_types = []
    if parser.peek() == "{":
        operation.attributes.update(parser.parse_dictionary())


@assembly("chlo.scan")
def _scan(parser: Parser, operation: Operation) -> None:
    """`chlo.scan(%x, ..) inits(%i, ..) dimension=0 attributes {..} { region } : types`."""
    ordinary_operands(parser, operation)
    inputs = len(operation.operands)
    parser.expect("inits")
    ordinary_operands(parser, operation)
    operation.attributes["operandSegmentSizes"] = [inputs, len(operation.operands) - inputs]
    while parser.peek(1) == "=":
        name = parser.next()
        parser.expect("=")
        operation.attributes[name] = parser.parse_attribute(typed=False)
        parser.accept(",")
    if parser.accept("attributes"):
        operation.attributes.update(parser.parse_dictionary())
    operation.regions.append(parser.parse_region())
    _attributes_and_types(parser, operation)


@assembly("sdy.sharding_constraint")
def _sharding_constraint(parser: Parser, operation: Operation) -> None:
    operation.operands.append(parser.parse_value())
    parser.skip_balanced()
    _attributes_and_types(parser, operation)


@assembly("sdy.mesh")
def _mesh(parser: Parser, operation: Operation) -> None:
    _symbol(parser)
    parser.expect("=")
    parser.skip_balanced()
    if parser.peek() == "{":
        parser.parse_dictionary()


# Convolution


def convolution_labels(words: list[str]) -> list[list[str]]:
    """`[b, 0, f]x[0, i, o]->[b, 0, f]`, as words, as the three lists of labels. Raises ValueError."""
    groups: list[list[str]] = []
    for word in words:
        if word == "[":
            groups.append([])
        elif groups and word not in ("]", ",", "x", "->"):
            groups[-1].append(word)
    if len(groups) != 3:
        raise ValueError(f"expected three lists of labels, found {' '.join(words)}")
    return groups


@assembly("stablehlo.convolution")
def _convolution(parser: Parser, operation: Operation) -> None:
    ordinary_operands(parser, operation)
    parser.expect("dim_numbers")
    parser.expect("=")
    words = [w for _ in range(2) for w in ("[", *parser.skip_balanced(), "]", parser.next())]
    words += ["[", *parser.skip_balanced(), "]"]
    operation.attributes["dimension_numbers"] = DialectAttribute("stablehlo.conv", tuple(words))
    parser.expect(",")
    parser.expect("window")
    parser.expect("=")
    window = parser.parse_dictionary()
    names = {"stride": "window_strides", "pad": "padding", "lhs_dilate": "lhs_dilation", "rhs_dilate": "rhs_dilation",
             "reverse": "window_reversal"}  # fmt: skip
    operation.attributes.update({names.get(name, name): value for name, value in window.items()})
    _attributes_and_types(parser, operation)


def ordinary_operands(parser: Parser, operation: Operation) -> None:
    """`(%a, %b)`."""
    parser.expect("(")
    before = len(operation.operands)
    while not parser.accept(")"):
        if len(operation.operands) > before:
            parser.expect(",")
        operation.operands.append(parser.parse_value())


# Regions


@assembly("stablehlo.while")
def _while(parser: Parser, operation: Operation) -> None:
    """`stablehlo.while(%arg = %init, ...) : types attributes {...} cond {...} do {...}`."""
    names: list[str] = []
    parser.expect("(")
    while not parser.accept(")"):
        if names:
            parser.expect(",")
        names.append(parser.parse_value())
        parser.expect("=")
        operation.operands.append(parser.parse_value())
    shapes: list[AnyShape] = []
    if parser.accept(":"):
        shapes.append(parser.parse_shape())
        while parser.accept(","):
            shapes.append(parser.parse_shape())
    if len(shapes) != len(names):
        raise parser.error(f"a loop of {len(names)} values with {len(shapes)} types", position=operation.position)
    operation.result_types = list(shapes)
    if parser.accept("attributes"):
        operation.attributes.update(parser.parse_dictionary())
    arguments: list[tuple[str, AnyShape, Location | None]] = [(n, s, None) for n, s in zip(names, shapes, strict=True)]
    parser.expect("cond")
    operation.regions.append(parser.parse_region(arguments))
    parser.expect("do")
    operation.regions.append(parser.parse_region(arguments))


@assembly("stablehlo.reduce")
def _reduce(parser: Parser, operation: Operation) -> None:
    """`stablehlo.reduce(%x init: %i), ... [applies op] across dimensions = [..] {..} : types [reducer(..) {..}]`."""
    inits: list[str] = []
    while True:
        parser.expect("(")
        operation.operands.append(parser.parse_value())
        parser.expect("init")
        parser.expect(":")
        inits.append(parser.parse_value())
        parser.expect(")")
        if not parser.accept(","):
            break
    operation.operands += inits
    applied = ""
    if parser.accept("applies"):
        applied = parser.next()
    parser.expect("across")
    parser.expect("dimensions")
    parser.expect("=")
    operation.attributes["dimensions"] = parser.parse_attribute()
    _attributes_and_types(parser, operation)
    if applied:
        operation.regions.append(_applied_region(parser, operation, applied))
    else:
        if parser.peek() == "loc":
            operation.location = parser.parse_location()
        parser.expect("reducer")
        operation.regions.append(_reducer(parser, len(inits)))


def _applied_region(parser: Parser, operation: Operation, applied: str) -> Region:
    """The region that `applies stablehlo.add` stands for."""
    types = [t for t in operation.operand_types if isinstance(t, Shape)]
    if len(types) != 2:
        raise parser.error("a reduction that applies one op has one input", position=operation.position)
    shape = types[1]
    inner = Operation(applied, operation.position, ["%result"], ["%lhs", "%rhs"], result_types=[shape])
    end = Operation("stablehlo.return", operation.position, [], ["%result"])
    return Region([("%lhs", shape, None), ("%rhs", shape, None)], [inner, end])


def _reducer(parser: Parser, count: int) -> Region:
    """`(%a: t, %b: t) (%c: t, %d: t) {..}`: a pair for each input, left sides before right sides in the region."""
    pairs = []
    while parser.peek() == "(":
        pairs.append(parser.parse_arguments())
    if len(pairs) != count or any(len(p) != 2 for p in pairs):
        raise parser.error(f"a reducer of {count} inputs has {count} pairs of arguments")
    return parser.parse_region([p[0] for p in pairs] + [p[1] for p in pairs])


# Modules and functions


@assembly("module", "builtin.module")
def _module(parser: Parser, operation: Operation) -> None:
    if parser.peek().startswith("@"):
        operation.attributes["sym_name"] = _symbol(parser).name
    if parser.accept("attributes"):
        operation.attributes.update(parser.parse_dictionary())
    operation.regions.append(parser.parse_region())


@assembly("func.func")
def _function(parser: Parser, operation: Operation) -> None:
    """`func.func private @name(%a: type {..} loc(..)) -> (type {..}) attributes {..} { ... }`."""
    if parser.peek() in ("public", "private", "nested"):
        operation.attributes["sym_visibility"] = parser.next()
    operation.attributes["sym_name"] = _symbol(parser).name
    arguments, argument_attributes = _parameters(parser)
    results, result_attributes = _results(parser)
    operation.attributes["function_type"] = FunctionType(tuple(a[1] for a in arguments), tuple(results))
    operation.attributes["arg_attrs"], operation.attributes["res_attrs"] = argument_attributes, result_attributes
    if parser.accept("attributes"):
        operation.attributes.update(parser.parse_dictionary())
    if parser.peek() == "{":
        operation.regions.append(parser.parse_region(arguments))


def _parameters(parser: Parser) -> tuple[list[tuple[str, AnyShape, Location | None]], list[dict[str, Any]]]:
    arguments: list[tuple[str, AnyShape, Location | None]] = []
    attributes: list[dict[str, Any]] = []
    parser.expect("(")
    while not parser.accept(")"):
        if arguments:
            parser.expect(",")
        name = ""
        if parser.peek().startswith("%"):
            name = parser.parse_value()
            parser.expect(":")
        shape = parser.parse_shape()
        attributes.append(parser.parse_dictionary() if parser.peek() == "{" else {})
        arguments.append((name, shape, parser.parse_location() if parser.peek() == "loc" else None))
    return arguments, attributes


def _results(parser: Parser) -> tuple[list[AnyShape], list[dict[str, Any]]]:
    if not parser.accept("->"):
        return [], []
    if not parser.accept("("):
        return [parser.parse_shape()], [{}]
    shapes: list[AnyShape] = []
    attributes: list[dict[str, Any]] = []
    while not parser.accept(")"):
        if shapes:
            parser.expect(",")
        shapes.append(parser.parse_shape())
        attributes.append(parser.parse_dictionary() if parser.peek() == "{" else {})
    return shapes, attributes
