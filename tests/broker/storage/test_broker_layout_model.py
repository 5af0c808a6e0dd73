"""Random moves, kills and restarts: the newest entry counts, and a clean close only for one epoch.

`ClusterStage` compares the start and the end of a log with what clients know, at every opening.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.broker.storage.layout import Layout
from fencepost.partition.partition import Partition
from tests.broker.storage.cluster_stage import BROKERS, FOLDER, ClusterStage
from tests.halves import examples

TOPICS = ("a", "b")
brokers = st.sampled_from(BROKERS)
topics = st.sampled_from([TopicPartition(each, 0) for each in TOPICS])


class OneDirectory(RuleBasedStateMachine):
    """Several brokers, their parent, and now and then one broker alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = ClusterStage()
        self.closed: dict[TopicPartition, int] = {}
        """The epoch in which the last leader closed a partition cleanly."""

    @initialize()
    def start(self) -> None:
        for each in TOPICS:
            self.stage.create(each)
        self.stage.start_parent()

    def is_open(self, name: TopicPartition) -> bool:
        leader = self.stage.brokers.get(self.stage.topics[name].leader)
        return leader is not None and name in leader.partitions.by_name

    def check_scan(self, name: TopicPartition, opened: Partition, *, is_clean: bool) -> None:
        if self.stage.topics[name].end:
            assert (opened.log.recovered_from is None) is is_clean

    @rule(name=topics, broker_id=brokers)
    def lead(self, name: TopicPartition, broker_id: int) -> None:
        if broker_id not in self.stage.brokers:
            return
        if self.is_open(name):
            self.release(name, clean=True)
        is_clean = self.closed.pop(name, None) == self.stage.topics[name].epoch
        self.check_scan(name, self.stage.lead(name, broker_id), is_clean=is_clean)

    @rule(name=topics, clean=st.booleans())
    def release(self, name: TopicPartition, clean: bool) -> None:
        if self.is_open(name):
            self.stage.release(name, clean=clean)
            if clean:
                self.closed[name] = self.stage.topics[name].epoch

    @rule(name=topics)
    def lose_leader(self, name: TopicPartition) -> None:
        """A partition may be without a leader for an epoch."""
        if not self.is_open(name) and self.stage.topics[name].leader != NO_NODE:
            self.stage.topics[name].leader = NO_NODE
            self.stage.topics[name].epoch += 1

    @rule(name=topics, count=st.integers(1, 8))
    def write(self, name: TopicPartition, count: int) -> None:
        if self.is_open(name):
            self.stage.write(name, count)

    @rule(name=topics, data=st.data())
    def delete_records(self, name: TopicPartition, data: st.DataObject) -> None:
        if self.is_open(name):
            offset = data.draw(st.integers(0, self.stage.topics[name].end))
            self.stage.delete_records(name, offset)

    @rule(name=topics)
    def sync(self, name: TopicPartition) -> None:
        if self.is_open(name):
            self.stage.partition(name).log.sync()

    @rule(broker_id=brokers)
    def save(self, broker_id: int) -> None:
        if broker_id in self.stage.brokers:
            self.stage.brokers[broker_id].save()

    @rule(broker_id=brokers)
    def kill_or_restart(self, broker_id: int) -> None:
        if broker_id in self.stage.brokers:
            self.stage.kill(broker_id)
        else:
            self.stage.start_broker(broker_id)

    @rule(name=topics)
    def delete_and_create(self, name: TopicPartition) -> None:
        self.stage.delete(name)
        self.closed.pop(name, None)
        self.stage.create(name.topic)

    @rule()
    def kill_everything(self) -> None:
        self.stage.kill_all()
        self.start_again()

    def start_again(self) -> None:
        known = self.stage.last_led()
        trusted = {name for name in known if self.closed.get(name) == known[name].last_epoch}
        self.stage.start_parent()
        for name, topic in self.stage.topics.items():
            if topic.leader != NO_NODE:
                self.closed.pop(name, None)
                self.check_scan(name, self.stage.partition(name), is_clean=name in trusted)
            elif name in trusted:
                self.closed[name] = topic.epoch  # The next leader is the first after the close.

    @rule(clean=st.booleans())
    def serve_alone(self, clean: bool) -> None:
        """One broker takes everything, and is stopped or killed."""
        stage = self.stage
        stage.kill_all()
        alone = stage.load(Layout(stage.disk, FOLDER))
        for name, topic in stage.topics.items():
            topic.leader, topic.epoch = 1, topic.epoch + 1
            stage.check(alone.open(name, topic), topic)
        self.closed.clear()
        if clean:
            alone.store.close_all(clean=True, settled=True)
            self.closed = {name: topic.epoch for name, topic in stage.topics.items()}
        stage.kill_all()
        self.start_again()

    @precondition(lambda self: len(self.stage.brokers) == len(BROKERS))
    @rule()
    def stop_and_start(self) -> None:
        is_open = {name for name in self.stage.topics if self.is_open(name)}
        for name in is_open:
            self.closed[name] = self.stage.topics[name].epoch
        known = self.stage.last_led()
        trusted = {name for name in known if self.closed.get(name) == known[name].last_epoch}
        unwritten = {name for name, topic in self.stage.topics.items() if not topic.end}
        assert self.stage.stop() is (trusted | unwritten == known.keys())
        self.start_again()


TestOneDirectory = pytest.mark.usefixtures("quiet")(OneDirectory.TestCase)
TestOneDirectory.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
