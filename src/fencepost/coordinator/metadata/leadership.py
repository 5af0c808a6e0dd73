"""Decides who leads: when brokers come and go, on request, and for balance.

A broker is active if it is neither fenced nor about to stop. There is one copy of the data, so
every active replica may lead and is in sync:

    in-sync replicas   the active replicas, in their order; without one, the last that was active
    leader             an active replica; -1 without one

A broker is suspended if it was killed and its process has not ended: a system call may still
write. What it led has no leader, and it is the one in-sync replica, until the process is reaped and
the broker fenced. No event gives such a partition to another broker before.

When the active brokers change, a partition keeps its leader if that is still active. Otherwise its
preferred leader takes over, the first of its replicas. If that is not active either, the active
replica does that leads the fewest partitions of the topic, then of all topics: so the partitions of
a dead broker, the coordinators among them, are spread over the others.

A broker that comes back is in sync again at once, and leads what had no leader. It gets its share
by `decide_rebalance`.

Each decision is one pass over the partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.coordinator.metadata.events import (
    AlterPartitionReassignments,
    Decision,
    Election,
    ElectLeaders,
    PartitionOutcome,
    refuse,
)
from fencepost.coordinator.metadata.placement import refuse_replicas
from fencepost.coordinator.metadata.state import MetadataState, PartitionState, Topic
from fencepost.records.metadata_log import NO_LEADER_CHANGE, PartitionChangeRecord


class Changes:
    """The records of changes of partitions."""

    def __init__(self) -> None:
        self.records: list[PartitionChangeRecord] = []

    def add(
        self,
        topic: Topic,
        index: int,
        leader: int,
        *,
        isr: tuple[int, ...] | None = None,
        replicas: tuple[int, ...] | None = None,
        bump: bool = False,
    ) -> None:
        """Add a change of one partition, unless nothing changes.

        `bump` raises the leader epoch even if the leader stays.
        """
        before = topic.partitions[index]
        if isr == before.isr:
            isr = None
        if replicas == before.replicas:
            replicas = None
        sets_leader = bump or leader != before.leader
        if not sets_leader and isr is None and replicas is None:
            return
        self.records.append(
            PartitionChangeRecord(
                partition_id=index,
                topic_id=topic.topic_id,
                leader=leader if sets_leader else NO_LEADER_CHANGE,
                isr=None if isr is None else list(isr),
                replicas=None if replicas is None else list(replicas),
            )
        )

    def decision(self) -> Decision:
        """The decision that makes these changes and no others."""
        return Decision(tuple(self.records))


class _ActiveReplicas:
    """The active ones of replicas. Few replica lists differ, so each result is computed once."""

    def __init__(self, active: frozenset[int]) -> None:
        self._active = active
        self._found: dict[tuple[int, ...], tuple[int, ...]] = {}

    def among(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        found = self._found.get(replicas)
        if found is None:
            found = tuple(node for node in replicas if node in self._active)
            self._found[replicas] = found
        return found


# -- brokers come and go


def follow_brokers(
    state: MetadataState,
    active: frozenset[int],
    *,
    suspended: frozenset[int] | None = None,
) -> Changes:
    """The changes of all partitions when these brokers are active.

    `suspended` are the brokers that are suspended then; if they are not given, those that are so
    now and do not become active.
    """
    if suspended is None:
        suspended = state.suspended_nodes() - active
    changes = Changes()
    replicas_of = _ActiveReplicas(active)
    leads = Counter(state.leader_counts)
    for topic in state.topics.values():
        leads_in_topic: Counter[int] | None = None
        for index, partition in enumerate(topic.partitions):
            live = replicas_of.among(partition.replicas)
            if suspended and _last_leader(partition) in suspended:
                live = ()
            leader = partition.leader
            if leader not in live:
                if leads_in_topic is None:
                    leads_in_topic = Counter(each.leader for each in topic.partitions)
                leader = _successor(partition.replicas, live, leads_in_topic, leads)
                leads_in_topic[leader] += 1
                leads[leader] += 1
            # A partition that no broker can lead keeps one in-sync replica, as in Kafka.
            changes.add(topic, index, leader, isr=live or (_last_leader(partition),))
    return changes


def _successor(
    replicas: tuple[int, ...],
    live: tuple[int, ...],
    leads_in_topic: Counter[int],
    leads: Counter[int],
) -> int:
    if not live:
        return NO_NODE
    if replicas[0] == live[0]:
        return live[0]
    return min(live, key=lambda node: (leads_in_topic[node], leads[node]))


def _last_leader(partition: PartitionState) -> int:
    """The leader of a partition; without one, its last, if others could lead it."""
    return partition.isr[0] if partition.leader == NO_NODE else partition.leader


# -- requests


def decide_elect_leaders(
    state: MetadataState, event: ElectLeaders
) -> tuple[Decision, list[PartitionOutcome]]:
    """Elect leaders; each partition has its outcome."""
    changes = Changes()
    outcomes = []
    active = state.active_nodes()
    for name in dict.fromkeys(event.partitions):
        refused = _refuse_election(state, event.election, name, active)
        if refused is None:
            topic = state.topics[name.topic]
            changes.add(topic, name.partition, topic.partitions[name.partition].replicas[0])
            outcomes.append(PartitionOutcome(name))
        elif not event.only_needed or refused.error not in _NOT_LISTED:
            outcomes.append(PartitionOutcome(name, refused.error, refused.message))
    return changes.decision(), outcomes


_NOT_LISTED: Final = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Errors of partitions that an election of all leaves out; one may have been deleted since."""


def all_partitions(state: MetadataState) -> Iterator[TopicPartition]:
    """Every partition of every topic."""
    for topic in state.topics.values():
        for index in range(len(topic.partitions)):
            yield TopicPartition(topic.name, index)


def _refuse_election(
    state: MetadataState, election: Election, name: TopicPartition, active: frozenset[int]
) -> Decision | None:
    """The refusal if the preferred leader of a partition need not or cannot be elected now."""
    partition = state.partition(*name)
    if partition is None:
        return refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no {name}.")
    if election is Election.UNCLEAN:
        if partition.leader != NO_NODE:
            return refuse(ErrorCode.ELECTION_NOT_NEEDED, f"{name} has a leader.")
        assert active.isdisjoint(partition.replicas) or _is_withheld(state, partition), (
            "an active replica would lead already"
        )
        return refuse(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {name} is available."
        )
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        return refuse(
            ErrorCode.ELECTION_NOT_NEEDED, f"The preferred leader of {name} leads already."
        )
    if preferred not in active:
        return refuse(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"Broker {preferred}, the preferred leader of {name}, is not available.",
        )
    if _is_withheld(state, partition):
        return refuse(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, _why_withheld(name, partition))
    return None


def _is_withheld(state: MetadataState, partition: PartitionState) -> bool:
    """Whether no broker may lead a partition, because its last leader is suspended."""
    return partition.leader == NO_NODE and partition.isr[0] in state.suspended_nodes()


def _why_withheld(name: TopicPartition, partition: PartitionState) -> str:
    return (
        f"Broker {partition.isr[0]} led {name} and was killed, but its process has not ended. "
        "Others can lead it when it has."
    )


def decide_alter_reassignments(
    state: MetadataState, event: AlterPartitionReassignments
) -> tuple[Decision, list[PartitionOutcome]]:
    """Give partitions other replicas; each partition has its outcome.

    Nothing has to be copied, so a reassignment is complete at once and never in progress. The
    leader stays if it is among the new replicas; otherwise the first active one of them leads.
    """
    changes = Changes()
    outcomes = []
    active = state.active_nodes()
    for name, replicas in event.replicas.items():
        refused = _refuse_reassignment(state, name, replicas, active, event)
        if refused is not None:
            outcomes.append(PartitionOutcome(name, refused.error, refused.message))
            continue
        assert replicas is not None, "a reassignment is never in progress"
        topic = state.topics[name.topic]
        leader = topic.partitions[name.partition].leader
        isr = tuple(node for node in replicas if node in active)
        leader = leader if leader in isr else isr[0]
        changes.add(topic, name.partition, leader, isr=isr, replicas=tuple(replicas))
        outcomes.append(PartitionOutcome(name))
    return changes.decision(), outcomes


def _refuse_reassignment(
    state: MetadataState,
    name: TopicPartition,
    replicas: Sequence[int] | None,
    active: frozenset[int],
    event: AlterPartitionReassignments,
) -> Decision | None:
    partition = state.partition(*name)
    if partition is None:
        return refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no {name}.")
    if replicas is None:
        return refuse(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"No reassignment of {name} is in progress."
        )
    if _is_withheld(state, partition):
        return refuse(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, _why_withheld(name, partition))
    if problem := refuse_replicas(state, active, replicas):
        return refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    before = len(partition.replicas)
    if len(replicas) != before and not event.allow_replication_factor_change:
        return refuse(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor of {name} would change from {before} to {len(replicas)}.",
        )
    return None


# -- balance


def decide_rebalance(state: MetadataState, at_most: int | None = None) -> Decision:
    """Give every active broker its share of the partitions that it may lead.

    Each partition goes to the first active of its replicas, unless that one leads at least two more
    than another active one. The result depends on the replicas and the active brokers alone, so a
    second rebalance changes nothing; with `at_most`, repeated ones lead to the same result.
    """
    replicas_of = _ActiveReplicas(state.active_nodes())
    suspended = state.suspended_nodes()
    choices: dict[int, list[tuple[Topic, int, tuple[int, ...]]]] = {}
    for topic in state.topics.values():
        for index, partition in enumerate(topic.partitions):
            live = replicas_of.among(partition.replicas)
            if live and _last_leader(partition) not in suspended:
                choices.setdefault(len(live), []).append((topic, index, live))
    changes = Changes()
    leads: Counter[int] = Counter()
    # Those with the most choices come last: they even out what the others could not.
    for count in sorted(choices):
        leads.update(live[0] for _, _, live in choices[count])
        for topic, index, live in choices[count]:
            if len(changes.records) == at_most:
                return changes.decision()
            leader = live[0]
            least = min(live, key=leads.__getitem__)
            if leads[leader] - leads[least] >= 2:
                leads[leader] -= 1
                leads[least] += 1
                leader = least
            changes.add(topic, index, leader)
    return changes.decision()
