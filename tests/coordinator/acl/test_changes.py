"""Requests to add and to remove ACLs: what is refused, what is written, and that it can be read."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import WireError
from fencepost.base.refusal import Refusal
from fencepost.coordinator.acl import changes
from fencepost.coordinator.acl.changes import (
    Sent,
    check_filter,
    check_rule,
    decide_create,
    decide_delete,
    record_of,
    rule_of,
)
from fencepost.coordinator.acl.filters import Filter
from fencepost.coordinator.acl.rules import Rule
from fencepost.coordinator.metadata.apply import apply
from fencepost.coordinator.metadata.snapshot import frozen, snapshot
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    decode_record,
    encode_record,
)
from tests.coordinator.acl.hosts import NOBODYS_HOSTS
from tests.coordinator.acl.test_decide import rules

GOOD = Sent(2, "orders", 3, "User:a", "*", 3, 3)
ANYTHING = Sent(1, None, 1, None, None, 1, 1)


def sent(rule: Rule) -> Sent:
    return Sent(*rule)


def ids() -> itertools.count[int]:
    return itertools.count(1)


def create(state: MetadataState, *wanted: Sent) -> list[Refusal | None]:
    numbers = itertools.count(len(state.acls.rules) + state.acls.version + 1)
    created = decide_create(state.acls, wanted, lambda: next(numbers).to_bytes(16, "big"))
    for record in created.records:
        apply(state, decode_record(encode_record(record)))
    return created.refusals


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"resource_type": 0}, "resourceType UNKNOWN"),
        ({"resource_type": 1}, "resourceType ANY"),
        ({"resource_type": 99}, "resourceType UNKNOWN"),
        ({"resource_type": 4}, "kafka-cluster"),
        ({"resource_name": ""}, "empty resource name"),
        ({"pattern_type": 1}, "patternType ANY"),
        ({"pattern_type": 2}, "patternType MATCH"),
        ({"pattern_type": -1}, "patternType UNKNOWN"),
        ({"operation": 1}, "operation ANY"),
        ({"operation": 77}, "operation UNKNOWN"),
        ({"permission": 1}, "permissionType ANY"),
        ({"permission": 4}, "permissionType UNKNOWN"),
        ({"principal": "alice"}, "User:alice"),
        ({"principal": ":alice"}, "User:alice"),
        ({"principal": "User:"}, "User:alice"),
        ({"host": ""}, "no address"),
        *(({"host": host}, words) for host, words in NOBODYS_HOSTS.items()),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_and_changes_nothing(
    change: dict[str, object], why: str
) -> None:
    state = MetadataState()
    refused, good = create(state, GOOD._replace(**change), GOOD)  # type: ignore[arg-type]
    assert refused is not None
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert why in refused.message
    assert good is None, "the others of the request are added"
    assert len(state.acls.rules) == 1


def test_a_rule_is_added_once_however_often_it_is_sent() -> None:
    state = MetadataState()
    assert create(state, GOOD, GOOD) == [None, None]
    assert create(state, GOOD) == [None]
    assert len(state.acls.rules) == 1


def test_a_filter_with_an_unknown_number_removes_nothing() -> None:
    state = MetadataState()
    create(state, GOOD)
    for change in ({"resource_type": 0}, {"pattern_type": 9}, {"operation": 16}, {"permission": 0}):
        removed = decide_delete(state.acls, [ANYTHING._replace(**change)])  # type: ignore[arg-type]
        assert isinstance(removed.results[0], Refusal)
        assert not removed.records


def test_a_rule_that_two_filters_match_is_removed_once_and_listed_twice() -> None:
    state = MetadataState()
    create(state, GOOD)
    removed = decide_delete(state.acls, [ANYTHING, ANYTHING])
    assert [len(each) for each in removed.results] == [1, 1]
    assert len(removed.records) == 1


def test_more_changes_than_fit_into_a_batch_are_refused_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = MetadataState()
    create(state, *(GOOD._replace(resource_name=f"t{n}") for n in range(3)))
    monkeypatch.setattr(changes, "MAX_CHANGES", 2)
    more = [GOOD._replace(resource_name=f"more{n}") for n in range(3)]
    refusals = create(state, *more)
    assert [each and each.error for each in refusals] == [ErrorCode.POLICY_VIOLATION] * 3
    removed = decide_delete(state.acls, [ANYTHING])
    assert not removed.records
    assert isinstance(removed.results[0], Refusal)
    assert len(state.acls.rules) == 3


def test_filters_that_find_more_than_a_reply_may_list_are_refused_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "MAX_FOUND", 5)
    state = MetadataState()
    create(state, GOOD, GOOD._replace(principal="User:b"))
    removed = decide_delete(state.acls, [ANYTHING] * 3)
    assert not removed.records
    assert [result.error for result in removed.results if isinstance(result, Refusal)] == [
        ErrorCode.POLICY_VIOLATION
    ] * 3
    removed = decide_delete(state.acls, [ANYTHING] * 2)
    assert len(removed.records) == 2


@settings(max_examples=60, deadline=None)
@given(wanted=st.lists(rules, max_size=8), filters=st.lists(rules, max_size=2))
def test_log_checkpoint_and_live_state_are_the_same(
    wanted: list[Rule], filters: list[Rule]
) -> None:
    state = MetadataState()
    create(state, *map(sent, wanted))
    for record in decide_delete(state.acls, list(map(sent, filters))).records:
        apply(state, decode_record(encode_record(record)))
    assert set(state.acls.rules.values()) == set(wanted) - set(filters)
    again = MetadataState()
    for each in snapshot(frozen(state)):
        apply(again, decode_record(encode_record(each)))
    assert again == state
    assert again.acls.ids == state.acls.ids


def test_the_records_have_kafkas_bytes() -> None:
    """Frame 1, type 18 or 19, version 0; then the compact fields in Kafka's order."""
    rule = check_rule(GOOD)
    assert isinstance(rule, Rule)
    data = encode_record(record_of(bytes(range(16)), rule))
    assert data.hex() == (
        "01 12 00 000102030405060708090a0b0c0d0e0f 02 07 6f7264657273 03 07 557365723a61 02 2a"
        " 03 03 00"
    ).replace(" ", "")
    removal = encode_record(RemoveAccessControlEntryRecord(id=bytes(range(16))))
    assert removal.hex() == "011300000102030405060708090a0b0c0d0e0f00"


def test_a_record_of_a_newer_version_is_refused() -> None:
    record = AccessControlEntryRecord(
        id=bytes(16),
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=99,
        permission_type=3,
    )
    with pytest.raises(WireError, match="newer version"):
        rule_of(record)


@settings(max_examples=100, deadline=None)
@given(rule=rules, numbers=st.tuples(*[st.integers(-128, 127)] * 4))
def test_any_number_of_a_client_is_understood_or_refused(
    rule: Rule, numbers: tuple[int, int, int, int]
) -> None:
    odd = Sent(numbers[0], "t", numbers[1], "User:a", "*", numbers[2], numbers[3])
    assert isinstance(check_rule(odd), (Rule, Refusal))
    assert isinstance(check_filter(odd), (Filter, Refusal))
