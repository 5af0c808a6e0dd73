"""Any requests and failures in any order: the rules of leadership hold, also after a restart.

fold(log) == fold(snapshot + the rest of the log) == live state == a follower's state. The follower
also finds the effects of each change (`Cluster.take`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.coordinator.metadata.apply import load
from fencepost.coordinator.metadata.decide import (
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
)
from fencepost.coordinator.metadata.events import (
    AlterSettings,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Election,
)
from fencepost.coordinator.metadata.leadership import decide_rebalance
from fencepost.coordinator.metadata.registry import (
    decide_allocate_block,
    decide_alter_settings,
    decide_bump_leader_epochs,
    decide_unfence_brokers,
)
from fencepost.coordinator.metadata.snapshot import snapshot
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.coordinator.metadata.users import (
    Removal,
    Upsertion,
    UserChange,
    decide_alter_users,
)
from fencepost.records.metadata_log import encode_record
from tests.coordinator.metadata.cluster import Cluster, entries
from tests.halves import examples

if TYPE_CHECKING:
    from fencepost.coordinator.metadata.events import Decision
    from fencepost.coordinator.metadata.state import PartitionState

NAMES = st.sampled_from(["a", "a.b", "a_b", "orders", "__consumer_offsets", "no way"])
COUNTS = st.integers(-1, 7)
NODES = st.integers(1, 4)
REPLICAS = st.lists(NODES, max_size=4)
FACTORS = st.sampled_from([-1, 1, 2, 3, 4])

Partitions = dict[tuple[bytes, int], "PartitionState"]


class WatchedCluster(Cluster):
    """Compares the epochs of all partitions before and after each change."""

    bumping = False
    """Whether leader epochs may grow though the leaders stay."""

    def take(self, decision: Decision) -> Decision:
        before = self.partitions()
        super().take(decision)
        for key, partition in self.partitions().items():
            if key in before:
                self._check_epochs(before[key], partition)
            else:
                assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
        return decision

    def _check_epochs(self, before: PartitionState, after: PartitionState) -> None:
        grows = before.leader_epoch != after.leader_epoch
        assert after.leader_epoch == before.leader_epoch + grows
        assert grows or after.leader == before.leader
        assert self.bumping or grows == (after.leader != before.leader)
        assert after.partition_epoch == before.partition_epoch + (after != before)

    def partitions(self) -> Partitions:
        return {
            (topic.topic_id, index): partition
            for topic in self.state.topics.values()
            for index, partition in enumerate(topic.partitions)
        }


class MetadataLog(RuleBasedStateMachine):
    """Requests of all kinds; some are refused, and a refusal leaves no record."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = WatchedCluster()
        self.checkpoint: list[bytes] = []
        self.checkpoint_offset = 0

    # -- brokers

    @rule(node_id=NODES, port=st.integers(1, 65535), fenced=st.booleans())
    def register(self, node_id: int, port: int, fenced: bool) -> None:
        self.cluster.register(node_id, port, fenced=fenced)

    @rule(node_ids=st.frozensets(NODES))
    def fence(self, node_ids: frozenset[int]) -> None:
        self.cluster.fence(*node_ids & set(self.cluster.state.brokers))

    @rule(node_ids=st.frozensets(NODES))
    def unfence(self, node_ids: frozenset[int]) -> None:
        known = node_ids & set(self.cluster.state.brokers)
        self.cluster.take(decide_unfence_brokers(self.cluster.state, known))

    @rule(node_ids=st.frozensets(NODES))
    def bring_back(self, node_ids: frozenset[int]) -> None:
        self.cluster.bring_back(*node_ids)

    @precondition(lambda self: self.cluster.state.brokers)
    @rule(data=st.data())
    def shut_down(self, data: st.DataObject) -> None:
        self.cluster.shut_down(data.draw(st.sampled_from(sorted(self.cluster.state.brokers))))

    @precondition(lambda self: self.cluster.state.brokers)
    @rule(data=st.data())
    def suspend(self, data: st.DataObject) -> None:
        self.cluster.suspend(data.draw(st.sampled_from(sorted(self.cluster.state.brokers))))

    @rule(node_ids=st.frozensets(NODES, min_size=1))
    def resize(self, node_ids: frozenset[int]) -> None:
        before = self.cluster.partitions()
        is_same = node_ids == set(self.cluster.state.brokers)
        self.cluster.resize(*sorted(node_ids), __consumer_offsets=min(3, len(node_ids)))
        assert self.cluster.state.active_nodes() == set(self.cluster.state.brokers) == node_ids
        for (topic_id, index), partition in self.cluster.partitions().items():
            factor = len(before[topic_id, index].replicas)
            if self.cluster.state.topics_by_id[topic_id].is_internal and not is_same:
                factor = 3
            assert len(partition.replicas) == min(factor, len(node_ids))
        if not is_same:
            led = [self.cluster.state.leader_counts.get(node, 0) for node in node_ids]
            assert max(led) - min(led) <= 1
        assert not self.cluster.resize(*node_ids).records

    # -- topics

    @rule(
        name=NAMES,
        count=COUNTS,
        factor=FACTORS,
        default_factor=st.integers(1, 3),
        given=st.dictionaries(st.sampled_from(["retention.ms", "segment.ms"]), st.just("1")),
    )
    def create(
        self, name: str, count: int, factor: int, default_factor: int, given: dict[str, str]
    ) -> None:
        event = CreateTopic(
            name,
            self.cluster.new_topic_id(),
            count,
            factor,
            settings=given,
            default_factor=default_factor,
        )
        self.cluster.take(decide_create_topic(self.cluster.state, event))

    @rule(name=NAMES, nodes=st.lists(REPLICAS, max_size=3))
    def create_by_hand(self, name: str, nodes: list[list[int]]) -> None:
        event = CreateTopic(
            name, self.cluster.new_topic_id(), -1, assignments=list(enumerate(nodes))
        )
        self.cluster.take(decide_create_topic(self.cluster.state, event))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.cluster.take(decide_delete_topic(self.cluster.state, DeleteTopic(name)))

    @rule(name=NAMES, count=COUNTS)
    def add_partitions(self, name: str, count: int) -> None:
        self.cluster.take(
            decide_create_partitions(self.cluster.state, CreatePartitions(name, count))
        )

    # -- leaders

    @rule(election=st.sampled_from(Election), data=st.data())
    def elect(self, election: Election, data: st.DataObject) -> None:
        self.cluster.elect(data.draw(st.none() | self._some_partitions()), election)

    @rule(allowed=st.booleans(), data=st.data())
    def reassign(self, allowed: bool, data: st.DataObject) -> None:
        partitions = data.draw(self._some_partitions())
        replicas = data.draw(
            st.lists(st.none() | REPLICAS, min_size=len(partitions), max_size=len(partitions))
        )
        self.cluster.reassign(
            dict(zip(partitions, replicas, strict=True)), allow_replication_factor_change=allowed
        )

    @rule(data=st.data())
    def bump(self, data: st.DataObject) -> None:
        partitions = [each for each in data.draw(self._some_partitions()) if each.topic != "gone"]
        before = [self.cluster.state.partition(*name) for name in partitions]
        self.cluster.bumping = True
        self.cluster.take(decide_bump_leader_epochs(self.cluster.state, partitions))
        self.cluster.bumping = False
        for name, partition in zip(partitions, before, strict=True):
            assert partition is not None
            assert self.cluster.state.partition(*name) == partition._replace(
                leader_epoch=partition.leader_epoch + 1,
                partition_epoch=partition.partition_epoch + 1,
            )

    def _some_partitions(self) -> st.SearchStrategy[list[TopicPartition]]:
        names = [
            TopicPartition(topic.name, index)
            for topic in self.cluster.state.topics.values()
            for index in range(len(topic.partitions))
        ]
        return st.lists(st.sampled_from([*names, TopicPartition("gone", 0)]), unique=True)

    @rule(at_most=st.none() | st.integers(1, 3))
    def rebalance(self, at_most: int | None) -> None:
        state = self.cluster.state
        while self.cluster.rebalance(at_most).records and at_most is not None:
            pass
        assert not decide_rebalance(state).records
        active = state.active_nodes()
        led = Counter(partition.leader for partition in self.cluster.partitions().values())
        for partition in self.cluster.partitions().values():
            # One whose last leader is suspended has none, whoever is active.
            if partition.leader != NO_NODE and active and active <= set(partition.replicas):
                assert led[partition.leader] <= min(led[node] for node in active) + 1

    # -- the rest

    @rule(
        resource=st.sampled_from([(4, ""), (4, "1"), (2, "orders")]),
        changes=st.dictionaries(st.sampled_from("xyz"), st.none() | st.sampled_from("01")),
    )
    def alter(self, resource: tuple[int, str], changes: dict[str, str | None]) -> None:
        if resource[0] == 2 and resource[1] not in self.cluster.state.topics:
            return
        self.cluster.take(
            decide_alter_settings(self.cluster.state, AlterSettings(*resource, changes))
        )

    @rule(
        changes=st.lists(
            st.builds(Removal, st.sampled_from("ab"), st.integers(0, 2))
            | st.builds(
                Upsertion,
                st.sampled_from("ab"),
                st.integers(1, 2),
                st.just(b"salt"),
                st.sampled_from([bytes(32), bytes(64)]),
                st.sampled_from([4096, 8192]),
            ),
            max_size=3,
        )
    )
    def alter_users(self, changes: list[UserChange]) -> None:
        decision, outcomes = decide_alter_users(self.cluster.state, changes)
        assert {each.user for each in outcomes} == {change.user for change in changes}
        self.cluster.take(decision)
        assert all(self.cluster.state.users.values())

    @rule(node_id=NODES)
    def reserve(self, node_id: int) -> None:
        decision = self.cluster.take(decide_allocate_block(self.cluster.state, node_id))
        assert decision.error is ErrorCode.NONE

    @rule()
    def restart(self) -> None:
        self.cluster.state = self.cluster.reloaded()
        self.cluster.follower = self.cluster.reloaded()

    @rule()
    def write_checkpoint(self) -> None:
        self.checkpoint = [encode_record(record) for record in snapshot(self.cluster.state)]
        self.checkpoint_offset = len(self.cluster.log)

    # -- invariants

    @invariant()
    def an_active_replica_leads_if_there_is_one_and_the_last_leader_is_not_suspended(self) -> None:
        active = self.cluster.state.active_nodes()
        suspended = self.cluster.state.suspended_nodes()
        for partition in self.cluster.partitions().values():
            live = tuple(node for node in partition.replicas if node in active)
            if partition.leader == -1 and partition.isr[0] in suspended:
                assert len(partition.isr) == 1
            elif live:
                assert partition.leader in live
                assert partition.isr == live
            else:
                assert partition.leader == -1
                assert len(partition.isr) == 1
            assert set(partition.isr) <= set(partition.replicas) <= set(self.cluster.state.brokers)
            assert len(set(partition.replicas)) == len(partition.replicas)

    @invariant()
    def a_restart_knows_the_same(self) -> None:
        self._check_equal(self.cluster.reloaded())

    @invariant()
    def a_follower_knows_the_same(self) -> None:
        self._check_equal(self.cluster.follower)

    @invariant()
    def a_checkpoint_and_the_rest_of_the_log_say_the_same(self) -> None:
        state = MetadataState()
        load(state, entries(self.checkpoint))
        load(state, entries(self.cluster.log[self.checkpoint_offset :]))
        self._check_equal(state)

    @invariant()
    def a_snapshot_knows_the_same(self) -> None:
        state = MetadataState()
        load(state, entries([encode_record(record) for record in snapshot(self.cluster.state)]))
        self._check_equal(state)

    def _check_equal(self, state: MetadataState) -> None:
        assert state == self.cluster.state
        assert state.topics_by_id == self.cluster.state.topics_by_id
        assert state.names_by_collision_key == self.cluster.state.names_by_collision_key
        assert state.leader_counts == self.cluster.state.leader_counts

    @invariant()
    def every_index_agrees_with_the_topics(self) -> None:
        state = self.cluster.state
        assert {t.name for t in state.topics_by_id.values()} == set(state.topics)
        assert all(name == topic.name for name, topic in state.topics.items())
        assert state.leader_counts == Counter(p.leader for p in self.cluster.partitions().values())
        assert {resource for resource in state.settings if resource[0] == 2} <= {
            (2, name) for name in state.topics
        }


MetadataLog.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30)
TestMetadataLog = MetadataLog.TestCase
