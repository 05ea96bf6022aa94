"""Patterns, rules and the driver."""

from collections import Counter

import pytest

from fusile.base.element_type import F32, S32
from fusile.base.errors import CompileError
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Module
from fusile.hlo.opset.elementwise import Abs, Add, Multiply, Negate, Subtract
from fusile.hlo.verifier import verify
from fusile.rewrite.patterns import Captures, anything, match, of
from fusile.rewrite.rules import Elements, Rule, RuleSet, apply_rules, exact, fast, integers, moves

x, y = anything("x"), anything("y")
DOUBLE_NEGATE = Rule("double-negate", of(Negate, of(Negate, x)), lambda m: m.x, moves())


def builder(element_type=F32):
    b = Builder("test")
    return b, b.parameter(Shape(element_type, (3,)), "p"), b.parameter(Shape(element_type, (3,)), "q")


def test_commutative_ops_match_in_both_orders_others_in_one():
    b, p, q = builder()
    pattern = (x, of(Negate, y))
    n = b.negate(q)
    for op, operands, found in [
        (Add, (p, n), True),
        (Add, (n, p), True),
        (Subtract, (p, n), True),
        (Subtract, (n, p), False),
    ]:
        captures = Captures()
        assert (match(of(op, *pattern), b.emit(op(), *operands), captures) is None) == found
        if found:
            assert captures.named == {"x": p, "y": q}


def test_a_name_that_stands_twice_is_one_instruction():
    b, p, q = builder()
    assert match(of(Add, x, x), b.add(p, p), Captures()) is None
    mismatch = match(of(Add, x, x), b.add(p, q), Captures())
    assert mismatch is not None and "x is p already" in str(mismatch)


def test_a_rule_states_its_float_condition():
    with pytest.raises(TypeError):
        Rule("r", of(Negate, x), lambda m: m.x)
    with pytest.raises(TypeError, match="states no float condition"):
        Rule("r", of(Negate, x), lambda m: m.x, None)
    with pytest.raises(ValueError, match="must say why"):
        exact("")


@pytest.mark.parametrize(
    ("condition", "floats_exact", "floats_fast", "integers_exact"),
    [(moves(), 1, 1, 1), (exact("e"), 1, 1, 1), (fast("f"), 0, 1, 1), (integers("i"), 0, 0, 1)],
)
def test_the_driver_checks_the_float_condition(condition, floats_exact, floats_fast, integers_exact):
    rules = RuleSet([Rule("r", of(Negate, of(Negate, x)), lambda m: m.x, condition)])
    for element_type, numerics, expected in [
        (F32, "exact", floats_exact),
        (F32, "fast", floats_fast),
        (S32, "exact", integers_exact),
        (S32, "fast", integers_exact),
    ]:
        b, p, _ = builder(element_type)
        fired: Counter[str] = Counter()
        apply_rules(b.module(b.negate(b.negate(p))), rules, numerics, fired)
        assert fired["r"] == expected


def test_complex_numbers_are_not_exact_by_default():
    from fusile.base.element_type import C64

    assert not exact("e").allows([C64], "exact")
    assert exact("e").allows([C64], "fast")
    assert moves().allows([C64], "exact")
    assert Elements.EXACT is exact("e").elements


def test_explanations_name_the_place_and_the_reason():
    b, p, q = builder()
    root = b.negate(b.abs(p))
    assert "another op" in DOUBLE_NEGATE.explain(root) and "abs" in DOUBLE_NEGATE.explain(root)
    rule = Rule("r", of(Add, x, y), lambda m: "because I say so", moves())
    assert rule.explain(b.add(p, q)) == "r: because I say so"
    strict = Rule("s", of(Negate, x), lambda m: m.add(Abs(), m.x), integers("wraps"))
    assert "wraps" in strict.explain(b.negate(p))


def test_an_explanation_leaves_the_computation_as_it_is():
    b, p, q = builder()
    rule = Rule("r", of(Add, x, y), lambda m: m.add(Multiply(), m.add(Negate(), m.x), m.y), moves())
    root = b.add(p, q)
    before = list(b.computation.instructions)
    assert rule.explain(root) == ""
    assert list(b.computation.instructions) == before and list(p.users) == [root]


def test_what_a_declining_rule_wrote_is_taken_back():
    b, p, _ = builder()

    def write_and_decline(m):
        m.add(Abs(), m.add(Negate(), m.x))
        return "changed my mind"

    module = b.module(b.abs(p))
    assert not apply_rules(module, RuleSet([Rule("r", of(Abs, x), write_and_decline, moves())]))
    assert len(module.entry.instructions) == 3


def test_users_are_looked_at_again():
    b, p, _ = builder()
    chain = p
    for _ in range(10):
        chain = b.negate(chain)
    module = b.module(b.negate(chain))
    assert apply_rules(module, RuleSet([DOUBLE_NEGATE]))
    verify(module)
    assert [i.opcode for i in module.entry.post_order() if i.opcode != "parameter"] == ["negate"]


def test_fighting_rules_are_named():
    b, p, q = builder()
    rules = RuleSet(
        [
            Rule("to-subtract", of(Add, x, y), lambda m: m.add(Subtract(), m.x, m.add(Negate(), m.y)), moves()),
            Rule("to-add", of(Subtract, x, of(Negate, y)), lambda m: m.add(Add(), m.x, m.y), moves()),
        ]
    )
    with pytest.raises(CompileError, match="the rules to-add, to-subtract undo each other's work"):
        apply_rules(b.module(b.add(p, q)), rules)


def test_a_replacement_of_another_shape_is_an_error():
    b, p, _ = builder()
    rule = Rule("bad", of(Negate, x), lambda m: m.constant(0, F32), moves())
    with pytest.raises(CompileError, match="the rule bad replaces"):
        apply_rules(b.module(b.negate(p)), RuleSet([rule]))


def test_two_rules_of_one_name_do_not_load():
    with pytest.raises(ValueError, match="double-negate"):
        RuleSet([DOUBLE_NEGATE, DOUBLE_NEGATE])


def test_deep_graphs_need_no_recursion():
    b, p, _ = builder()
    deep = p
    for _ in range(20_000):
        deep = b.abs(b.negate(b.negate(deep)))
    module: Module = b.module(deep)
    apply_rules(module, RuleSet([DOUBLE_NEGATE, Rule("abs-abs", of(Abs, of(Abs, name="x")), lambda m: m.x, moves())]))
    assert len(module.entry.instructions) == 3
