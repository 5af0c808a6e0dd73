"""AlterUserScramCredentials and DescribeUserScramCredentials: errors, rights, crashes."""

from __future__ import annotations

import copy
import errno
from functools import cache
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.simulation.disk import UnsyncedDisk
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.broker.controller.topics_stage import Deny, StubNode
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.security.logging_in import SCRAM, log_in, setting, upsertion
from tests.halves import half_of

ALTER = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
DESCRIBE = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
CLUSTER = ("CLUSTER", "kafka-cluster")


def outcomes(reply: Any) -> dict[str, int]:
    return {each.user: each.error_code for each in reply.results}


def described(reply: Any) -> dict[str, list[tuple[int, int]]]:
    return {
        each.user: [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in reply.results
    }


def test_users_are_set_described_and_removed() -> None:
    with Stage() as stage:
        users = [
            upsertion("bob", "b"),
            upsertion("alice", "a"),
            upsertion("alice", "a", "SCRAM-SHA-512", 8192),
        ]
        assert outcomes(stage.call(ALTER, 0, setting(users))) == {"bob": 0, "alice": 0}
        nobody: list[UserName] = []
        for everybody in (None, nobody):
            reply = stage.call(DESCRIBE, 0, DescribeUserScramCredentialsRequest(users=everybody))
            assert described(reply) == {"alice": [(1, 4096), (2, 8192)], "bob": [(1, 4096)]}
        removal = setting([], [("alice", SCRAM), ("carol", SCRAM)])
        assert outcomes(stage.call(ALTER, 0, removal)) == {
            "alice": 0,
            "carol": ErrorCode.RESOURCE_NOT_FOUND,
        }
        names = [UserName(name=each) for each in ("alice", "carol", "bob", "bob")]
        reply = stage.call(DESCRIBE, 0, DescribeUserScramCredentialsRequest(users=names))
        assert outcomes(reply) == {
            "alice": 0,
            "carol": ErrorCode.RESOURCE_NOT_FOUND,
            "bob": ErrorCode.DUPLICATE_RESOURCE,
        }
        assert described(reply)["alice"] == [(2, 8192)]


@pytest.mark.interpreted  # A compiled `Services` takes no stand-ins.
def test_users_are_changed_and_described_by_administrators_only() -> None:
    node = StubNode(authorizer=Deny(("ALTER", *CLUSTER), ("DESCRIBE", *CLUSTER))).start()
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    request = setting([upsertion("bob", "b")], [("carol", SCRAM)])
    assert outcomes(node.ask(ALTER, request)) == {"bob": refused, "carol": refused}
    reply = node.ask(DESCRIBE, DescribeUserScramCredentialsRequest(users=None))
    assert (reply.error_code, reply.results) == (refused, [])
    assert node.follower.state.users == {}


@cache
def prepared(durability: str) -> UnsyncedDisk:
    """A disk with the user alice."""
    stage = Stage(durability=durability).start()
    stage.call(ALTER, 0, setting([upsertion("alice", "old"), upsertion("bob", "b")]))
    stage.stop()
    return stage.disk


CHANGE = setting([upsertion("alice", "new"), upsertion("carol", "c")], [("bob", SCRAM)])
SECURED = {"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT"}


def calls_of(durability: str) -> int:
    stage = Stage(durability=durability, disk=copy.deepcopy(prepared(durability))).start()
    before = stage.disk.calls
    stage.call(ALTER, 0, CHANGE)
    count = stage.disk.calls - before
    stage.abandon()
    return count


def who_gets_in(stage: Stage) -> list[tuple[str, str]]:
    passwords = [("alice", "old"), ("alice", "new"), ("bob", "b"), ("carol", "c")]
    return [each for each in passwords if log_in(stage.connect(), *each).error_code == 0]


OLD = [("alice", "old"), ("bob", "b")]
NEW = [("alice", "new"), ("carol", "c")]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("end", ["kill", "power"])
def test_a_change_of_users_survives_a_crash_whole_or_not_at_all(durability: str, end: str) -> None:
    count = calls_of(durability)
    assert count > 0
    for number in half_of(range(1, count + 2), durability, end):
        stage = Stage(durability=durability, disk=copy.deepcopy(prepared(durability))).start()
        stage.disk.lose_power_at(number)
        try:
            stage.call(ALTER, 0, CHANGE)
            answered = True
        except (ClosedError, DiedError):
            answered = False
        again = (stage.kill() if end == "kill" else stage.lose_power()).again(settings=SECURED)
        found = who_gets_in(again)
        assert found in (OLD, NEW)
        if answered and (end == "kill" or durability == "fsync"):
            assert found == NEW
        again.abandon()


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_change_of_users_that_the_disk_refuses_changes_nothing_and_the_next_one_works(
    durability: str,
) -> None:
    for number in range(1, calls_of(durability) + 1):
        stage = Stage(durability=durability, disk=copy.deepcopy(prepared(durability))).start()
        stage.disk.fail_call(number, errno.EIO)
        try:
            codes = set(outcomes(stage.call(ALTER, 0, CHANGE)).values())
        except (ClosedError, DiedError):
            stage = stage.kill().again()  # A failed sync ends the process.
            codes = set()
        users = set(stage.node.metadata.users)
        assert users == ({"alice", "carol"} if codes == {0} else users)
        if codes and codes != {0}:
            assert codes == {ErrorCode.KAFKA_STORAGE_ERROR}
            assert users == {"alice", "bob"}
        assert outcomes(stage.call(ALTER, 0, setting([upsertion("dave", "d")]))) == {"dave": 0}
        again = stage.kill().again()
        assert "dave" in again.node.metadata.users
        again.abandon()


@pytest.mark.usefixtures("quiet")
def test_users_survive_a_checkpoint_of_the_metadata_log(monkeypatch: pytest.MonkeyPatch) -> None:
    from fencepost.broker.controller import checkpoint

    monkeypatch.setattr(checkpoint, "LEAST_RECORDS", 4)
    monkeypatch.setattr(checkpoint, "HISTORY_PER_RECORD", 1)
    stage = Stage().start()
    for number in range(30):
        stage.call(ALTER, 0, setting([upsertion("alice", f"password {number}")]))
        stage.advance(1_000)
    names = list(stage.disk.list_dir("/data/__cluster_metadata-0"))
    assert any(name.endswith(".checkpoint") for name in names)
    stage.stop()
    again = stage.again(settings=SECURED)
    assert log_in(again.connect(), "alice", "password 29").error_code == 0
    again.abandon()
