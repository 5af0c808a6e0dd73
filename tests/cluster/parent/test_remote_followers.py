"""A controller and its brokers, joined by links that delay: no partition is ever open twice.

`RemoteFollowers` and one `Following` for each broker are real; the links between them, the
partitions and the deaths of brokers are simulated. Each run is a random schedule from a seed:
messages arrive late, closing and opening takes as long as the schedule likes, brokers die and
return.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.cluster.broker.following import Following
from fencepost.cluster.messages import Batch
from fencepost.cluster.parent.remote_followers import RemoteFollowers
from fencepost.coordinator.metadata.decide import decide_create_topic, decide_delete_topic
from fencepost.coordinator.metadata.effects import (
    Effect,
    LeadersChanged,
    PartitionsCreated,
    TopicRemoved,
)
from fencepost.coordinator.metadata.events import (
    AlterPartitionReassignments,
    CreateTopic,
    Decision,
    DeleteTopic,
    RegisterBroker,
)
from fencepost.coordinator.metadata.leadership import decide_alter_reassignments, decide_rebalance
from fencepost.coordinator.metadata.registry import (
    decide_allocate_block,
    decide_controlled_shutdown,
    decide_fence_brokers,
    decide_register_broker,
    decide_suspend_broker,
    decide_unfence_brokers,
)
from fencepost.coordinator.metadata.state import Endpoint
from tests.coordinator.metadata.cluster import opens_at

BROKERS = (1, 2, 3)
STEPS = 400


class OwnEffects:
    """What the controller carries out itself: folders of deleted topics are removed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def run(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        for effect in effects:
            if isinstance(effect, TopicRemoved):
                for index in range(effect.partition_count):
                    name = TopicPartition(effect.topic, index)
                    # A killed process may have the folder open: it no longer runs code.
                    holders = self._cluster.holders(name) & self._cluster.live.keys()
                    assert not holders, f"{name} is removed while {holders} have it open"
                    self._cluster.removed.add(effect.topic)
        self._cluster.later(done)


class Partitions:
    """The partitions of one broker; closing and opening ends when the schedule says so."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.open_names: set[TopicPartition] = set()

    def release(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        self._broker.later(partial(self._close, effects, done))

    def _close(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        for effect in effects:
            match effect:
                case TopicRemoved(topic, count):
                    for index in range(count):
                        self.open_names.discard(TopicPartition(topic, index))
                case LeadersChanged(changes):
                    for change in changes:
                        if change.closes_at(self._broker.broker_id):
                            self.open_names.discard(TopicPartition(change.topic, change.partition))
        done()

    def open(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        self._broker.later(partial(self._open, effects, done))

    def _open(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        for effect in effects:
            match effect:
                case PartitionsCreated(topic, first, count, topic_id):
                    for index in range(first, first + count):
                        self._open_one(TopicPartition(topic, index), topic_id, 0)
                case LeadersChanged(changes):
                    for change in changes:
                        if opens_at(change, self._broker.broker_id):
                            name = TopicPartition(change.topic, change.partition)
                            self._open_one(name, change.topic_id, change.leader_epoch)
        done()

    def _open_one(self, name: TopicPartition, topic_id: bytes, leader_epoch: int) -> None:
        """Opens a partition, unless the metadata has a newer leader epoch by now."""
        state = self._broker.follower.state
        known = state.topics.get(name.topic)
        if known is None or known.topic_id != topic_id:
            return
        found = known.partitions[name.partition]
        if found.leader == self._broker.broker_id and found.leader_epoch == leader_epoch:
            others = self._broker.cluster.holders(name) - {self._broker.broker_id}
            assert not others, f"{name} is open at {others} and {self._broker.broker_id}"
            self.open_names.add(name)


class Broker:
    """One broker process, from its start to its death."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.is_alive = True
        self.follower = MetadataFollower()
        self.partitions = Partitions(self)
        self.inbox: deque[Callable[[], None]] = deque()
        """Messages of the controller; they arrive in their order."""
        self.outbox: deque[Callable[[], None]] = deque()
        self.following = Following(self.follower, self.partitions, self, lambda offset: None)

    def later(self, work: Callable[[], None]) -> None:
        self.cluster.later(lambda: work() if self.is_alive else None)

    # -- what the controller sends (remote_followers.BrokerPort)

    def state(self, end_offset: int, records: list[bytes]) -> None:
        batch = Batch(end_offset, True, records)
        self.inbox.append(partial(self.following.load, batch))

    def records(self, end_offset: int, records: list[bytes], *, opens_at_once: bool) -> None:
        batch = Batch(end_offset, opens_at_once, records)
        self.inbox.append(partial(self.following.receive, batch))

    def open(self, end_offset: int) -> None:
        self.inbox.append(partial(self.following.may_open, end_offset))

    # -- what the controller hears (following.Reports)

    def released(self, end_offset: int) -> None:
        self.outbox.append(partial(self.cluster.brokers.released, self.broker_id, end_offset))

    def done(self, end_offset: int) -> None:
        self.outbox.append(partial(self.cluster.brokers.done, self.broker_id, end_offset))


class Cluster:
    """The controller, its brokers, and all work that is waiting to be done."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.end_offset = 0
        self.removed: set[str] = set()
        self.waiting: list[Callable[[], None]] = []
        self.answered = 0
        self.asked = 0
        self.live: dict[int, Broker] = {}
        self.suspended: dict[int, Broker] = {}
        follower = MetadataFollower()
        own: Any = OwnEffects(self)
        follower.attach(own)
        self.brokers = RemoteFollowers(follower, lambda: self.end_offset)
        self.state = self.brokers.state
        for broker_id in BROKERS:
            self.start(broker_id, fenced=False)
        self.topics = 0

    def later(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def holders(self, name: TopicPartition) -> set[int]:
        return {
            broker.broker_id
            for broker in (*self.live.values(), *self.suspended.values())
            if name in broker.partitions.open_names
        }

    # -- the controller's decisions

    def take(self, decision: Decision, *, finishes: bool = True) -> None:
        if decision.records:
            self.end_offset += len(decision.records)
            effects = self.brokers.apply(decision.records)
        else:
            effects = ()
        if finishes:
            self.asked += 1
            self.brokers.carry_out(effects, self._answer)

    def _answer(self) -> None:
        self.answered += 1

    def start(self, broker_id: int, *, fenced: bool) -> None:
        event = RegisterBroker(
            broker_id,
            self.end_offset,
            bytes([broker_id] * 16),
            (Endpoint("PLAINTEXT", "localhost", 9092),),
            features={"metadata.version": 29},
            fenced=fenced,
        )
        self.take(decide_register_broker(self.state, event))
        self.live[broker_id] = broker = Broker(self, broker_id)
        self.brokers.connect(broker_id, broker)

    def die(self) -> None:
        if len(self.live) > 1:
            broker = self.live.pop(self.random.choice(list(self.live)))
            broker.is_alive = False
            self.reap(broker.broker_id)

    def reap(self, broker_id: int) -> None:
        self.brokers.disconnect(broker_id)
        self.take(decide_fence_brokers(self.state, frozenset({broker_id})))

    def suspend(self) -> None:
        """A broker was killed, and its process does not end: what it has open stays open."""
        if len(self.live) > 1:
            broker_id = self.random.choice(list(self.live))
            self.suspended[broker_id] = broker = self.live.pop(broker_id)
            broker.is_alive = False
            self.brokers.suspend(broker_id)
            if self.random.random() < 0.8:  # Otherwise the disk refuses the record.
                self.take(decide_suspend_broker(self.state, broker_id))

    def die_at_last(self) -> None:
        if self.suspended:
            self.reap(self.suspended.popitem()[0])

    def come_back(self) -> None:
        for broker_id in BROKERS:
            if broker_id not in self.live and broker_id not in self.suspended:
                self.start(broker_id, fenced=True)
                return

    def unfence(self) -> None:
        fenced = [each for each in self.live if self.state.brokers[each].fenced]
        if fenced:
            self.take(decide_unfence_brokers(self.state, frozenset(fenced[:1])))

    def shut_down(self) -> None:
        active = sorted(self.state.active_nodes())
        if len(active) > 1:
            self.take(decide_controlled_shutdown(self.state, self.random.choice(active)))

    def create(self) -> None:
        self.topics += 1
        name = f"topic-{self.random.randrange(4)}"
        if name in self.state.topics or not self.state.active_nodes():
            return
        if name in self.removing():
            return  # As the controller does: creation waits until the removal is done.
        event = CreateTopic(
            name, self.topics.to_bytes(16, "big"), 3, self.random.choice((1, 2, len(BROKERS)))
        )
        self.take(decide_create_topic(self.state, event))

    def removing(self) -> set[str]:
        return set() if self.answered == self.asked else set(self.deleted)

    @property
    def deleted(self) -> set[str]:
        return {f"topic-{number}" for number in range(4)} - self.state.topics.keys()

    def delete(self) -> None:
        if self.state.topics:
            name = self.random.choice(list(self.state.topics))
            self.take(decide_delete_topic(self.state, DeleteTopic(name)))

    def balance(self) -> None:
        self.take(decide_rebalance(self.state, self.random.choice((None, 1))))

    def move(self) -> None:
        active = sorted(self.state.active_nodes())
        if self.state.topics and active:
            name = TopicPartition(self.random.choice(list(self.state.topics)), 0)
            to = self.random.sample(active, self.random.randrange(1, len(active) + 1))
            event = AlterPartitionReassignments({name: to})
            self.take(decide_alter_reassignments(self.state, event)[0])

    def reserve(self) -> None:
        self.take(decide_allocate_block(self.state, 1), finishes=False)

    # -- the schedule

    def step(self) -> None:
        acts = (
            [self.create] * 3
            + [self.delete, self.die, self.come_back, self.balance, self.shut_down, self.reserve]
            + [self.unfence, self.move, self.die_at_last] * 2
            + [self.suspend]
        )
        if self.random.random() < 0.2:
            self.random.choice(acts)()
        else:
            self.go_on()

    def go_on(self) -> bool:
        """Does one thing that waits: a message arrives, or a piece of work ends."""
        queues: list[Callable[[], Callable[[], None]]] = []
        for broker in self.live.values():
            if broker.inbox:
                queues.append(broker.inbox.popleft)
            if broker.outbox:
                queues.append(broker.outbox.popleft)
        if self.waiting:
            queues.append(self._any_waiting)
        if not queues:
            return False
        self.random.choice(queues)()()
        return True

    def _any_waiting(self) -> Callable[[], None]:
        return self.waiting.pop(self.random.randrange(len(self.waiting)))

    def settle(self) -> None:
        while self.go_on():
            pass


@pytest.mark.parametrize("seed", range(40))
def test_a_partition_is_open_at_one_broker_at_most_and_at_its_leader_in_the_end(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(STEPS):
        cluster.step()
    for _ in BROKERS:
        cluster.die_at_last()
        cluster.come_back()
        cluster.unfence()
    cluster.take(Decision())
    cluster.settle()
    assert cluster.answered == cluster.asked, "every request is answered"
    assert cluster.brokers.unfinished() == []
    for topic in cluster.state.topics.values():
        for index, partition in enumerate(topic.partitions):
            name = TopicPartition(topic.name, index)
            expected = {partition.leader} & cluster.live.keys()
            assert cluster.holders(name) == expected, name
    for broker in cluster.live.values():
        assert broker.follower.state == cluster.state


def test_a_change_is_answered_when_every_live_broker_has_carried_it_out() -> None:
    cluster = Cluster(seed=1)
    cluster.settle()
    before = cluster.answered
    cluster.create()
    slow = cluster.live[3]
    while any(each.inbox or each.outbox for each in cluster.live.values() if each is not slow):
        for broker in (cluster.live[1], cluster.live[2]):
            if broker.inbox:
                broker.inbox.popleft()()
            if broker.outbox:
                broker.outbox.popleft()()
        while cluster.waiting:
            cluster.waiting.pop()()
    assert cluster.answered == before
    assert cluster.brokers.unfinished() == [3]
    cluster.live.pop(3).is_alive = False
    cluster.brokers.disconnect(3)
    assert cluster.answered == before + 1
