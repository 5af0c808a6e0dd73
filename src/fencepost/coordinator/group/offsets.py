"""Committed offsets, and the pending offsets of open transactions.

Every offset carries the log offset of its record. A transaction commits by a marker that may come
long after its offsets, and a plain commit for the same partition may come in between. The later
record wins, so the result does not depend on whether the log was compacted before it was read. A
tombstone removes the committed offset and all pending offsets of the partition.

`writers` is the inverse of `pending`, for OffsetFetch, which asks about one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.records.group_log import OffsetKey, OffsetValue


class Stored(NamedTuple):
    """An offset, and the log offset of its record."""

    value: OffsetValue
    record_offset: int


_NOTHING: Final[Mapping[TopicPartition, Stored]] = {}
_NO_WRITERS: Final[Mapping[TopicPartition, set[int]]] = {}


@dataclass(slots=True)
class Offsets:
    """The offsets of all groups of one coordinator partition."""

    committed: dict[str, dict[TopicPartition, Stored]] = field(default_factory=dict)
    pending: dict[int, dict[OffsetKey, Stored]] = field(default_factory=dict)
    """By producer id: the offsets that its open transaction would commit."""
    writers: dict[str, dict[TopicPartition, set[int]]] = field(default_factory=dict)
    """By group and partition: the producer ids with a pending offset."""

    # -- looking

    def of_group(self, group_id: str) -> Mapping[TopicPartition, Stored]:
        """The committed offsets of a group."""
        return self.committed.get(group_id, _NOTHING)

    def pending_of_group(self, group_id: str) -> Mapping[TopicPartition, set[int]]:
        """The producer ids with pending offsets in a group, by partition."""
        return self.writers.get(group_id, _NO_WRITERS)

    def get(self, key: OffsetKey) -> Stored | None:
        """The committed offset of a partition, if any."""
        return self.of_group(key.group_id).get(key.partition)

    def is_pending(self, key: OffsetKey) -> bool:
        """Whether an open transaction has an offset for the partition."""
        return key.partition in self.pending_of_group(key.group_id)

    def known_partitions(self, group_id: str) -> Iterator[TopicPartition]:
        """Every partition with a committed or pending offset, once."""
        committed = self.of_group(group_id)
        yield from committed
        yield from (name for name in self.pending_of_group(group_id) if name not in committed)

    def all_of(self, key: OffsetKey) -> Iterator[Stored]:
        """The committed offset of a partition and its pending ones."""
        if (committed := self.get(key)) is not None:
            yield committed
        for producer_id in self.pending_of_group(key.group_id).get(key.partition, ()):
            yield self.pending[producer_id][key]

    # -- applying

    def commit(self, key: OffsetKey, stored: Stored) -> None:
        """Set the committed offset of a partition."""
        self.committed.setdefault(key.group_id, {})[key.partition] = stored

    def hold(self, producer_id: int, key: OffsetKey, stored: Stored) -> None:
        """Keep an offset as pending until its transaction ends."""
        self.pending.setdefault(producer_id, {})[key] = stored
        self.writers.setdefault(key.group_id, {}).setdefault(key.partition, set()).add(producer_id)

    def clear(self, key: OffsetKey) -> None:
        """Apply a tombstone."""
        committed = self.committed.get(key.group_id, {})
        if committed.pop(key.partition, None) is not None and not committed:
            del self.committed[key.group_id]
        for producer_id in tuple(self.pending_of_group(key.group_id).get(key.partition, ())):
            self._release(producer_id, key)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a marker: COMMIT commits pending offsets unless a later record won."""
        for key, stored in tuple(self.pending.get(producer_id, {}).items()):
            self._release(producer_id, key)
            known = self.get(key)
            if commit and (known is None or stored.record_offset > known.record_offset):
                self.commit(key, stored)

    def _release(self, producer_id: int, key: OffsetKey) -> None:
        held = self.pending[producer_id]
        del held[key]
        if not held:
            del self.pending[producer_id]
        partitions = self.writers[key.group_id]
        partitions[key.partition].discard(producer_id)
        if not partitions[key.partition]:
            del partitions[key.partition]
        if not partitions:
            del self.writers[key.group_id]
