"""What XLA's HLO says differently from ours, turned into ours while parsing.

XLA's loops and branches carry one value, a tuple when there are several; ours carry each leaf. XLA's fusions are read
as calls, to be fused anew. A few ops have other names here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fusile.base.shape import AnyShape, Shape, TupleShape
from fusile.base.source import Source
from fusile.hlo.ir import OPS, Computation, Instruction, Literal, Op
from fusile.hlo.text.attributes import Names, read_integer, unquote
from fusile.hlo.text.cursor import plain
from fusile.hlo.text.elementwise_map import apply_map


@dataclass(frozen=True)
class Foreign:
    """An instruction as written. What an adapter uses of `attributes` it need not remove."""

    opcode: str
    shape: AnyShape
    operands: list[Instruction]
    attributes: dict[str, str]
    source: Source | None
    name: str


Adapter = Callable[[Foreign, Computation, Names], Instruction | None]


def adapt(foreign: Foreign, target: Computation, names: Names) -> Instruction | None:
    """Adds to `target` our form of an instruction that XLA says differently, and returns it; None if it needs none.

    Raises ValueError for malformed attributes."""
    adapter = ADAPTERS.get(foreign.opcode)
    return None if adapter is None else adapter(foreign, target, names)


def _make(opcode: str, **fields: object) -> Op:
    return OPS[opcode](**fields)


def _called(foreign: Foreign, attribute: str, names: Names) -> Computation:
    if attribute not in foreign.attributes:
        raise ValueError(f"{foreign.opcode} lacks the attribute {attribute}=")
    return names.computation(foreign.attributes[attribute].strip("{}").removeprefix("%"))


def leaves_of(target: Computation, value: Instruction) -> list[Instruction]:
    """The arrays in a value, depth first, taken apart where it is not a tuple instruction."""
    if not isinstance(value.shape, TupleShape):
        return [value]
    if value.opcode == "tuple":
        parts = value.operands
    else:
        parts = [target.add(_make("get-tuple-element", index=i), [value]) for i in range(len(value.shape.shapes))]
    return [leaf for part in parts for leaf in leaves_of(target, part)]


def regroup(target: Computation, leaves: list[Instruction], shape: AnyShape) -> Instruction:
    """A value of this shape from its leaves, which are consumed from the front."""
    if not isinstance(shape, TupleShape):
        return leaves.pop(0)
    return target.add(_make("tuple"), [regroup(target, leaves, s) for s in shape.shapes])


def spread(computation: Computation, shapes: Sequence[AnyShape], taken: int, tuple_root: bool) -> Computation:
    """A copy of a computation of one parameter that takes the leaves of all `shapes` instead, and uses those of
    `shapes[taken]`; with `tuple_root` it returns a flat tuple."""
    if [plain(p.shape) for p in computation.parameters] != [plain(shapes[taken])]:
        raise ValueError(f"{computation.name} does not take one parameter of shape {shapes[taken]}")
    new = Computation(computation.name)
    groups = [[new.parameter(leaf) for leaf in shape.leaves()] for shape in shapes]
    values = {computation.parameters[0]: regroup(new, groups[taken], shapes[taken])}
    for instruction in computation.post_order():
        if instruction not in values:
            values[instruction] = _copy(new, instruction, [values[o] for o in instruction.operands])
    root = values[computation.root]
    new.root = new.add(_make("tuple"), leaves_of(new, root)) if tuple_root else root
    return new


def _copy(target: Computation, instruction: Instruction, operands: list[Instruction]) -> Instruction:
    if instruction.opcode == "get-tuple-element" and operands[0].opcode == "tuple":
        return operands[0].operands[instruction.op.index]  # type: ignore[attr-defined]
    return target.add(
        instruction.op, operands, name=instruction.name, source=instruction.source, shape=instruction.shape
    )


def _rebuilt(target: Computation, flat: Instruction, shape: AnyShape) -> Instruction:
    """A value of XLA's shape from the flat tuple that our control flow gives."""
    if isinstance(shape, TupleShape) and shape.shapes == shape.leaves():
        return flat
    return regroup(target, leaves_of(target, flat), shape)


def _while(foreign: Foreign, target: Computation, names: Names) -> Instruction | None:
    if len(foreign.operands) != 1 or not foreign.operands[0].shape.is_tuple:
        return None
    state = foreign.operands[0]
    condition = spread(_called(foreign, "condition", names), [state.shape], 0, tuple_root=False)
    body = spread(_called(foreign, "body", names), [state.shape], 0, tuple_root=True)
    loop = target.add(_make("while", condition=condition, body=body), leaves_of(target, state), name=foreign.name,
                      source=foreign.source)  # fmt: skip
    return _rebuilt(target, loop, state.shape)


def _conditional(foreign: Foreign, target: Computation, names: Names) -> Instruction | None:
    if "true_computation" in foreign.attributes:
        branches = [_called(foreign, f"{which}_computation", names) for which in ("true", "false")]
    else:
        words = foreign.attributes.get("branch_computations", "").strip("{}").split(",")
        branches = [names.computation(w.strip().removeprefix("%")) for w in words if w.strip()]
    if not branches:
        raise ValueError("conditional without branches")
    inputs = foreign.operands[1:]
    ours = all(b.root.shape.is_tuple and len(b.parameters) == len(inputs) for b in branches)
    if ours and "true_computation" not in foreign.attributes:
        return None
    if len(inputs) != len(branches):
        raise ValueError(f"{len(branches)} branches, but {len(inputs)} operands for them")
    shapes = [o.shape for o in inputs]
    taken = tuple(spread(b, shapes, i, tuple_root=True) for i, b in enumerate(branches))
    operands = [foreign.operands[0], *(leaf for o in inputs for leaf in leaves_of(target, o))]
    result = target.add(_make("conditional", branches=taken), operands, name=foreign.name, source=foreign.source)
    return _rebuilt(target, result, branches[0].root.shape)


def _map(foreign: Foreign, target: Computation, names: Names) -> Instruction:
    return apply_map(target, _called(foreign, "to_apply", names), foreign.operands)


def _fusion(foreign: Foreign, target: Computation, names: Names) -> Instruction | None:
    if not foreign.attributes.get("kind", "").startswith("k"):
        return None
    called = _called(foreign, "calls", names)
    return target.add(_make("call", computation=called), foreign.operands, name=foreign.name, source=foreign.source)


def _bitcast(foreign: Foreign, target: Computation, _: Names) -> Instruction:
    """The operand's bytes in memory read as another shape: to memory order, reshaped, and from memory order."""
    (operand,), shape = foreign.operands, foreign.shape
    before = operand.array_shape
    if (
        not isinstance(shape, Shape)
        or before.element_type.bits != shape.element_type.bits
        or before.elements != shape.elements
    ):
        raise ValueError(f"a bitcast of {operand.shape} to {shape}")
    if before.element_type is not shape.element_type:
        operand = target.add(_make("bitcast-convert", element_type=shape.element_type), [operand])
    order, new_order = _major_to_minor(before), _major_to_minor(shape)
    operand = _transposed(target, operand, order)
    dimensions = tuple(shape.dimensions[d] for d in new_order)
    if operand.array_shape.dimensions != dimensions:
        operand = target.add(_make("reshape", dimensions=dimensions), [operand], name=foreign.name,
                             source=foreign.source)  # fmt: skip
    return _transposed(target, operand, tuple(new_order.index(d) for d in range(shape.rank)))


def _major_to_minor(shape: Shape) -> tuple[int, ...]:
    return tuple(range(shape.rank)) if shape.layout is None else shape.layout[::-1]


def _transposed(target: Computation, operand: Instruction, permutation: tuple[int, ...]) -> Instruction:
    if permutation == tuple(range(len(permutation))):
        return operand
    return target.add(_make("transpose", permutation=permutation), [operand])


def _add_dependency(foreign: Foreign, target: Computation, _: Names) -> Instruction:
    value, _token = foreign.operands
    return value


def _barrier(foreign: Foreign, target: Computation, _: Names) -> Instruction:
    return target.add(_make("optimization-barrier"), foreign.operands, name=foreign.name, source=foreign.source)


def _device_number(foreign: Foreign, target: Computation, _: Names) -> Instruction:
    zero = Literal(np.zeros((), np.uint32))
    return target.add(_make("constant", literal=zero), name=foreign.name, source=foreign.source)


def _dimension_size(foreign: Foreign, target: Computation, _: Names) -> Instruction:
    dimension = read_integer(foreign.attributes.get("dimensions", ""))
    size = Literal(np.array(foreign.operands[0].array_shape.sizes[dimension], np.int32))
    return target.add(_make("constant", literal=size), name=foreign.name, source=foreign.source)


def _custom_call(foreign: Foreign, target: Computation, names: Names) -> Instruction | None:
    """XLA's CPU compiler calls a routine `TopK` for sorts of which the first few elements are used."""
    shape = foreign.shape
    if unquote(foreign.attributes.get("custom_call_target", "")) != "TopK" or not isinstance(shape, TupleShape):
        return None
    order = _called(foreign, "called_computations", names).root.op
    values = shape.shapes[0]
    if len(foreign.operands) != 1 or not isinstance(values, Shape) or getattr(order, "direction", "") != "GT":
        return None
    k = values.sizes[-1]
    return target.add(_make("topk", k=k), foreign.operands, name=foreign.name, source=foreign.source)


ADAPTERS: dict[str, Adapter] = {
    "while": _while,
    "conditional": _conditional,
    "map": _map,
    "custom-call": _custom_call,
    "fusion": _fusion,
    "bitcast": _bitcast,
    "add-dependency": _add_dependency,
    "opt-barrier": _barrier,
    "partition-id": _device_number,
    "replica-id": _device_number,
    "get-dimension-size": _dimension_size,
}
