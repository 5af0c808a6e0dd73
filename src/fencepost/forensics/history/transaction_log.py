"""Reads `__transaction_state`: the history of one id, or new records as they are written.

An id lives in one partition of the topic. Its batches are scanned as they come; a batch is opened
only if its bytes contain the key, so a partition with the records of thousands of ids is read at
the speed of the fetches. Records of a later version of the schema are kept as unreadable: the state
is not known, but that there was a change is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError, WireError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition, coordinator_partition
from fencepost.client.failures import OffsetOutOfRange, Refused
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.forensics.history.state_changes import History, StateChange
from fencepost.forensics.logs.partition_reading import (
    Budget,
    Progress,
    Range,
    log_bounds,
    no_progress,
    read_range,
)
from fencepost.records.opened import iterate_records
from fencepost.records.transaction_log import decode_key, decode_value, encode_key

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.records.batch import SealedBatch
    from fencepost.records.opened import Record

_DENIED: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


class NoTransactionLogError(FencepostError):
    """`__transaction_state` cannot be read here; the message says why."""


def _partition_count(cluster: Cluster) -> int:
    try:
        topic = cluster.metadata([TRANSACTION_STATE_TOPIC], missing_ok=True).topics.get(
            TRANSACTION_STATE_TOPIC
        )
    except Refused as problem:
        raise _unreadable(problem) from problem
    if topic is None or not topic.partitions:
        raise NoTransactionLogError(
            f"The cluster has no topic {TRANSACTION_STATE_TOPIC}: no transaction was ever begun."
        )
    return len(topic.partitions)


def _unreadable(problem: Refused) -> FencepostError:
    if problem.code not in _DENIED:
        return problem
    return NoTransactionLogError(
        f"This user may not read {TRANSACTION_STATE_TOPIC}: grant READ and DESCRIBE on it."
    )


def read_history(
    cluster: Cluster,
    transactional_id: str,
    budget: Budget | None = None,
    progress: Progress = no_progress,
) -> History:
    """Reads all records of an id that are left.

    NoTransactionLogError if the topic is missing or this user may not read it.
    """
    index = coordinator_partition(transactional_id, _partition_count(cluster))
    partition = TopicPartition(TRANSACTION_STATE_TOPIC, index)
    try:
        start, end = log_bounds(cluster, partition)
        wanted = Range(partition, start, end)
        found = _Scan(encode_key(transactional_id), start)
        for fetched in read_range(cluster, wanted, budget or Budget(), progress=progress):
            for batch in fetched.batches:
                found.add(batch)
    except Refused as problem:
        raise _unreadable(problem) from problem
    return History(
        transactional_id,
        partition,
        tuple(found.changes),
        start,
        end,
        wanted.reached,
        found.removed,
    )


class _Scan:
    """Collects the records with one key, and counts what compaction removed."""

    def __init__(self, key: bytes, start: int) -> None:
        self._key = key
        self._next_offset = start
        self.changes: list[StateChange] = []
        self.removed = 0

    def add(self, batch: SealedBatch) -> None:
        self.removed += max(0, batch.base_offset - self._next_offset)
        self.removed += max(0, batch.last_offset_delta + 1 - batch.record_count)
        self._next_offset = batch.next_offset
        if batch.is_control or (batch.codec == 0 and self._key not in bytes(batch.data)):
            return
        for record in iterate_records(batch):
            if record.key == self._key:
                self.changes.append(read_change(batch, record))


def read_change(batch: SealedBatch, record: Record) -> StateChange:
    """Reads one record; one that cannot be read says why."""
    metadata, problem = None, None
    if record.value is not None:
        try:
            metadata = decode_value(record.value)
            if metadata is None:
                version = int.from_bytes(record.value[:2], "big", signed=True)
                problem = f"version {version} of the schema, which this fencepost does not know"
        except WireError as damage:
            problem = str(damage)
    return StateChange(record.offset, record.timestamp_ms, batch.leader_epoch, metadata, problem)


# -- tailing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TailedChange:
    """A new record of `__transaction_state`."""

    transactional_id: str
    change: StateChange


class TransactionLogTail:
    """Follows `__transaction_state` from now on."""

    def __init__(self, cluster: Cluster) -> None:
        """Begins at the end of the log; NoTransactionLogError if it cannot be read."""
        self._cluster = cluster
        partitions = [
            TopicPartition(TRANSACTION_STATE_TOPIC, index)
            for index in range(_partition_count(cluster))
        ]
        self.positions = self._look_up(dict.fromkeys(partitions, LATEST))

    def _look_up(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        try:
            listed = self._cluster.list_offsets(times, isolation="read_uncommitted")
        except Refused as problem:
            raise _unreadable(problem) from problem
        return {partition: found.offset for partition, found in listed.items()}

    def poll(self, max_wait_ms: int = 500) -> list[TailedChange]:
        """Returns the records since the last poll, waiting a while for the first."""
        try:
            fetched = self._cluster.fetch(
                self.positions, isolation="read_uncommitted", max_wait_ms=max_wait_ms
            )
        except OffsetOutOfRange as problem:
            # Retention or a recreated topic: go on where the log starts now.
            lost = self.positions if problem.partition is None else [problem.partition]
            self.positions |= self._look_up(dict.fromkeys(lost, EARLIEST))
            return []
        except Refused as problem:
            raise _unreadable(problem) from problem
        found: list[TailedChange] = []
        for partition, part in fetched.items():
            for batch in part.batches:
                found += self._changes(partition, batch)
            self.positions[partition] = part.next_offset
        return found

    def _changes(self, partition: TopicPartition, batch: SealedBatch) -> Iterator[TailedChange]:
        if batch.is_control:
            return
        for record in iterate_records(batch):
            if record.offset < self.positions[partition] or record.key is None:
                continue
            transactional_id = decode_key(record.key)
            if transactional_id is not None:
                yield TailedChange(transactional_id, read_change(batch, record))
