"""fold(log) == live state == fold(snapshot(state)), for any requests in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
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
)
from fencepost.coordinator.metadata.registry import (
    decide_allocate_block,
    decide_alter_settings,
    decide_change_leaders,
    decide_fence_broker,
)
from fencepost.coordinator.metadata.snapshot import snapshot
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import encode_record
from tests.coordinator.metadata.cluster import Cluster, entries

NAMES = st.sampled_from(["a", "a.b", "a_b", "orders", "__consumer_offsets", "no way"])
COUNTS = st.integers(-1, 4)
NODES = st.integers(1, 3)


class MetadataLog(RuleBasedStateMachine):
    """Requests of all kinds; some are refused, and a refusal leaves no record."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()

    @rule(node_id=NODES, port=st.integers(1, 65535))
    def register(self, node_id: int, port: int) -> None:
        self.cluster.register(node_id, port)

    @rule(node_id=NODES, fenced=st.booleans())
    def fence(self, node_id: int, fenced: bool) -> None:
        self.cluster.take(decide_fence_broker(self.cluster.state, node_id, fenced=fenced))

    @rule(
        name=NAMES,
        count=COUNTS,
        factor=st.sampled_from([-1, 1, 3]),
        given=st.dictionaries(st.sampled_from(["retention.ms", "segment.ms"]), st.just("1")),
    )
    def create(self, name: str, count: int, factor: int, given: dict[str, str]) -> None:
        event = CreateTopic(name, self.cluster.new_topic_id(), count, factor, settings=given)
        self.cluster.take(decide_create_topic(self.cluster.state, event))

    @rule(name=NAMES, nodes=st.lists(st.lists(NODES, max_size=2), max_size=3))
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

    @precondition(lambda self: self.cluster.state.topics)
    @rule(leader=NODES, data=st.data())
    def lead(self, leader: int, data: st.DataObject) -> None:
        state = self.cluster.state
        name = data.draw(st.sampled_from(sorted(state.topics)))
        index = data.draw(st.integers(0, state.partition_count(name) - 1))
        before = state.topics[name].partitions[index].leader_epoch
        self.cluster.take(decide_change_leaders(state, {TopicPartition(name, index): leader}))
        after = state.topics[name].partitions[index]
        assert (after.leader, after.leader_epoch) == (leader, before + 1)

    @rule(
        resource=st.sampled_from([(4, ""), (4, "1")]),
        changes=st.dictionaries(st.sampled_from("xyz"), st.none() | st.sampled_from("01")),
    )
    def alter(self, resource: tuple[int, str], changes: dict[str, str | None]) -> None:
        self.cluster.take(
            decide_alter_settings(self.cluster.state, AlterSettings(*resource, changes))
        )

    @rule(node_id=NODES)
    def reserve(self, node_id: int) -> None:
        decision = self.cluster.take(decide_allocate_block(self.cluster.state, node_id))
        assert decision.error is ErrorCode.NONE

    @invariant()
    def a_restart_knows_the_same(self) -> None:
        reloaded = self.cluster.reloaded()
        assert reloaded == self.cluster.state
        assert reloaded.topics_by_id == self.cluster.state.topics_by_id
        assert reloaded.names_by_collision_key == self.cluster.state.names_by_collision_key

    @invariant()
    def a_snapshot_knows_the_same(self) -> None:
        state = MetadataState()
        load(state, entries([encode_record(record) for record in snapshot(self.cluster.state)]))
        assert state == self.cluster.state

    @invariant()
    def every_index_agrees_with_the_topics(self) -> None:
        state = self.cluster.state
        assert {t.name for t in state.topics_by_id.values()} == set(state.topics)
        assert all(name == topic.name for name, topic in state.topics.items())
        assert {resource for resource in state.settings if resource[0] == 2} <= {
            (2, name) for name in state.topics
        }


MetadataLog.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestMetadataLog = MetadataLog.TestCase
