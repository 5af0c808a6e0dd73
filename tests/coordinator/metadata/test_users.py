"""Users and their SCRAM credentials: what is accepted, what is refused, and with which error."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.scram import BY_NUMBER, MECHANISMS, credential_of
from fencepost.coordinator.metadata.users import (
    MAX_CHANGES,
    Removal,
    Upsertion,
    UserChange,
    decide_alter_users,
)
from tests.coordinator.metadata.cluster import Cluster

SHA_256, SHA_512 = (MECHANISMS[f"SCRAM-SHA-{bits}"].number for bits in (256, 512))
SALT = b"salt"


def upsertion(
    user: str = "alice", mechanism: int = SHA_256, iterations: int = 4096, salt: bytes = SALT
) -> Upsertion:
    size = BY_NUMBER[mechanism].hash_bytes if mechanism in BY_NUMBER else 32
    return Upsertion(user, mechanism, salt, bytes(size), iterations)


def altered(cluster: Cluster, *changes: UserChange) -> dict[str, ErrorCode]:
    """Takes the changes; returns the error of each user."""
    decision, outcomes = decide_alter_users(cluster.state, changes)
    cluster.take(decision)
    return {
        user: ErrorCode.NONE if refusal is None else refusal.error for user, refusal in outcomes
    }


def test_a_credential_has_the_keys_of_the_salted_password() -> None:
    cluster = Cluster()
    assert altered(cluster, upsertion()) == {"alice": ErrorCode.NONE}
    expected = credential_of(BY_NUMBER[SHA_256], bytes(32), SALT, 4096)
    assert cluster.state.users == {"alice": {SHA_256: expected}}


def test_a_user_has_one_credential_per_mechanism_and_is_gone_with_the_last() -> None:
    cluster = Cluster()
    altered(cluster, upsertion(), upsertion(mechanism=SHA_512))
    altered(cluster, upsertion(iterations=8192))
    assert {n: c.iterations for n, c in cluster.state.users["alice"].items()} == {1: 8192, 2: 4096}
    altered(cluster, Removal("alice", SHA_256))
    assert list(cluster.state.users["alice"]) == [SHA_512]
    altered(cluster, Removal("alice", SHA_512))
    assert cluster.state.users == {}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (Removal("alice", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (Removal("alice", SHA_512), ErrorCode.RESOURCE_NOT_FOUND),
        (Removal("carol", SHA_256), ErrorCode.RESOURCE_NOT_FOUND),
        (Removal("", SHA_256), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (Upsertion("alice", SHA_256, SALT, bytes(31), 4096), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_a_mistake_is_refused_and_the_others_are_changed(
    change: UserChange, error: ErrorCode
) -> None:
    cluster = Cluster()
    altered(cluster, upsertion())
    before = cluster.state.users["alice"]
    errors = altered(cluster, upsertion("bob"), change)
    assert errors == {"bob": ErrorCode.NONE, change.user: error}
    assert cluster.state.users["alice"] == before
    assert "bob" in cluster.state.users


def test_iterations_at_the_bounds_are_accepted() -> None:
    for iterations in (4096, 16384):
        assert altered(Cluster(), upsertion(iterations=iterations)) == {"alice": ErrorCode.NONE}


@pytest.mark.parametrize(
    "changes",
    [
        (upsertion(), upsertion(iterations=8192)),
        (Removal("alice", SHA_256), Removal("alice", SHA_256)),
        (Removal("alice", SHA_256), upsertion()),
    ],
)
def test_a_credential_is_not_changed_twice_in_one_request(changes: tuple[UserChange, ...]) -> None:
    cluster = Cluster()
    altered(cluster, upsertion())
    before = cluster.state.users["alice"]
    assert altered(cluster, *changes) == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert cluster.state.users["alice"] == before


def test_one_mistake_of_a_user_keeps_all_credentials_of_that_user() -> None:
    cluster = Cluster()
    errors = altered(cluster, upsertion(), upsertion(mechanism=SHA_512, iterations=1))
    assert errors == {"alice": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert cluster.state.users == {}


def test_what_is_decided_prints_no_secret() -> None:
    change = Upsertion("alice", SHA_256, b"SALT-1", b"SALTED-2" * 4, 4096)
    decision, _ = decide_alter_users(Cluster().state, [change])
    credential = credential_of(BY_NUMBER[SHA_256], change.salted_password, change.salt, 4096)
    shown = repr([change, decision, credential])
    for secret in (change.salt, change.salted_password, *credential[:3]):
        assert repr(bytes(secret)) not in shown
        assert repr(bytes(secret))[2:-1] not in shown


def test_a_request_that_changes_too_many_credentials_changes_none() -> None:
    cluster = Cluster()
    changes = [Removal(f"user-{number}", SHA_256) for number in range(MAX_CHANGES)]
    assert set(altered(cluster, *changes).values()) == {ErrorCode.RESOURCE_NOT_FOUND}
    outcomes = altered(cluster, *changes, upsertion())
    assert set(outcomes.values()) == {ErrorCode.POLICY_VIOLATION}
    assert len(outcomes) == MAX_CHANGES + 1
    assert cluster.state.users == {}
