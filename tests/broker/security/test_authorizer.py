"""The authorizer in a broker: its cache, its start, and rights that are taken away meanwhile."""

from __future__ import annotations

import contextlib
import logging

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.base.scram import BY_NUMBER, MECHANISMS, NewPassword
from fencepost.broker.security import authorizer as module
from fencepost.broker.security.authorizer import StandardAuthorizer, check_access, policy_of
from fencepost.broker.settings.config import BrokerConfig
from fencepost.coordinator.acl.decide import Policy
from fencepost.coordinator.acl.rules import Operation, PatternType, Permission, ResourceType, Rule
from fencepost.coordinator.acl.state import AclState
from fencepost.simulation.disk import PowerLost
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_acls import CreateAclsRequest
from fencepost.wire.forms.describe_acls import DescribeAclsRequest
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import FETCH_VERSION, create_topic, fetch_request
from tests.broker.security.secured import ALICE, SETTINGS, Secured, acl, new_user
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.wire import (
    WireProducer,
    await_coordinator,
    committed_offset,
    state_of,
    values,
)

NONE = ErrorCode.NONE
READ_T = ("READ", "TOPIC", "t")
WRITE_T = ("WRITE", "TOPIC", "t")
WRITE_X = ("WRITE", "TRANSACTIONAL_ID", "x")


def rule(name: str = "t", permission: Permission = Permission.ALLOW) -> Rule:
    return Rule(
        ResourceType.TOPIC, name, PatternType.LITERAL, ALICE, "*", Operation.READ, permission
    )


def may_read(authorizer: StandardAuthorizer, name: str = "t") -> bool:
    return authorizer.authorize(ALICE, "h", "READ", "TOPIC", name)


# -- the cache
# ------------------------------------------------------------------------------------------------


def test_a_decision_is_forgotten_when_a_rule_changes() -> None:
    acls = AclState()
    authorizer = StandardAuthorizer(acls, Policy())
    assert not may_read(authorizer)
    assert not authorizer.authorize_by_type(ALICE, "h", "READ", "TOPIC")
    acls.add(b"1" * 16, rule())
    assert may_read(authorizer)
    assert authorizer.authorize_by_type(ALICE, "h", "READ", "TOPIC")
    acls.add(b"2" * 16, rule(permission=Permission.DENY))
    assert not may_read(authorizer)
    assert not authorizer.authorize_by_type(ALICE, "h", "READ", "TOPIC")


def test_names_that_clients_make_up_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 10)
    acls = AclState()
    acls.add(b"1" * 16, rule())
    authorizer = StandardAuthorizer(acls, Policy())
    for number in range(100):
        assert not may_read(authorizer, f"made-up-{number}")
        assert may_read(authorizer)
        assert len(authorizer._cached) <= 10
    authorizer._cached.clear()
    may_read(authorizer, "x" * 30_000)
    assert not authorizer._cached


def test_the_question_about_any_topic_is_not_the_question_about_one() -> None:
    acls = AclState()
    acls.add(b"1" * 16, rule())
    authorizer = StandardAuthorizer(acls, Policy())
    assert authorizer.authorize_by_type(ALICE, "h", "READ", "TOPIC")
    assert not may_read(authorizer, "")


# -- the start
# ------------------------------------------------------------------------------------------------


def config_of(**settings: str) -> BrokerConfig:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfig({"authorizer.class.name": SETTINGS["authorizer.class.name"], **given})


def test_a_start_that_locks_everybody_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"super\.users=User:admin"):
        check_access(config_of(), AclState())
    with pytest.raises(ConfigError, match=r"super\.users=User:admin"):
        Secured(settings={"super.users": ""}).start()
    check_access(config_of(super_users="User:admin"), AclState())
    check_access(config_of(allow_everyone_if_no_acl_found="true"), AclState())
    acls = AclState()
    acls.add(b"1" * 16, rule())
    check_access(config_of(), acls)


def test_super_users_are_principals_with_semicolons() -> None:
    """A distinguished name has commas."""
    config = config_of(super_users="User:CN=a,O=b; User:root ;")
    assert policy_of(config).super_users == {"User:CN=a,O=b", "User:root"}
    for wrong in ("root", "User:", ":root", "User:a;b"):
        with pytest.raises(ConfigError, match="semicolons"):
            config_of(super_users=wrong)


def test_rights_without_an_authorizer_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig({"super.users": "User:root"})
    assert any("super.users has no effect" in warning for warning in config.warnings)
    acls = AclState()
    acls.add(b"1" * 16, rule())
    with caplog.at_level(logging.WARNING, logger="fencepost"):
        check_access(config, acls)
    assert "nothing checks them" in caplog.text


def test_without_an_authorizer_everything_is_allowed_and_there_are_no_acls() -> None:
    with Stage() as stage:
        create_topic(stage, "t")
        reply = stage.call(ApiKey.DESCRIBE_ACLS, 3, DescribeAclsRequest())
        assert reply.error_code == ErrorCode.SECURITY_DISABLED
        request = CreateAclsRequest(creations=[acl(READ_T)])
        (result,) = stage.call(ApiKey.CREATE_ACLS, 3, request).results
        assert result.error_code == ErrorCode.SECURITY_DISABLED


# -- rights that are taken away
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [TV1, TV2], ids=str)
def test_a_producer_that_loses_its_right_in_a_transaction_cannot_go_on_and_is_aborted(
    protocol: Protocol,
) -> None:
    with Secured() as stage:
        create_topic(stage, "t")
        await_coordinator(stage, "x")
        stage.allow(WRITE_T, WRITE_X)
        one = WireProducer(stage.connect(ALICE), "x", protocol)
        one.initialise()
        one.send("t", b"lost")
        stage.forget()
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert one.produce("t", b"more").error_code == denied
        assert one.end(commit=True) == denied
        assert state_of(stage, "x") == "Ongoing"
        stage.advance(120_000)
        assert state_of(stage, "x") == "CompleteAbort"
        assert values(stage, "t") == []


def test_a_right_to_write_that_is_taken_away_leaves_the_right_to_end() -> None:
    with Secured() as stage:
        create_topic(stage, "t")
        await_coordinator(stage, "x")
        stage.allow(WRITE_T, WRITE_X)
        one = WireProducer(stage.connect(ALICE), "x", TV1)
        one.initialise()
        one.send("t", b"kept")
        stage.deny(WRITE_T)
        assert one.produce("t", b"more").error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        one.commit()
        assert values(stage, "t") == [b"kept"]


def test_a_long_poll_does_not_outlive_the_right_to_read() -> None:
    with Secured() as stage:
        create_topic(stage, "t")
        stage.allow(READ_T)
        line = stage.connect(ALICE)
        waiting = line.send(ApiKey.FETCH, FETCH_VERSION, fetch_request("t", max_wait_ms=60_000))
        stage.settle()
        stage.forget()
        one = WireProducer(stage, "x", TV2)
        await_coordinator(stage, "x")
        one.initialise()
        one.send("t", b"secret")
        one.commit()
        reply = line.reply(ApiKey.FETCH, FETCH_VERSION, waiting)
        (data,) = reply.responses[0].partitions
        assert data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not data.records


def test_offsets_are_not_committed_without_the_right_to_read_the_topic() -> None:
    with Secured() as stage:
        create_topic(stage, "t")
        await_coordinator(stage, "g", 0)
        assert committed_offset(stage, "g", "t") == -1


# -- crashes
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_crash_at_any_disk_call_leaves_a_change_whole_or_undone(durability: str) -> None:
    """What was acknowledged stays, and the next start decides by what it has found.

    In `os` mode the process ends there, in `fsync` mode the power fails.
    """
    before = acl(("READ", "TOPIC", "before"))
    changes = [acl(("READ", "TOPIC", f"t{number}")) for number in range(3)]
    both = {f"ALLOW {ALICE} READ on TOPIC:{each.resource_name}" for each in (before, *changes)}
    outcomes = set()
    for call in range(1, 12):
        stage = Secured(durability=durability).start()
        assert stage.change(before) == [NONE]
        stage.disk.lose_power_at(call)
        acknowledged = False
        with contextlib.suppress(PowerLost, DiedError, ClosedError):
            acknowledged = stage.change(*changes) == [NONE] * 3
        after = (stage.lose_power() if durability == "fsync" else stage.kill()).again()
        found = after.rules()
        assert len(found) in (1, 4), "a batch is whole, or not there"
        assert found <= both
        if acknowledged:
            assert found == both
        line = after.connect(ALICE)
        create_topic(after, "t0")
        reply = line.call(ApiKey.FETCH, FETCH_VERSION, fetch_request("t0"))
        is_denied = reply.responses[0].partitions[0].error_code != NONE
        assert is_denied is (len(found) < 4)
        outcomes.add(len(found))
        after.stop()
        if acknowledged:
            break  # It ended after the change.
    assert 4 in outcomes


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_crash_at_any_disk_call_leaves_a_user_all_mechanisms_of_one_password(
    durability: str,
) -> None:
    def passwords(iterations: int) -> list[NewPassword]:
        return [
            NewPassword(each.number, bytes(16), bytes(each.hash_bytes), iterations)
            for each in MECHANISMS.values()
        ]

    outcomes = set()
    for call in range(1, 12):
        stage = Secured(durability=durability).start()
        stage.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, new_user("old", passwords(5000)))
        stage.disk.lose_power_at(call)
        acknowledged = 0
        with contextlib.suppress(PowerLost, DiedError, ClosedError):
            for name in ("old", "new"):
                request = new_user(name, passwords(6000))
                (result,) = stage.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request).results
                acknowledged += result.error_code == NONE
        after = (stage.lose_power() if durability == "fsync" else stage.kill()).again()
        found = [
            {number: each.iterations for number, each in after.node.metadata.users[name].items()}
            for name in ("old", "new")
            if name in after.node.metadata.users
        ]
        before, changed = dict.fromkeys(BY_NUMBER, 5000), dict.fromkeys(BY_NUMBER, 6000)
        states = [[before], [changed], [changed, changed]]
        assert found in states[acknowledged:]
        outcomes.add(acknowledged)
        after.stop()
        if acknowledged == 2:
            break  # It ended after the changes.
    assert outcomes == {0, 1, 2}


def test_a_disk_that_refuses_the_write_changes_nothing_and_says_so() -> None:
    with Secured() as stage:
        stage.allow(READ_T)
        stage.disk.fail_for_a_while(1, 1, kinds=("append",))
        (error,) = stage.change(acl(WRITE_T))
        assert error is ErrorCode.KAFKA_STORAGE_ERROR
        stage.disk.heal()
        assert stage.rules() == {f"ALLOW {ALICE} READ on TOPIC:t"}
        stage.allow(WRITE_T)
        assert len(stage.rules()) == 2


def test_a_killed_broker_has_its_rules_again_also_from_a_checkpoint() -> None:
    stage = Secured().start()
    stage.allow(READ_T, WRITE_X)
    expected = stage.rules()
    stage = stage.kill().again()
    assert stage.rules() == expected

    async def shorten() -> None:
        stage.node.controller.on_damage()  # It writes a checkpoint now.

    stage.run(shorten())
    stage.advance(1_000)
    folder = "/data/__cluster_metadata-0"
    assert any(name.endswith(".checkpoint") for name in stage.disk.list_dir(folder))
    stage.deny(WRITE_T)
    expected = stage.rules()
    stage.stop()
    stage = stage.again()
    assert stage.rules() == expected
    stage.forget()
    assert stage.rules() == set()
    stage.stop()
