"""Chooses the replicas of new partitions, or checks those that a client has chosen.

Automatic placement is striped, as in Kafka. A topic begins at the broker that leads the fewest
partitions, and each further partition at the next broker. The other replicas follow on the brokers
after it; each round begins with another of them, so that the partitions of a broker that dies are
spread over the others. With three brokers and replication factor 2:

    partition   0     1     2     3     4     5
    replicas    1,2   2,3   3,1   1,3   2,1   3,2

Fenced brokers count, and become replicas if there are too few others, but never the preferred
leader. A broker that is about to stop becomes no replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import INTERNAL_TOPICS
from fencepost.base.limits import MAX_NEW_PARTITIONS
from fencepost.coordinator.metadata.events import CreateTopic, Decision, refuse
from fencepost.coordinator.metadata.state import MetadataState

INTERNAL_REPLICATION_FACTOR: Final = 3
"""Of the internal topics, if there are that many brokers; Kafka's default."""


def place(
    state: MetadataState, count: int, replication_factor: int
) -> list[tuple[int, ...]] | Decision:
    """Choose the replicas of `count` new partitions."""
    if refused := _refuse_count(count):
        return refused
    active = state.active_nodes()
    counts = state.leader_counts
    live = sorted(active, key=lambda node: (counts.get(node, 0), node))
    fenced = _fenced_nodes(state)
    if replication_factor > len(live) + len(fenced):
        return refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(live) + len(fenced)} broker(s) are registered.",
        )
    if not live:
        return refuse(ErrorCode.INVALID_REPLICATION_FACTOR, "No broker is available.")
    # The stripes repeat, so they are made once.
    period = len(live) * max(1, len(live) - 1) * max(1, len(fenced))
    stripes = [
        stripe(live, fenced, index)[:replication_factor] for index in range(min(count, period))
    ]
    return [stripes[index % period] for index in range(count)]


def _fenced_nodes(state: MetadataState) -> list[int]:
    """The dead brokers, which may be replicas after all live ones."""
    return sorted(
        node for node, broker in state.brokers.items() if broker.fenced or broker.is_suspended
    )


def stripe(live: Sequence[int], fenced: Sequence[int], index: int) -> tuple[int, ...]:
    """All brokers in the order in which the partition of this index takes them."""
    rounds, first = divmod(index, len(live))
    others = (*live[first + 1 :], *live[:first])
    return (live[first], *_rotated(others, rounds), *_rotated(fenced, index))


def _rotated(nodes: Sequence[int], places: int) -> tuple[int, ...]:
    if not nodes:
        return ()
    first = places % len(nodes)
    return (*nodes[first:], *nodes[:first])


def _refuse_count(count: int) -> Decision | None:
    if count <= 0:
        return refuse(
            ErrorCode.INVALID_PARTITIONS, f"A topic has at least one partition, not {count}."
        )
    if count > MAX_NEW_PARTITIONS:
        return refuse(
            ErrorCode.POLICY_VIOLATION,
            f"A request may create {MAX_NEW_PARTITIONS} partitions at most, not {count}.",
        )
    return None


def replication_factor_of(state: MetadataState, event: CreateTopic) -> int | Decision:
    """The replication factor of a new topic, or its default if the event leaves it open."""
    if event.replication_factor > 0:
        return event.replication_factor
    if event.replication_factor != -1:
        return refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is {event.replication_factor}; it must be larger than 0, or "
            "-1 for the default.",
        )
    if event.name not in INTERNAL_TOPICS:
        return event.default_factor
    broker_count = len(state.active_nodes()) + len(_fenced_nodes(state))
    return min(INTERNAL_REPLICATION_FACTOR, broker_count)


def place_manually(
    state: MetadataState, assignments: Sequence[Sequence[int]], replication_factor: int
) -> list[tuple[int, ...]] | Decision:
    """The replicas of a manual assignment, which has as many for each partition."""
    if refused := _refuse_count(len(assignments)):
        return refused
    active = state.active_nodes()
    for nodes in assignments:
        problem = refuse_replicas(state, active, nodes)
        if problem is None and len(nodes) != replication_factor:
            problem = (
                f"The manual assignment {list(nodes)} has {len(nodes)} replicas; the other "
                f"partitions of the topic have {replication_factor}."
            )
        if problem is not None:
            return refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return [tuple(nodes) for nodes in assignments]


def refuse_replicas(
    state: MetadataState, active: frozenset[int], nodes: Sequence[int]
) -> str | None:
    """The reason why a partition cannot have these replicas; None if it can."""
    if not nodes:
        return "The manual assignment has a partition without a broker."
    if len(set(nodes)) != len(nodes):
        return f"The manual assignment {list(nodes)} names a broker twice."
    unknown = [node for node in nodes if node not in state.brokers]
    if unknown:
        return f"The manual assignment names broker {unknown[0]}, which does not exist."
    if active.isdisjoint(nodes):
        return f"No broker of the manual assignment {list(nodes)} is available."
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
