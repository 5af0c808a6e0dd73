"""Every disk call of a running parent fails once, or is its last.

Method: clients create, delete and create again topics, change settings and move leaders; brokers
reserve producer ids, die and return; in between, a checkpoint replaces the metadata log. The
parent dies at its n-th disk call, or the power is lost in fsync mode, or the n-th call fails once:

- what was answered is there, what was refused is not;
- no producer id is handed out twice;
- every broker serves in the end, knows what the parent knows, and has open what it leads, with
  every record that was written to it;
- a topic that is created again has nothing of the one before it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.controller import checkpoint as metadata_checkpoint
from fencepost.records.metadata_log import TOPIC_RESOURCE
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from fencepost.wire.forms.create_topics import CreatableTopic, CreateTopicsRequest
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.crashes.test_crash_matrix import some_of
from tests.broker.node_stage import FOLDER
from tests.cluster.parent.parent_stage import BROKERS, ParentDiedError, ParentStage
from tests.log.batches import SeededRandomness

NONE = ErrorCode.NONE
PARTITIONS = 3


@pytest.fixture(autouse=True)
def short_history(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="fencepost")
    monkeypatch.setattr(metadata_checkpoint, "LEAST_RECORDS", 16)
    monkeypatch.setattr(metadata_checkpoint, "HISTORY_PER_RECORD", 1)


class Clients:
    """What clients ask for, and what they know of the outcome."""

    def __init__(self, stage: ParentStage) -> None:
        self.stage = stage
        self.topics: dict[str, bytes] = {}
        self.settings: dict[str, str] = {}
        self.unsure: set[str] = set()
        """Topics whose last change may or may not have happened."""
        self.blocks: list[range] = []

    # -- requests ---------------------------------------------------------------------------------

    def insist(self, name: str, ask: Callable[[], int]) -> None:
        """Asks again while the disk refuses it."""
        self.unsure.add(name)
        for _ in range(20):
            error = ask()
            if error == NONE:
                self.unsure.discard(name)
                return
            assert error == ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode(error)
            self.stage.advance(500)
        raise AssertionError("the disk works again, but the request is still refused")

    def create(self, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=3)

        def ask() -> int:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
            (reply,) = self.stage.call(ApiKey.CREATE_TOPICS, 7, request).topics
            if reply.error_code == NONE:
                self.topics[name] = reply.topic_id
            return int(reply.error_code)

        self.insist(name, ask)

    def delete(self, name: str) -> None:
        def ask() -> int:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
            (reply,) = self.stage.call(ApiKey.DELETE_TOPICS, 6, request, at=2).responses
            if reply.error_code == NONE:
                del self.topics[name]
            return int(reply.error_code)

        self.insist(name, ask)
        self.settings.pop(name, None)

    def alter(self, name: str, value: str) -> None:
        config = AlterableConfig(name="retention.ms", config_operation=0, value=value)
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configs=[config]
        )

        def ask() -> int:
            request = IncrementalAlterConfigsRequest(resources=[resource])
            reply = self.stage.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request, at=3)
            error = int(reply.responses[0].error_code)
            if error == NONE:
                self.settings[name] = value
            return error

        self.insist(name, ask)

    def move(self, name: str, index: int, to: int) -> None:
        replicas = [to, *(each for each in BROKERS if each != to)]
        partition = ReassignablePartition(partition_index=index, replicas=replicas)
        topic = ReassignableTopic(name=name, partitions=[partition])

        def ask() -> int:
            request = AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=[topic])
            reply = self.stage.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
            return int(reply.responses[0].partitions[0].error_code)

        self.insist(name, ask)

    def reserve(self, at: int) -> None:
        for _ in range(20):
            block = self.stage.reserve(at)
            if block is not None:
                self.blocks.append(block)
                return
            self.stage.advance(500)
        raise AssertionError("the disk works again, but no producer ids are handed out")

    def write(self, *names: str) -> None:
        for name in names:
            for index in range(PARTITIONS):
                self._wait_for_leader(TopicPartition(name, index))
                self.stage.write(name, index)

    def _wait_for_leader(self, name: TopicPartition) -> None:
        """A leader opens again what it could not open."""
        for _ in range(20):
            if self.stage.holders(name):
                return
            self.stage.advance(1_000)
        raise AssertionError(f"the disk works again, but {name} is not open")

    # -- the story --------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.create("old")
        self.create("kept")
        self.write("old", "kept")
        self.reserve(1)

    def live(self) -> None:
        """Everything that a parent does while it runs."""
        self.create("new")
        self.write("new")
        self.alter("kept", "1000")
        self.reserve(2)
        self.move("kept", 0, 3)
        self.write("kept")
        self.delete("old")
        self.create("old")  # The folders of the deleted one are being removed.
        self.write("old")
        self.stage.kill_broker(2)
        self.stage.advance(600)
        self.write("kept")
        self.alter("new", "2000")
        self.reserve(3)
        self.stage.advance(6_000)  # It has come back, and has its share of the leaders again.
        self.delete("new")
        self.reserve(2)

    # -- what must be true ------------------------------------------------------------------------

    def check(self, *, is_sure: bool = False) -> None:
        stage = self.stage
        stage.check()
        unsure = set() if is_sure else self.unsure
        found = {name: topic.topic_id for name, topic in stage.node.metadata.topics.items()}
        assert {n: i for n, i in found.items() if n not in unsure} == {
            n: i for n, i in self.topics.items() if n not in unsure
        }
        for name in found.keys() - unsure:
            expected = {"retention.ms": self.settings[name]} if name in self.settings else {}
            assert stage.node.metadata.settings_of(TOPIC_RESOURCE, name) == expected, name
        ids = [each for block in self.blocks for each in (block.start, block.stop - 1)]
        assert ids == sorted(set(ids)), "a block of producer ids was handed out twice"
        for name in found:
            for index in range(PARTITIONS):
                stage.write(name, index)
        self._check_folders()

    def _check_folders(self) -> None:
        """A deletion that was cut off may leave a stray; a topic that was kept has none."""
        with self.stage.disk.quiet():
            names = self.stage.disk.list_dir(FOLDER)
        strays = [each for each in names if each.endswith("-stray")]
        assert not [each for each in strays if each.startswith("kept")], strays

    def go_on(self) -> None:
        """The clients learn what exists, and go on."""
        self.unsure.clear()
        metadata = self.stage.node.metadata
        self.topics = {name: topic.topic_id for name, topic in metadata.topics.items()}
        self.settings = {
            name: metadata.settings_of(TOPIC_RESOURCE, name)["retention.ms"]
            for name in self.topics
            if metadata.settings_of(TOPIC_RESOURCE, name)
        }
        for name in ("new", "old", "kept"):
            if name not in self.topics:
                self.create(name)
        self.delete("new")
        self.live()
        self.check(is_sure=True)


def prepared(durability: str) -> Clients:
    clients = Clients(ParentStage(durability=durability).start())
    clients.prepare()
    clients.stage.advance(3_000)
    return clients


@cache
def kinds_of(durability: str) -> list[str]:
    """The kinds of the parent's disk calls, in their order."""
    clients = prepared(durability)
    before = clients.stage.node.controller._log.partition.log_start_offset
    kinds = clients.stage.disk.kinds = []
    clients.live()
    clients.stage.advance(5_000)
    clients.stage.disk.kinds = None
    clients.check()
    after = clients.stage.node.controller._log.partition.log_start_offset
    assert after > before, "the metadata log was not replaced by a checkpoint"
    clients.stage.stop()
    return kinds


def test_a_cluster_that_nothing_happens_to_stops_cleanly_and_starts_again() -> None:
    assert kinds_of("os")
    clients = prepared("os")
    clients.live()
    clients.stage.stop()
    clients.stage = clients.stage.again()
    assert clients.stage.node.layout.clean
    clients.check()
    clients.go_on()
    clients.stage.die()


@pytest.mark.parametrize(
    ("durability", "loses_power"), [("os", False), ("fsync", False), ("fsync", True)]
)
def test_after_the_death_of_the_parent_at_sampled_calls_everything_is_as_answered(
    durability: str, loses_power: bool
) -> None:
    for call in some_of(kinds_of(durability)):
        clients = prepared(durability)
        clients.stage.disk.lose_power_at(call)
        try:
            clients.live()
            clients.stage.advance(5_000)
        except ParentDiedError:
            pass
        randomness = SeededRandomness(call) if call % 2 else None
        try:
            clients.stage.die(loses_power=loses_power, randomness=randomness)
            clients.stage = clients.stage.again()
            clients.check()
            clients.go_on()
            clients.stage.die()
        except Exception as problem:
            raise AssertionError(f"death at call {call}: {problem!r}") from problem


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("failure", ["EIO", "ENOSPC", "short write"])
def test_after_each_of_the_sampled_calls_has_failed_once_everything_is_as_answered(
    durability: str, failure: str
) -> None:
    error = errno.EIO if failure == "EIO" else errno.ENOSPC
    for call in some_of(kinds_of(durability)):
        clients = prepared(durability)
        stage: Any = clients.stage
        stage.disk.fail_call(call, error, short=failure == "short write")
        try:
            try:
                clients.live()
                stage.advance(5_000)
            except ParentDiedError:
                assert "sync" in stage.fatal[0], stage.fatal
            stage.disk.heal()
            if stage.fatal:
                stage.die()
                clients.stage = stage.again()
            clients.stage.advance(15_000)  # What failed is tried again.
            clients.check()
            clients.go_on()
            clients.stage.die()
            clients.stage = clients.stage.again()
            clients.check()
            clients.stage.die()
        except Exception as problem:
            raise AssertionError(f"{failure} at call {call}: {problem!r}") from problem
