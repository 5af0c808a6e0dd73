"""The rules of a writer: what may be sent now, and what an answer means. No network, no clock."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import MAX_SEQUENCE, TopicPartition
from fencepost.client.failures import OutOfOrderSequence, ProducerFenced, Refused, RetriesExhausted
from fencepost.client.options import Endpoint
from fencepost.client.reactions import Reaction
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import PartitionQueue, PendingBatch, Shipment, Writer, Written
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from tests.client.scripted import ONE, TWO, partition

IDENTITY = ProducerIdentity("tx", 4000, 3, 2)


def sealed(sequence: int, count: int = 1, *, size: int = 10, epoch: int = 3) -> bytearray:
    return build_batch(
        [Record(value=b"x" * size)] * count,
        timestamp_ms=0,
        producer_id=4000,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def writer(max_request_bytes: int = 1_000_000) -> Writer:
    return Writer(IDENTITY, window=5, max_request_bytes=max_request_bytes, delivery_timeout_ms=1000)


def with_batches(count: int, *partitions: TopicPartition) -> Writer:
    new = writer()
    for where in partitions or (partition(),):
        for sequence in range(count):
            new.accept(where, sealed(sequence), now_ms=0)
    return new


def ship(target: Writer, now_ms: int = 0, leader: Endpoint = ONE) -> list[Shipment]:
    """Sends everything that may be sent now."""
    sent: list[Shipment] = []
    while shipments := target.due(now_ms, lambda _: leader):
        for shipment in shipments:
            target.sent(len(target.shipments) + 100 * now_ms, shipment)
        sent += shipments
    return sent


def only(shipment: Shipment) -> tuple[PartitionQueue, PendingBatch]:
    (found,) = shipment.batches
    return found


def sequences(shipments: list[Shipment]) -> list[int]:
    return [pending.batch.base_sequence for s in shipments for _, pending in s.batches]


def opened(count: int) -> tuple[Writer, list[Shipment]]:
    """Returns a queue with its first batch acknowledged and the next ones in flight."""
    new = with_batches(count)
    (first,) = ship(new)
    new.shipments.clear()
    new.acknowledged(*only(first), base_offset=0)
    return new, ship(new)


def test_the_first_batch_of_a_partition_is_sent_alone() -> None:
    new = with_batches(4)
    assert sequences(ship(new)) == [0]
    assert ship(new) == []


def test_after_the_first_acknowledgement_five_batches_may_be_in_flight() -> None:
    new, sent = opened(9)
    assert sequences(sent) == [1, 2, 3, 4, 5]
    new.shipments.clear()
    new.acknowledged(*only(sent[0]), base_offset=1)
    assert sequences(ship(new)) == [6]


def test_first_batches_of_several_partitions_share_a_request() -> None:
    new = with_batches(2, partition(0), partition(1), partition(2))
    (shipment,) = ship(new)
    assert [queue.partition.partition for queue, _ in shipment.batches] == [0, 1, 2]


def test_requests_stay_below_the_size_limit_and_a_larger_batch_is_sent_alone() -> None:
    new = writer(max_request_bytes=2_000)
    for index, size in enumerate([500, 500, 5_000, 500]):
        new.accept(partition(index), sealed(0, size=size), now_ms=0)
    sizes = [[len(pending.batch.data) for _, pending in s.batches] for s in ship(new)]
    assert [sum(size) < 2_000 or len(size) == 1 for size in sizes] == [True] * len(sizes)
    assert sum(map(len, sizes)) == 4


def test_a_batch_with_a_retriable_error_is_resent_alone_with_the_same_bytes() -> None:
    new = with_batches(3)
    (first,) = ship(new)
    queue, pending = only(first)
    new.shipments.clear()
    new.retry(queue, pending, "NOT_ENOUGH_REPLICAS", not_before_ms=20)
    assert ship(new, now_ms=19) == []
    (again,) = ship(new, now_ms=20)
    assert only(again)[1].batch.data is pending.batch.data
    assert ship(new, now_ms=20) == []


def test_batches_behind_a_failed_one_are_resent_in_order() -> None:
    new, sent = opened(6)
    new.shipments.clear()
    queue = only(sent[0])[0]
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, 45, 45, 45, 45]
    for shipment, code in zip(sent, codes, strict=True):
        _, pending = only(shipment)
        assert new.judge(queue, pending, code, None).is_retriable
        new.retry(queue, pending, "later", not_before_ms=5)
    assert [p.batch.base_sequence for p in queue.waiting] == [1, 2, 3, 4, 5]
    # The oldest is sent alone; after its acknowledgement the others follow.
    (again,) = ship(new, now_ms=5)
    assert sequences([again]) == [1]
    new.shipments.clear()
    new.acknowledged(*only(again), base_offset=1)
    assert sequences(ship(new, now_ms=5)) == [2, 3, 4, 5]


def test_nothing_is_resent_while_the_lane_has_batches_in_flight() -> None:
    new, sent = opened(4)
    new.shipments.clear()
    new.retry(*only(sent[0]), "later", not_before_ms=0)
    assert ship(new) == []


def test_a_lane_sends_nothing_new_before_a_batch_is_resent() -> None:
    """The broker remembers five batches; after more, it would not recognise the duplicate."""
    new, sent = opened(12)
    new.shipments.clear()
    new.retry(*only(sent[0]), "NOT_ENOUGH_REPLICAS_AFTER_APPEND", not_before_ms=0)
    for offset, shipment in enumerate(sent[1:], 2):
        new.acknowledged(*only(shipment), base_offset=offset)
    (again,) = ship(new)
    assert sequences([again]) == [1]
    new.acknowledged(*only(again), base_offset=1)
    assert new.results()[partition()].last_offset == 5
    new.shipments.clear()
    assert sequences(ship(new)) == [6, 7, 8, 9, 10]


def test_out_of_order_for_the_oldest_batch_is_fatal() -> None:
    new, sent = opened(4)
    queue, pending = only(sent[0])
    with pytest.raises(OutOfOrderSequence, match="t-0") as caught:
        new.judge(queue, pending, 45, None)
    assert caught.value.partition == partition()
    with pytest.raises(OutOfOrderSequence):
        new.accept(partition(), sealed(4), now_ms=0)


@pytest.mark.parametrize("code", [47, 90])
def test_a_fenced_writer_stays_fenced(code: int) -> None:
    new, sent = opened(4)
    with pytest.raises(ProducerFenced):
        new.judge(*only(sent[2]), code, None)
    with pytest.raises(ProducerFenced):
        new.check()


@pytest.mark.parametrize("code", [10, 29, 48, 49, 53, 59, 87, -1, 777])
def test_other_refusals_end_the_writer(code: int) -> None:
    new, sent = opened(2)
    with pytest.raises(Refused):
        new.judge(*only(sent[0]), code, "because")


def test_a_duplicate_is_an_acknowledgement() -> None:
    new, sent = opened(2)
    assert new.judge(*only(sent[0]), ErrorCode.DUPLICATE_SEQUENCE_NUMBER, None) is Reaction.SUCCEED


def test_a_lane_drains_before_it_moves_to_a_new_leader() -> None:
    new, sent = opened(8)
    new.shipments.clear()
    assert ship(new, leader=TWO) == []
    for offset, shipment in enumerate(sent):
        new.acknowledged(*only(shipment), base_offset=offset)
    (moved, *_) = ship(new, leader=TWO)
    assert (moved.endpoint, sequences([moved])) == (TWO, [6])


def test_a_lost_request_returns_all_its_batches() -> None:
    new = with_batches(1, partition(0), partition(1))
    (shipment,) = ship(new)
    new.shipments.clear()
    new.lost(shipment, "broken pipe", not_before_ms=7)
    assert [queue.last_answer for queue in new.busy_queues()] == ["broken pipe"] * 2
    assert sequences(ship(new, now_ms=7)) == [0, 0]


def test_a_broker_has_at_most_five_requests_in_flight() -> None:
    new = writer(max_request_bytes=1)
    for index in range(9):
        new.accept(partition(index), sealed(0), now_ms=0)
    assert len(ship(new)) == 5


def test_written_records_batches_and_bytes_are_counted() -> None:
    new = writer()
    new.accept(partition(), sealed(0, 3), now_ms=0)
    new.accept(partition(), sealed(3, 2), now_ms=0)
    size = new.unacknowledged_bytes
    new.acknowledged(*only(ship(new)[0]), base_offset=70)
    new.shipments.clear()
    new.acknowledged(*only(ship(new)[0]), base_offset=73)
    assert new.unacknowledged_bytes == 0
    assert new.results() == {
        partition(): Written(
            records=5, batches=2, size_bytes=size, base_offset=70, last_offset=74, last_sequence=4
        )
    }


def test_sequences_wrap_after_the_largest() -> None:
    queue = PartitionQueue(partition())
    queue.next_sequence = MAX_SEQUENCE - 1
    new = writer()
    new.queues[partition()] = queue
    new.accept(partition(), sealed(MAX_SEQUENCE - 1, 3), now_ms=0)
    assert queue.next_sequence == 1


def test_a_batch_past_its_delivery_timeout_ends_the_writer() -> None:
    new = with_batches(1)
    (shipment,) = ship(new)
    new.retry(*only(shipment), "NOT_ENOUGH_REPLICAS", not_before_ms=0)
    new.expire(999)
    with pytest.raises(RetriesExhausted, match=r"Produce to t-0 .* NOT_ENOUGH_REPLICAS"):
        new.expire(1000)


@pytest.mark.parametrize(
    "batch",
    [
        sealed(1),
        sealed(0, epoch=4),
        sealed(0) + sealed(1),
        build_batch(
            [Record()], timestamp_ms=0, producer_id=4000, producer_epoch=3, base_sequence=0
        ),
    ],
    ids=["wrong sequence", "wrong epoch", "two batches", "not transactional"],
)
def test_a_batch_that_does_not_fit_the_writer_is_a_bug_of_the_caller(batch: bytearray) -> None:
    with pytest.raises(AssertionError):
        writer().accept(partition(), batch, now_ms=0)


def refused_alone(target: Writer) -> None:
    """The only batch of the writer is sent, and refused for its size."""
    (shipment,) = ship(target)
    target.shipments.clear()
    with pytest.raises(Refused):
        target.judge(*only(shipment), ErrorCode.MESSAGE_TOO_LARGE, None)


def test_a_refused_batch_that_was_alone_is_withdrawn_and_the_next_has_its_sequence() -> None:
    target = with_batches(1)
    refused_alone(target)
    assert target.withdraw()
    assert target.unacknowledged_bytes == 0
    target.accept(partition(), sealed(0), now_ms=0)
    (shipment,) = ship(target)
    target.acknowledged(*only(shipment), 7)
    assert target.results()[partition()].records == 1


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_batch_that_an_earlier_attempt_may_have_written_is_not_withdrawn(code: int) -> None:
    """Its sequence would be that of another record, which the broker takes for a duplicate."""
    target = with_batches(1)
    (shipment,) = ship(target)
    target.shipments.clear()
    queue, pending = only(shipment)
    target.judge(queue, pending, code, None)
    target.retry(queue, pending, "once", 0)
    refused_alone(target)
    assert not target.withdraw()


def test_a_batch_whose_answer_was_lost_is_not_withdrawn() -> None:
    target = with_batches(1)
    (shipment,) = ship(target)
    target.shipments.clear()
    target.lost(shipment, "gone", 0)
    refused_alone(target)
    assert not target.withdraw()


def test_a_batch_that_was_not_ready_to_be_written_may_be_withdrawn_later() -> None:
    target = with_batches(1)
    (shipment,) = ship(target)
    target.shipments.clear()
    queue, pending = only(shipment)
    target.judge(queue, pending, ErrorCode.CONCURRENT_TRANSACTIONS, None)
    target.retry(queue, pending, "once", 0)
    refused_alone(target)
    assert target.withdraw()


def test_nothing_is_withdrawn_while_other_batches_are_unacknowledged_or_nothing_was_refused() -> (
    None
):
    assert not with_batches(1).withdraw()
    several = with_batches(1, partition(0), partition(1))
    (shipment,) = ship(several)
    several.shipments.clear()
    with pytest.raises(Refused):
        several.judge(*shipment.batches[0], ErrorCode.MESSAGE_TOO_LARGE, None)
    assert not several.withdraw()
    with pytest.raises(Refused):
        several.check()
