"""Moves of partitions between the broker of a stage and another one that is only a name.

join_other(stage)                   broker 2 is registered and alive, but does not exist
move(stage, "orders", 0, to=2)      its records go through the metadata log, as the controller's
move(stage, "orders", 0, to=1)      the partition comes back, with nothing written in between
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.metadata.events import Decision
from fencepost.records.metadata_log import (
    BrokerEndpoint,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fencepost.coordinator.metadata.effects import Effect
    from fencepost.records.metadata_log import MetadataRecord
    from tests.broker.node_stage import Stage

THIS: Final = 1
OTHER: Final = 2
OTHER_PORT: Final = 19_092


class Change:
    """A batch of the metadata log, and whether its effects are carried out."""

    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> None:
        assert not self.is_done, "done is called once"
        self.is_done = True


@contextlib.contextmanager
def in_a_turn(stage: Stage) -> Iterator[None]:
    """As in a turn of the stage's loop: the broker may start threads."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(stage.loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)


def apply(stage: Stage, *records: MetadataRecord) -> Sequence[Effect]:
    """Appends records to the metadata log and applies them; their effects are left."""
    _, effects = stage.node.controller._log.append(Decision(records))
    return effects


def write(stage: Stage, *records: MetadataRecord) -> Change:
    """Appends records to the metadata log, and carries their effects out when they are durable."""
    change = Change()
    with in_a_turn(stage):
        stage.node.controller._log.finish(apply(stage, *records), change.done)
    return change


def carry_out(stage: Stage, effects: Sequence[Effect], done: Callable[[], None]) -> None:
    with in_a_turn(stage):
        stage.node.follower.carry_out(effects, done)


def release(stage: Stage, effects: Sequence[Effect], done: Callable[[], None]) -> None:
    with in_a_turn(stage):
        stage.node.effects.release(effects, done)


def open_all(stage: Stage, effects: Sequence[Effect], done: Callable[[], None]) -> None:
    with in_a_turn(stage):
        stage.node.effects.open(effects, done)


def join_other(stage: Stage) -> None:
    endpoints = [
        # Of a listener to which no client of these tests is connected.
        BrokerEndpoint(name="OUTSIDE", host="elsewhere", port=1, security_protocol=1),
        BrokerEndpoint(name="PLAINTEXT", host="other", port=OTHER_PORT),
    ]
    write(stage, RegisterBrokerRecord(broker_id=OTHER, end_points=endpoints, fenced=False))
    stage.settle()


def move_record(stage: Stage, topic: str, index: int, to: int) -> PartitionChangeRecord:
    topic_id = stage.node.metadata.topic_id(topic)
    assert topic_id is not None
    both = [THIS, OTHER]
    return PartitionChangeRecord(
        partition_id=index, topic_id=topic_id, leader=to, replicas=both, isr=both
    )


def start_move(stage: Stage, topic: str, index: int = 0, *, to: int) -> Change:
    return write(stage, move_record(stage, topic, index, to))


def move(stage: Stage, topic: str, index: int = 0, *, to: int) -> None:
    """Moves a partition, and waits until that is done."""
    change = start_move(stage, topic, index, to=to)
    stage.settle()
    assert change.is_done
    assert (stage.node.partitions.get(topic, index) is not None) == (to == THIS)


def move_all(stage: Stage, topic: str, *, to: int) -> None:
    """Moves every partition of a topic in one batch."""
    count = stage.node.metadata.partition_count(topic)
    change = write(stage, *(move_record(stage, topic, index, to) for index in range(count)))
    stage.settle()
    assert change.is_done


def shrink(stage: Stage, topic: str, *isr: int) -> None:
    """Sets the in-sync replicas of partition 0."""
    topic_id = stage.node.metadata.topic_id(topic)
    assert topic_id is not None
    record = PartitionChangeRecord(
        partition_id=0, topic_id=topic_id, replicas=[THIS, OTHER], isr=list(isr)
    )
    change = write(stage, record)
    stage.settle()
    assert change.is_done
