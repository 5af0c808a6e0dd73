"""The only way in which what the log holds changes: live, right after an append, and at load.

A record is the whole truth about its key, so the state is a function of the last record per key;
only pending offsets also need the markers behind them, and Kafka's cleaner never compacts past an
open transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.failures import WireError
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.coordinator.group.group import Group
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.offsets import Stored
from fencepost.records.group_log import (
    GroupRecord,
    LogRecord,
    OffsetRecord,
    decode_record,
)

if TYPE_CHECKING:
    from fencepost.coordinator.group.state import GroupState
    from fencepost.records.entry import Entry


def apply_entry(state: GroupState, entry: Entry) -> None:
    """Applies one entry of the log; what another Kafka wrote for other kinds of groups is passed over."""
    if entry.marker is not None:
        state.offsets.end_transaction(entry.producer_id, commit=entry.marker.commit)
        return
    if entry.key is None:
        raise WireError(f"the record at {entry.offset} has no key")
    record = decode_record(entry.key, entry.value)
    if record is not None:
        apply_record(state, record, entry.offset, entry.producer_id)


def apply_record(
    state: GroupState, record: LogRecord, record_offset: int, producer_id: int = -1
) -> None:
    """Applies a record that stands at `record_offset`; a producer id makes an offset a pending one."""
    if isinstance(record, OffsetRecord):
        _apply_offset(state, record, record_offset, producer_id)
    else:
        _apply_group(state, record)


def _apply_offset(
    state: GroupState, record: OffsetRecord, record_offset: int, producer_id: int
) -> None:
    key, value = record
    if value is None:
        state.offsets.clear(key)
        return
    if key.group_id not in state.groups:
        # Offsets without a group are those of a "simple" one, which assigns its partitions by
        # itself.
        state.groups[key.group_id] = Group(key.group_id, NO_TIMESTAMP)
    stored = Stored(value, record_offset)
    if producer_id < 0:
        state.offsets.commit(key, stored)
    else:
        state.offsets.hold(producer_id, key, stored)


def _apply_group(state: GroupState, record: GroupRecord) -> None:
    group_id, value = record.key.group_id, record.value
    group = state.groups.get(group_id)
    if value is None:
        if group is not None:
            group.become(State.DEAD, group.state_timestamp_ms)
            del state.groups[group_id]
    elif group is None or state.is_loading:
        state.groups[group_id] = Group.from_value(group_id, value)
    else:
        group.install(value)
