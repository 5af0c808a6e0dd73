"""Filters of ACLs against a restatement of Kafka's, one word at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.coordinator.acl.filters import Filter, matching
from fencepost.coordinator.acl.rules import Operation, PatternType, Permission, ResourceType, Rule
from tests.coordinator.acl.test_decide import HOSTS, NAMES, PRINCIPALS, rules, state_of

filters = st.builds(
    Filter,
    st.sampled_from([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from([None, *NAMES]),
    st.sampled_from([each for each in PatternType if each]),
    st.sampled_from([None, *PRINCIPALS]),
    st.sampled_from([None, *HOSTS]),
    st.sampled_from([Operation.ANY, Operation.ALL, Operation.READ]),
    st.sampled_from([Permission.ANY, Permission.ALLOW, Permission.DENY]),
)
exact_filters = rules.map(lambda rule: Filter(*rule))
RULE = Rule(
    ResourceType.TOPIC,
    "t",
    PatternType.LITERAL,
    "User:a",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


def plainly_matches(wanted: Filter, rule: Rule) -> bool:
    if wanted.resource_type not in (ResourceType.ANY, rule.resource_type):
        return False
    for asked, found in (
        (wanted.principal, rule.principal),
        (wanted.host, rule.host),
    ):
        if asked is not None and asked != found:
            return False
    if wanted.operation not in (Operation.ANY, rule.operation):
        return False
    if wanted.permission not in (Permission.ANY, rule.permission):
        return False
    name = wanted.resource_name
    match wanted.pattern_type:
        case PatternType.ANY:
            return name is None or name == rule.resource_name
        case PatternType.MATCH if rule.pattern_type is PatternType.PREFIXED:
            return name is None or name.startswith(rule.resource_name)
        case PatternType.MATCH:
            return name is None or rule.resource_name in (name, "*")
        case exact:
            return exact is rule.pattern_type and name in (None, rule.resource_name)


@settings(max_examples=300, deadline=None)
@given(wanted=filters | exact_filters, given_rules=st.lists(rules, max_size=10, unique=True))
def test_a_filter_finds_what_kafkas_finds(wanted: Filter, given_rules: list[Rule]) -> None:
    found = {rule for _, rule in matching(state_of(*given_rules), wanted)}
    assert found == {rule for rule in given_rules if plainly_matches(wanted, rule)}


@settings(max_examples=100, deadline=None)
@given(given_rules=st.lists(rules, max_size=10, unique=True), other=rules)
def test_a_filter_with_nothing_left_open_finds_its_rule_alone(
    given_rules: list[Rule], other: Rule
) -> None:
    state = state_of(*given_rules)
    for rule in (*given_rules, other):
        found = [each for _, each in matching(state, Filter(*rule))]
        assert found == [rule] * (rule in given_rules)


def test_many_filters_do_not_look_at_all_rules_each() -> None:
    """Ten thousand rules and a filter for each would stop the broker for a minute."""

    class Counted(dict[bytes, Rule]):
        def items(self) -> Any:
            raise AssertionError("looked at every rule")

    state = state_of(*(RULE._replace(resource_name=f"t{number}") for number in range(3)))
    state.rules = Counted(state.rules)  # type: ignore[misc]
    wanted = [Filter(*RULE._replace(resource_name=name)) for name in ("t1", "absent")]
    assert [len(list(matching(state, each))) for each in wanted] == [1, 0]


OPEN: dict[str, tuple[Any, Any]] = {
    "resource_type": (ResourceType.ANY, ResourceType.GROUP),
    "resource_name": (None, "other"),
    "pattern_type": (PatternType.ANY, PatternType.PREFIXED),
    "principal": (None, "User:b"),
    "host": (None, "10.0.0.7"),
    "operation": (Operation.ANY, Operation.WRITE),
    "permission": (Permission.ANY, Permission.DENY),
}


@pytest.mark.parametrize("field", OPEN)
def test_a_filter_with_one_thing_left_open_finds_all_that_differ_in_it(field: str) -> None:
    nothing, something = OPEN[field]
    both = [RULE, RULE._replace(**{field: something})]
    wanted = Filter(*RULE)._replace(**{field: nothing})
    assert [rule for _, rule in matching(state_of(*both), wanted)] == both


def test_a_filter_for_whatever_is_about_a_resource_is_never_exact() -> None:
    """MATCH finds rules of other names, also if everything else is given."""
    names = [("t", PatternType.LITERAL), ("*", PatternType.LITERAL), ("t", PatternType.PREFIXED)]
    attached = [RULE._replace(resource_name=name, pattern_type=kind) for name, kind in names]
    wanted = Filter(*RULE)._replace(pattern_type=PatternType.MATCH)
    assert [rule for _, rule in matching(state_of(*attached), wanted)] == attached
