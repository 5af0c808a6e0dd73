"""The effects of the metadata log, and which of them a reply waits for."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE
from fencepost.broker import turns
from fencepost.broker.controller.controller import Outcome
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.coordinator.metadata.events import CreatePartitions
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.controller.topics_stage import StubNode
from tests.broker.groups.group_requests import FSYNC, commit
from tests.broker.groups.groups_stage import GroupNode

pytestmark = pytest.mark.interpreted


def test_a_topic_is_removed_when_no_loss_of_power_can_bring_its_offsets_back() -> None:
    node = GroupNode(FSYNC).begin()
    node.sync()
    commit(node, {0: 5})
    node.sync()
    heard: list[Outcome] = []
    node.controller.delete(["orders"], heard.extend)
    node.sync()  # The deletion is durable; the tombstones of the offsets are written now.
    assert node.partition("orders", 0) is None
    assert heard == []
    node.sync()
    assert [outcome.error for outcome in heard] == [ErrorCode.NONE]


def test_a_removal_that_overtakes_a_creation_leaves_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    node = StubNode().start()
    heard: list[Outcome] = []
    node.controller.create([NewTopic("wide", 250)], heard.extend, validate_only=False)
    assert 0 < len(node.partitions.by_name) < 250
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    node.controller.delete(["wide"], heard.extend)
    while node.turn():
        pass
    assert [outcome.error for outcome in heard] == [ErrorCode.NONE] * 2
    assert {name.topic for name in node.partitions.by_name} == {"__cluster_metadata"}


def test_what_is_not_durable_yet_is_shown_without_a_leader() -> None:
    node = StubNode(FSYNC).start()

    def leaders() -> list[int]:
        (topic,) = node.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics
        assert topic.topic_id == node.metadata.topic_id("orders")
        return [partition.leader_id for partition in topic.partitions]

    node.made("orders", 1)
    assert leaders() == [1]
    node.controller.create_partitions(
        [CreatePartitions("orders", 2)], lambda _: None, validate_only=False
    )
    assert leaders() == [1, NO_NODE]
    node.sync()
    assert leaders() == [1, 1]
    node.controller.delete(["orders"], lambda _: None)
    node.sync()
    node.controller.create([NewTopic("orders", 1)], lambda _: None, validate_only=False)
    assert leaders() == [NO_NODE]
    node.sync()
    assert leaders() == [1]
