"""The records of a group coordinator's checkpoint: applied in this order, they give the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.records.coordinator_checkpoint import SavedRecord
from fencepost.records.group_log import (
    GroupKey,
    GroupValue,
    OffsetKey,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.base.ids import TopicPartition
    from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
    from fencepost.coordinator.group.offsets import Stored

    Committed = dict[TopicPartition, Stored]
    Pending = list[tuple[int, OffsetKey, Stored]]


def saved_records(state: GroupCoordinatorState) -> Iterator[SavedRecord]:
    """The records of the state as it is now, encoded one by one.

    Values never change in place, so it is enough to copy the dictionaries. The order of the groups
    is kept: an offset creates its group.
    """
    offsets = state.offsets
    pending: dict[str, Pending] = {}
    for producer_id, held in offsets.pending.items():
        for key, stored in held.items():
            pending.setdefault(key.group_id, []).append((producer_id, key, stored))
    ids = dict.fromkeys([*state.groups, *offsets.committed, *pending])
    groups = [
        (
            group_id,
            group.logged if (group := state.groups.get(group_id)) is not None else None,
            dict(offsets.of_group(group_id)),
            pending.get(group_id, []),
            group is None,
        )
        for group_id in ids
    ]
    return _encoded(groups)


def _encoded(
    groups: list[tuple[str, GroupValue | None, Committed, Pending, bool]],
) -> Iterator[SavedRecord]:
    for group_id, logged, committed, pending, is_gone in groups:
        if logged is not None:
            yield SavedRecord(encode_group_key(GroupKey(group_id)), encode_group(logged))
        for partition, stored in committed.items():
            key = encode_offset_key(OffsetKey(group_id, partition))
            yield SavedRecord(key, encode_offset(stored.value), stored.record_offset)
        for producer_id, name, stored in pending:
            key = encode_offset_key(name)
            yield SavedRecord(key, encode_offset(stored.value), stored.record_offset, producer_id)
        if is_gone:
            # A tombstone has removed the group, and offsets remain.
            yield SavedRecord(encode_group_key(GroupKey(group_id)), None)


def count_records(state: GroupCoordinatorState) -> int:
    """About the number of records in a checkpoint."""
    return len(state.groups) + sum(map(len, state.offsets.committed.values()))
