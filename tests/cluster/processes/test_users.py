"""Users and rights in a cluster of processes: what one broker was told counts at every broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

import fencepost
from fencepost import Security
from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.base.scram import MECHANISMS, SALT_BYTES, new_password
from fencepost.client.acls import Acl, AclFilter, create_acls, delete_acls
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import Refused
from fencepost.client.transactions import ProducerIdentity
from fencepost.coordinator.acl.words import read_sentence
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.security.secured import new_user
from tests.broker.security.test_secrets import options, try_to_log_in

pytestmark = pytest.mark.slow

CONFIG: Final = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "connection.failed.authentication.delay.ms": 0,
}
ALL: Final = {1, 2, 3}
SHA: Final = "SCRAM-SHA-512"
PLACES: Final = [TopicPartition("orders", index) for index in range(3)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[fencepost.Cluster]:
    users = {"admin": "root", "alice": "pencil"}
    security = Security(users=users, tls=False)
    with fencepost.Cluster(3, config=CONFIG, security=security) as cluster:
        cluster.create_topic("orders", 3)
        yield cluster


def as_user(cluster: fencepost.Cluster, user: str = "admin") -> Cluster:
    return connect(cluster.bootstrap_servers, cluster.client_config(user))


def set_password(admin: Cluster, through: int, user: str, password: str) -> None:
    salted = [new_password(each, password, os.urandom(SALT_BYTES)) for each in MECHANISMS.values()]
    request = new_user(user, salted)
    reply = admin.send_request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, through)
    assert [each.error_code for each in reply.results] == [ErrorCode.NONE]


def let_in(cluster: fencepost.Cluster, user: str, password: str) -> set[int]:
    """The brokers at which this login succeeds."""
    return {
        broker.id
        for broker in cluster.brokers
        if try_to_log_in(str(broker.address), user, password, SHA)
    }


def allowing(client: Cluster) -> set[int]:
    """The brokers at which a client that is logged in sees the topic."""
    wanted = [MetadataRequestTopic(name="orders")]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    replies = {each: client.send_request(ApiKey.METADATA, request, each) for each in ALL}
    errors = {each: reply.topics[0].error_code for each, reply in replies.items()}
    assert set(errors.values()) <= {ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    return {each for each, error in errors.items() if error == ErrorCode.NONE}


def allow(admin: Cluster, *sentences: str) -> list[Acl]:
    acls = [Acl(*read_sentence(each)) for each in sentences]
    admin.run(create_acls(admin.core, acls))
    return acls


def forbid(admin: Cluster, acls: list[Acl]) -> None:
    removed = admin.run(delete_acls(admin.core, [AclFilter(*each) for each in acls]))
    assert set(removed) == set(acls)


def test_a_user_and_a_new_password_count_at_every_broker(cluster: fencepost.Cluster) -> None:
    with as_user(cluster) as admin:
        for through in sorted(ALL):
            user = f"user-{through}"
            assert let_in(cluster, user, "first") == set()
            set_password(admin, through, user, "first")
            assert let_in(cluster, user, "first") == ALL
            set_password(admin, through, user, "second")
            assert let_in(cluster, user, "first") == set()
            assert let_in(cluster, user, "second") == ALL


def test_a_right_that_is_taken_away_is_gone_at_every_broker_also_for_those_logged_in(
    cluster: fencepost.Cluster,
) -> None:
    with as_user(cluster) as admin, as_user(cluster, "alice") as alice:
        for _ in range(3):
            assert allowing(alice) == set()
            given = allow(admin, "User:alice describe topic:orders")
            assert allowing(alice) == ALL
            forbid(admin, given)
        assert allowing(alice) == set()


def test_a_killed_broker_returns_with_the_users_and_rights_that_were_changed_since(
    cluster: fencepost.Cluster,
) -> None:
    with as_user(cluster) as admin:
        set_password(admin, 2, "bob", "first")
        set_password(admin, 2, "carol", "first")
        given = allow(admin, "User:bob describe topic:orders")
        allow(admin, "User:carol describe topic:orders")
        set_password(admin, 2, "bob", "second")
    cluster.kill(2)
    with as_user(cluster) as admin:
        set_password(admin, 1, "carol", "second")
        forbid(admin, given)
    cluster.restart(2)
    for user in ("bob", "carol"):
        assert let_in(cluster, user, "first") == set()
        assert let_in(cluster, user, "second") == ALL
    for user, places in (("bob", set()), ("carol", ALL)):
        with connect(cluster.bootstrap_servers, options(user, "second", SHA)) as client:
            assert allowing(client) == places


def test_a_producer_that_loses_its_right_cannot_commit_and_its_transaction_is_aborted(
    cluster: fencepost.Cluster,
) -> None:
    with as_user(cluster) as admin, as_user(cluster, "alice") as alice:
        rights = [
            f"User:alice {operation} {resource}"
            for operation in ("write", "describe")
            for resource in ("topic:orders", "transactional-id:refunds")
        ]
        given = allow(admin, *rights)
        identity = alice.init_producer_id("refunds", timeout_ms=3_000)
        write_everywhere(alice, identity, b"lost")
        forbid(admin, given)
        with pytest.raises(Refused, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            alice.end_txn(identity, commit=True)
        # Nobody can read past the record before its transaction has ended.
        for place in PLACES:
            assert list(admin.records(place, 0, 2, isolation="read_committed")) == []
        allow(admin, *rights)
        identity = alice.init_producer_id("refunds")
        write_everywhere(alice, identity, b"kept")
        alice.end_txn(identity, commit=True)
        for place in PLACES:
            kept = admin.records(place, 0, 3, isolation="read_committed")
            assert [record.value for record in kept] == [b"kept"]


def write_everywhere(client: Cluster, identity: ProducerIdentity, value: bytes) -> None:
    with client.writer(identity) as writer:
        for place in PLACES:
            writer.write_records(place, [Record(value=value)])
        writer.flush()
