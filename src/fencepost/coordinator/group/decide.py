"""Decides the sequels of decisions, by type: the broker feeds them back after an append."""

from __future__ import annotations

from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decision import Decision, Sequel
from fencepost.coordinator.group.events import (
    AssignmentLost,
    AssignmentWritten,
    Join,
    StaticMemberReplaced,
)
from fencepost.coordinator.group.join import on_join, on_join_lost, on_static_member_replaced
from fencepost.coordinator.group.sync import on_assignment_lost, on_assignment_written


def on_sequel(state: GroupCoordinatorState, event: Sequel, now_ms: int) -> Decision:
    """Decide the event that follows an append."""
    if isinstance(event, Join):
        return on_join(state, event, now_ms)
    if isinstance(event, AssignmentWritten):
        return on_assignment_written(state, event, now_ms)
    if isinstance(event, AssignmentLost):
        return on_assignment_lost(state, event, now_ms)
    if isinstance(event, StaticMemberReplaced):
        return on_static_member_replaced(state, event, now_ms)
    return on_join_lost(event)
