"""Goal: an id that is not listed counts as absent only if it is proven that it would be seen."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.rights import DENY, LITERAL, Acl
from fencepost.forensics.visibility import judge_coordinators, judge_rights

ALLOW = 3
PREFIXED = 4
PROBE = "fencepost-probe-1"
NO_AUTHORIZER = Missing("", ErrorCode.SECURITY_DISABLED)
NOT_TOLD = Missing("", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def acl(name: str, permission: int = ALLOW, pattern: int = LITERAL) -> Acl:
    return Acl(name, pattern, permission)


@pytest.mark.parametrize(
    ("may", "rules", "is_complete"),
    [
        (True, NO_AUTHORIZER, True),
        (False, NO_AUTHORIZER, False),
        (True, [], True),
        (True, [acl("*")], True),
        (True, [acl("*"), acl("orders")], True),
        (True, NOT_TOLD, False),
        (False, [], False),
        (None, [], False),
        (False, [acl("*")], False),
        (True, [acl("*"), acl("secret", DENY)], False),
        (True, [acl("secret")], False),
        (True, [acl("fencepost", ALLOW, PREFIXED)], False),
        (True, [acl("fencepost", ALLOW, PREFIXED), acl("secret")], False),
    ],
)
def test_only_rules_that_hold_for_all_ids_prove_that_all_are_seen(
    may: bool | None, rules: list[Acl] | Missing, is_complete: bool
) -> None:
    found = judge_rights(PROBE, may, rules)
    assert found.is_complete is is_complete
    assert found.reason


def test_a_broker_that_did_not_answer_may_hide_ids() -> None:
    found = judge_coordinators([Missing("broker 2 at h:1 did not answer", broker=2)], [])
    assert found is not None
    assert (found.is_complete, "broker 2" in found.reason) == (False, True)


def test_a_partition_of_the_transaction_log_without_a_leader_may_hide_ids() -> None:
    found = judge_coordinators([], [4, 7])
    assert found is not None
    assert (found.is_complete, "partition 4, 7" in found.reason) == (False, True)


@pytest.mark.parametrize(
    ("code", "is_complete"),
    [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)],
)
def test_a_transaction_log_that_does_not_exist_hides_nothing(
    code: ErrorCode, is_complete: bool
) -> None:
    found = judge_coordinators([], Missing("", code))
    assert found is not None
    assert found.is_complete is is_complete


def test_if_all_coordinators_answer_the_rights_decide() -> None:
    assert judge_coordinators([], []) is None
