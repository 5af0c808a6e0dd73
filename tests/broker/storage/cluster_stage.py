"""A data directory with a parent and several brokers, without their loops and processes.

`ClusterStage` keeps what the metadata would say (topic ids, leaders, epochs) and what clients rely
on (the end of each log, and where it starts). Every opening is compared with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.storage.broker_layout import BrokerLayout
from fencepost.broker.storage.cluster_checkpoints import KnownPartition
from fencepost.broker.storage.identity import load_identity
from fencepost.broker.storage.layout import Layout
from fencepost.broker.storage.parent_layout import ParentLayout
from fencepost.broker.storage.partition_store import PartitionStore
from fencepost.log.config import LogConfig
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.partition.partition import Partition
from fencepost.simulation.disk import UnsyncedDisk
from tests.broker.controller.topics_stage import (
    CountingRandomness,
    StageRuntime,
    StubFlusher,
    StubRemoval,
)
from tests.partition.batches import client_batch

FOLDER: Final = "/data"
BROKERS: Final = (1, 2, 3)
CONFIG: Final = LogConfig(segment_bytes=400)


class Topic:
    """One partition of a topic, as the metadata and the clients know it."""

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        self.leader = NO_NODE
        self.epoch = 0
        self.end = 0
        self.start = 0


class Process(NamedTuple):
    """What one process has open."""

    layout: Layout | BrokerLayout
    store: PartitionStore
    partitions: LocalPartitions

    def open(self, name: TopicPartition, topic: Topic) -> Partition:
        return self.store.open(name, topic.topic_id, topic.epoch, CONFIG)

    def save(self, closed: list[Partition] | None = None) -> None:
        """All steps of a save in the background."""
        opened = self.partitions.by_name.values()
        save = self.layout.prepare_checkpoints(opened, sync=True, closed=closed or [])
        if save is not None:
            save.run()
            assert self.layout.complete_save(save)
            self.layout.sync_names()


class StageFlusher(StubFlusher):
    """Saves at once that partitions were closed."""

    process: Process

    def save_closed(self, partitions: Mapping[Partition, bool], done: Callable[[], None]) -> None:
        self.process.save([each for each, is_clean in partitions.items() if is_clean])
        done()


class StageBackground:
    """Work that is done at once."""

    def run(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        work()
        done(None)


def process(disk: UnsyncedDisk, layout: Layout | BrokerLayout) -> Process:
    runtime: Any = StageRuntime(disk, fsync=False)
    flusher: Any = StageFlusher()
    removal: Any = StubRemoval()
    background: Any = StageBackground()
    partitions = LocalPartitions(fsync=False, on_fatal=print)
    store = PartitionStore(
        runtime, layout, partitions, OpenSegments(), flusher, background, removal
    )
    made = Process(layout, store, partitions)
    flusher.process = made
    return made


class ClusterStage:
    """One directory and the processes that use it."""

    def __init__(self, disk: UnsyncedDisk | None = None) -> None:
        self.disk = disk or UnsyncedDisk()
        self.topics: dict[TopicPartition, Topic] = {}
        self.brokers: dict[int, Process] = {}
        self.parent: Process | None = None
        self._ids = 0

    # -- what the metadata says -------------------------------------------------------------------

    def create(self, topic: str) -> TopicPartition:
        self._ids += 1
        name = TopicPartition(topic, 0)
        self.topics[name] = Topic(self._ids.to_bytes(16, "big"))
        return name

    def last_led(self) -> dict[TopicPartition, KnownPartition]:
        return {
            name: KnownPartition(each.topic_id, each.epoch - (each.leader == NO_NODE))
            for name, each in self.topics.items()
        }

    def to_open(self) -> dict[TopicPartition, KnownPartition]:
        return {
            name: KnownPartition(each.topic_id, each.epoch - (each.leader != NO_NODE))
            for name, each in self.topics.items()
        }

    # -- processes --------------------------------------------------------------------------------

    def load(self, layout: Layout) -> Process:
        """What every start does: of one broker, or of a parent."""
        layout.load()
        load_identity(self.disk, FOLDER, 1, CountingRandomness())
        started = process(self.disk, layout)
        started.store.open_metadata_log()
        if layout.has_cluster_files:
            layout.merge(self.last_led())
        layout.set_aside_strays([TopicPartition("__cluster_metadata", 0), *self.topics])
        if not layout.clean:
            for topic in self.topics.values():
                topic.epoch += topic.leader != NO_NODE
        return started

    @property
    def directory(self) -> ParentLayout:
        assert self.parent is not None
        assert isinstance(self.parent.layout, ParentLayout)
        return self.parent.layout

    def start_parent(self) -> None:
        self.parent = self.load(ParentLayout(self.disk, FOLDER))
        self.directory.begin_cluster(self.to_open(), sync=False)
        # The leaders stay, as after a restart of a cluster of the same size.
        for broker_id in BROKERS:
            self.start_broker(broker_id)
        for name, topic in self.topics.items():
            if topic.leader != NO_NODE:
                self.open(name)
        self.directory.trust_session(sync=False)

    def start_broker(self, broker_id: int) -> None:
        layout = BrokerLayout(self.disk, FOLDER, broker_id, BROKERS)
        layout.load()
        self.brokers[broker_id] = process(self.disk, layout)

    def stop(self) -> bool:
        """Stops everything cleanly; returns whether the parent could say so."""
        for broker in self.brokers.values():
            broker.store.close_all(clean=True, settled=True)
        self.brokers.clear()
        is_clean = self.directory.end_cluster(self.last_led())
        assert self.parent is not None
        self.parent.store.close_all(clean=True, settled=True)
        self.parent = None
        return is_clean

    def kill_all(self) -> None:
        self.brokers.clear()
        self.parent = None
        self.disk.kill()

    # -- leaders ----------------------------------------------------------------------------------

    def lead(self, name: TopicPartition, broker_id: int) -> Partition:
        """Makes a broker the leader, in the next epoch; the last one has closed or is dead."""
        topic = self.topics[name]
        topic.leader = broker_id
        topic.epoch += 1
        self.brokers[broker_id].store.refresh()
        return self.open(name)

    def open(self, name: TopicPartition) -> Partition:
        topic = self.topics[name]
        opened = self.brokers[topic.leader].open(name, topic)
        self.check(opened, topic)
        return opened

    def check(self, opened: Partition, topic: Topic) -> None:
        assert opened.log.missing == []
        assert opened.log_end_offset == topic.end
        assert opened.log_start_offset == topic.start

    def partition(self, name: TopicPartition) -> Partition:
        return self.brokers[self.topics[name].leader].partitions.by_name[name]

    def release(self, name: TopicPartition, *, clean: bool = True) -> None:
        """The leader closes a partition, and saves that it did."""
        leader = self.brokers[self.topics[name].leader]
        partition = leader.store.withdraw(name)
        assert partition is not None
        if not clean:
            partition.log.close(clean=False)
        steps = leader.store.closing([partition])
        outcome: list[Exception | None] = []
        for wait in steps:
            while wait is not None:
                wait(outcome.append)
                try:
                    wait = steps.send(outcome.pop())
                except StopIteration:
                    return

    def kill(self, broker_id: int) -> None:
        """Ends a process as kill -9 does: what it wrote stays."""
        del self.brokers[broker_id]

    # -- clients ----------------------------------------------------------------------------------

    def write(self, name: TopicPartition, count: int = 1) -> None:
        partition, topic = self.partition(name), self.topics[name]
        for _ in range(count):
            partition.append_from_client(client_batch(b"value of some length"), 1_000)
            topic.end += 1
        assert partition.log_end_offset == topic.end

    def delete_records(self, name: TopicPartition, offset: int, *, sync: bool = False) -> None:
        topic = self.topics[name]
        layout = self.brokers[topic.leader].layout
        layout.save_log_starts({name: offset}, sync=sync)
        partition = self.partition(name)
        partition.delete_before(offset)
        topic.start = partition.log_start_offset

    def delete(self, name: TopicPartition) -> None:
        """Deletes a topic: every broker closes it, then the parent renames its folder."""
        topic = self.topics.pop(name)
        for broker in self.brokers.values():
            broker.store.delete(name, topic.topic_id)
        self.directory.delete(name, topic.topic_id)
