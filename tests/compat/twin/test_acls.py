"""The matrix of rights on Apache Kafka's StandardAuthorizer and on ours: the same denials.

Method: the super user gives somebody exactly the rights of a row of the matrix, then all but one;
that somebody sends the request to both brokers, and the errors of the two replies are compared by
their places. On Apache Kafka the super user is whoever comes without a login, and somebody logs in
as alice. Here somebody is whoever comes without a login, and the super user is the test itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

import fencepost
from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.broker.node import Node
from fencepost.coordinator.acl.changes import Sent
from fencepost.coordinator.acl.rules import Operation, ResourceType
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_acls import AclCreation, CreateAclsRequest
from fencepost.wire.forms.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from fencepost.wire.forms.describe_acls import DescribeAclsRequest
from fencepost.wire.forms.describe_cluster import DescribeClusterRequest
from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateRequest
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest
from tests.broker.raw import RawClient, frame_as_written
from tests.broker.requests import create_topic
from tests.broker.security.matrix import (
    DENIALS,
    ROWS,
    WORLD,
    Right,
    Row,
    World,
    fields_of,
    texts_in,
)
from tests.coordinator.acl.hosts import NOBODYS_HOSTS
from tests.transactions.protocol import TV1
from tests.transactions.wire import GROUP, WireProducer, await_coordinator
from tools.apache_kafka import ApacheKafka
from tools.processes import free_port

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
EVERYTHING = Sent(1, None, 1, None, None, 1, 1)
ALL_RIGHTS = (
    ("ALL", "TOPIC", "*"),
    ("ALL", "GROUP", "*"),
    ("ALL", "TRANSACTIONAL_ID", "*"),
    ("ALL", "CLUSTER", "kafka-cluster"),
)


class Guarded:
    """One broker with an authorizer: a super user, and somebody with few rights."""

    principal: str
    somebody: RawClient
    world: World

    def create(self, sent: list[Sent]) -> list[int]:
        raise NotImplementedError

    def forget(self) -> None:
        raise NotImplementedError

    def give(self, *rights: Right, permission: int = 3) -> None:
        wanted = [
            Sent(ResourceType[kind], name, 3, self.principal, "*", Operation[operation], permission)
            for operation, kind, name in rights
        ]
        assert not any(self.create(wanted))

    def prepare(self) -> None:
        self.give(*ALL_RIGHTS)
        create_topic(self.somebody, WORLD.topic)
        await_coordinator(self.somebody, WORLD.group, GROUP)
        self.forget()

    def begin(self, number: int) -> None:
        """An open transaction of a producer of its own, and an offset of the group."""
        self.give(*ALL_RIGHTS)
        one = WireProducer(self.somebody, f"{WORLD.transactional_id}{number}", TV1)
        one.initialise()
        one.send(WORLD.topic, b"v")
        named = MetadataRequest(topics=[MetadataRequestTopic(name=WORLD.topic)])
        (topic,) = self.somebody.call(ApiKey.METADATA, 12, named).topics
        self.world = replace(
            WORLD,
            topic_id=topic.topic_id,
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            new=f"{WORLD.new}{number}",
        )
        commit = next(each for each in ROWS if each.api is ApiKey.OFFSET_COMMIT)
        self.somebody.call(commit.api, commit.version, commit.request(self.world))
        self.forget()

    def send(self, row: Row) -> Any:
        """On a connection of its own: a request without a reply must not disturb others."""
        with self.connect() as client:
            client.send_bytes(frame_as_written(row.api, row.version, row.request(self.world), 999))
            client._socket.settimeout(10)
            return client.reply(row.api, row.version)

    def connect(self) -> RawClient:
        """Somebody."""
        raise NotImplementedError


class KafkaGuarded(Guarded):
    principal = "User:alice"

    def __init__(self, plain: str, sasl: str) -> None:
        self.admin = RawClient(plain)
        self._sasl = sasl
        self.somebody = self.connect()
        self._rules: set[Sent] = set()

    def connect(self) -> RawClient:
        client = RawClient(self._sasl)
        handshake = client.call(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        assert not handshake.error_code
        login = SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
        assert not client.call(ApiKey.SASL_AUTHENTICATE, 2, login).error_code
        return client

    def create(self, sent: list[Sent]) -> list[int]:
        request = CreateAclsRequest(creations=[AclCreation(**_creation(each)) for each in sent])
        reply = self.admin.call(ApiKey.CREATE_ACLS, 3, request)
        self._rules |= {
            each for each, result in zip(sent, reply.results, strict=True) if not result.error_code
        }
        self._await()
        return [each.error_code for each in reply.results]

    def forget(self) -> None:
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter())])
        assert not self.admin.call(ApiKey.DELETE_ACLS, 3, request).filter_results[0].error_code
        self._rules.clear()
        self._await()

    def _await(self) -> None:
        """The broker applies ACLs some time after they are acknowledged."""
        deadline = time.monotonic() + 30
        while True:
            reply = self.admin.call(ApiKey.DESCRIBE_ACLS, 3, DescribeAclsRequest(**_filter()))
            if sum(len(each.acls) for each in reply.resources) == len(self._rules):
                return
            assert time.monotonic() < deadline, reply


class OurGuarded(Guarded):
    principal = "User:ANONYMOUS"

    def __init__(self, broker: fencepost.Broker) -> None:
        self._broker = broker
        self.somebody = self.connect()

    def connect(self) -> RawClient:
        return RawClient(self._broker.bootstrap_servers)

    def create(self, sent: list[Sent]) -> list[int]:
        def change(node: Node) -> list[int]:
            errors: list[int] = []
            node.controller.create_acls(
                sent,
                lambda created: errors.extend(
                    0 if r is None else r.error for r in created.refusals
                ),
            )
            return errors

        return self._broker.call(change)

    def forget(self) -> None:
        self._broker.call(
            lambda node: node.controller.delete_acls([EVERYTHING], lambda removed: None)
        )


def _creation(sent: Sent) -> dict[str, Any]:
    names = AclCreation.__annotations__
    return dict(zip(names, sent, strict=True))


def _filter() -> dict[str, Any]:
    return dict(zip(DescribeAclsRequest.__annotations__, EVERYTHING, strict=True))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guarded, Guarded]]:
    plain, sasl, controller = free_port(), free_port(), free_port()
    doors = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    shared = {
        "authorizer.class.name": AUTHORIZER,
        "node.id": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    settings = {
        **shared,
        "listeners": f"{doors},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": doors,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_alice="secret";',
        "super.users": "User:ANONYMOUS",
    }
    with ExitStack() as stack:
        data = tmp_path_factory.mktemp("guarded") / "data"
        kafka = stack.enter_context(ApacheKafka(data, settings=settings, port=plain))
        ours = stack.enter_context(fencepost.Broker(config={**shared, "super.users": "User:admin"}))
        both = KafkaGuarded(kafka.bootstrap_servers, f"127.0.0.1:{sasl}"), OurGuarded(ours)
        for side in both:
            side.prepare()
        yield both


def denials(reply: Any, row: Row, world: World) -> tuple[list[tuple[str, int]], bool]:
    """The errors of authorization by the names of their fields, and whether the name is shown."""
    errors = [
        (name, value)
        for name, value in fields_of(reply)
        if name.endswith("error_code") and value in DENIALS
    ]
    shown = row.hidden is not None and row.hidden(world) in texts_in(reply)
    return sorted(errors), shown


def sets_of_rights(row: Row) -> Iterator[tuple[Right, ...]]:
    yield ()
    for enough in row.enough:
        for missing in enough:
            yield tuple(each for each in enough if each != missing)
        yield tuple(enough)


@pytest.mark.parametrize(
    ("number", "row"), [pytest.param(n, row, id=str(row)) for n, row in enumerate(ROWS)]
)
def test_the_same_requests_are_denied(
    guarded: tuple[Guarded, Guarded], number: int, row: Row
) -> None:
    if "switched-off" in row.note:
        pytest.skip("Apache Kafka serves it, and it is not served here")
    for side in guarded:
        side.begin(number)
    seen = []
    for rights in dict.fromkeys(sets_of_rights(row)):
        found = []
        for side in guarded:
            mine = [_renamed(each, side.world) for each in rights]
            side.give(*mine)
            found.append(denials(side.send(row), row, side.world))
            side.forget()
        seen.append((rights, *found))
    assert [(rights, kafkas) for rights, kafkas, _ in seen] == [
        (rights, ours) for rights, _, ours in seen
    ]


def _renamed(right: Right, world: World) -> Right:
    operation, kind, name = right
    name = name.replace(WORLD.transactional_id, world.transactional_id)
    return operation, kind, name.replace(WORLD.new, world.new)


@pytest.mark.parametrize(
    "rights",
    [
        (),
        (("DESCRIBE", "CLUSTER", "kafka-cluster"),),
        (("ALTER", "CLUSTER", "kafka-cluster"), ("READ", "TOPIC", "*"), ("DELETE", "GROUP", "*")),
        (("CREATE", "CLUSTER", "kafka-cluster"),),
        (("ALL", "TOPIC", "*"), ("ALL", "GROUP", "*"), ("ALL", "CLUSTER", "kafka-cluster")),
        (("ALTER_CONFIGS", "TOPIC", "orders"), ("DESCRIBE", "TOPIC", "orders")),
    ],
    ids=str,
)
def test_replies_show_the_same_operations(
    guarded: tuple[Guarded, Guarded], rights: tuple[Right, ...]
) -> None:
    asked = [
        (
            ApiKey.METADATA,
            9,
            MetadataRequest(
                topics=[MetadataRequestTopic(name=WORLD.topic)],
                include_cluster_authorized_operations=True,
                include_topic_authorized_operations=True,
            ),
        ),
        (
            ApiKey.DESCRIBE_CLUSTER,
            0,
            DescribeClusterRequest(include_cluster_authorized_operations=True),
        ),
        (
            ApiKey.DESCRIBE_GROUPS,
            5,
            DescribeGroupsRequest(groups=[WORLD.group], include_authorized_operations=True),
        ),
    ]
    found = []
    for side in guarded:
        side.give(*rights)
        found.append(
            [
                (
                    api.name,
                    sorted(
                        (name, value)
                        for name, value in fields_of(side.somebody.call(api, version, form))
                        if name.endswith("operations")
                    ),
                )
                for api, version, form in asked
            ]
        )
        side.forget()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("change", "kafkas_own"),
    [
        ({}, None),
        ({"resource_type": 1}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"resource_type": 99}, None),
        ({"resource_type": 4}, None),
        ({"resource_name": ""}, None),
        ({"pattern_type": 1}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"pattern_type": 2}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"pattern_type": 77}, None),
        ({"operation": 1}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"operation": 99}, None),
        ({"operation": 2}, None),
        ({"operation": 15}, None),
        ({"permission": 1}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"permission": 9}, None),
        ({"principal": "alice"}, None),
        *(({"host": host}, ErrorCode.NONE) for host in ("", *NOBODYS_HOSTS)),
        ({"host": "2001:DB8::1"}, None),
    ],
    ids=str,
)
def test_the_same_acls_are_refused(
    guarded: tuple[Guarded, Guarded], change: dict[str, Any], kafkas_own: ErrorCode | None
) -> None:
    """`kafkas_own`: Kafka's answer where it differs, as docs/compatibility.md says."""
    sent = Sent(2, "some", 3, "User:somebody", "*", 3, 3)._replace(**change)
    kafkas, ours = (side.create([sent, sent]) for side in guarded)
    for side in guarded:
        side.forget()
    if kafkas_own is not None:
        assert ours == [ErrorCode.INVALID_REQUEST] * 2
        ours = [kafkas_own] * 2
    assert [ErrorCode(each) for each in kafkas] == [ErrorCode(each) for each in ours]


def test_internal_topics_exist_on_both(guarded: tuple[Guarded, Guarded]) -> None:
    """Otherwise requests about groups and transactions would have compared nothing."""
    for side in guarded:
        side.give(("DESCRIBE", "TOPIC", "*"))
        reply = side.somebody.call(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        assert {CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC} <= texts_in(reply)
        side.forget()
