"""Rules in words: what is shown of a rule is what makes it again, and no two rules look alike."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.base.failures import FencepostError
from fencepost.coordinator.acl.rules import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)
from fencepost.coordinator.acl.words import (
    read_resource,
    read_rule,
    read_sentence,
    refuse_without_effect,
    resource_words,
    words_of,
)
from tests.coordinator.acl.hosts import NOBODYS_HOSTS

PREFIXED, LITERAL = PatternType.PREFIXED, PatternType.LITERAL
names = st.text(st.sampled_from("ab\\*:"), min_size=1, max_size=6)


def rule(resource_type: ResourceType, name: str, pattern_type: PatternType) -> Rule:
    return Rule(resource_type, name, pattern_type, "User:a", "*", Operation.ALL, Permission.ALLOW)


@given(name=names, pattern_type=st.sampled_from([LITERAL, PREFIXED]))
@example(name="orders-*", pattern_type=LITERAL)
@example(name="orders-", pattern_type=PREFIXED)
@example(name="\\", pattern_type=PREFIXED)
@example(name="*", pattern_type=PREFIXED)
def test_a_resource_in_words_is_the_same_resource_again(
    name: str, pattern_type: PatternType
) -> None:
    given_rule = rule(ResourceType.GROUP, name, pattern_type)
    found = read_resource(resource_words(given_rule))
    assert found == (ResourceType.GROUP, name, pattern_type is PREFIXED)


def test_the_cluster_may_be_a_prefix_too() -> None:
    """Nobody means it, but Kafka's tools add it, and then somebody has to remove it."""
    for pattern_type, words in ((LITERAL, "cluster"), (PREFIXED, "cluster:kafka-cluster*")):
        shown = resource_words(rule(ResourceType.CLUSTER, CLUSTER_NAME, pattern_type))
        assert shown == words
        expected = (ResourceType.CLUSTER, CLUSTER_NAME, pattern_type is PREFIXED)
        assert read_resource(shown) == expected


def test_a_star_in_a_name_does_not_look_like_a_prefix() -> None:
    """`kafka-acls --topic 'orders-*'` adds a rule for a topic of that very name."""
    shown = {words_of(rule(ResourceType.TOPIC, "orders-*", LITERAL))}
    shown.add(words_of(rule(ResourceType.TOPIC, "orders-", PREFIXED)))
    assert shown == {r"allow User:a all topic:orders-\*", "allow User:a all topic:orders-*"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("User:a", "write", "group:g", "*"),
            "group:g has no operation write: there are all, read",
        ),
        (("User:a", "read", "cluster", "*"), "cluster has no operation read"),
        (("User:a", "read", "topic:t", "10.0.0.0/8"), "neither names nor networks"),
        (("User:a", "read", "topic:t", "a.example"), "neither names nor networks"),
        (("user:a", "read", "topic:t", "*"), "write User:a"),
        *(
            (("User:a", "read", "topic:t", host), re.escape(words))
            for host, words in NOBODYS_HOSTS.items()
            if " " not in host
        ),
    ],
)
def test_a_new_rule_that_no_request_would_meet_is_refused(
    arguments: tuple[str, str, str, str], words: str
) -> None:
    *of_the_rule, host = arguments
    given_rule = read_rule(*of_the_rule, deny=True, host=host)  # One that exists can be removed.
    with pytest.raises(FencepostError, match=words):
        refuse_without_effect(given_rule)
    with pytest.raises(FencepostError, match=words):
        read_sentence(words_of(given_rule))


@pytest.mark.parametrize(
    "sentence",
    [
        "allow User:a from ::1 all cluster",
        "deny User:a from 10.0.0.7 read topic:t*",
        "allow User:* two_phase_commit txn:x",
        r"allow Group:a read group:g\*",
    ],
)
def test_a_sentence_is_its_rule_in_words(sentence: str) -> None:
    assert words_of(read_sentence(sentence)) == sentence
