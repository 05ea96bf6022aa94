"""Functions of elements, comparisons, choices and conversions."""

from __future__ import annotations

from fusile.base import element_type as e
from fusile.base.shape import Shape
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.elementwise import ReducePrecision
from random_programs.generator import FLOATS, INTEGERS, Generator, family

EXACT_UNARY = ("negate", "abs", "sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "sqrt", "is_finite")
SMOOTH_UNARY = ("negate", "abs")
DOMAINS = {
    "exponential": (-3, 3), "exponential_minus_one": (-3, 3), "log": (0.25, 4), "log_plus_one": (-0.5, 4),
    "logistic": (-8, 8), "tanh": (-8, 8), "sine": (-8, 8), "cosine": (-8, 8), "tan": (-1, 1), "rsqrt": (0.25, 4),
    "cbrt": (0.25, 4), "erf": (-8, 8), "erfc": (-3, 3), "erf_inv": (-0.9, 0.9), "asin": (-0.9, 0.9),
    "acos": (-0.9, 0.9), "atan": (-8, 8), "sinh": (-3, 3), "cosh": (-3, 3), "asinh": (-8, 8), "acosh": (1.25, 4),
    "atanh": (-0.9, 0.9), "lgamma": (0.5, 4), "digamma": (0.5, 4), "bessel_i0e": (-8, 8), "bessel_i1e": (-8, 8),
    "sqrt": (0.25, 4),
}  # fmt: skip
"""Functions, and between what their values change by no more than a few times what the operands do."""
FLOAT_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "next_after")
SMOOTH_BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
INTEGER_UNARY = ("negate", "abs", "sign", "not_", "popcnt", "count_leading_zeros")
INTEGER_BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "remainder", "and_", "or_", "xor", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "power",
)  # fmt: skip
DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


@family(22)
def arithmetic(g: Generator) -> Instruction | None:
    x = g.value()
    if x is None:
        return None
    kind = x.array_shape.element_type
    if kind.is_predicate:
        return (
            g.b.not_(x)
            if g.chance(0.2)
            else binary(g, x, ("and_", "or_", "xor", "add", "multiply", "maximum", "minimum"))
        )
    if kind.is_integer:
        return getattr(g.b, g.pick(INTEGER_UNARY))(x) if g.chance(0.3) else binary(g, x, INTEGER_BINARY)
    if kind.is_complex:
        return complex_arithmetic(g, x)
    if g.rough(x):
        return getattr(g.b, g.pick(SMOOTH_UNARY))(x) if g.chance(0.2) else rough_binary(g, x)
    if g.chance(0.3):
        return getattr(g.b, g.pick(EXACT_UNARY))(x)
    return binary(g, x, FLOAT_BINARY)


def binary(g: Generator, x: Instruction, names: tuple[str, ...]) -> Instruction:
    y = x if g.chance(0.1) else g.of(x.array_shape, rough=False)
    return getattr(g.b, g.pick(names))(*((x, y) if g.chance(0.6) else (y, x)))


def rough_binary(g: Generator, x: Instruction) -> Instruction:
    name = g.pick((*SMOOTH_BINARY, "divide"))
    if name == "divide":
        return g.b.divide(x, g.b.like(g.pick((2.0, -4.0, 3.0, 0.75)), x))
    y = g.of(x.array_shape)
    if name == "multiply":
        x, y = g.small(x), g.small(y)
    return getattr(g.b, name)(*((x, y) if g.chance(0.6) else (y, x)))


def complex_arithmetic(g: Generator, x: Instruction) -> Instruction:
    name = g.pick(("negate", "add", "subtract", "real", "imag", "compare", "multiply"))
    if name in ("negate", "real", "imag"):
        return getattr(g.b, name)(x)
    y = g.of(x.array_shape, rough=name != "compare")
    if name == "compare":
        x = x if not g.rough(x) else y
        return g.b.compare(x, y, g.pick(("EQ", "NE")))
    if name == "multiply":
        if g.exact_only:
            return g.b.negate(x)
        return g.b.multiply(small_complex(g, x), small_complex(g, y))
    return getattr(g.b, name)(x, y)


def small_complex(g: Generator, x: Instruction) -> Instruction:
    """Parts between -8 and 8."""
    return g.b.complex(g.small(g.b.real(x)), g.small(g.b.imag(x)))


@family(7)
def function(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.element_type.is_float)
    if x is None or g.exact_only or g.rough(x) >= 2:
        return None
    name = g.pick(list(DOMAINS))
    low, high = DOMAINS[name]
    inside = g.rough(x) > 0 or g.chance(0.5)
    return getattr(g.b, name)(g.small(x, high, low) if inside else x)


@family(2)
def function_of_two(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.element_type.is_float, rough=False)
    if x is None or g.exact_only:
        return None
    y = g.of(x.array_shape, rough=False)
    if g.chance(0.5):
        return g.b.atan2(x, y)
    return g.b.power(g.small(x, 4, 0.25), g.small(y, 3)) if g.chance(0.5) else g.b.power(x, y)


@family(2)
def complex_function(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.element_type.is_complex, rough=False)
    if x is None or g.exact_only:
        return None
    x = small_complex(g, x)
    return getattr(g.b, g.pick(("abs", "exponential", "sine", "cosine", "sinh", "cosh")))(x)


@family(2)
def complex_parts(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.element_type in (e.F32, e.F64))
    return None if x is None else g.b.complex(x, g.of(x.array_shape))


@family(5)
def compare(g: Generator) -> Instruction | None:
    x = g.value(lambda s: not s.element_type.is_complex, rough=False)
    if x is None:
        return None
    y = g.of(x.array_shape, rough=False)
    if x.array_shape.element_type.is_float and g.chance(0.2):
        return g.b.compare(g.numbers(x), g.numbers(y), g.pick(DIRECTIONS), True)
    return g.b.compare(x, y, g.pick(DIRECTIONS))


@family(5)
def choose(g: Generator) -> Instruction | None:
    x = g.value()
    if x is None:
        return None
    sizes = () if g.chance(0.2) else x.array_shape.sizes
    return g.b.select(g.of(Shape(e.PRED, sizes), rough=False), x, g.of(x.array_shape))


@family(2)
def clamp(g: Generator) -> Instruction | None:
    x = g.value(lambda s: not s.element_type.is_complex)
    if x is None:
        return None
    bound = x.array_shape if g.chance(0.3) else Shape(x.array_shape.element_type)
    return g.b.clamp(g.of(bound, rough=False), x, g.of(bound, rough=False))


@family(5)
def convert(g: Generator) -> Instruction | None:
    x = g.value()
    if x is None:
        return None
    old, new = x.array_shape.element_type, g.pick((*FLOATS, *INTEGERS, e.PRED, e.C64, e.C128))
    if old.is_complex and not new.is_complex:
        x, old = g.b.real(x), old.real
    if g.rough(x):
        new = g.pick(FLOATS) if not old.is_complex else g.pick((e.C64, e.C128))
    if g.rough(x) and not (new.is_float or new.is_complex):
        return None
    return g.b.convert(x, new)


@family(2)
def bits(g: Generator) -> Instruction | None:
    """The same bits as another type: of integers, and of floats that no arithmetic made."""
    x = g.value(lambda s: s.element_type.is_integer and s.element_type.bits >= 8, rough=False)
    if x is None:
        return None
    bits_of = {8: (e.S8, e.U8), 16: (e.F16, e.BF16, e.S16, e.U16), 32: (e.F32, e.S32, e.U32), 64: (e.F64, e.S64, e.U64)}
    width = x.array_shape.element_type.bits
    if g.chance(0.3) and width > 8:
        width //= 2
    elif g.chance(0.3) and width < 64 and x.array_shape.sizes[-1:] == (2,):
        width *= 2
    return g.b.bitcast_convert(x, g.pick(bits_of[width]))


@family(1)
def reduce_precision(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.element_type.is_float, rough=False)
    return None if x is None else g.b.emit(ReducePrecision(g.integer(2, 8), g.integer(1, 10)), x)
