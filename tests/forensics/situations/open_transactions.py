"""Situations with open transactions, on any cluster: fencepost or Apache Kafka.

Each builder makes one situation, yields what is known about it, and cleans up behind it, so that a
broker can be shared. Topics are created with names that the caller chooses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.base.refusal import Refusal
from fencepost.client.admin import NewTopic, ResourceType
from fencepost.client.blocking import Cluster, connect
from fencepost.client.calls import BrokerById, call_one
from fencepost.client.failures import ClientError
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if TYPE_CHECKING:
    from fencepost.broker.node import Node
    from fencepost.broker.transactions.markers import EndMarker, Written
    from fencepost.testing.embedded import Broker

HOUR_MS = 3_600_000
VERIFICATION = "transaction.partition.verification.enable"


@dataclass
class OpenTransaction:
    """One open transaction, where it writes, and the first offset that it wrote there."""

    identity: ProducerIdentity
    starts: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def transactional_id(self) -> str:
        assert self.identity.transactional_id is not None
        return self.identity.transactional_id


def create_topic(
    cluster: Cluster, topic: str, partitions: int = 1, **configs: str
) -> list[TopicPartition]:
    """Creates a topic with one replica; underscores in the names of settings stand for dots."""
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    cluster.create_topics([NewTopic(topic, partitions, 1, settings)], exist_ok=True)
    return [TopicPartition(topic, index) for index in range(partitions)]


def begin(
    cluster: Cluster,
    transactional_id: str,
    partitions: Sequence[TopicPartition],
    *,
    records: int = 1,
    timeout_ms: int = 60_000,
) -> OpenTransaction:
    """Begins a transaction and writes to these partitions."""
    identity = cluster.init_producer_id(transactional_id, timeout_ms)
    opened = OpenTransaction(identity)
    with cluster.writer(identity) as writer:
        for partition in partitions:
            writer.write_records(partition, [Record(value=b"open")] * records)
        for partition, written in writer.flush().items():
            opened.starts[partition] = written.base_offset
    return opened


def write_committed(cluster: Cluster, partition: TopicPartition, records: int = 1) -> None:
    """Writes records outside any transaction."""
    identity = cluster.init_producer_id(None)
    batch = build_batch(
        [Record(value=b"plain")] * records,
        timestamp_ms=now_ms(),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
    )
    produce(cluster, partition, batch, None)


@contextmanager
def pinned_partition(
    servers: str,
    topic: str,
    transactional_id: str,
    *,
    partitions: int = 1,
    hidden: int = 1,
    timeout_ms: int = 60_000,
) -> Iterator[OpenTransaction]:
    """One transaction is open; `hidden` plain records behind it wait on each partition."""
    with connect(servers) as cluster:
        places = create_topic(cluster, topic, partitions)
        opened = begin(cluster, transactional_id, places, timeout_ms=timeout_ms)
        for place in places:
            write_committed(cluster, place, hidden)
        yield opened
        end(cluster, transactional_id)


@contextmanager
def several_producers(
    servers: str, topic: str, transactional_ids: Sequence[str], *, timeout_ms: int = 60_000
) -> Iterator[list[OpenTransaction]]:
    """Several transactions are open on one partition, in this order."""
    with connect(servers) as cluster:
        (place,) = create_topic(cluster, topic)
        yield [begin(cluster, each, [place], timeout_ms=timeout_ms) for each in transactional_ids]
        for each in transactional_ids:
            end(cluster, each)


@contextmanager
def hanging_transaction(
    servers: str, topic: str, *, age_ms: int = HOUR_MS
) -> Iterator[OpenTransaction]:
    """A transactional batch is on the partition, and its coordinator does not know about it.

    The broker's verification, which prevents this since Kafka 3.6, is off while this runs.
    """
    with connect(servers) as cluster:
        (place,) = create_topic(cluster, topic)
        identity = cluster.init_producer_id(f"{topic}-zombie")
        batch = build_batch(
            [Record(value=b"late")],
            timestamp_ms=now_ms() - age_ms,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        with without_verification(cluster):
            offset = produce(cluster, place, batch, identity.transactional_id)
        yield OpenTransaction(identity, {place: offset})


@contextmanager
def forgotten_hanging_transaction(
    servers: str, topic: str, *, age_ms: int = HOUR_MS
) -> Iterator[OpenTransaction]:
    """The same, and no transactional id has its producer id: it was an idempotent producer's."""
    with connect(servers) as cluster:
        (place,) = create_topic(cluster, topic)
        identity = cluster.init_producer_id(None)
        batch = build_batch(
            [Record(value=b"late")],
            timestamp_ms=now_ms() - age_ms,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        with without_verification(cluster):
            offset = produce(cluster, place, batch, f"{topic}-nobody")
        yield OpenTransaction(identity, {place: offset})


@contextmanager
def stuck_marker_on_kafka(
    servers: str, topic: str, transactional_id: str
) -> Iterator[OpenTransaction]:
    """The commit was accepted (PrepareCommit), and Apache Kafka cannot write the marker.

    The topic no longer accepts a batch of that size. The coordinator gives up the marker until it
    is loaded again, so the situation stays until the broker is restarted.
    """
    with connect(servers) as cluster:
        (place,) = create_topic(cluster, topic)
        opened = begin(cluster, transactional_id, [place])
        alter(cluster, ResourceType.TOPIC, topic, "max.message.bytes", "1")
        until(lambda: topic_refuses_batches(cluster, place))
        cluster.end_txn(opened.identity, commit=True)
        yield opened


@contextmanager
def stuck_marker_on_fencepost(
    broker: Broker, topic: str, transactional_id: str
) -> Iterator[OpenTransaction]:
    """The same on an embedded broker: the disk refuses the marker until the situation ends."""
    with connect(broker.bootstrap_servers, {"default.api.timeout.ms": "1000"}) as cluster:
        (place,) = create_topic(cluster, topic)
        opened = begin(cluster, transactional_id, [place])
        broker.call(lambda node: _refuse_markers(node, topic))
        with suppress(ClientError):  # It answers after the Prepare record, or too late for us.
            cluster.end_txn(opened.identity, commit=True)
        yield opened
        broker.call(_accept_markers)
        until(lambda: state_of(cluster, transactional_id) == "CompleteCommit")


def _refuse_markers(node: Node, topic: str) -> None:
    markers = node.services.markers
    append = markers.append

    def refuse(name: str, index: int, marker: EndMarker) -> Written | Refusal:
        if name == topic:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "the disk refuses it")
        return append(name, index, marker)

    vars(markers)["append"] = refuse


def _accept_markers(node: Node) -> None:
    del vars(node.services.markers)["append"]


# Parts.


def end(cluster: Cluster, transactional_id: str) -> None:
    """Ends whatever is open for an id."""
    cluster.init_producer_id(transactional_id)


def state_of(cluster: Cluster, transactional_id: str) -> str:
    """The state that the coordinator describes."""
    view = cluster.describe_transactions([transactional_id])[transactional_id]
    assert view is not None
    return view.state


def produce(
    cluster: Cluster,
    partition: TopicPartition,
    batch: bytearray,
    transactional_id: str | None,
    *,
    check: bool = True,
) -> int:
    """Sends one batch to the leader as TV1 does (Produce 11); returns its offset."""
    view = cluster.metadata([partition.topic]).topics[partition.topic]
    leader = view.partitions[partition.partition].leader
    data = PartitionProduceData(index=partition.partition, records=batch)
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=partition.topic, partition_data=[data])],
    )
    reply = cluster.run(
        call_one(
            cluster.core,
            BrokerById(leader),
            ApiKey.PRODUCE,
            request,
            lambda _: (0, None),
            at_most=11,
        )
    )
    (result,) = reply.form.responses[0].partition_responses
    if check:
        assert result.error_code == 0, result
        return int(result.base_offset)
    return int(result.error_code)


@contextmanager
def without_verification(cluster: Cluster) -> Iterator[None]:
    """Turns off KIP-890's verification of first writes on all brokers."""
    brokers = cluster.metadata([]).brokers
    for broker in brokers:
        alter(cluster, ResourceType.BROKER, str(broker), VERIFICATION, "false")
    for broker in brokers:
        until(partial(is_set, cluster, broker, VERIFICATION, "false"))
    yield
    for broker in brokers:
        alter(cluster, ResourceType.BROKER, str(broker), VERIFICATION, None)


def is_set(cluster: Cluster, broker: int, name: str, value: str) -> bool:
    """Whether a broker uses this value."""
    found = cluster.describe_configs(ResourceType.BROKER, str(broker), [name])
    return found[name].value == value


def alter(cluster: Cluster, kind: ResourceType, name: str, key: str, value: str | None) -> None:
    """Sets a setting, or removes it with None."""
    config = AlterableConfig(name=key, config_operation=0 if value is not None else 1, value=value)
    resource = AlterConfigsResource(resource_type=int(kind), resource_name=name, configs=[config])
    reply = cluster.send_request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigsRequest(resources=[resource]),
        node_id=int(name) if kind is ResourceType.BROKER else None,
    )
    assert reply.responses[0].error_code == 0, reply


def topic_refuses_batches(cluster: Cluster, partition: TopicPartition) -> bool:
    """Whether the leader finds a small batch too large."""
    identity = cluster.init_producer_id(None)
    batch = build_batch(
        [Record(value=b"probe")],
        timestamp_ms=now_ms(),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
    )
    code = produce(cluster, partition, batch, None, check=False)
    return code == ErrorCode.MESSAGE_TOO_LARGE


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(0.02)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
