"""A cluster without a broker: decide, encode, decode, apply, and the resulting log.

A follower gets the encoded records and nothing else. After every batch it must have the state of
the controller, and its effects must be what a comparison of the states before and after finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.metadata.apply import apply, load
from fencepost.coordinator.metadata.decide import decide_create_topic
from fencepost.coordinator.metadata.effects import (
    LeadersChanged,
    PartitionChange,
    PartitionsCreated,
    SettingsChanged,
    TopicRemoved,
    effects_of,
)
from fencepost.coordinator.metadata.events import (
    AlterPartitionReassignments,
    CreateTopic,
    Election,
    ElectLeaders,
    RegisterBroker,
    Resize,
)
from fencepost.coordinator.metadata.leadership import (
    all_partitions,
    decide_alter_reassignments,
    decide_elect_leaders,
    decide_rebalance,
)
from fencepost.coordinator.metadata.registry import (
    decide_controlled_shutdown,
    decide_fence_brokers,
    decide_register_broker,
    decide_suspend_broker,
    decide_unfence_brokers,
)
from fencepost.coordinator.metadata.resizing import decide_resize
from fencepost.coordinator.metadata.snapshot import frozen
from fencepost.coordinator.metadata.state import Endpoint, MetadataState
from fencepost.records.entry import Entry
from fencepost.records.metadata_log import TOPIC_RESOURCE, decode_record, encode_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.base.ids import TopicPartition
    from fencepost.coordinator.metadata.effects import Effect
    from fencepost.coordinator.metadata.events import Decision, PartitionOutcome
    from fencepost.coordinator.metadata.state import PartitionState
    from fencepost.records.metadata_log import MetadataRecord

FEATURES = {"metadata.version": 29, "transaction.version": 2}


@dataclass
class Cluster:
    """The controller's half of a broker."""

    state: MetadataState = field(default_factory=MetadataState)
    follower: MetadataState = field(default_factory=MetadataState)
    log: list[bytes] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    """What the last decision means for a broker that reads its records from the log."""
    topics_made: int = 0

    def take(self, decision: Decision) -> Decision:
        """Append and apply a decision, as the broker does."""
        values = [encode_record(record) for record in decision.records]
        self.log += values
        for record in decision.records:
            apply(self.state, record)
        self._follow([decode_record(value) for value in values])
        return decision

    def _follow(self, received: Sequence[MetadataRecord]) -> None:
        before = frozen(self.follower)
        self.effects = effects_of(self.follower, received)
        for record in received:
            apply(self.follower, record)
        assert self.follower == self.state
        found = parts_of(self.effects)
        assert len(set(found)) == len(found), "each effect comes once"
        assert set(found) == differences(before, self.follower)

    # -- brokers

    def register(self, node_id: int = 1, port: int = 9092, *, fenced: bool = False) -> Decision:
        event = RegisterBroker(
            node_id,
            len(self.log),
            bytes([node_id]) * 16,
            (Endpoint("PLAINTEXT", "localhost", port),),
            features=FEATURES,
            fenced=fenced,
        )
        return self.take(decide_register_broker(self.state, event))

    def fence(self, *node_ids: int) -> Decision:
        """Brokers have died."""
        return self.take(decide_fence_brokers(self.state, frozenset(node_ids)))

    def suspend(self, node_id: int) -> Decision:
        """A broker was killed, but its process does not end."""
        return self.take(decide_suspend_broker(self.state, node_id))

    def bring_back(self, *node_ids: int) -> Decision:
        """Brokers have been started again, and are ready."""
        for node_id in node_ids:
            self.register(node_id, fenced=True)
        return self.take(decide_unfence_brokers(self.state, frozenset(node_ids)))

    def shut_down(self, node_id: int) -> Decision:
        """A broker is about to stop."""
        return self.take(decide_controlled_shutdown(self.state, node_id))

    def resize(self, *node_ids: int, **internal_factors: int) -> Decision:
        """The next start runs these brokers."""
        event = Resize(node_ids, len(self.log), bytes([9]) * 16, internal_factors)
        return self.take(decide_resize(self.state, event))

    # -- topics

    def create(
        self,
        name: str,
        partition_count: int = 1,
        settings: dict[str, str] | None = None,
        *,
        replication_factor: int = -1,
    ) -> Decision:
        event = CreateTopic(
            name, self.new_topic_id(), partition_count, replication_factor, settings=settings or {}
        )
        return self._take_created(decide_create_topic(self.state, event))

    def assign(self, name: str, *replicas: Sequence[int]) -> Decision:
        """Create a topic with these replicas for its partitions."""
        event = CreateTopic(name, self.new_topic_id(), -1, assignments=list(enumerate(replicas)))
        return self._take_created(decide_create_topic(self.state, event))

    def _take_created(self, decision: Decision) -> Decision:
        assert decision.error is ErrorCode.NONE, decision.message
        return self.take(decision)

    # -- leaders

    def elect(
        self,
        partitions: Sequence[TopicPartition] | None = None,
        election: Election = Election.PREFERRED,
    ) -> list[PartitionOutcome]:
        """None elects the leaders of all partitions that need it."""
        names = list(all_partitions(self.state)) if partitions is None else partitions
        event = ElectLeaders(election, names, only_needed=partitions is None)
        decision, outcomes = decide_elect_leaders(self.state, event)
        self.take(decision)
        return outcomes

    def reassign(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> list[PartitionOutcome]:
        event = AlterPartitionReassignments(replicas, allow_replication_factor_change)
        decision, outcomes = decide_alter_reassignments(self.state, event)
        self.take(decision)
        return outcomes

    def rebalance(self, at_most: int | None = None) -> Decision:
        return self.take(decide_rebalance(self.state, at_most))

    def partition(self, name: str, index: int = 0) -> PartitionState:
        partition = self.state.partition(name, index)
        assert partition is not None, f"{name}-{index} does not exist"
        return partition

    def leaders(self, name: str) -> list[int]:
        return [partition.leader for partition in self.state.topics[name].partitions]

    def replicas(self, name: str) -> list[tuple[int, ...]]:
        return [partition.replicas for partition in self.state.topics[name].partitions]

    def new_topic_id(self) -> bytes:
        self.topics_made += 1
        return self.topics_made.to_bytes(16, "big")

    def reloaded(self) -> MetadataState:
        """The state after a restart."""
        state = MetadataState()
        load(state, entries(self.log))
        return state


Part = PartitionChange | PartitionsCreated | SettingsChanged | TopicRemoved


def parts_of(effects: Sequence[Effect]) -> list[Part]:
    """The effects, with every change of a partition apart."""
    parts: list[Part] = []
    for effect in effects:
        parts += effect.partitions if isinstance(effect, LeadersChanged) else [effect]
    return parts


def differences(before: MetadataState, after: MetadataState) -> set[Part]:
    """What a batch means for brokers, found by comparing the states before and after it."""
    found: set[Part] = set()
    for name, topic in after.topics.items():
        known = before.topics[name].partitions if before.topic_id(name) == topic.topic_id else []
        added = len(topic.partitions) - len(known)
        if added:
            found.add(PartitionsCreated(name, len(known), added, topic.topic_id))
        for index, (old, new) in enumerate(zip(known, topic.partitions, strict=False)):
            if new != old:
                found.add(
                    PartitionChange(
                        name,
                        index,
                        topic.topic_id,
                        old.leader,
                        new.leader,
                        new.leader_epoch,
                        last_leader=old.leader if old.leader >= 0 else old.isr[0],
                    )
                )
    for name, topic in before.topics.items():
        if after.topic_id(name) != topic.topic_id:
            found.add(TopicRemoved(name, len(topic.partitions), topic.topic_id))
    for kind, name in before.settings.keys() | after.settings.keys():
        if kind == TOPIC_RESOURCE and before.topic_id(name) != after.topic_id(name):
            continue  # The topic was created or removed: there are no readers of its settings.
        if before.settings_of(kind, name) != after.settings_of(kind, name):
            found.add(SettingsChanged(kind, name))
    return found


def opens_at(change: PartitionChange, node_id: int) -> bool:
    """Whether this broker becomes the leader, and must open the partition."""
    return change.leader == node_id != change.leader_before


def entries(log: list[bytes]) -> list[Entry]:
    return [Entry(offset, -1, -1, False, None, value) for offset, value in enumerate(log)]


def one_broker() -> Cluster:
    cluster = Cluster()
    cluster.register()
    return cluster


def brokers(count: int) -> Cluster:
    """A cluster of the brokers 1, 2 and so on."""
    cluster = Cluster()
    for node_id in range(1, count + 1):
        cluster.register(node_id, 9091 + node_id)
    return cluster
