"""An instance of every op, in a module of its own."""

from __future__ import annotations

import numpy as np

from fusile.base.element_type import C64, F16, F32, PRED, S32, U8, U32, U64, ElementType, Kind
from fusile.base.shape import Shape, TupleShape
from fusile.base.source import Source
from fusile.hlo.ir import OPS, Computation, Literal, Module
from fusile.hlo.opset.window import ConvolutionDimensions, Window

VECTOR, MATRIX, SQUARE, IMAGE = Shape(F32, (6,)), Shape(F32, (4, 6)), Shape(F32, (3, 3)), Shape(F32, (2, 8, 8, 3))
SCALAR = Shape(F32)


def scalar_computation(opcode: str, element_type=F32, **fields) -> Computation:
    computation = Computation(opcode)
    a, b = computation.parameter(Shape(element_type)), computation.parameter(Shape(element_type))
    computation.root = computation.add(OPS[opcode](**fields), [a, b])
    return computation


def tuple_of(computation: Computation, value) -> Computation:
    computation.root = computation.add(OPS["tuple"](), [value])
    return computation


def loop_condition() -> Computation:
    computation = Computation("condition")
    x = computation.parameter(SCALAR)
    bound = computation.add(OPS["constant"](Literal(np.array(100, np.float32))))
    computation.root = computation.add(OPS["compare"]("LT"), [x, bound])
    return computation


def branch(opcode: str) -> Computation:
    computation = Computation("branch")
    return tuple_of(computation, computation.add(OPS[opcode](), [computation.parameter(SCALAR)]))


def convolution_fields() -> dict:
    window = Window((3, 2), (2, 1), (1, 0), (0, 2), (1, 2), (1, 1), (False, True))
    numbers = ConvolutionDimensions(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    return {"window": window, "dimension_numbers": numbers, "feature_group_count": 1, "batch_group_count": 1}


GATHER = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "operand_batching_dims": (),
          "start_indices_batching_dims": (), "start_index_map": (0,), "index_vector_dim": 1, "slice_sizes": (1, 6),
          "indices_are_sorted": True}  # fmt: skip
SCATTER = {"update_window_dims": (1,), "inserted_window_dims": (0,), "input_batching_dims": (),
           "scatter_indices_batching_dims": (), "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1,
           "unique_indices": True}  # fmt: skip


def instances() -> dict[str, tuple[dict, list]]:
    """Fields and operand shapes of an instance of each op that the general rule below does not make."""
    pool = Window((1, 2, 2, 1), (1, 2, 2, 1))
    indices = Shape(S32, (5, 1))
    return {
        "iota": ({"result": Shape(S32, (2, 3)), "dimension": 1}, []),
        "constant": ({"literal": Literal(np.array([[1.5, -np.inf], [np.nan, -0.0]], np.float32))}, []),
        "tuple": ({}, [VECTOR, SCALAR]),
        "get-tuple-element": ({"index": 1}, [TupleShape((VECTOR, SCALAR))]),
        "copy": ({}, [VECTOR]),
        "optimization-barrier": ({}, [VECTOR]),
        "after-all": ({}, []),
        "compare": ({"direction": "GE", "total_order": True}, [VECTOR, VECTOR]),
        "convert": ({"element_type": F16}, [VECTOR]),
        "bitcast-convert": ({"element_type": U8}, [VECTOR]),
        "reduce-precision": ({"exponent_bits": 5, "mantissa_bits": 10}, [VECTOR]),
        "select": ({}, [Shape(PRED, (6,)), VECTOR, VECTOR]),
        "clamp": ({}, [SCALAR, VECTOR, SCALAR]),
        "broadcast": ({"dimensions": (4, 6), "broadcast_dimensions": (1,)}, [VECTOR]),
        "reshape": ({"dimensions": (2, 3)}, [VECTOR]),
        "transpose": ({"permutation": (1, 0)}, [MATRIX]),
        "slice": ({"starts": (0, 1), "limits": (4, 6), "strides": (1, 2)}, [MATRIX]),
        "pad": ({"low": (1, -1), "high": (0, 2), "interior": (0, 3)}, [MATRIX, SCALAR]),
        "concatenate": ({"dimension": 1}, [MATRIX, MATRIX]),
        "reverse": ({"dimensions": (0, 1)}, [MATRIX]),
        "dynamic-slice": ({"sizes": (2, 2)}, [MATRIX, Shape(S32), Shape(S32)]),
        "dynamic-update-slice": ({}, [MATRIX, Shape(F32, (2, 2)), Shape(S32), Shape(S32)]),
        "gather": (GATHER, [MATRIX, indices]),
        "scatter": (SCATTER | {"computation": scalar_computation("add")}, [MATRIX, indices, Shape(F32, (5, 6))]),
        "reduce": ({"dimensions": (0,), "computation": scalar_computation("maximum")}, [MATRIX, SCALAR]),
        "reduce-window": ({"window": pool, "computation": scalar_computation("add")}, [IMAGE, SCALAR]),
        "select-and-scatter": (
            {"window": pool, "select": scalar_computation("compare", direction="GE"),
             "scatter": scalar_computation("add")},
            [IMAGE, Shape(F32, (2, 4, 4, 3)), SCALAR],
        ),
        "sort": (
            {"dimension": 1, "is_stable": True, "computation": scalar_computation("compare", direction="LT")},
            [MATRIX],
        ),
        "dot": (
            {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contracting": (2,), "rhs_contracting": (1,),
             "element_type": F32},
            [Shape(F16, (2, 3, 4)), Shape(F16, (2, 4, 5))],
        ),
        "convolution": (convolution_fields(), [IMAGE, Shape(F32, (3, 2, 3, 4))]),
        "call": ({"computation": scalar_computation("add")}, [SCALAR, SCALAR]),
        "fusion": (
            {"computation": scalar_computation("add"), "kind": "update", "in_place": ((0, 1),)},
            [SCALAR, SCALAR],
        ),
        "while": ({"condition": loop_condition(), "body": branch("exponential")}, [SCALAR]),
        "conditional": ({"branches": (branch("sine"), branch("cosine"))}, [Shape(PRED), SCALAR]),
        "custom-call": (
            {"target": 'my "routine"', "result": TupleShape((VECTOR, SCALAR)), "config": '{"a": [1, "}"]}\n',
             "has_effect": True},
            [VECTOR],
        ),
        "fft": ({"kind": "RFFT", "length": (6,)}, [VECTOR]),
        "cholesky": ({"lower": True}, [SQUARE]),
        "triangular-solve": (
            {"left_side": True, "lower": False, "unit_diagonal": True, "transpose": "TRANSPOSE"},
            [SQUARE, SQUARE],
        ),
        "batch-norm-training": ({"epsilon": 0.001, "feature_index": 1}, [MATRIX, VECTOR, VECTOR]),
        "batch-norm-inference": ({"epsilon": 0.001, "feature_index": 1}, [MATRIX, VECTOR, VECTOR, VECTOR, VECTOR]),
        "batch-norm-grad": ({"epsilon": 0.001, "feature_index": 1}, [MATRIX, VECTOR, VECTOR, VECTOR, MATRIX]),
        "topk": ({"k": 2}, [MATRIX]),
        "rng-bit-generator": ({"algorithm": "RNG_PHILOX", "result": Shape(U32, (7,))}, [Shape(U64, (2,))]),
    }  # fmt: skip


def element_types(opcode: str) -> list[ElementType]:
    """One of each kind that an elementwise op without attributes takes; none for other ops."""
    if opcode in instances():
        return []
    one = {Kind.FLOAT: F32, Kind.SIGNED: S32, Kind.UNSIGNED: U8, Kind.PREDICATE: PRED, Kind.COMPLEX: C64}
    return [kind for family, kind in one.items() if family in OPS[opcode].kinds]


def module_of(opcode: str, element_type: ElementType | None = None) -> Module:
    """A module whose root is an instance of the op: of this element type, where the op takes several."""
    if opcode in instances():
        fields, shapes = instances()[opcode]
    else:
        fields, shapes = {}, [Shape(element_type or element_types(opcode)[0], (6,))] * OPS[opcode].arity
    computation = Computation("main")
    operands = [computation.parameter(s) for s in shapes]
    computation.root = computation.add(
        OPS[opcode](**fields), operands, source=Source("layer/op:0", "Type", "file.py", 7)
    )
    return Module("one", computation)
