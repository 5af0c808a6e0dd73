"""`fencepost acl` on an embedded broker, and real clients with exactly the rights of a grant."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka
import pytest

import fencepost
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.coordinator.acl.changes import Sent
from fencepost.coordinator.acl.grants import (
    consumer_rights,
    producer_rights,
    spark_sink_rights,
    transactional_rights,
)
from fencepost.coordinator.acl.rules import Operation, PatternType, ResourceType
from tests.broker.raw import frame_as_written
from tests.broker.requests import create_topic
from tests.broker.security.matrix import DENIALS, ROWS, Row, World, errors_in
from tests.broker.security.secured import ALICE, Secured, acl
from tests.cli.running import Commands
from tests.transactions.protocol import TV1
from tests.transactions.wire import GROUP, WireProducer, await_coordinator

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    """Whoever comes is a super user."""
    config = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with fencepost.Broker(config=config) as broker:
        yield broker


@pytest.fixture
def alice() -> str:
    return f"User:alice-{uuid.uuid4().hex[:8]}"


def rule(resource: str, operation: str, principal: str, **more: str) -> dict[str, str]:
    given = {"permission": "allow", "host": "*", **more}
    return {"resource": resource, "operation": operation, "principal": principal, **given}


# -- the commands
# ------------------------------------------------------------------------------------------------


def test_acls_are_added_listed_and_removed(commands: Commands, name: str, alice: str) -> None:
    of_alice = ("--principal", alice)
    commands.run("acl", "add", alice, "read", f"topic:{name}")
    commands.run("acl", "add", alice, "read", f"topic:{name}")
    commands.run("acl", "add", alice, "describe-configs", "topic:a.b*", "--deny", "--host", "::1")
    commands.run("acl", "add", alice, "alter", "cluster")
    assert commands.json("acl", "list", *of_alice) == [
        rule("topic:a.b*", "describe_configs", alice, permission="deny", host="0:0:0:0:0:0:0:1"),
        rule(f"topic:{name}", "read", alice),
        rule("cluster", "alter", alice),
    ]
    found = commands.json("acl", "list", f"topic:{name}", *of_alice)
    assert [row["resource"] for row in found] == ["topic:a.b*", f"topic:{name}"]
    assert commands.json("acl", "list", "topic:other", *of_alice) == []
    commands.run("acl", "remove", alice, "read", f"topic:{name}")
    assert len(commands.json("acl", "list", *of_alice)) == 2
    said = commands.refusal("acl", "remove", alice, "read", f"topic:{name}")
    assert f"There is no ACL `allow {alice} read topic:{name}`" in said


def test_what_kafkas_tools_have_added_is_told_apart_and_removed(
    broker: fencepost.Broker, commands: Commands, alice: str
) -> None:
    """`kafka-acls --topic 'orders-*'` names one topic, and no prefix."""
    sent = [
        Sent(ResourceType.TOPIC, "orders-*", PatternType.LITERAL, alice, "*", Operation.READ, 3),
        Sent(ResourceType.TOPIC, "orders-", PatternType.PREFIXED, alice, "*", Operation.READ, 3),
        Sent(ResourceType.GROUP, "g", PatternType.LITERAL, alice, "10.0.0.7", Operation.READ, 3),
    ]
    broker.call(lambda node: node.controller.create_acls(sent, lambda done: None))
    resources = {"topic:orders-*", r"topic:orders-\*", "group:g"}
    listed = commands.json("acl", "list", "--principal", alice)
    assert {row["resource"] for row in listed} == resources
    for row in listed:
        commands.run("acl", "remove", alice, "read", row["resource"], "--host", row["host"])
    assert commands.json("acl", "list", "--principal", alice) == []


@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1", "0:0::0001"])
def test_an_address_of_ipv6_is_sent_as_apache_kafka_compares_it(
    broker: fencepost.Broker, commands: Commands, alice: str, host: str
) -> None:
    """Kafka compares texts, and Java prints all eight numbers."""
    commands.run("acl", "add", alice, "read", "topic:t", "--host", host)
    (row,) = commands.json("acl", "list", "--principal", alice)
    assert row["host"] == "0:0:0:0:0:0:0:1"
    (row,) = commands.json("acl", "check", alice, "read", "topic:t", "--host", "::1")
    assert row["answer"] == "allowed"
    commands.run("acl", "remove", alice, "read", "topic:t", "--host", host)
    short = Sent(ResourceType.TOPIC, "t", PatternType.LITERAL, alice, "::1", Operation.READ, 3)
    broker.call(lambda node: node.controller.create_acls([short], lambda done: None))
    commands.run("acl", "remove", alice, "read", "topic:t", "--host", "::1")
    assert commands.json("acl", "list", "--principal", alice) == []


@pytest.mark.parametrize("host", ["localhost", "::1/128", "[::1]"])
def test_no_client_asks_from_what_is_no_address(commands: Commands, host: str) -> None:
    assert "is no address" in commands.refusal(
        "acl", "check", "User:a", "read", "topic:t", "--host", host
    )


def test_check_tells_the_rule_that_decides(commands: Commands, name: str, alice: str) -> None:
    ask = ("acl", "check", alice)
    commands.run("acl", "add", alice, "write", f"topic:{name}*")
    commands.run("acl", "add", "User:*", "write", f"topic:{name}", "--deny", "--host", "10.0.0.9")
    (row,) = commands.json(*ask, "describe", f"topic:{name}")
    assert row == {"answer": "allowed", "by": f"allow {alice} write topic:{name}*"}
    (row,) = commands.json(*ask, "write", f"topic:{name}", "--host", "10.0.0.9", code=3)
    assert row == {"answer": "denied", "by": f"deny User:* from 10.0.0.9 write topic:{name}"}
    (row,) = commands.json(*ask, "read", f"topic:{name}", code=3)
    assert "none" in row["by"] or "no rule" in row["by"]
    (row,) = commands.json("acl", "check", "User:ANONYMOUS", "delete", f"topic:{name}")
    assert row["by"] == "the principal is a super user"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("User:a", "raed", "topic:t"), "did you mean read?"),
        (("User:a", "read", "t"), "write topic:NAME"),
        (("User:a", "read", "topic:"), "names no topic"),
        (("alice", "read", "topic:t"), "such as User:alice"),
        (("User:a", "alter", "cluster:other"), "kafka-cluster"),
        (("User:a", "write", "group:g"), "has no operation write"),
        (("User:a", "read", "topic:t", "--deny", "--host", "10.0.0.0/8"), "nor networks"),
    ],
)
def test_what_is_not_a_rule_is_refused_with_what_to_write(
    commands: Commands, arguments: Sequence[str], words: str
) -> None:
    assert words in commands.refusal("acl", "add", *arguments)


def test_a_prefix_is_no_question(commands: Commands) -> None:
    assert "without a star" in commands.refusal("acl", "check", "User:a", "read", "topic:t*")


def test_without_an_authorizer_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with fencepost.Broker() as broker:
        said = Commands(broker.bootstrap_servers, capsys).refusal("acl", "list")
    assert "authorizer.class.name" in said


def test_a_grant_shows_its_rules_and_a_dry_run_adds_none(
    commands: Commands, name: str, alice: str
) -> None:
    grant = ("acl", "grant", "consumer", alice, "--from", name, "--group", "g")
    expected = [rule(f"topic:{name}", "read", alice), rule("group:g", "read", alice)]
    assert commands.json(*grant, "--dry-run") == expected
    assert commands.json("acl", "list", "--principal", alice) == []
    assert commands.json(*grant) == expected
    found = commands.json("acl", "list", "--principal", alice)
    assert sorted(found, key=str) == sorted(expected, key=str)


# -- grants: each right is needed, and they are enough
# ------------------------------------------------------------------------------------------------

OUT, SOURCE, LEDGER, READERS, WRITER = "out", "source", "ledger", "readers", "writer"
Steps = Sequence[tuple[str, World]]

_ROWS = {str(row): row for row in ROWS}
PRODUCING = ("METADATA-named", "PRODUCE")
CONSUMING = ("METADATA-named", "LIST_OFFSETS", "FETCH")
GROUPED = (
    "FIND_COORDINATOR-group",
    "JOIN_GROUP",
    "SYNC_GROUP",
    "HEARTBEAT",
    "LEAVE_GROUP",
    "OFFSET_FETCH-named",
    "OFFSET_COMMIT",
)
TRANSACTIONAL = (
    "FIND_COORDINATOR-transaction",
    "ADD_PARTITIONS_TO_TXN-client",
    "PRODUCE-transactional",
    "END_TXN",
)
LEDGERING = ("METADATA-named", "DESCRIBE_CONFIGS-topic", "LIST_OFFSETS", "FETCH")
LEDGER_WRITING = ("ADD_PARTITIONS_TO_TXN-client", "PRODUCE-transactional")
CHECKING = ("DESCRIBE_CONFIGS-topic",)
COMMITTING = ("ADD_OFFSETS_TO_TXN", "TXN_OFFSET_COMMIT", "OFFSET_FETCH-named")


def steps(w: World, kind: str) -> list[tuple[Row, World]]:
    """What a program of this kind sends, by the rows of the matrix."""

    def on(topic: str, *names: str, group: str = READERS) -> list[tuple[Row, World]]:
        world = World(
            topic=topic,
            group=group,
            transactional_id=WRITER,
            producer_id=w.producer_id,
            producer_epoch=w.producer_epoch,
        )
        return [(_ROWS[name], world) for name in names]

    ledger_group = f"fencepost-{WRITER}"
    return {
        "producer": on(OUT, *PRODUCING, "INIT_PRODUCER_ID-idempotent"),
        "consumer": on(SOURCE, *CONSUMING, *GROUPED),
        "transactional": [
            *on(SOURCE, *CONSUMING, *GROUPED, *COMMITTING),
            *on(OUT, "METADATA-named", *TRANSACTIONAL),
        ],
        "spark-sink": [
            *on(LEDGER, *LEDGERING, *LEDGER_WRITING),
            *on(SOURCE, *CONSUMING, *COMMITTING, group=ledger_group),
            *on(OUT, "METADATA-named", *TRANSACTIONAL, "DESCRIBE_TRANSACTIONS", *CHECKING),
        ],
    }[kind]


RIGHTS = {
    "producer": producer_rights([OUT]),
    "consumer": consumer_rights([SOURCE], READERS),
    "transactional": transactional_rights(WRITER, [OUT], [SOURCE], READERS),
    "spark-sink": spark_sink_rights(WRITER, [OUT], [SOURCE], LEDGER),
}
_TYPES = {"topic": "TOPIC", "group": "GROUP", "txn": "TRANSACTIONAL_ID"}


@pytest.fixture(scope="module")
def stage() -> Iterator[Secured]:
    with Secured() as stage:
        for topic in (OUT, SOURCE, LEDGER):
            create_topic(stage, topic)
        for group in (READERS, f"fencepost-{WRITER}"):
            await_coordinator(stage, group, GROUP)
        yield stage


@pytest.mark.parametrize("kind", RIGHTS)
def test_a_grant_is_enough_and_each_of_its_rights_is_needed(stage: Secured, kind: str) -> None:
    await_coordinator(stage, WRITER)
    one = WireProducer(stage, WRITER, TV1)
    one.initialise()
    world = World(producer_id=one.producer_id, producer_epoch=one.epoch)
    rights = RIGHTS[kind]
    for missing in (None, *rights):
        given = [
            acl((operation.upper(), _TYPES[resource.split(":")[0]], resource.split(":")[1]))
            for operation, resource in rights
            if (operation, resource) != missing
        ]
        assert not any(stage.change(*given))
        denied = {
            error
            for row, on in steps(world, kind)
            for error in errors_in(send(stage, row, on)) & DENIALS
        }
        assert bool(denied) is (missing is not None), (missing, denied)
        stage.forget()


def send(stage: Secured, row: Row, world: World) -> Any:
    line = stage.connect(ALICE)
    line.send_bytes(frame_as_written(row.api, row.version, row.request(world)))
    return line.reply(row.api, row.version, 1)


# -- real clients
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[fencepost.Broker]:
    """Whoever comes has the rights that a test gives."""
    config = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:admin",
        "group.initial.rebalance.delay.ms": "0",
    }
    with fencepost.Broker(config=config) as broker:
        yield broker


def give(broker: fencepost.Broker, rights: Sequence[tuple[str, str]]) -> None:
    sent = [
        Sent(
            ResourceType[_TYPES[resource.split(":")[0]]],
            resource.split(":")[1],
            PatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            Operation[operation.upper()],
            3,
        )
        for operation, resource in rights
    ]
    everything = Sent(1, None, 1, None, None, 1, 1)
    broker.call(lambda node: node.controller.delete_acls([everything], lambda done: None))
    broker.call(lambda node: node.controller.create_acls(sent, lambda done: None))


def test_librdkafka_works_with_exactly_the_rights_of_a_grant(guarded: fencepost.Broker) -> None:
    servers = {"bootstrap.servers": guarded.bootstrap_servers}
    topics = [NewTopic(topic) for topic in (SOURCE, OUT)]
    guarded.call(
        lambda node: node.controller.create(topics, lambda done: None, validate_only=False)
    )
    give(guarded, producer_rights([SOURCE]))
    failures: list[object] = []
    producer = confluent_kafka.Producer({**servers, "enable.idempotence": True})
    producer.produce(SOURCE, b"v", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(20) == 0
    assert failures == [None]

    give(guarded, transactional_rights(WRITER, [OUT], [SOURCE], READERS))
    consumer = confluent_kafka.Consumer(
        {**servers, "group.id": READERS, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([SOURCE])
    message = consumer.poll(20)
    assert message is not None
    assert message.error() is None
    writer = confluent_kafka.Producer({**servers, "transactional.id": WRITER})
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(OUT, message.value())
    offsets = consumer.position(consumer.assignment())
    writer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
    writer.commit_transaction(20)
    consumer.close()

    give(guarded, consumer_rights([OUT], "others"))
    reader = confluent_kafka.Consumer(
        {**servers, "group.id": "others", "auto.offset.reset": "earliest"}
    )
    reader.subscribe([OUT])
    message = reader.poll(20)
    assert message is not None
    assert message.value() == b"v"
    reader.commit(message, asynchronous=False)
    reader.close()
