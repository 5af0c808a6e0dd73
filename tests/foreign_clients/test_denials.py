"""What each client library raises if a producer may not: the table of docs/concepts/recovering.md.

Alice has every right that her transaction needs, but one. Each client runs up to the call that
fails; what it raises there, and whether it can abort then, is compared with the page.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.errors import KafkaError as AioKafkaError

import fencepost
from fencepost.client.acls import Acl, AclFilter, create_acls, delete_acls
from fencepost.client.admin import NewTopic, create_topics
from fencepost.client.blocking import Cluster, connect
from fencepost.coordinator.acl.rules import Operation, PatternType, Permission, ResourceType

NO_ID: Final = "no WRITE on the transactional id"
NO_TOPIC: Final = "no WRITE on the topic"
NO_GROUP: Final = "no READ on the group"
NO_ID_LATER: Final = "WRITE on the id taken away in a transaction"
NO_TOPIC_LATER: Final = "WRITE on the topic taken away in a transaction"
NO_PASSWORD: Final = "a wrong password"
NO_CLUSTER: Final = "idempotent, and no WRITE on any topic"
CASES: Final = (NO_ID, NO_TOPIC, NO_GROUP, NO_ID_LATER, NO_TOPIC_LATER, NO_PASSWORD, NO_CLUSTER)

OFFSETS: Final = "send_offsets_to_transaction"
RAISED: Final = {
    "confluent-kafka": {
        NO_ID: "init_transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED fatal(); "
        "abort: TRANSACTIONAL_ID_AUTHORIZATION_FAILED fatal()",
        # EndTxn for a transaction that no partition has joined; so it is on Apache Kafka 4.3.
        NO_TOPIC: f"{OFFSETS}: TOPIC_AUTHORIZATION_FAILED txn_requires_abort(); "
        "abort: INVALID_TXN_STATE fatal()",
        NO_GROUP: f"{OFFSETS}: GROUP_AUTHORIZATION_FAILED txn_requires_abort(); aborted",
        NO_ID_LATER: f"{OFFSETS}: TRANSACTIONAL_ID_AUTHORIZATION_FAILED txn_requires_abort(); "
        "abort: TRANSACTIONAL_ID_AUTHORIZATION_FAILED fatal()",
        NO_TOPIC_LATER: f"{OFFSETS}: TOPIC_AUTHORIZATION_FAILED txn_requires_abort(); aborted",
        NO_PASSWORD: "init_transactions: _TIMED_OUT retriable(); error_cb: _AUTHENTICATION",
        NO_CLUSTER: "flush: CLUSTER_AUTHORIZATION_FAILED fatal()",
    },
    "kafka-python": {
        NO_ID: "init_transactions: TransactionalIdAuthorizationFailedError; abort: KafkaError",
        NO_TOPIC: f"send: TopicAuthorizationFailedError; {OFFSETS}: KafkaError; aborted",
        NO_GROUP: f"{OFFSETS}: GroupAuthorizationFailedError; aborted",
        NO_ID_LATER: f"send: TransactionalIdAuthorizationFailedError; {OFFSETS}: KafkaError; "
        "abort: KafkaError",
        NO_TOPIC_LATER: f"send: TopicAuthorizationFailedError; {OFFSETS}: KafkaError; aborted",
        NO_PASSWORD: "KafkaProducer: KafkaTimeoutError",
        NO_CLUSTER: "send: KafkaError",
    },
    "aiokafka": {
        NO_ID: "start: TransactionalIdAuthorizationFailed",
        NO_TOPIC: "send: TopicAuthorizationFailedError; aborted",
        NO_GROUP: f"{OFFSETS}: GroupAuthorizationFailedError; aborted",
        NO_ID_LATER: "send: TransactionalIdAuthorizationFailed; "
        "abort: TransactionalIdAuthorizationFailed",
        NO_TOPIC_LATER: "send: TopicAuthorizationFailedError; aborted",
        NO_PASSWORD: "start: KafkaConnectionError",
        NO_CLUSTER: "start: ClusterAuthorizationFailedError",
    },
}

SECONDS: Final = 20.0
COMMITTED: Final = "committed"


class Secured:
    """A broker with ACLs, and what its administrator does."""

    def __init__(self, broker: fencepost.Broker) -> None:
        self.servers = broker.bootstrap_servers
        self._numbers = itertools.count()

    def as_admin(self) -> Cluster:
        return connect(
            self.servers,
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "admin",
                "sasl.password": "pencil",
            },
        )

    def scene(self, case: str) -> Scene:
        """A topic, and the rights that the case leaves."""
        name = f"denied-{next(self._numbers)}"
        user = "nobody" if case == NO_CLUSTER else "alice"
        rights = {
            NO_ID: (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
            NO_TOPIC: (Operation.WRITE, ResourceType.TOPIC),
            NO_GROUP: (Operation.READ, ResourceType.GROUP),
        }
        acls = [acl(user, name, right) for missing, right in rights.items() if missing != case]
        acls.append(acl(user, name, (Operation.DESCRIBE, ResourceType.TOPIC)))
        if case == NO_CLUSTER:
            acls = acls[-1:]
        with self.as_admin() as admin:
            admin.run(create_topics(admin.core, [NewTopic(name)]))
            admin.run(create_acls(admin.core, acls))
        return Scene(self, case, name, user)


class Scene:
    """What a client meets in one case."""

    def __init__(self, secured: Secured, case: str, name: str, user: str) -> None:
        self.case = case
        self.name = name
        self.user = user
        self.password = "chalk" if case == NO_PASSWORD else "pencil"
        self.servers = secured.servers
        self._secured = secured

    def python(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
            **more,
        }

    def take_away(self) -> bool:
        """Takes the right away that the case takes away; whether it takes one."""
        kind = {
            NO_ID_LATER: ResourceType.TRANSACTIONAL_ID,
            NO_TOPIC_LATER: ResourceType.TOPIC,
        }.get(self.case)
        if kind is None:
            return False
        wanted = AclFilter(kind, self.name, PatternType.LITERAL, operation=Operation.WRITE)
        with self._secured.as_admin() as admin:
            assert admin.run(delete_acls(admin.core, [wanted]))
        return True


def acl(user: str, name: str, right: tuple[Operation, ResourceType]) -> Acl:
    operation, kind = right
    return Acl(kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW)


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    users = " ".join(f'user_{user}="pencil"' for user in ("admin", "alice", "nobody"))
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required " + users + ";"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with fencepost.Broker(config=config) as broker:
        yield Secured(broker)


@pytest.mark.parametrize(
    ("client", "case"), [(client, case) for client in RAISED for case in CASES]
)
def test_a_denial_is_reported_as_documented(secured: Secured, client: str, case: str) -> None:
    outcome = asyncio.run(_CLIENTS[client](secured.scene(case)))
    assert outcome == RAISED[client][case]


async def with_confluent(scene: Scene) -> str:
    errors: list[confluent_kafka.KafkaError] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": scene.servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": scene.user,
        "sasl.password": scene.password,
        "log_level": 0,
    }
    if scene.case == NO_PASSWORD:
        settings["error_cb"] = errors.append
    if scene.case == NO_CLUSTER:
        return idempotent_with_confluent({**settings, "enable.idempotence": True}, scene.name)
    producer = confluent_kafka.Producer({**settings, "transactional.id": scene.name})
    offsets = [confluent_kafka.TopicPartition(scene.name, 0, 1)]
    call = "init_transactions"
    try:
        producer.init_transactions(1 if scene.case == NO_PASSWORD else SECONDS)
        producer.begin_transaction()
        producer.produce(scene.name, b"v")
        producer.flush(SECONDS)
        if scene.take_away():
            producer.produce(scene.name, b"w")
            producer.flush(SECONDS)
        call = "send_offsets_to_transaction"
        group = confluent_kafka.Consumer({**settings, "group.id": scene.name})
        producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), SECONDS)
        producer.commit_transaction(SECONDS)
    except confluent_kafka.KafkaException as problem:
        if scene.case == NO_PASSWORD:
            while not errors:
                producer.poll(0.1)
            return f"{call}: {said(problem)}; error_cb: {errors[0].name()}"
        try:
            producer.abort_transaction(SECONDS)
        except confluent_kafka.KafkaException as again:
            return f"{call}: {said(problem)}; abort: {said(again)}"
        return f"{call}: {said(problem)}; aborted"
    return COMMITTED


def idempotent_with_confluent(settings: dict[str, Any], topic: str) -> str:
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, b"v")
    try:
        while producer.flush(0.1):
            pass
    except confluent_kafka.KafkaException as problem:
        return f"flush: {said(problem)}"
    return COMMITTED


def said(problem: confluent_kafka.KafkaException) -> str:
    error = problem.args[0]
    kinds = {
        "fatal()": error.fatal(),
        "txn_requires_abort()": error.txn_requires_abort(),
        "retriable()": error.retriable(),
    }
    return " ".join([error.name(), *(kind for kind, holds in kinds.items() if holds)])


async def with_kafka_python(scene: Scene) -> str:
    if scene.case == NO_CLUSTER:
        return idempotent_with_kafka_python(scene)
    try:
        producer = kafka.KafkaProducer(
            **scene.python(transactional_id=scene.name, bootstrap_timeout_ms=1_000)
        )
    except kafka.errors.KafkaError as problem:
        return f"KafkaProducer: {name_of(problem)}"
    call, offset = "init_transactions", kafka.structs.OffsetAndMetadata(1, "", -1)
    sent = None
    try:
        producer.init_transactions()
        producer.begin_transaction()
        sent = producer.send(scene.name, b"v")
        producer.flush(SECONDS)
        if scene.take_away():
            sent = producer.send(scene.name, b"w")
            producer.flush(SECONDS)
        call = "send_offsets_to_transaction"
        producer.send_offsets_to_transaction(
            {kafka.TopicPartition(scene.name, 0): offset}, scene.name
        )
        producer.commit_transaction()
    except kafka.errors.KafkaError as problem:
        outcome = f"{call}: {name_of(problem)}"
        if sent is not None and sent.failed():
            outcome = f"send: {name_of(sent.exception)}; {outcome}"
        try:
            producer.abort_transaction()
        except kafka.errors.KafkaError as again:
            return f"{outcome}; abort: {name_of(again)}"
        return f"{outcome}; aborted"
    finally:
        producer.close(timeout=0)
    return COMMITTED


def idempotent_with_kafka_python(scene: Scene) -> str:
    producer = kafka.KafkaProducer(**scene.python(enable_idempotence=True))
    try:
        producer.send(scene.name, b"v").get(SECONDS)
    except kafka.errors.KafkaError as problem:
        return f"send: {name_of(problem)}"
    finally:
        producer.close(timeout=0)
    return COMMITTED


async def with_aiokafka(scene: Scene) -> str:
    is_idempotent = scene.case == NO_CLUSTER
    kind = {"enable_idempotence": True} if is_idempotent else {"transactional_id": scene.name}
    producer = aiokafka.AIOKafkaProducer(**scene.python(**kind))
    offsets = {aiokafka.TopicPartition(scene.name, 0): 1}
    call = "start"
    try:
        await producer.start()
        await producer.begin_transaction()
        call = "send"
        await producer.send_and_wait(scene.name, b"v")
        if scene.take_away():
            await producer.send_and_wait(scene.name, b"w")
        call = "send_offsets_to_transaction"
        await producer.send_offsets_to_transaction(offsets, scene.name)
        await producer.commit_transaction()
    except AioKafkaError as problem:
        if call == "start":
            return f"start: {name_of(problem)}"
        try:
            await producer.abort_transaction()
        except AioKafkaError as again:
            return f"{call}: {name_of(problem)}; abort: {name_of(again)}"
        return f"{call}: {name_of(problem)}; aborted"
    finally:
        with suppress(AioKafkaError, AssertionError):  # It repeats the error.
            await producer.stop()
    return COMMITTED


def name_of(problem: Exception) -> str:
    return type(problem).__name__


_CLIENTS: dict[str, Callable[[Scene], Coroutine[Any, Any, str]]] = {
    "confluent-kafka": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
}
