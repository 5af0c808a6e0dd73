"""Places partitions on live brokers: one copy each, the least loaded broker first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_NEW_PARTITIONS
from fencepost.coordinator.metadata.events import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.coordinator.metadata.events import Decision
    from fencepost.coordinator.metadata.state import MetadataState


def place(state: MetadataState, count: int) -> list[int] | Decision:
    """Choose a leader for each of `count` new partitions."""
    if count <= 0:
        return refuse(
            ErrorCode.INVALID_PARTITIONS, f"A topic has at least one partition, not {count}."
        )
    if count > MAX_NEW_PARTITIONS:
        return refuse(
            ErrorCode.POLICY_VIOLATION,
            f"A request may create {MAX_NEW_PARTITIONS} partitions at most, not {count}.",
        )
    nodes = [broker.node_id for broker in state.live_brokers()]
    if not nodes:
        return refuse(ErrorCode.BROKER_NOT_AVAILABLE, "No broker is available.")
    if len(nodes) > 1:
        load = Counter(
            partition.leader for topic in state.topics.values() for partition in topic.partitions
        )
        nodes.sort(key=lambda node: (load[node], node))
    return [nodes[index % len(nodes)] for index in range(count)]


def refuse_replication_factor(replication_factor: int) -> Decision | None:
    """The refusal of a replication factor other than 1 or the default (-1)."""
    if replication_factor in (-1, 1):
        return None
    if replication_factor <= 0:
        return refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is {replication_factor}; it must be 1, or -1 for the default.",
        )
    return refuse(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"The replication factor is {replication_factor}, but fencepost keeps one copy of every "
        "partition.",
    )


def place_manually(
    state: MetadataState, assignments: Sequence[Sequence[int]]
) -> list[int] | Decision:
    """The leaders of a manual assignment: one registered broker for each partition."""
    if len(assignments) > MAX_NEW_PARTITIONS:
        return place(state, len(assignments))
    for nodes in assignments:
        if problem := _refuse_assignment(state, nodes):
            return refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return [nodes[0] for nodes in assignments]


def _refuse_assignment(state: MetadataState, nodes: Sequence[int]) -> str | None:
    if not nodes:
        return "The manual assignment has a partition without a broker."
    if len(set(nodes)) != len(nodes):
        return f"The manual assignment {list(nodes)} names a broker twice."
    unknown = [node for node in nodes if node not in state.brokers]
    if unknown:
        return f"The manual assignment names broker {unknown[0]}, which does not exist."
    if len(nodes) > 1:
        return f"The manual assignment {list(nodes)} has {len(nodes)} copies; fencepost keeps one."
    return None


def order_assignments(
    assignments: Sequence[tuple[int, Sequence[int]]],
) -> list[Sequence[int]] | Decision:
    """Sort (index, nodes) pairs by index; every index from 0 on must be there once."""
    by_index = dict(assignments)
    if len(by_index) != len(assignments):
        return refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual assignment names a partition twice."
        )
    if sorted(by_index) != list(range(len(by_index))):
        return refuse(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual assignment must name every partition from 0 on without a gap.",
        )
    return [by_index[index] for index in range(len(by_index))]
