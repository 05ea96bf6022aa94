"""Dimension numbers of gather and scatter that fit nothing are refused: the places they name are read unchecked."""

from __future__ import annotations

from typing import Any

import pytest

import fusile
from fusile.base.element_type import F32, S32
from fusile.base.shape import Shape
from fusile.hlo.builder import scalar_computation
from fusile.hlo.opset.shape import Gather, Scatter

X, INDICES, UPDATES = Shape(F32, (2, 8, 3)), Shape(S32, (2, 4, 1)), Shape(F32, (2, 4, 3))
GATHER: dict[str, Any] = {
    "offset_dims": (2,),
    "collapsed_slice_dims": (1,),
    "operand_batching_dims": (0,),
    "start_indices_batching_dims": (0,),
    "start_index_map": (1,),
    "index_vector_dim": 2,
    "slice_sizes": (1, 1, 3),
}
SCATTER: dict[str, Any] = {
    "update_window_dims": (2,),
    "inserted_window_dims": (1,),
    "input_batching_dims": (0,),
    "scatter_indices_batching_dims": (0,),
    "scatter_dims_to_operand_dims": (1,),
    "index_vector_dim": 2,
    "computation": scalar_computation("add", F32),
}


def test_the_right_numbers_are_taken() -> None:
    assert Gather(**GATHER).infer([X, INDICES]) == UPDATES
    assert Scatter(**SCATTER).infer([X, INDICES, UPDATES]) == X


@pytest.mark.parametrize("wrong", [-1, 4, 7])
@pytest.mark.parametrize("field", [f for f, v in GATHER.items() if f != "slice_sizes"])
def test_gathers_dimensions_must_exist(field: str, wrong: int) -> None:
    value = wrong if field == "index_vector_dim" else (wrong,)
    with pytest.raises(fusile.ShapeError):
        Gather(**GATHER | {field: value}).infer([X, INDICES])


@pytest.mark.parametrize("wrong", [-1, 4, 7])
@pytest.mark.parametrize("field", [f for f in SCATTER if f != "computation"])
def test_scatters_dimensions_must_exist(field: str, wrong: int) -> None:
    value = wrong if field == "index_vector_dim" else (wrong,)
    with pytest.raises(fusile.ShapeError):
        Scatter(**SCATTER | {field: value}).infer([X, INDICES, UPDATES])


@pytest.mark.parametrize("sizes", [(1, 8, 3), (3, 8, 3)])
def test_batching_dimensions_are_of_one_size(sizes: tuple[int, ...]) -> None:
    with pytest.raises(fusile.ShapeError, match="batching"):
        Gather(**GATHER).infer([Shape(F32, sizes), INDICES])
    with pytest.raises(fusile.ShapeError, match="batching"):
        Scatter(**SCATTER).infer([Shape(F32, sizes), INDICES, UPDATES])


@pytest.mark.parametrize("field", ["collapsed_slice_dims", "operand_batching_dims", "start_index_map", "offset_dims"])
def test_no_dimension_is_named_twice(field: str) -> None:
    with pytest.raises(fusile.ShapeError):
        Gather(**GATHER | {field: GATHER[field] * 2}).infer([X, INDICES])


def test_a_batching_dimension_is_nothing_else() -> None:
    for change in ({"collapsed_slice_dims": (0, 1)}, {"start_index_map": (0,)}):
        with pytest.raises(fusile.ShapeError, match="batching"):
            Gather(**GATHER | change).infer([X, INDICES])
