"""kill -9 amid changes of users and ACLs: what was acknowledged is kept, the rest whole or not.

Method: one connection keeps many changes in flight, and the kill comes at any moment of them. The
broker serves a connection in order, so what it has after its restart must be the state after one of
these changes, and none before the last acknowledged one. The seed is printed with a failure.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fencepost.base.scram import BY_NUMBER, MECHANISMS, SALT_BYTES, Mechanism, NewPassword
from fencepost.client.acls import ANY
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from fencepost.wire.forms.create_acls import CreateAclsRequest
from fencepost.wire.forms.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from fencepost.wire.forms.describe_acls import DescribeAclsRequest
from fencepost.wire.forms.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from tests.broker.raw import ClosedError, RawClient
from tests.broker.security.secured import acl, new_user
from tools.fencepost_process import FencepostProcess

pytestmark = pytest.mark.slow

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPERATIONS = ("READ", "WRITE", "ALTER")
SENT = 200
IN_FLIGHT = 20
VERSIONS = {
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
}


class State(NamedTuple):
    """Users with the iterations of their mechanisms, and topics with the operations of ACLs."""

    users: dict[str, dict[int, int]]
    topics: dict[str, set[int]]


class Change(NamedTuple):
    api: ApiKey
    form: Any
    after: State


def password(mechanism: Mechanism, iterations: int) -> NewPassword:
    """One that nobody has hashed: the broker takes whatever comes."""
    salted = bytes(mechanism.hash_bytes)
    return NewPassword(mechanism.number, bytes(SALT_BYTES), salted, iterations)


def changes(before: State, rng: random.Random) -> Iterator[Change]:
    """Adds, changes and removes without end; every change is one that the broker accepts."""
    users, topics = dict(before.users), dict(before.topics)
    while True:
        number = rng.randrange(1 << 32)
        name = rng.choice([*users, f"user-{number}"])
        topic = rng.choice([*topics, f"topic-{number}"])
        form: Any
        match rng.choice(["set", "set", "remove", "allow", "allow", "forbid"]):
            case "set":
                iterations = 4096 + number % 12_000
                api = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
                form = new_user(name, [password(each, iterations) for each in MECHANISMS.values()])
                users[name] = dict.fromkeys(BY_NUMBER, iterations)
            case "remove" if users.pop(name, None):
                deletions = [
                    ScramCredentialDeletion(name=name, mechanism=each) for each in BY_NUMBER
                ]
                api = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
                form = AlterUserScramCredentialsRequest(deletions=deletions)
            case "allow":
                rules = [acl((each, "TOPIC", topic)) for each in OPERATIONS]
                api, form = ApiKey.CREATE_ACLS, CreateAclsRequest(creations=rules)
                topics[topic] = {rule.operation for rule in rules}
            case "forbid" if topics.pop(topic, None):
                wanted = DeleteAclsFilter(
                    resource_type_filter=ANY,
                    resource_name_filter=topic,
                    pattern_type_filter=ANY,
                    principal_filter=None,
                    host_filter=None,
                    operation=ANY,
                    permission_type=ANY,
                )
                api, form = ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=[wanted])
            case _:
                continue  # Nobody is there to be removed.
        yield Change(api, form, State(dict(users), dict(topics)))


def found_at(address: str) -> State:
    with RawClient(address) as client:
        everybody = DescribeUserScramCredentialsRequest(users=None)
        told = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, everybody)
        users = {
            each.user: {info.mechanism: info.iterations for info in each.credential_infos}
            for each in told.results
        }
        everything = DescribeAclsRequest(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
        told = client.call(ApiKey.DESCRIBE_ACLS, 3, everything)
        assert told.error_code == 0
        topics = {
            each.resource_name: {rule.operation for rule in each.acls} for each in told.resources
        }
        return State(users, topics)


def errors_of(reply: Any) -> set[int]:
    results = reply.filter_results if hasattr(reply, "filter_results") else reply.results
    return {each.error_code for each in results}


def change_and_kill(broker: FencepostProcess, sent: list[Change], rng: random.Random) -> int:
    """Makes the changes and kills the broker amid them; returns how many were acknowledged."""
    acknowledged, kill_at = 0, rng.randrange(SENT // 2)
    with RawClient(broker.bootstrap_servers) as client:
        for change in sent[:IN_FLIGHT]:
            client.send(change.api, VERSIONS[change.api], change.form)
        try:
            for change in sent:
                assert errors_of(client.reply(change.api, VERSIONS[change.api])) == {0}
                acknowledged += 1
                if acknowledged < kill_at:
                    more = sent[acknowledged + IN_FLIGHT - 1]
                    client.send(more.api, VERSIONS[more.api], more.form)
                elif broker.process.is_alive:
                    time.sleep(rng.random() / 500)  # Any moment of the changes in flight.
                    broker.kill()
        except ClosedError:
            pass
    return acknowledged


@pytest.mark.parametrize(("durability", "rounds"), [("os", 1), ("fsync", 2)])
def test_users_and_acls_survive_kills_as_they_were_acknowledged(
    tmp_path: Path, durability: str, rounds: int
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    settings = (f"authorizer.class.name={AUTHORIZER}", "super.users=User:ANONYMOUS")
    options = ["--durability", durability]
    options += [part for each in settings for part in ("--config", each)]
    broker = FencepostProcess(tmp_path, options=options)
    state = State({}, {})
    try:
        for _ in range(rounds):
            made = changes(state, rng)
            sent = [next(made) for _ in range(SENT)]
            acknowledged = change_and_kill(broker, sent, rng)
            possible = [state, *(change.after for change in sent)]
            broker = FencepostProcess(tmp_path, options=options)
            state = found_at(broker.bootstrap_servers)
            assert state in possible[acknowledged:]
    finally:
        assert broker.stop() == 0
