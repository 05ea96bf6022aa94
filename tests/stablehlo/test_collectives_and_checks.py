"""Collectives on one device, asynchronous ops, and the checks that StableHLO's own test programs make."""

import numpy as np
import pytest

import fusile
from fusile.base.errors import FusileError, ParseError, UnsupportedOpError
from fusile.stablehlo import parse

X = np.array([3, -1, 2], np.int32)
TARGETS = ["cpu", "interpreter"]


def run(body: str, *arguments: np.ndarray, results: str, target: str) -> list[np.ndarray]:
    """Runs a function of i32[3] arguments %a, %b, ... with this body."""
    names = ", ".join(f"%{'abcdef'[i]}: tensor<3xi32>" for i in range(len(arguments)))
    executable = fusile.compile(f"func.func @main({names}) -> ({results}) {{\n{body}\n}}", target=target)
    found = executable(*arguments)
    return list(found) if isinstance(found, tuple | list) else [] if found is None else [found]


SUM = """({
  ^bb0(%x: tensor<i32>, %y: tensor<i32>):
    %s = stablehlo.add %x, %y : tensor<i32>
    stablehlo.return %s : tensor<i32>
  })"""
ALONE = "replica_groups = dense<0> : tensor<1x1xi64>"
EVERYONE = "replica_groups = dense<> : tensor<0x0xi64>"
PADDED = "replica_groups = dense<[[0, -1]]> : tensor<1x2xi64>"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("line", "want"), [
    (f'"stablehlo.all_reduce"(%a) <{{{ALONE}}}> {SUM}', X),
    (f'"stablehlo.all_reduce"(%a) <{{{EVERYONE}}}> {SUM}', X),
    (f'"stablehlo.all_reduce"(%a) {SUM} {{{PADDED}, use_global_device_ids, '
     "channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>}", X),
    (f'"stablehlo.reduce_scatter"(%a) <{{{ALONE}, scatter_dimension = 0 : i64}}> {SUM}', X),
    (f'"stablehlo.all_gather"(%a) <{{{ALONE}, all_gather_dim = 0 : i64}}>', X),
    (f'"stablehlo.all_to_all"(%a) <{{{ALONE}, split_dimension = 0 : i64, concat_dimension = 0 : i64, '
     "split_count = 1 : i64}>", X),
    (f'"stablehlo.cross-replica-sum"(%a) <{{{ALONE}}}>', X),
    (f'"stablehlo.collective_broadcast"(%a) <{{{ALONE}}}>', X),
    (f'"stablehlo.collective_broadcast"(%a) <{{{EVERYONE}}}>', 0 * X),
    (f'"stablehlo.collective_reduce"(%a) <{{{ALONE}}}> {SUM}', X),
    ('"stablehlo.collective_permute"(%a) <{source_target_pairs = dense<0> : tensor<1x2xi64>}>', X),
    ('"stablehlo.collective_permute"(%a) <{source_target_pairs = dense<> : tensor<0x2xi64>}>', 0 * X),
])  # fmt: skip
def test_a_collective_of_one_device(line: str, want: np.ndarray, target: str) -> None:
    body = f"%r = {line} : (tensor<3xi32>) -> tensor<3xi32>\nreturn %r : tensor<3xi32>"
    (found,) = run(body, X, results="tensor<3xi32>", target=target)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("target", TARGETS)
def test_device_numbers_and_asynchronous_ops(target: str) -> None:
    found = run(f"""
      %p = stablehlo.partition_id : tensor<ui32>
      %q = stablehlo.replica_id : tensor<ui32>
      %f = "stablehlo.async_start"(%a) ({{
      ^bb0(%i: tensor<3xi32>):
        %g = "stablehlo.all_gather"(%i) <{{{ALONE}, all_gather_dim = 0 : i64}}> : (tensor<3xi32>) -> tensor<3xi32>
        %n = stablehlo.negate %g : tensor<3xi32>
        stablehlo.return %n : tensor<3xi32>
      }}) : (tensor<3xi32>) -> !stablehlo.future<tensor<3xi32>>
      %d = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<3xi32>>) -> tensor<3xi32>
      %h = "stablehlo.async_start"(%a) ({{
        %m = stablehlo.add %a, %d : tensor<3xi32>
        stablehlo.return %m : tensor<3xi32>
      }}) : (tensor<3xi32>) -> !stablehlo.future<tensor<3xi32>>
      %e = "stablehlo.async_done"(%h) : (!stablehlo.future<tensor<3xi32>>) -> tensor<3xi32>
      return %p, %q, %d, %e : tensor<ui32>, tensor<ui32>, tensor<3xi32>, tensor<3xi32>""", X,
        results="tensor<ui32>, tensor<ui32>, tensor<3xi32>, tensor<3xi32>", target=target)  # fmt: skip
    assert found[0] == found[1] == 0
    np.testing.assert_array_equal(found[2], -X)
    np.testing.assert_array_equal(found[3], 0 * X)


@pytest.mark.parametrize(("line", "error", "match"), [
    ('"stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}>'
     " : (tensor<3xi32>) -> tensor<6xi32>", UnsupportedOpError, "communication between several devices"),
    ('"stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}>'
     " : (tensor<3xi32>) -> tensor<3xi32>", UnsupportedOpError, "communication between several devices"),
    ('"stablehlo.all_to_all"(%a) <{replica_groups = dense<[[0], [0]]> : tensor<2x1xi64>}>'
     " : (tensor<3xi32>) -> tensor<3xi32>", ParseError, "names a device twice"),
    ('"stablehlo.all_to_all"(%a) <{replica_groups = dense<-3> : tensor<1x1xi64>}>'
     " : (tensor<3xi32>) -> tensor<3xi32>", ParseError, "names device -3"),
    ('"stablehlo.all_to_all"(%a) : (tensor<3xi32>) -> tensor<3xi32>', ParseError, "replica_groups is missing"),
    ('"stablehlo.all_reduce"(%a) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @m, axes = []>}>'
     f" {SUM} : (tensor<3xi32>) -> tensor<3xi32>", UnsupportedOpError, "axes of a mesh"),
    (f'"stablehlo.all_gather"(%a) <{{all_gather_dim = 0 : i64, {ALONE}}}> : (tensor<3xi32>) -> tensor<6xi32>',
     ParseError, "result 0 is"),
    ('"interpreter.run_parallel"(%a) {programs = [[@f], [@g]]} : (tensor<3xi32>) -> tensor<3xi32>',
     UnsupportedOpError, "several processes at once"),
])  # fmt: skip
def test_what_needs_other_devices_is_refused(line: str, error: type[FusileError], match: str) -> None:
    kind = line.rpartition("-> ")[2]
    with pytest.raises(error, match=match):
        parse(f"func.func @main(%a: tensor<3xi32>) -> {kind} {{\n%r = {line}\nreturn %r : {kind}\n}}")


@pytest.mark.parametrize(("line", "match"), [
    ('%r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<3xi32>, !stablehlo.token)', "host and device"),
    ('%r = "stablehlo.outfeed"(%a, %t) : (tensor<3xi32>, !stablehlo.token) -> !stablehlo.token', "host and device"),
    ('%r = "stablehlo.send"(%a, %t) : (tensor<3xi32>, !stablehlo.token) -> !stablehlo.token', "between programs"),
    ('%r:2 = "stablehlo.recv"(%t) : (!stablehlo.token) -> (tensor<3xi32>, !stablehlo.token)', "between programs"),
])  # fmt: skip
def test_queues_and_channels_are_refused(line: str, match: str) -> None:
    text = f"%t = stablehlo.create_token : !stablehlo.token\n{line}\nreturn %a : tensor<3xi32>"
    with pytest.raises(UnsupportedOpError, match=match):
        parse(f"func.func @main(%a: tensor<3xi32>) -> tensor<3xi32> {{\n{text}\n}}")


CHECKS = [
    ("check.expect_eq_const %a, dense<[3, -1, 2]> : tensor<3xi32>",
     "check.expect_eq_const %a, dense<3> : tensor<3xi32>"),
    ("check.expect_eq %a, %a : tensor<3xi32>", "check.expect_eq %a, %n : tensor<3xi32>"),
    ("check.eq %a, dense<[3, -1, 2]> : tensor<3xi32>", "check.eq %a, dense<[3, -1, 1]> : tensor<3xi32>"),
    ('"check.expect_eq_const"(%a) <{value = dense<[3, -1, 2]> : tensor<3xi32>}> : (tensor<3xi32>) -> ()',
     '"check.expect_eq_const"(%a) <{value = dense<[3, -1, 3]> : tensor<3xi32>}> : (tensor<3xi32>) -> ()'),
    ("check.expect_almost_eq%f, %g : tensor<f64>", "check.expect_almost_eq %f, %h : tensor<f64>"),
    ("check.expect_almost_eq %f, %h, tolerance = 0.1 : tensor<f64>",
     "check.expect_almost_eq %f, %h, tolerance = 0.01 : tensor<f64>"),
    ("check.expect_almost_eq_const %f, dense<5.05> : tensor<f64> {tolerance = 0.1 : f64}",
     "check.expect_almost_eq_const %f, dense<5.05> : tensor<f64> {tolerance = 0.01 : f64}"),
    ("check.expect_close %u, %v, max_ulp_difference = 3 : tensor<f16>, tensor<f16>",
     "check.expect_close %u, %v, max_ulp_difference = 2 : tensor<f16>, tensor<f16>"),
    ("stablehlo.custom_call @check.expect_eq(%a, %a) {has_side_effect = true} : (tensor<3xi32>, tensor<3xi32>) -> ()",
     "stablehlo.custom_call @check.expect_eq(%a, %n) {has_side_effect = true} : (tensor<3xi32>, tensor<3xi32>) -> ()"),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("passes", "fails"), CHECKS)
def test_checks_pass_and_fail(passes: str, fails: str, target: str) -> None:
    body = """
      %n = stablehlo.negate %a : tensor<3xi32>
      %f = stablehlo.constant dense<5.0> : tensor<f64>
      %g = stablehlo.constant dense<5.0001> : tensor<f64>
      %h = stablehlo.constant dense<5.05> : tensor<f64>
      %u = stablehlo.constant dense<5.0> : tensor<f16>
      %v = stablehlo.constant dense<5.012> : tensor<f16>
      CHECK
      func.return"""
    assert run(body.replace("CHECK", passes), X, results="", target=target) == []
    with pytest.raises(FusileError, match="elements are not"):
        run(body.replace("CHECK", fails), X, results="", target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_old_checks_give_a_predicate(target: str) -> None:
    body = """
      %n = stablehlo.negate %a : tensor<3xi32>
      %p = stablehlo.custom_call @check.eq(%a, %a) : (tensor<3xi32>, tensor<3xi32>) -> tensor<i1>
      %q = stablehlo.custom_call @check.eq(%a, %n) : (tensor<3xi32>, tensor<3xi32>) -> tensor<i1>
      %r = interpreter.probe %a, probe_id = "r" : tensor<3xi32>
      return %p, %q, %r : tensor<i1>, tensor<i1>, tensor<3xi32>"""
    same, other, probed = run(body, X, results="tensor<i1>, tensor<i1>, tensor<3xi32>", target=target)
    assert same and not other
    np.testing.assert_array_equal(probed, X)
    with pytest.raises(UnsupportedOpError, match="a probe wrote"):
        run('check.expect_serialized_eq %a, probe_id = "r" : tensor<3xi32>\nreturn', X, results="", target=target)
