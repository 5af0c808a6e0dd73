"""Brokers that follow the metadata log need its records and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.broker.controller.controller import Controller, Outcome
from fencepost.broker.controller.metadata_log import MetadataLog
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.coordinator.metadata.events import AlterSettings
from fencepost.coordinator.metadata.snapshot import snapshot
from fencepost.coordinator.metadata.state import Endpoint
from fencepost.records.metadata_log import (
    FENCED,
    TOPIC_RESOURCE,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    decode_record,
    encode_record,
)
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.controller.topics_stage import StubFlusher, StubNode, bump_leader_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.coordinator.metadata.effects import Effect
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.records.metadata_log import MetadataRecord

pytestmark = [pytest.mark.interpreted, pytest.mark.usefixtures("one_step_per_turn")]


class TwoBrokers:
    """Two brokers that follow one controller: one beside it, the other gets the bytes of the log.

    Both have the same id, so both open the partitions that the log assigns to it, each on its own
    disk.
    """

    def __init__(self, durability: str = "os") -> None:
        settings = {"durability": durability}
        self.near, self.far = StubNode(settings), StubNode(settings)
        self._to_carry_out: list[Effect] = []
        background: Any = self.near.background
        flusher: Any = StubFlusher()
        log = MetadataLog(
            self.near.runtime, self.near.layout, self.near.store, background, flusher, self
        )
        self.controller = Controller(
            self.near.runtime, self.near.config, self.near.randomness, self.near.layout, log, self
        )
        for broker in (self.near, self.far):
            broker.layout.load()
        self.controller.load()
        self.controller.register([Endpoint("PLAINTEXT", "localhost", 9092)])

    # -- what the controller asks of its followers

    controller_id = NO_NODE

    @property
    def state(self) -> MetadataState:
        return self.near.metadata

    def apply(self, records: Sequence[MetadataRecord]) -> Sequence[Effect]:
        received = [decode_record(encode_record(record)) for record in records]
        self._to_carry_out += self.far.follower.apply(received)
        return self.near.follower.apply(records)

    def carry_out(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        far_effects, self._to_carry_out = self._to_carry_out, []
        self.near.follower.carry_out(
            effects, lambda: self.far.follower.carry_out(far_effects, done)
        )

    # -- what tests say

    def create(self, *topics: NewTopic) -> list[Outcome]:
        heard: list[Outcome] = []
        self.controller.create(topics, heard.extend, validate_only=False)
        return heard

    def open_partitions(self) -> list[set[TopicPartition]]:
        return [
            {name for name in broker.partitions.by_name if not name.topic.startswith("__")}
            for broker in (self.near, self.far)
        ]


def test_a_broker_that_only_reads_the_log_opens_the_partitions_of_a_new_topic() -> None:
    brokers = TwoBrokers()
    (outcome,) = brokers.create(NewTopic("orders", 2, settings=[("retention.ms", "1234")]))
    assert outcome.error is ErrorCode.NONE
    wanted = {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert brokers.open_partitions() == [wanted, wanted]
    opened = brokers.far.partition("orders", 0)
    assert opened is not None
    assert opened.topic_id == outcome.topic_id
    assert opened.log.config.retention_ms == 1234
    assert list(snapshot(brokers.far.metadata)) == list(snapshot(brokers.near.metadata))


def test_a_broker_that_only_reads_the_log_deletes_reconfigures_and_takes_epochs() -> None:
    brokers = TwoBrokers()
    brokers.create(NewTopic("kept", 1), NewTopic("doomed", 3))
    brokers.far.fill("doomed", 1)
    change = AlterSettings(TOPIC_RESOURCE, "kept", {"retention.ms": "99"})
    brokers.controller.alter_settings([change], lambda _: None)
    bump_leader_epochs(brokers.controller, [TopicPartition("kept", 0)])
    brokers.controller.delete(["doomed"], lambda _: None)
    kept = brokers.far.partition("kept", 0)
    assert kept is not None
    assert (kept.log.config.retention_ms, kept.leader_epoch) == (99, 1)
    assert brokers.open_partitions() == [{TopicPartition("kept", 0)}] * 2
    assert not brokers.far.disk.exists("/data/doomed-0")
    assert list(snapshot(brokers.far.metadata)) == list(snapshot(brokers.near.metadata))


def test_a_client_is_answered_when_all_brokers_have_opened_its_partitions() -> None:
    brokers = TwoBrokers()
    heard = brokers.create(NewTopic("wide", 250))
    sizes = []
    while not heard:
        sizes.append([len(names) for names in brokers.open_partitions()])
        assert brokers.near.turn() or brokers.far.turn()
    assert min(sizes) < [250, 250], "it took several turns"
    assert [len(names) for names in brokers.open_partitions()] == [250, 250]


def test_brokers_know_of_a_change_at_once_and_act_on_it_when_it_is_durable() -> None:
    brokers = TwoBrokers("fsync")
    heard = brokers.create(NewTopic("orders", 1))
    assert "orders" in brokers.far.metadata.topics
    assert brokers.open_partitions() == [set(), set()]
    assert heard == []
    brokers.near.sync()
    assert brokers.open_partitions() == [{TopicPartition("orders", 0)}] * 2
    assert [outcome.error for outcome in heard] == [ErrorCode.NONE]


def test_an_append_that_fails_is_applied_nowhere() -> None:
    brokers = TwoBrokers()
    brokers.near.disk.fill()
    (outcome,) = brokers.create(NewTopic("orders", 1))
    assert outcome.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert brokers.near.metadata.topics == brokers.far.metadata.topics == {}
    assert brokers.open_partitions() == [set(), set()]


def test_a_broker_that_is_fenced_leads_nothing_in_the_next_metadata_reply() -> None:
    node = StubNode().start()
    endpoint = BrokerEndpoint(name="PLAINTEXT", host="localhost", port=9093)
    node.follower.apply([RegisterBrokerRecord(broker_id=2, end_points=[endpoint], fenced=False)])
    (outcome,) = node.create(NewTopic("orders", assignments=[(0, [2])]))
    assert outcome.error is ErrorCode.NONE

    def leader() -> int:
        reply = node.ask(ApiKey.METADATA, MetadataRequest(topics=None))
        return int(reply.topics[0].partitions[0].leader_id)

    assert leader() == 2
    epoch = node.metadata.brokers[2].epoch
    node.follower.apply(
        [BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=epoch, fenced=FENCED)]
    )
    assert leader() == NO_NODE
