"""A transactional producer made of plain requests, in both protocols, and a reader.

    producer = WireProducer(client, "refunds-1", TV1).initialise()
    producer.send("refunds", b"a")          AddPartitionsToTxn if needed, then Produce
    producer.commit()

`client` sends a request and waits for its reply: a socket (`tests/broker/raw.py`), or the stage of
a broker on a virtual clock (`tests/broker/node_stage.py`). `commit`, `abort` and methods that begin
with `send` must succeed. Every other method returns the error of the reply, and keeps only the
state that a client would.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, coordinator_partition
from fencepost.coordinator.txn.apply import read_entry
from fencepost.records.batch import SealedBatch, split_batches
from fencepost.records.control import read_marker
from fencepost.records.entry import Entry
from fencepost.records.opened import Record, open_batch
from fencepost.records.transaction_log import STATE_NAMES, TransactionMetadata
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.raw import PATIENCE_SECONDS
from tests.broker.requests import batch_of, fetch, topic_id
from tests.transactions.protocol import TV1, Protocol
from tests.transactions.requests import (
    add_offsets_request,
    add_request,
    commit_offsets_request,
    end_request,
    init_request,
    list_offsets_request,
    offset_fetch_request,
    produce_request,
    transaction_of,
)

if TYPE_CHECKING:
    from fencepost.wire.forms.end_txn import EndTxnRequest
    from tests.broker.requests import Client

NONE: Final = ErrorCode.NONE
FIRST_OFFSETS_BY_ID: Final = 6
"""The first version of TxnOffsetCommit with topic ids."""
RETRY_PAUSE_SECONDS: Final = 0.001
"""Pause between two attempts over a socket. On a stage the virtual clock moves instead."""
RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
READ_COMMITTED: Final = 1
GROUP: Final = 0
TRANSACTION: Final = 1


ADD_PARTITIONS_VERSION: Final = 3
ADD_OFFSETS_VERSION: Final = 4


class WireProducer:
    """One transactional producer, made of its requests."""

    def __init__(self, client: Client, transactional_id: str, protocol: Protocol = TV1) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = defaultdict(int)
        self._joined: set[object] = set()

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    def twin(self, client: Client | None = None) -> WireProducer:
        """A copy of the producer as it is now, with the identity of a delayed request."""
        twin = WireProducer(client or self.client, self.transactional_id, self.protocol)
        twin.producer_id, twin.epoch = self.identity
        twin.sequences.update(self.sequences)
        twin._joined.update(self._joined)
        return twin

    # -- requests ----------------------------------------------------------------------------------

    def init(self, *, version: int | None = None, **given: int) -> int:
        """InitProducerId; a success sets producer id and epoch."""
        request = init_request(self.transactional_id, **given)
        version = self.protocol.init if version is None else version
        reply = self.client.call(ApiKey.INIT_PRODUCER_ID, version, request)
        if reply.error_code == NONE:
            self._take(reply.producer_id, reply.producer_epoch)
        return int(reply.error_code)

    def _take(self, producer_id: int, epoch: int) -> None:
        if self.identity != (producer_id, epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch
        self._joined.clear()

    def add(
        self, *names: tuple[str, int], version: int = ADD_PARTITIONS_VERSION
    ) -> dict[tuple[str, int], int]:
        """AddPartitionsToTxn as a client sends it; the error of every partition."""
        topics: dict[str, list[int]] = {}
        for topic, index in names:
            topics.setdefault(topic, []).append(index)
        request = add_request(transaction_of(self, topics))
        reply = self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        return {
            (topic.name, result.partition_index): result.partition_error_code
            for transaction in reply.results_by_transaction
            for topic in transaction.topic_results
            for result in topic.results_by_partition
        }

    def add_one(self, topic: str, index: int = 0, version: int = ADD_PARTITIONS_VERSION) -> int:
        (error,) = self.add((topic, index), version=version).values()
        return error

    def add_offsets(self, group: str, version: int = ADD_OFFSETS_VERSION) -> int:
        """AddOffsetsToTxn."""
        request = add_offsets_request(self, group)
        return int(self.client.call(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code)

    def batch(self, *values: bytes, topic: str = "", index: int = 0, **fields: Any) -> bytearray:
        """The next batch of this producer for one partition."""
        given: dict[str, Any] = {
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "sequence": self.sequences[topic, index],
            "transactional": True,
            **fields,
        }
        return batch_of(*values, **given)

    def produce_request(self, topic: str, *values: bytes, index: int = 0, **fields: Any) -> Any:
        return produce_request(
            {(topic, index): self.batch(*values, topic=topic, index=index, **fields)},
            transactional_id=self.transactional_id,
        )

    def produce(
        self, topic: str, *values: bytes, index: int = 0, version: int | None = None, **fields: Any
    ) -> Any:
        """Produce of one batch, without AddPartitionsToTxn; the partition's part of the reply."""
        request = self.produce_request(topic, *values, index=index, **fields)
        version = self.protocol.produce if version is None else version
        reply = self.client.call(ApiKey.PRODUCE, version, request)
        told = reply.responses[0].partition_responses[0]
        if told.error_code == NONE:
            self.sequences[topic, index] += max(1, len(values))
        return told

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        version: int | None = None,
        **fields: Any,
    ) -> dict[tuple[str, int], int]:
        """TxnOffsetCommit; the error of every partition. From v6 on, topics are sent by id."""
        request = commit_offsets_request(self, group, offsets, **fields)
        version = self.protocol.txn_offset_commit if version is None else version
        by_id = version >= FIRST_OFFSETS_BY_ID
        names: dict[object, str] = {}
        for topic in request.topics:
            if by_id:
                topic.topic_id = topic_id(self.client, topic.name)
            names[topic.topic_id if by_id else topic.name] = topic.name
        reply = self.client.call(ApiKey.TXN_OFFSET_COMMIT, version, request)
        return {
            (names[topic.topic_id if by_id else topic.name], result.partition_index): (
                result.error_code
            )
            for topic in reply.topics
            for result in topic.partitions
        }

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return end_request(self, commit=commit)

    def end(self, *, commit: bool, version: int | None = None) -> int:
        """EndTxn; a success sets producer id and epoch."""
        version = self.protocol.end_txn if version is None else version
        reply = self.client.call(ApiKey.END_TXN, version, self.end_request(commit=commit))
        if reply.error_code == NONE:
            self.ended(reply)
        return int(reply.error_code)

    def ended(self, reply: Any) -> None:
        """Applies a successful EndTxn: TV2 continues with another epoch."""
        self._joined.clear()
        if reply.producer_id >= 0:
            self._take(reply.producer_id, reply.producer_epoch)

    # -- what a client library does ----------------------------------------------------------------

    def initialise(self, **given: Any) -> Self:
        """init_transactions: finds the coordinator, and retries while an older transaction ends."""
        await_coordinator(self.client, self.transactional_id)
        retried(self.client, lambda: self.init(**given))
        return self

    def join(self, *names: tuple[str, int]) -> None:
        """Adds the partitions to the transaction, if the protocol needs it."""
        new = [name for name in names if name not in self._joined]
        if self.protocol.adds_explicitly and new:
            errors = self.add(*new)
            assert set(errors.values()) == {NONE}, errors
        self._joined.update(new)

    def send(self, topic: str, *values: bytes, index: int = 0) -> int:
        """Sends one batch; returns its base offset."""
        self.join((topic, index))
        told = self.produce(topic, *values, index=index)
        assert told.error_code == NONE, ErrorCode(told.error_code)
        return int(told.base_offset)

    def send_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], **fields: Any
    ) -> None:
        """send_offsets_to_transaction."""
        await_coordinator(self.client, group, GROUP)
        if self.protocol.adds_explicitly:
            retried(self.client, lambda: self.add_offsets(group))
        retried(self.client, lambda: max(self.commit_offsets(group, offsets, **fields).values()))

    def commit(self) -> None:
        assert self.end(commit=True) == NONE

    def abort(self) -> None:
        assert self.end(commit=False) == NONE


def find_coordinator(client: Client, key: str, key_type: int = TRANSACTION) -> Any:
    """FindCoordinator of one key; transactional ids (1) and groups (0)."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    return client.call(ApiKey.FIND_COORDINATOR, 6, request).coordinators[0]


def await_coordinator(client: Client, key: str, key_type: int = TRANSACTION) -> None:
    """Finds the coordinator, with retries: its topic is created on first use."""
    retried(client, lambda: int(find_coordinator(client, key, key_type).error_code))


def retried(client: Client, attempt: Callable[[], int]) -> None:
    """Retries until it succeeds, as clients do with retriable errors; other errors are failures.

    Limited by time and not by attempts, because a slow disk may need many attempts.
    """
    pause = getattr(client, "settle", lambda: time.sleep(RETRY_PAUSE_SECONDS))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (error := attempt()) != NONE:
        assert error in RETRIABLE, ErrorCode(error)
        assert time.monotonic() < deadline, f"still {ErrorCode(error).name}"
        pause()


# -- reading ---------------------------------------------------------------------------------------


class Consumed(NamedTuple):
    """What a consumer sees in one pass over a partition."""

    records: list[Record]
    markers: list[tuple[int, bool]]
    """(offset, whether it was a commit)."""
    offset: int
    """Where the next fetch would begin."""

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


def consume(
    client: Client, topic: str, *, index: int = 0, offset: int = 0, committed: bool = True
) -> Consumed:
    """Reads to the end as a consumer does; with `committed` drops the aborted records."""
    seen = Consumed([], [], offset)
    while True:
        got = fetch(
            client, topic, seen.offset, index=index, isolation_level=READ_COMMITTED * committed
        )
        assert got.error_code == NONE, ErrorCode(got.error_code)
        batches = split_batches(got.records or b"")
        if not batches:
            return seen
        aborted = sorted((t.first_offset, t.producer_id) for t in got.aborted_transactions or ())
        seen = _take_batches(seen, batches, aborted)


def _take_batches(
    seen: Consumed, batches: list[SealedBatch], aborted: list[tuple[int, int]]
) -> Consumed:
    """Drops a producer from its first aborted offset to its ABORT marker, as every client does."""
    dropping: set[int] = set()
    for batch in batches:
        while aborted and aborted[0][0] <= batch.last_offset:
            dropping.add(aborted.pop(0)[1])
        if batch.is_control:
            marker = read_marker(batch)
            if marker is None:
                # Compaction leaves an empty marker if the producer's epoch must be kept.
                assert batch.record_count == 0
                continue
            seen.markers.append((batch.base_offset, marker.commit))
            if not marker.commit:
                dropping.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in dropping):
            seen.records.extend(r for r in open_batch(batch) if r.offset >= seen.offset)
    return seen._replace(offset=batches[-1].next_offset)


def values(client: Client, topic: str, **more: Any) -> list[bytes | None]:
    """The values that a consumer of one partition gets."""
    return consume(client, topic, **more).values


def end_offset(client: Client, topic: str, *, index: int = 0, committed: bool = True) -> int:
    """ListOffsets(latest): the high watermark, or the last stable offset."""
    return offset_at(client, topic, -1, index=index, committed=committed)


def offset_at(
    client: Client, topic: str, timestamp_ms: int, *, index: int = 0, committed: bool = True
) -> int:
    request = list_offsets_request(
        topic, timestamp_ms, index=index, isolation_level=READ_COMMITTED * committed
    )
    told = client.call(ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0]
    assert told.error_code == NONE, ErrorCode(told.error_code)
    return int(told.offset)


def committed_offsets(
    client: Client, group: str, topic: str, *indexes: int, stable: bool = False
) -> list[Any]:
    """The OffsetFetch reply for each partition."""
    request = offset_fetch_request(group, topic, *indexes, stable=stable)
    (told,) = client.call(ApiKey.OFFSET_FETCH, 8, request).groups
    assert told.error_code == NONE, ErrorCode(told.error_code)
    return list(told.topics[0].partitions)


def committed_offset(client: Client, group: str, topic: str, index: int = 0) -> int:
    """The committed offset of a partition, which must be stable."""
    (told,) = committed_offsets(client, group, topic, index, stable=True)
    assert told.error_code == NONE, ErrorCode(told.error_code)
    return int(told.committed_offset)


def describe(client: Client, transactional_id: str) -> Any:
    """DescribeTransactions of one id."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states[0]


def state_of(client: Client, transactional_id: str) -> str:
    told = describe(client, transactional_id)
    assert told.error_code == NONE, ErrorCode(told.error_code)
    return str(told.transaction_state)


def transaction_log(client: Client, transactional_id: str) -> list[TransactionMetadata | None]:
    """Every record of an id in __transaction_state, in log order; None is a tombstone."""
    index = coordinator_partition(
        transactional_id, partition_count(client, TRANSACTION_STATE_TOPIC)
    )
    found = []
    for record in consume(client, TRANSACTION_STATE_TOPIC, index=index).records:
        read = read_entry(Entry(record.offset, -1, -1, False, record.key, record.value))
        assert read is not None
        if read.transactional_id == transactional_id:
            found.append(read.metadata)
    return found


def logged_states(client: Client, transactional_id: str) -> list[str | None]:
    """The names of the states of an id, from its log."""
    return [
        None if metadata is None else STATE_NAMES[metadata.state]
        for metadata in transaction_log(client, transactional_id)
    ]


def partition_count(client: Client, topic: str) -> int:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    return len(client.call(ApiKey.METADATA, 9, request).topics[0].partitions)
