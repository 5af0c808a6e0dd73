"""The rules of a writer of sealed batches: what may be sent now, and what an answer means.

Theory of operation. A writer has a queue of sealed batches per partition; those at its head are in
flight, the rest wait.

    accept -> [waiting] -> dispatch -> [in flight] -> acknowledge
                  ^                     |
                  +------ give back ----+   (retriable: the same bytes, in the same order)

- The first batch of a queue is sent alone. Until it is acknowledged, the broker has not verified
  this producer in this partition (it sends a request to the transaction coordinator first), and
  would refuse the batches behind it as out of sequence. After that up to `window` batches may be in
  flight. The broker remembers five batches, so a batch is sent only if it is at most four ahead of
  the oldest unacknowledged one.
- When a batch fails with a retriable error, those behind it fail too, or succeed if the first had
  succeeded after all. The queue takes back what failed, waits until nothing is in flight, and then
  sends the oldest one alone, with the same bytes. The broker recognises duplicates, so nothing is
  written twice.
- OUT_OF_ORDER_SEQUENCE (45) for a batch behind a failed one is a consequence, and is retried. For
  the oldest batch of a queue it is fatal: another producer writes with this producer id and epoch.
- All batches in flight of a queue are at one broker. When the leader moves, the queue drains first.

This module uses neither network nor clock; `pump.py` is the procedure that follows these rules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import MAX_SEQUENCE, TopicPartition
from fencepost.client.failures import (
    BatchRefusedForSize,
    ClientError,
    Refused,
    RetriesExhausted,
    refusal,
)
from fencepost.client.reactions import Reaction, reaction
from fencepost.records.batch import SealedBatch, read_header
from fencepost.wire.apis import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fencepost.base.seams import Buffer
    from fencepost.client.calls import Attempt
    from fencepost.client.options import Endpoint
    from fencepost.client.transactions import ProducerIdentity

ALL_REPLICAS: Final = -1
LEADER_ONLY: Final = 1
"""Who must have a batch before it is acknowledged. 0 is not used: nothing would be acknowledged."""

_REQUEST_OVERHEAD_BYTES: Final = 128
"""The size of a batch in a request beyond its own bytes: names, lengths, a header."""


_NEVER_WRITTEN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Retriable errors that come before the batch is appended. After all others it may have been."""


class Written(NamedTuple):
    """Counts of what was acknowledged in one partition."""

    records: int = 0
    batches: int = 0
    size_bytes: int = 0
    base_offset: int = -1
    """The offset of the first record; -1 if nothing was written."""
    last_offset: int = -1
    last_sequence: int = -1


@dataclass(slots=True, eq=False)
class PendingBatch:
    """One sealed batch, waiting or in flight."""

    batch: SealedBatch
    ordinal: int
    expires_ms: int
    done: Callable[[], None] | None = None
    """Called when it is acknowledged; its bytes may change from then on."""
    is_doubtful: bool = False
    """Whether an earlier attempt may have been written, although it was not acknowledged."""


class PartitionQueue:
    """The batches of one partition, waiting or in flight."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.waiting: deque[PendingBatch] = deque()
        self.in_flight: deque[PendingBatch] = deque()
        self.endpoint: Endpoint | None = None
        self.next_sequence = 0
        self.is_added = False
        self.is_open = False
        self.is_recovering = False
        self.not_before_ms = 0
        self.tries = 0
        self.last_answer = "none"
        self.written = Written()
        self._next_ordinal = 0
        self._newest_ordinal = -1

    def __repr__(self) -> str:
        counts = f"{len(self.waiting)} waiting, {len(self.in_flight)} in flight"
        return f"<queue {self.partition}: {counts}>"

    def accept(
        self, batch: SealedBatch, expires_ms: int, done: Callable[[], None] | None = None
    ) -> None:
        """Appends a batch to the queue. It must have the next sequence."""
        assert batch.base_sequence == self.next_sequence, (
            f"{self.partition}: the batch starts at sequence {batch.base_sequence}, expected "
            f"{self.next_sequence}"
        )
        self.waiting.append(PendingBatch(batch, self._next_ordinal, expires_ms, done))
        self._next_ordinal += 1
        self.next_sequence = (batch.last_sequence + 1) & MAX_SEQUENCE

    def is_ready(self, now_ms: int, window: int, leader: Endpoint) -> bool:
        """Whether the oldest waiting batch may be sent to this leader now."""
        if not self.waiting or now_ms < self.not_before_ms:
            return False
        if not self.in_flight:
            return True
        if self.is_recovering or not self.is_open or self.endpoint != leader:
            return False
        return self.waiting[0].ordinal - self.in_flight[0].ordinal < window

    def dispatch(self, leader: Endpoint) -> PendingBatch:
        """Moves the oldest waiting batch into flight."""
        pending = self.waiting.popleft()
        assert not self.in_flight or self.in_flight[-1].ordinal < pending.ordinal
        self.in_flight.append(pending)
        self.endpoint = leader
        return pending

    def acknowledge(self, pending: PendingBatch, base_offset: int) -> None:
        """Removes a batch that the broker has acknowledged, and counts it."""
        self.is_open = True
        self.tries = 0
        # A batch behind one that must be resent does not end the recovery: otherwise the broker
        # could receive five newer batches before the old one, and would no longer recognise it
        # as a duplicate.
        if self.is_oldest(pending):
            self.is_recovering = False
        self.in_flight.remove(pending)
        batch, written = pending.batch, self.written
        # A batch may be acknowledged after one behind it, if its first answer was 20
        # (NOT_ENOUGH_REPLICAS_AFTER_APPEND).
        is_newest = pending.ordinal > self._newest_ordinal
        self._newest_ordinal = max(self._newest_ordinal, pending.ordinal)
        last_offset = base_offset + batch.last_offset_delta if base_offset >= 0 else -1
        self.written = Written(
            records=written.records + batch.record_count,
            batches=written.batches + 1,
            size_bytes=written.size_bytes + batch.size_bytes,
            base_offset=base_offset if pending.ordinal == 0 else written.base_offset,
            last_offset=max(written.last_offset, last_offset),
            last_sequence=batch.last_sequence if is_newest else written.last_sequence,
        )

    def give_back(self, pending: PendingBatch, reason: str) -> None:
        """Returns a failed batch to its old place in the queue."""
        self.in_flight.remove(pending)
        later: list[PendingBatch] = []
        while self.waiting and self.waiting[0].ordinal < pending.ordinal:
            later.append(self.waiting.popleft())
        self.waiting.appendleft(pending)
        self.waiting.extendleft(reversed(later))
        self.is_recovering = True
        self.last_answer = reason

    def is_oldest(self, pending: PendingBatch) -> bool:
        """Whether this is the queue's oldest unacknowledged batch."""
        return all(line[0].ordinal >= pending.ordinal for line in self._lines())

    def oldest_expiry_ms(self) -> int | None:
        """Returns when the oldest batch expires; None if the queue is empty."""
        return min((line[0].expires_ms for line in self._lines()), default=None)

    def _lines(self) -> list[deque[PendingBatch]]:
        """Returns the non-empty queues. Both are in order, so their heads are the oldest."""
        return [line for line in (self.in_flight, self.waiting) if line]


class Shipment(NamedTuple):
    """One Produce request: at most one batch per partition."""

    endpoint: Endpoint
    batches: list[tuple[PartitionQueue, PendingBatch]]


class Writer:
    """All queues of one producer id and epoch."""

    def __init__(
        self,
        identity: ProducerIdentity,
        *,
        window: int,
        max_request_bytes: int,
        delivery_timeout_ms: int,
        acks: int = ALL_REPLICAS,
    ) -> None:
        assert 1 <= window <= 5, "the broker remembers five batches per producer and partition"
        self.identity = identity
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.shipments: dict[int, Shipment] = {}
        self.unacknowledged_bytes = 0
        self.failure: ClientError | None = None
        self.search: Attempt | None = None
        """The retry state of the leader lookup; it lasts until all leaders are known."""
        self.delivery_timeout_ms = delivery_timeout_ms
        self.acks = acks
        self._window = window
        self._max_request_bytes = max_request_bytes

    def __repr__(self) -> str:
        return (
            f"<writer of {self.identity}: {len(self.queues)} queues, "
            f"{self.unacknowledged_bytes} bytes to go>"
        )

    def queue_of(self, partition: TopicPartition) -> PartitionQueue:
        """Returns the queue of a partition, and creates it on first use."""
        found = self.queues.get(partition)
        if found is None:
            found = self.queues[partition] = PartitionQueue(partition)
        return found

    def accept(
        self,
        partition: TopicPartition,
        data: Buffer,
        now_ms: int,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Queues a sealed batch of this identity. Its bytes must not change until `done`."""
        self.check()
        batch = read_header(data)
        identity = self.identity
        assert batch.size_bytes == len(data), "one batch at a time"
        assert (batch.producer_id, batch.producer_epoch) == (
            identity.producer_id,
            identity.producer_epoch,
        ), (
            f"the batch is sealed for producer {batch.producer_id}/{batch.producer_epoch}, not "
            f"for {identity}"
        )
        assert batch.is_transactional == (identity.transactional_id is not None)
        assert batch.record_count == batch.last_offset_delta + 1 > 0
        self.queue_of(partition).accept(batch, now_ms + self.delivery_timeout_ms, done)
        self.unacknowledged_bytes += batch.size_bytes

    def check(self) -> None:
        """Raises the earlier failure, if any: what was in flight then may still arrive."""
        if self.failure is not None:
            raise self.failure

    def results(self) -> dict[TopicPartition, Written]:
        """Returns what was acknowledged in each partition."""
        return {partition: queue.written for partition, queue in self.queues.items()}

    # What to send.

    def busy_queues(self) -> list[PartitionQueue]:
        """Returns the queues with waiting batches."""
        return [queue for queue in self.queues.values() if queue.waiting]

    def due(
        self, now_ms: int, leader_of: Callable[[TopicPartition], Endpoint | None]
    ) -> list[Shipment]:
        """Returns the requests that may be sent now, and marks their batches as in flight."""
        room = self._room()
        shipments: dict[Endpoint, list[tuple[PartitionQueue, PendingBatch]]] = {}
        sizes: dict[Endpoint, int] = {}
        for queue in self.busy_queues():
            leader = leader_of(queue.partition)
            if leader is None or room.get(leader, self._window) <= 0:
                continue
            if not queue.is_ready(now_ms, self._window, leader):
                continue
            size = queue.waiting[0].batch.size_bytes + _REQUEST_OVERHEAD_BYTES
            # A single batch above the limit is sent alone; the broker decides.
            if sizes.get(leader, 0) and sizes[leader] + size > self._max_request_bytes:
                continue
            sizes[leader] = sizes.get(leader, 0) + size
            shipments.setdefault(leader, []).append((queue, queue.dispatch(leader)))
        return [Shipment(endpoint, batches) for endpoint, batches in shipments.items()]

    def _room(self) -> dict[Endpoint, int]:
        """Returns how many more requests may be sent to each broker."""
        room: dict[Endpoint, int] = {}
        for shipment in self.shipments.values():
            room[shipment.endpoint] = room.get(shipment.endpoint, self._window) - 1
        return room

    def next_event_ms(self, now_ms: int) -> int | None:
        """Returns when the next backoff ends or the next batch expires; None if neither."""
        times = [
            queue.not_before_ms for queue in self.busy_queues() if queue.not_before_ms > now_ms
        ]
        times += [
            t for queue in self.queues.values() if (t := queue.oldest_expiry_ms()) is not None
        ]
        return min(times, default=None)

    # Answers.

    def sent(self, ticket: int, shipment: Shipment) -> None:
        """Notes the ticket of a request that was sent."""
        self.shipments[ticket] = shipment

    def acknowledged(self, queue: PartitionQueue, pending: PendingBatch, base_offset: int) -> None:
        """Notes that a batch was written, and calls its `done`."""
        queue.acknowledge(pending, base_offset)
        self.unacknowledged_bytes -= pending.batch.size_bytes
        if pending.done is not None:
            pending.done()

    def lost(self, shipment: Shipment, reason: str, not_before_ms: int) -> None:
        """Queues a lost request's batches again, unchanged: they may have been written."""
        for queue, pending in shipment.batches:
            pending.is_doubtful = True
            queue.give_back(pending, reason)
            self._back_off(queue, not_before_ms)

    def withdraw(self) -> bool:
        """Forgets a refused batch, so that others may be written; returns False if that is unsafe.

        It is safe if the batch was alone, and no earlier attempt can have been written: then the
        broker does not know its sequence numbers, and the next batch has them.
        """
        busy = [queue for queue in self.queues.values() if queue.in_flight or queue.waiting]
        if not isinstance(self.failure, Refused) or len(busy) != 1:
            return False
        (queue,) = busy
        pending = queue.in_flight[0] if queue.in_flight else queue.waiting[0]
        if len(queue.in_flight) != 1 or queue.waiting or pending.is_doubtful:
            return False
        queue.in_flight.clear()
        queue.next_sequence = pending.batch.base_sequence
        self.unacknowledged_bytes -= pending.batch.size_bytes
        self.failure = None
        return True

    def judge(
        self, queue: PartitionQueue, pending: PendingBatch, code: int, message: str | None
    ) -> Reaction:
        """Returns the reaction to a batch's error code. A fatal code ends the writer."""
        verdict = reaction(ApiKey.PRODUCE, code)
        if verdict is Reaction.SUCCEED:
            return verdict
        if verdict.is_retriable:
            pending.is_doubtful = pending.is_doubtful or code not in _NEVER_WRITTEN
            return verdict
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not queue.is_oldest(pending):
            return Reaction.RETRY
        about = f"{queue.partition} by {self.identity}"
        self.failure = refusal(
            "Produce", code, about=about, message=message, partition=queue.partition
        )
        if isinstance(self.failure, BatchRefusedForSize):
            self.failure.records = pending.batch.record_count
            self.failure.size_bytes = pending.batch.size_bytes
        raise self.failure

    def retry(
        self, queue: PartitionQueue, pending: PendingBatch, reason: str, not_before_ms: int
    ) -> None:
        """Queues a batch again after a retriable error."""
        queue.give_back(pending, reason)
        self._back_off(queue, not_before_ms)

    def _back_off(self, queue: PartitionQueue, not_before_ms: int) -> None:
        queue.not_before_ms = max(queue.not_before_ms, not_before_ms)
        # Count only the oldest batch's failure; failures behind it are consequences.
        if not queue.in_flight:
            queue.tries += 1

    def expire(self, now_ms: int) -> None:
        """Ends the writer if a batch is older than delivery.timeout.ms."""
        for queue in self.queues.values():
            expires_ms = queue.oldest_expiry_ms()
            if expires_ms is not None and now_ms >= expires_ms:
                what = f"Produce to {queue.partition} by {self.identity}"
                self.failure = RetriesExhausted(what, self.delivery_timeout_ms, queue.last_answer)
                raise self.failure


def unadded(queues: Iterable[PartitionQueue]) -> list[TopicPartition]:
    """TV1: returns the partitions that must be added to the transaction before a write."""
    return [queue.partition for queue in queues if not queue.is_added]
