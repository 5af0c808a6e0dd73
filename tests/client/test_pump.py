"""Goal: whatever fails, every batch is in the log once and in order, or the writer raises.

Method: two brokers in virtual time that share partitions and follow Kafka's rules for producers (a
first write is verified, and refused while it collides; five batches are remembered; a batch out of
sequence is refused). A random generator injects faults: connections break before or after a request
takes effect, first writes collide, leaders move. Then the logs are compared with what was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import OutOfOrderSequence, ProducerFenced, UnknownTopicOrPartition
from fencepost.client.options import Endpoint
from fencepost.client.pump import new_writer, pump
from fencepost.client.steps import Answer, Lost, Reply, Send, run
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import Writer
from fencepost.records.batch import SealedBatch, read_header
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from fencepost.wire.forms.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.client.scripted import ONE, TWO, Script, partition
from tests.client.test_writer import sealed

IDENTITY = ProducerIdentity("tx", 4000, 3, 2)
REMEMBERED = 5
RNG = st.integers(0, 2**32).map(Random)
"""Seeds: faults drawn by hypothesis itself would become endless, and no writer could finish."""


class Log:
    """One partition by Kafka's rules for one producer."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.remembered: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED)
        self.next_sequence = 0
        self.next_offset = 0
        self.verified = False
        self.epoch = 3

    def append(self, batch: SealedBatch) -> tuple[int, int]:
        if batch.producer_epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        for first, last, offset in self.remembered:
            if (first, last) == (batch.base_sequence, batch.last_sequence):
                return ErrorCode.NONE, offset
        if batch.base_sequence != self.next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = self.next_offset
        self.batches.append(bytes(batch.data))
        self.remembered.append((batch.base_sequence, batch.last_sequence, offset))
        self.next_sequence = batch.last_sequence + 1
        self.next_offset += batch.record_count
        return ErrorCode.NONE, offset


class UnreliableCluster(Script):
    """Two brokers and an unreliable network."""

    def __init__(self, rng: Random, trouble: float, partitions: int, **options: Any) -> None:
        super().__init__(**options)
        self.rng = rng
        self.trouble = trouble
        self.logs = {partition(i): Log() for i in range(partitions)}
        self.leaders["t"] = [rng.choice([1, 2]) for _ in range(partitions)]
        self.queues: dict[Endpoint, deque[tuple[int, Any]]] = {ONE: deque(), TWO: deque()}
        self.most_in_flight = 0
        self._tickets = 1_000_000

    def goes_wrong(self) -> bool:
        return self.rng.random() < self.trouble

    def start(self, send: Send) -> int:
        if send.api is not ApiKey.PRODUCE:
            return super().start(send)
        self._tickets += 1
        # Copy: the broker reads the bytes as they are now, not what the client writes later.
        copies = [
            (TopicPartition(topic.name, p.index), bytes(p.records))
            for topic in send.request.topic_data
            for p in topic.partition_data
        ]
        self.queues[send.endpoint].append((self._tickets, copies))
        self.most_in_flight = max(self.most_in_flight, len(self.queues[send.endpoint]))
        return self._tickets

    def wait(self, tickets: Collection[int], timeout_ms: int) -> Mapping[int, Answer]:
        found = super().wait(tickets, 0)
        busy = [endpoint for endpoint, queue in self.queues.items() if queue]
        if found or not busy or (timeout_ms == 0 and self.rng.random() < 0.5):
            self.clock.now += 0 if found else timeout_ms
            return found
        endpoint = self.rng.choice(busy)
        self.clock.now += 1
        return self._break(endpoint) if self.goes_wrong() else self._serve(endpoint)

    def _serve(self, endpoint: Endpoint) -> dict[int, Answer]:
        ticket, copies = self.queues[endpoint].popleft()
        return {ticket: Reply(self._produce(endpoint, copies), 12)}

    def _break(self, endpoint: Endpoint) -> dict[int, Answer]:
        """Drops a connection: some of its requests took effect, the rest never arrived."""
        queue = self.queues[endpoint]
        for _ in range(self.rng.randint(0, len(queue))):
            self._produce(endpoint, queue[0][1])
            self._answers[queue.popleft()[0]] = Lost("broken")
        while queue:
            self._answers[queue.popleft()[0]] = Lost("broken")
        return {}

    def _produce(
        self, endpoint: Endpoint, copies: list[tuple[TopicPartition, bytes]]
    ) -> ProduceResponse:
        responses = []
        for where, data in copies:
            code, offset = self._append(endpoint, where, read_header(data))
            responses.append(
                PartitionProduceResponse(index=where.partition, error_code=code, base_offset=offset)
            )
        return ProduceResponse(
            responses=[TopicProduceResponse(name="t", partition_responses=responses)]
        )

    def _append(
        self, endpoint: Endpoint, where: TopicPartition, batch: SealedBatch
    ) -> tuple[int, int]:
        log = self.logs[where]
        if self.goes_wrong():
            self.leaders["t"][where.partition] = self.rng.choice([1, 2])
        if endpoint != (ONE if self.leaders["t"][where.partition] == 1 else TWO):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if not log.verified and self.goes_wrong():
            return self.rng.choice([19, 13, 14, 15, 16, 51]), -1
        log.verified = True
        code, offset = log.append(batch)
        if code == 0 and self.goes_wrong():
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1
        return code, offset


def write_all(
    world: UnreliableCluster, writer: Writer, counts: Mapping[TopicPartition, list[int]]
) -> dict[TopicPartition, list[bytes]]:
    """Writes batches with these record counts to the partitions in turn, and flushes."""
    written: dict[TopicPartition, list[bytes]] = {where: [] for where in counts}
    for turn in range(max(map(len, counts.values()))):
        for where, sizes in counts.items():
            if turn < len(sizes):
                batch = sealed(writer.queue_of(where).next_sequence, sizes[turn])
                written[where].append(bytes(batch))
                writer.accept(where, batch, world.clock.now_ms())
                run(pump(world.core, writer, 2_000), world)
    run(pump(world.core, writer, 0), world)
    return written


@settings(max_examples=150)
@given(
    RNG,
    st.sampled_from([0.0, 0.05, 0.3]),
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=20), min_size=1, max_size=4),
)
def test_every_batch_is_written_once_and_in_order(
    rng: Random, trouble: float, plan: list[list[int]]
) -> None:
    world = UnreliableCluster(rng, trouble, len(plan), delivery_timeout_ms=2**31 - 1)
    writer = new_writer(world.core, IDENTITY)
    written = write_all(world, writer, {partition(i): counts for i, counts in enumerate(plan)})
    assert {where: log.batches for where, log in world.logs.items()} == written
    for where, result in writer.results().items():
        counts = plan[where.partition]
        assert (result.records, result.batches) == (sum(counts), len(counts))
        assert (result.base_offset, result.last_offset) == (0, sum(counts) - 1)
        assert result.last_sequence == sum(counts) - 1
    assert world.most_in_flight <= 5


def test_without_faults_batches_are_pipelined() -> None:
    world = UnreliableCluster(Random(1), 0.0, 1)
    writer = new_writer(world.core, IDENTITY)
    write_all(world, writer, {partition(): [1] * 40})
    assert world.most_in_flight == 5


def test_a_writer_fenced_between_writes_raises() -> None:
    world = UnreliableCluster(Random(1), 0.0, 1)
    writer = new_writer(world.core, IDENTITY)
    write_all(world, writer, {partition(): [1, 1]})
    world.logs[partition()].epoch = 4
    with pytest.raises(ProducerFenced):
        write_all(world, writer, {partition(): [1]})


@settings(max_examples=50)
@given(RNG, st.sampled_from([0.0, 0.2]))
def test_batches_of_two_writers_to_one_partition_never_mix(rng: Random, trouble: float) -> None:
    """If first batches differ in length, as in the Spark sink, the second writer is refused."""
    world = UnreliableCluster(rng, trouble, 1, delivery_timeout_ms=2**31 - 1)
    first = new_writer(world.core, IDENTITY)
    written = write_all(world, first, {partition(): [2] + [1] * 9})
    second = new_writer(world.core, IDENTITY)
    with pytest.raises(OutOfOrderSequence):
        write_all(world, second, {partition(): [3] + [1] * 9})
    assert world.logs[partition()].batches == written[partition()]


def test_a_topic_that_does_not_exist_ends_the_writer() -> None:
    world = UnreliableCluster(Random(1), 0.0, 1)
    writer = new_writer(world.core, IDENTITY)
    with pytest.raises(UnknownTopicOrPartition, match="absent-0"):
        write_all(world, writer, {partition(0, "absent"): [1]})
    with pytest.raises(UnknownTopicOrPartition):
        writer.check()


# Protocol.


def produced(code: int = 0) -> ProduceResponse:
    answer = PartitionProduceResponse(error_code=code)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])


def write_one(script: Script, identity: ProducerIdentity) -> None:
    script.leaders["t"] = [1]
    writer = new_writer(script.core, identity)
    writer.accept(partition(), sealed(0), script.clock.now_ms())
    script.run(pump(script.core, writer, 0))


def test_tv2_writes_directly_and_the_broker_adds_the_partition(script: Script) -> None:
    script.on(ApiKey.PRODUCE, produced())
    write_one(script, IDENTITY)
    assert script.apis == [ApiKey.METADATA, ApiKey.PRODUCE]
    (seen,) = script.of(ApiKey.PRODUCE)
    assert (seen.version, seen.form.acks, seen.form.transactional_id) == (12, -1, "tx")


def test_tv1_adds_the_partition_first_and_once() -> None:
    result = AddPartitionsToTxnPartitionResult(partition_index=0)
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[result])
    added = AddPartitionsToTxnResponse(
        results_by_transaction=[AddPartitionsToTxnResult(topic_results=[topic])]
    )
    script = Script()
    script.on(ApiKey.ADD_PARTITIONS_TO_TXN, added)
    script.on(ApiKey.PRODUCE, produced(ErrorCode.NOT_ENOUGH_REPLICAS), produced())
    write_one(script, ProducerIdentity("tx", 4000, 3, 1))
    assert [api for api in script.apis if api is not ApiKey.FIND_COORDINATOR] == [
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.METADATA,
        ApiKey.PRODUCE,
        ApiKey.PRODUCE,
    ]
    assert {seen.version for seen in script.of(ApiKey.PRODUCE)} == {11}


def test_colliding_first_writes_are_retried_quickly_at_first(script: Script) -> None:
    busy = produced(ErrorCode.NOT_ENOUGH_REPLICAS)
    script.on(ApiKey.PRODUCE, busy, busy, busy, produced())
    write_one(script, IDENTITY)
    assert script.pauses == [20, 40, 80]


def test_a_response_without_our_partition_is_not_an_acknowledgement(script: Script) -> None:
    script.on(ApiKey.PRODUCE, ProduceResponse())
    with pytest.raises(Exception, match="UNKNOWN_SERVER_ERROR"):
        write_one(script, IDENTITY)
