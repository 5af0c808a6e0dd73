"""A client whose partitions are lists of batches: logs that no broker would write on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition, coordinator_partition
from fencepost.client.admin import ClusterView, PartitionView, TopicView, TransactionView
from fencepost.client.failures import refusal
from fencepost.client.fetched import FetchedPartition
from fencepost.client.reading import EARLIEST, LATEST, ListedOffset
from fencepost.records.batch import SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.records.transaction_log import TransactionMetadata, encode_key, encode_value


def state_batch(
    offset: int,
    transactional_id: str,
    found: TransactionMetadata | bytes | None,
    *,
    at_ms: int = 1_000,
    leader_epoch: int = 0,
) -> SealedBatch:
    """A record of `__transaction_state` at an offset; bytes are a value as they are."""
    value = encode_value(found) if isinstance(found, TransactionMetadata) else found
    record = Record(0, at_ms, encode_key(transactional_id), value)
    batch = read_header(bytearray(build_batch([record], timestamp_ms=at_ms)))
    batch.assign(offset, leader_epoch)
    return batch


@dataclass
class FakeCluster:
    """What the looks of `forensics` use of a client."""

    logs: dict[TopicPartition, list[SealedBatch]]
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    views: dict[str, TransactionView] = field(default_factory=dict)
    refused: dict[str, ErrorCode] = field(default_factory=dict)
    """By topic: reading it fails."""
    fetches: int = 0
    batches_per_fetch: int = 1
    partitions: int = 3

    def metadata(self, topics: Any = None, *, missing_ok: bool = False) -> ClusterView:
        view = PartitionView(0, 1, 0, (1,), (1,))
        found = {
            name: TopicView(name, bytes(16), True, (view,) * self.partitions)
            for name in {partition.topic for partition in self.logs}
        }
        return ClusterView("c", 1, {}, found)

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: str | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        return {each: ListedOffset(self._offset(each, at), -1, 0) for each, at in times.items()}

    def _offset(self, partition: TopicPartition, time: int) -> int:
        log = self._log(partition)
        if time == EARLIEST:
            return log[0].base_offset if log else 0
        if time == LATEST:
            return self.end(partition)
        return next((each.base_offset for each in log if each.max_timestamp >= time), -1)

    def end(self, partition: TopicPartition) -> int:
        log = self._log(partition)
        return self.ends.get(partition, log[-1].next_offset if log else 0)

    def _log(self, partition: TopicPartition) -> list[SealedBatch]:
        if code := self.refused.get(partition.topic):
            raise refusal("Fetch", code, partition=partition)
        return self.logs.get(partition, [])

    def fetch(
        self, offsets: Mapping[TopicPartition, int], **_: Any
    ) -> dict[TopicPartition, FetchedPartition]:
        self.fetches += 1
        found = {}
        for partition, position in offsets.items():
            log = self._log(partition)
            if log and position < log[0].base_offset:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
                raise refusal("Fetch", code, partition=partition)
            batches = [each for each in log if each.last_offset >= position]
            end = self.end(partition)
            found[partition] = FetchedPartition(
                partition, position, end, end, 0, batches[: self.batches_per_fetch], ()
            )
        return found

    def describe_transactions(self, ids: list[str]) -> dict[str, TransactionView | None]:
        return {each: self.views.get(each) for each in ids}


def log_of(transactional_id: str, partitions: int = 3) -> TopicPartition:
    index = coordinator_partition(transactional_id, partitions)
    return TopicPartition(TRANSACTION_STATE_TOPIC, index)
