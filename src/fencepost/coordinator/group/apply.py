"""The only code that changes state that the log holds: right after an append, and at load.

A record is the complete value of its key, so the state is a function of the last record per key.
Only pending offsets also need the markers after them, and Kafka's cleaner never compacts past an
open transaction.
"""

from __future__ import annotations

from fencepost.base.failures import WireError
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.group import WHEN_WRITTEN, Group
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.offsets import Stored
from fencepost.records.entry import Entry
from fencepost.records.group_log import (
    GroupRecord,
    LogRecord,
    OffsetRecord,
    decode_record,
)


def apply_entry(state: GroupCoordinatorState, entry: Entry) -> None:
    """Apply one entry of the log; records of other kinds of groups are skipped."""
    if entry.marker is not None:
        state.offsets.end_transaction(entry.producer_id, commit=entry.marker.commit)
        return
    if entry.key is None:
        raise WireError(f"the record at {entry.offset} has no key")
    record = decode_record(entry.key, entry.value)
    if record is not None:
        apply_record(state, record, entry.offset, entry.producer_id)


def stamped(record: LogRecord, now_ms: int) -> LogRecord:
    """The record as it is written: a new state of a group gets this time of the broker's clock."""
    if not isinstance(record, GroupRecord) or record.value is None:
        return record
    if record.value.state_timestamp_ms != WHEN_WRITTEN:
        return record
    return GroupRecord(record.key, record.value._replace(state_timestamp_ms=now_ms))


def apply_record(
    state: GroupCoordinatorState, record: LogRecord, record_offset: int, producer_id: int = -1
) -> None:
    """Apply the record at `record_offset`; with a producer id, an offset becomes pending."""
    if isinstance(record, OffsetRecord):
        _apply_offset(state, record, record_offset, producer_id)
    else:
        _apply_group(state, record)


def _apply_offset(
    state: GroupCoordinatorState, record: OffsetRecord, record_offset: int, producer_id: int
) -> None:
    key, value = record
    if value is None:
        state.offsets.clear(key)
        return
    if key.group_id not in state.groups:
        # Offsets without a group belong to a "simple" one, which assigns its partitions itself.
        state.groups[key.group_id] = Group(key.group_id, NO_TIMESTAMP)
    stored = Stored(value, record_offset)
    if producer_id < 0:
        state.offsets.commit(key, stored)
    else:
        state.offsets.hold(producer_id, key, stored)


def _apply_group(state: GroupCoordinatorState, record: GroupRecord) -> None:
    group_id, value = record.key.group_id, record.value
    group = state.groups.get(group_id)
    if value is None:
        if group is not None:
            group.become(State.DEAD, group.state_timestamp_ms)
            del state.groups[group_id]
        return
    if group is None or state.is_loading:
        group = state.groups[group_id] = Group.from_value(group_id, value)
    else:
        group.install(value)
    group.logged = value
