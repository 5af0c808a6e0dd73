"""Requests of transactional producers, in one line each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.fetch import FetchPartition, FetchRequest, FetchTopic
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.compat.twin.likeness import EPOCH_MS
from tests.compat.twin.talk import Ask, Talk
from tests.transactions.protocol import Protocol
from tests.transactions.requests import (
    add_offsets_request,
    add_request,
    commit_offsets_request,
    end_request,
    init_request,
    list_offsets_request,
    marker_request,
    offset_fetch_request,
    transaction_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.base.seams import Buffer
    from fencepost.wire.forms.add_partitions_to_txn import AddPartitionsToTxnTransaction

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

# The newest versions that name topics by their names.
PRODUCE_BY_NAME: Final = 12
FETCH_BY_NAME: Final = 12
OFFSET_FETCH_BY_NAME: Final = 9


@dataclass(slots=True)
class Producer:
    """A transactional producer as its client knows it, with sequences per partition and epoch."""

    transactional_id: str
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def at(self, *, producer_id: int | None = None, epoch: int | None = None) -> Producer:
        """The same producer with another identity: stale, future, or that of another producer."""
        return Producer(
            self.transactional_id,
            self.producer_id if producer_id is None else producer_id,
            self.epoch if epoch is None else epoch,
        )

    def take(self, reply: Any) -> None:
        """Takes the identity of a reply, if it has one."""
        if reply.error_code == 0 and reply.producer_id >= 0:
            if (reply.producer_id, reply.producer_epoch) != (self.producer_id, self.epoch):
                self.sequences.clear()
            self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch

    def batch(
        self, *values: bytes, sequence: int, transactional: bool = True, **more: Any
    ) -> bytearray:
        """A batch of these values at a chosen sequence."""
        return batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=transactional,
            **more,
        )


def batch(*values: bytes, time_ms: int = EPOCH_MS, **more: Any) -> bytearray:
    """A batch as a client sends it."""
    records = [Record(0, time_ms, None, value, ()) for value in values]
    return build_batch(records, timestamp_ms=time_ms, **more)


# -- the coordinator
# ------------------------------------------------------------------------------------------


def init(transactional_id: str | None, **given: int) -> Ask:
    return Ask(ApiKey.INIT_PRODUCER_ID, init_request(transactional_id, **given))


def add_all(*transactions: AddPartitionsToTxnTransaction) -> Ask:
    return Ask(ApiKey.ADD_PARTITIONS_TO_TXN, add_request(*transactions))


def add(producer: Producer, topic: str, *indexes: int, verify_only: bool = False) -> Ask:
    return add_all(transaction_of(producer, {topic: indexes or (0,)}, verify_only=verify_only))


def add_offsets(producer: Producer, group: str) -> Ask:
    return Ask(ApiKey.ADD_OFFSETS_TO_TXN, add_offsets_request(producer, group))


def end(producer: Producer, *, commit: bool) -> Ask:
    return Ask(ApiKey.END_TXN, end_request(producer, commit=commit))


def describe(*transactional_ids: str) -> Ask:
    request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
    return Ask(ApiKey.DESCRIBE_TRANSACTIONS, request)


# -- partitions
# -----------------------------------------------------------------------------------------------


def produce(
    topic: str,
    records: Buffer | None,
    *,
    transactional_id: str | None = None,
    index: int = 0,
    acks: int = -1,
) -> Ask:
    data = PartitionProduceData(index=index, records=records)
    return produce_all(
        [TopicProduceData(name=topic, partition_data=[data])], transactional_id, acks
    )


def produce_all(
    topics: list[TopicProduceData], transactional_id: str | None, acks: int = -1
) -> Ask:
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=30_000, topic_data=topics
    )
    named = all(topic.name or topic.topic_id == bytes(16) for topic in topics)
    return Ask(ApiKey.PRODUCE, request, PRODUCE_BY_NAME if named else -1)


def marker(
    producer: Producer, partitions: Mapping[str, Sequence[int]], *, commit: bool, **more: int
) -> Ask:
    request = marker_request(producer, partitions, commit=commit, **more)
    return Ask(ApiKey.WRITE_TXN_MARKERS, request)


def fetch(
    topic: str,
    offset: int = 0,
    *,
    index: int = 0,
    isolation: int = READ_COMMITTED,
    max_bytes: int = 1 << 20,
    wait_ms: int = 0,
) -> Ask:
    asked = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        isolation_level=isolation,
        topics=[FetchTopic(topic=topic, partitions=[asked])],
    )
    return Ask(ApiKey.FETCH, request, FETCH_BY_NAME)


def list_offsets(
    topic: str, time_ms: int = -1, *, index: int = 0, isolation: int = READ_UNCOMMITTED
) -> Ask:
    request = list_offsets_request(topic, time_ms, index=index, isolation_level=isolation)
    return Ask(ApiKey.LIST_OFFSETS, request)


def producers(topic: str, *indexes: int) -> Ask:
    asked = TopicRequest(name=topic, partition_indexes=list(indexes or (0,)))
    return Ask(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest(topics=[asked]))


# -- offsets of groups
# ----------------------------------------------------------------------------------------


def commit_offsets(
    producer: Producer, group: str, offsets: Mapping[tuple[str, int], int], **more: Any
) -> Ask:
    request = commit_offsets_request(producer, group, offsets, **more)
    return Ask(ApiKey.TXN_OFFSET_COMMIT, request)


def offsets_of(group: str, topic: str | None, *indexes: int, stable: bool = False) -> Ask:
    """The committed offsets of some partitions, or of all for None."""
    request = offset_fetch_request(group, topic, *indexes, stable=stable)
    return Ask(ApiKey.OFFSET_FETCH, request, OFFSET_FETCH_BY_NAME)


# -- steps that scripts share
# ---------------------------------------------------------------------------------


def start(talk: Talk, transactional_id: str, *, timeout_ms: int = 60_000) -> Producer:
    """A producer with a fresh epoch."""
    producer = Producer(transactional_id)
    request = init(transactional_id, timeout_ms=timeout_ms)
    reply = talk.until(request, lambda r: r.error_code != 51)
    assert reply.error_code == 0, reply
    talk.note(f"{transactional_id} starts", reply)
    producer.take(reply)
    return producer


def write(
    talk: Talk, producer: Producer, protocol: Protocol, topic: str, *values: bytes, index: int = 0
) -> Any:
    """Writes values, which may begin the transaction; in TV1 the partition is added first."""
    name = f"{producer.transactional_id} writes to {topic}-{index}"
    if protocol.adds_explicitly:
        talk.ask(f"{name}: added", add(producer, topic, index), 3)
    sequence = producer.sequences.get((topic, index), 0)
    records = producer.batch(*values, sequence=sequence)
    ask = produce(topic, records, transactional_id=producer.transactional_id, index=index)
    reply = talk.ask(name, ask, protocol.produce)
    if reply.responses[0].partition_responses[0].error_code == 0:
        producer.sequences[topic, index] = sequence + len(values)
    return reply


def finish(talk: Talk, producer: Producer, protocol: Protocol, *, commit: bool) -> Any:
    """Commits or aborts, and waits until it is done."""
    word = "commits" if commit else "aborts"
    ask = end(producer, commit=commit)
    reply = talk.ask(f"{producer.transactional_id} {word}", ask, protocol.end_txn)
    talk.settle(producer.transactional_id)
    producer.take(reply)
    return reply


def look(talk: Talk, moment: str, topic: str, *, index: int = 0) -> None:
    """Everything that a reader or an administrator can see of a partition."""
    for isolation, word in ((READ_UNCOMMITTED, "all"), (READ_COMMITTED, "committed")):
        talk.ask(
            f"{moment}: {word} of {topic}-{index}", fetch(topic, index=index, isolation=isolation)
        )
        ask = list_offsets(topic, index=index, isolation=isolation)
        talk.ask(f"{moment}: end of {word} of {topic}-{index}", ask)
    talk.ask(f"{moment}: producers of {topic}-{index}", producers(topic, index))


def look_at_id(talk: Talk, moment: str, transactional_id: str) -> None:
    """What the coordinator knows of an id."""
    talk.ask(f"{moment}: {transactional_id}", describe(transactional_id))
