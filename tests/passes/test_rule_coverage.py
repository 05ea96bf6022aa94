"""Every rule has a case in which it fires and one in which it must not."""

from text_cases import all_cases

from fusile.passes.simplify import CANONICALIZATION, SIMPLIFICATION

RULES = {rule.name: rule for rules in (SIMPLIFICATION, CANONICALIZATION) for rule in rules.rules}


def test_every_rule_has_a_case_that_fires_and_one_that_must_not():
    fires = {name for case in all_cases() for name in case.names("fires")}
    declines = {name for case in all_cases() for name in case.names("not")}
    assert not fires - set(RULES) and not declines - set(RULES), "cases name rules that don't exist"
    assert sorted(set(RULES) - fires) == []
    assert sorted(set(RULES) - declines) == []
