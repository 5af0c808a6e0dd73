"""A partition is opened over several turns of the loop, and may be deleted in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.broker import turns
from tests.broker.node_stage import Stage
from tests.broker.requests import batch_of, create_topic, produce, read_topic

if TYPE_CHECKING:
    from fencepost.broker.storage.partition_store import PartitionStore
    from fencepost.partition.partition import Partition

# Constants of compiled modules cannot be replaced.
pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.interpreted]

NAME = TopicPartition("t", 0)
BATCHES = 400


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SHORT_TURN_SECONDS", 0.0)
    monkeypatch.setattr("fencepost.log.recovery.PIECE_BYTES", 10_000)
    monkeypatch.setattr("fencepost.partition.partition.SCANNED_PER_STEP", 50)


class Closed:
    """A broker with one partition whose log it has closed, as after a kill."""

    def __init__(self) -> None:
        self.stage = Stage().start()
        create_topic(self.stage, "t")
        for number in range(BATCHES):
            produce(self.stage, "t", batch_of(b"%d" % number))
        self.partitions = self.stage.node.partitions
        self.old = self.partitions.by_name[NAME]
        self.partitions.remove(NAME)
        self.old.close(clean=False)

    @property
    def store(self) -> PartitionStore:
        return self.stage.node.host.store

    def opening(self) -> Generator[None, None, Partition]:
        return self.store.opening(
            NAME, self.old.topic_id, self.old.leader_epoch, self.old.log.config
        )


def test_nothing_is_registered_before_the_last_slice() -> None:
    closed = Closed()
    slices = 0
    steps = closed.opening()
    while True:
        assert NAME not in closed.partitions.by_name
        try:
            next(steps)
        except StopIteration as end:
            opened = end.value
            break
        slices += 1
    assert slices > 5
    assert closed.partitions.by_name[NAME] is opened
    assert read_topic(closed.stage, "t") == [b"%d" % number for number in range(BATCHES)]
    closed.stage.stop()


@pytest.mark.parametrize("slices", [0, 1, 2, 5, 8])
def test_an_opening_that_is_given_up_can_be_repeated(slices: int) -> None:
    closed = Closed()
    opened = len(closed.store._open_segments)
    steps = closed.opening()
    for _ in range(slices):
        next(steps)
    steps.close()
    assert NAME not in closed.partitions.by_name
    assert len(closed.store._open_segments) == opened
    again = closed.store.open(
        NAME, closed.old.topic_id, closed.old.leader_epoch, closed.old.log.config
    )
    assert again.log_end_offset == BATCHES
    closed.stage.stop()


@pytest.mark.parametrize("slices", [0, 1, 2, 5, 8])
def test_a_partition_that_is_deleted_while_it_is_opened_is_not_registered(slices: int) -> None:
    closed = Closed()
    opened = len(closed.store._open_segments)
    steps = closed.opening()
    for _ in range(slices):
        next(steps)
    closed.store.delete(NAME, closed.old.topic_id)
    assert list(steps) == []
    assert NAME not in closed.partitions.by_name
    assert len(closed.store._open_segments) == opened
    assert not closed.stage.disk.exists(closed.old.log.folder)
    closed.stage.stop()
