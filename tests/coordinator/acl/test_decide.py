"""The decision against a plain restatement of Kafka's rule, and single rules by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.coordinator.acl.decide import Policy, Question, Why, decide, decide_by_type
from fencepost.coordinator.acl.rules import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)
from fencepost.coordinator.acl.state import AclState
from tests.coordinator.acl.restated import is_allowed, is_allowed_somewhere

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
PRINCIPALS = ("User:a", "User:b", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
NAMES = ("*", "o", "or", "orders", "orders-eu", "hardcode", "x")
OPERATIONS = [each for each in Operation if each > Operation.ANY]

rules = st.builds(
    Rule,
    st.sampled_from([TOPIC, TOPIC, GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from([LITERAL, PREFIXED]),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from([ALLOW, ALLOW, DENY]),
)
policies = st.builds(Policy, st.sampled_from([frozenset(), frozenset(["User:b"])]), st.booleans())


def state_of(*wanted: Rule) -> AclState:
    state = AclState()
    for number, rule in enumerate(dict.fromkeys(wanted)):
        state.add(number.to_bytes(16, "big"), rule)
    return state


def rule(
    permission: Permission,
    operation: Operation,
    name: str = "orders",
    pattern_type: PatternType = LITERAL,
    principal: str = "User:a",
    host: str = "*",
) -> Rule:
    return Rule(TOPIC, name, pattern_type, principal, host, operation, permission)


def ask(
    state: AclState, operation: Operation, name: str = "orders", host: str = "10.0.0.1"
) -> bool:
    question = Question("User:a", host, operation, TOPIC, name)
    return decide(state, Policy(), question).is_allowed


@settings(max_examples=400, deadline=None)
@given(
    given_rules=st.lists(rules, max_size=12),
    removed=st.sets(st.integers(0, 11)),
    policy=policies,
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS[:2]),
    resource_type=st.sampled_from([TOPIC, GROUP]),
)
def test_every_decision_is_the_one_of_the_plain_rule(
    given_rules: list[Rule],
    removed: set[int],
    policy: Policy,
    principal: str,
    host: str,
    resource_type: ResourceType,
) -> None:
    """Also after rules were removed: the index must forget them."""
    unique = list(dict.fromkeys(given_rules))
    state = state_of(*unique)
    for number in removed:
        if number < len(unique):
            state.remove(number.to_bytes(16, "big"))
    left = [each for number, each in enumerate(unique) if number not in removed]
    assert set(state.rules.values()) == set(left)
    for operation in OPERATIONS:
        for name in NAMES:
            question = Question(principal, host, operation, resource_type, name)
            verdict = decide(state, policy, question)
            assert verdict.is_allowed is is_allowed(left, policy, question), question
            if verdict.rule is not None:
                assert verdict.rule in left
                assert (verdict.rule.permission is ALLOW) is verdict.is_allowed
        somewhere = (principal, host, operation, resource_type)
        assert decide_by_type(state, policy, *somewhere) is is_allowed_somewhere(
            left, policy, *somewhere
        )


def test_an_index_without_rules_is_empty_again() -> None:
    state = state_of(
        rule(ALLOW, Operation.READ),
        rule(DENY, Operation.READ, "o", PREFIXED),
        rule(ALLOW, Operation.ALL, "*"),
    )
    for rule_id in list(state.rules):
        state.remove(rule_id)
    assert state == AclState()
    assert not state.ids
    assert not state._types


def test_a_deny_wins_against_every_allow() -> None:
    allows = [
        rule(ALLOW, Operation.ALL),
        rule(ALLOW, Operation.ALL, "*"),
        rule(ALLOW, Operation.WRITE, "ord", PREFIXED),
    ]
    for deny in (
        rule(DENY, Operation.WRITE),
        rule(DENY, Operation.ALL, "*"),
        rule(DENY, Operation.WRITE, "o", PREFIXED),
        rule(DENY, Operation.WRITE, principal="User:*", host="10.0.0.1"),
    ):
        for state in (state_of(deny, *allows), state_of(*allows, deny)):
            assert not ask(state, Operation.WRITE)


@pytest.mark.parametrize(
    "operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER]
)
def test_rights_imply_describe_and_denials_do_not(operation: Operation) -> None:
    assert ask(state_of(rule(ALLOW, operation)), Operation.DESCRIBE)
    denied = state_of(rule(DENY, operation), rule(ALLOW, Operation.DESCRIBE))
    assert ask(denied, Operation.DESCRIBE)
    assert not ask(state_of(rule(ALLOW, Operation.CREATE)), Operation.DESCRIBE)


def test_alter_configs_implies_describe_configs() -> None:
    state = state_of(rule(ALLOW, Operation.ALTER_CONFIGS))
    assert ask(state, Operation.DESCRIBE_CONFIGS)
    assert not ask(state, Operation.DESCRIBE)


def test_an_address_matches_in_any_notation() -> None:
    """Java prints IPv6 addresses in full, the operating system does not."""
    state = state_of(rule(ALLOW, Operation.READ, host="0:0:0:0:0:0:0:1"))
    assert ask(state, Operation.READ, host="::1")
    assert not ask(state, Operation.READ, host="::2")


def test_the_answer_says_why() -> None:
    allow, deny = rule(ALLOW, Operation.READ), rule(DENY, Operation.WRITE)
    state = state_of(allow, deny)
    policy = Policy(frozenset(["User:root"]))

    def why(principal: str, operation: Operation, name: str = "orders") -> tuple[Why, Rule | None]:
        verdict = decide(state, policy, Question(principal, "h", operation, TOPIC, name))
        return verdict.why, verdict.rule

    assert why("User:root", Operation.WRITE) == (Why.SUPER_USER, None)
    assert why("User:a", Operation.READ) == (Why.RULE, allow)
    assert why("User:a", Operation.WRITE) == (Why.RULE, deny)
    assert why("User:a", Operation.ALTER) == (Why.NONE_FITS, None)
    assert why("User:a", Operation.READ, "other") == (Why.NO_RULES, None)


def test_a_long_list_of_addresses_costs_a_decision_no_more_than_a_short_one() -> None:
    """Only the rules of the client's own address, and of all addresses, are looked at."""
    listed = [rule(DENY, Operation.ALL, host=f"10.1.0.{number}") for number in range(100)]
    state = state_of(*listed, rule(ALLOW, Operation.READ))
    (attached,) = state.attached(TOPIC, "orders")
    assert all(len(entries) == 1 for entries in attached.values())
    assert ask(state, Operation.READ)
    assert not ask(state, Operation.READ, host="10.1.0.7")


def test_the_question_about_any_topic_stops_at_the_first_rule_that_allows_it() -> None:
    """Every idempotent producer asks it; one program may have ten thousand rules."""
    names = [f"t{number}" for number in range(100)]
    state = state_of(*(rule(ALLOW, Operation.WRITE, name) for name in names))
    seen: list[Any] = []

    class Watched(AclState):
        def entries_of(self, *given: Any) -> Any:
            for each in super().entries_of(*given):
                seen.append(each)
                yield each

    watched = Watched()
    for rule_id, each in state.rules.items():
        watched.add(rule_id, each)
    asked = ("User:a", "10.0.0.1", Operation.WRITE, TOPIC)
    assert decide_by_type(watched, Policy(), *asked)
    assert len(seen) == 1
