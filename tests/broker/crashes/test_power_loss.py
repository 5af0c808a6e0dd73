"""Power loss: what only one broker's records, topics or snapshots know is never lost or reused.

Method: a fixed piece of work runs on a disk in memory that loses unsynced data; then the broker is
started again on what is left. (`test_crash_matrix.py` cuts the power at any call of what clients
do, also in the middle of a recovery.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.controller.topics_stage import CountingRandomness, bump_leader_epochs
from tests.broker.node_stage import DiedError, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import (
    batch_of,
    create_topic,
    delete_records,
    delete_topic,
    produce,
    produce_request,
    read_topic,
)
from tests.log.batches import SeededRandomness

pytestmark = pytest.mark.usefixtures("quiet")


def calls_of(work: Callable[[Stage], None], durability: str = "fsync") -> range:
    """The numbers of the disk calls that a start and the work make."""
    stage = Stage(durability=durability)
    first = stage.disk.calls
    stage.start()
    work(stage)
    stage.stop()
    assert stage.disk.calls > first, "the work made no disk call"
    return range(first + 1, stage.disk.calls + 1)


def run_until_power_loss(stage: Stage, work: Callable[[Stage], None], call: int) -> None:
    """Runs the work on a machine whose power is cut at that call."""
    stage.disk.lose_power_at(call)
    try:
        stage.start()
        work(stage)
        stage.stop()
    except Exception:  # noqa: BLE001 - after a crash any failure is expected.
        assert stage.disk.calls >= call, "the work failed before the power was lost"


def test_in_os_mode_a_power_loss_may_lose_an_acknowledged_batch() -> None:
    """As in Kafka: only the operating system has the data."""
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    stage.stop()
    again = stage.again()
    assert produce(again, "t", batch_of(b"acknowledged")).error_code == ErrorCode.NONE
    assert read_topic(again, "t") == [b"acknowledged"]
    after = again.lose_power().again()
    assert read_topic(after, "t") == []
    # The offset was never durable, so no client has seen it: it is assigned again.
    assert produce(after, "t", batch_of(b"next")).base_offset == 0
    after.stop()


class Replacement:
    """A topic that is deleted and created again under the same name."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def run(self, stage: Stage) -> None:
        create_topic(stage, "name")
        self.told.append("created")
        produce(stage, "name", batch_of(b"of the first life"))
        assert delete_topic(stage, "name") == ErrorCode.NONE
        self.told.append("deleted")
        create_topic(stage, "name")
        self.told.append("created again")


def test_a_leader_epoch_known_only_from_batches_is_never_reused() -> None:
    """Clients keep the highest epoch they have seen; a lower one would make them wait forever."""
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    produce(stage, "t", batch_of(b"old"))
    stage.advance(2_000)
    partition = stage.partition("t", 0)
    for _ in range(3):
        bump_leader_epochs(stage.node.controller, [partition.name])
    produce(stage, "t", batch_of(b"new"))
    seen = partition.leader_epoch
    partition.log.sync()
    again = stage.lose_power().again()
    opened = again.partition("t", 0)
    state = again.node.metadata.partition("t", 0)
    assert state is not None
    assert state.leader_epoch == opened.leader_epoch > seen
    assert produce(again, "t", batch_of(b"newer")).error_code == ErrorCode.NONE
    assert read_topic(again, "t")[-1] == b"newer"
    again.stop()


def test_a_deleted_topic_stays_deleted_and_a_recreated_one_begins_empty() -> None:
    for call in calls_of(lambda stage: Replacement().run(stage))[::2]:
        replacement = Replacement()
        stage = Stage()
        run_until_power_loss(stage, replacement.run, call)
        after = stage.lose_power(CountingRandomness()).again()
        metadata = after.call(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        is_there = [topic.name for topic in metadata.topics] == ["name"]
        if "created again" in replacement.told:
            assert is_there
        if "deleted" in replacement.told and is_there:
            assert read_topic(after, "name") == []
        after.stop()


def live_four_times(stage: Stage) -> Iterator[Stage]:
    """Several processes on one disk, stopped or killed, with saved recovery points."""
    for name, end in (("a", "stop"), ("b", "stop"), ("c", "kill"), ("d", "stop")):
        yield stage
        create_topic(stage, name, 2)
        stage.advance(5_000)
        getattr(stage, end)()
        stage = stage.again()
    stage.stop()


def test_in_os_mode_a_power_loss_is_never_mistaken_for_damaged_metadata() -> None:
    settings = {"log.flush.offset.checkpoint.interval.ms": "1000"}
    whole = Stage(durability="os", settings=settings)
    for _ in live_four_times(whole.start()):
        pass
    calls = whole.disk.calls
    assert calls > 100
    for call in range(1, calls + 1, 3):
        stage = Stage(durability="os", settings=settings)
        stage.disk.lose_power_at(call)
        try:
            for life in live_four_times(stage.start()):
                stage = life
        except Exception:  # noqa: BLE001 - after a crash any failure is expected.
            assert stage.disk.calls >= call, "the work failed before the power was lost"
        stage.lose_power(CountingRandomness()).again().stop()


# -- what a second crash may remove ----------------------------------------------------------------


def test_records_visible_after_a_kill_survive_a_power_loss() -> None:
    """The batch was appended but never synced. Once a reader can see it, it is on the disk."""
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t")
    produce(stage, "t", batch_of(b"acknowledged"))
    stage.connect().send(ApiKey.PRODUCE, 11, produce_request("t", batch_of(b"in the page cache")))
    stage.disk.lose_power_at(1)  # The process writes nothing more; the disk keeps every byte.
    again = stage.kill().again()
    shown = read_topic(again, "t")
    assert shown == [b"acknowledged", b"in the page cache"]
    third = again.lose_power().again()
    assert read_topic(third, "t") == shown
    third.stop()


def test_a_topic_of_an_old_name_does_not_inherit_what_was_synced_of_the_old_one() -> None:
    """The old topic was deleted by a process that died before it saved its checkpoints again."""
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t")
    for number in range(6):
        produce(stage, "t", batch_of(b"old %d" % number))
    stage.stop()
    stage = stage.again()
    delete_topic(stage, "t")
    stage = stage.kill().again()
    create_topic(stage, "t")
    assert produce(stage, "t", batch_of(b"first")).error_code == ErrorCode.NONE
    stage.disk.fail_for_a_while(1, 1, kinds=["sync"])
    with contextlib.suppress(DiedError, ClosedError):
        produce(stage, "t", batch_of(b"unconfirmed"))
    assert stage.fatal, "the test fails no sync"
    stage = stage.kill().again()
    seen = read_topic(stage, "t")
    stage = stage.lose_power().again()
    assert read_topic(stage, "t") == seen, "a reader has seen records that are gone"
    stage.stop()


@pytest.mark.parametrize("torn", [False, True])
def test_a_producer_whose_records_were_deleted_survives_a_power_loss(torn: bool) -> None:
    """Only a snapshot has it; a retry of its last batch is still recognised as a duplicate."""
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t", settings={"internal.segment.bytes": "200"})
    producer: dict[str, Any] = {"producer_id": 4_000, "epoch": 0}
    for sequence in range(4):
        produce(stage, "t", batch_of(b"%d" % sequence, sequence=sequence, **producer))
    assert delete_records(stage, "t", -1) == ErrorCode.NONE
    # The sync of these makes the deletion durable too.
    for _ in range(4):
        produce(stage, "t", batch_of(b"of another"))
    stage = stage.lose_power(SeededRandomness(7) if torn else None).again()
    repeated = produce(stage, "t", batch_of(b"3", sequence=3, **producer))
    assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, 3)
    gap = produce(stage, "t", batch_of(b"5", sequence=5, **producer))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(stage, "t", batch_of(b"4", sequence=4, **producer)).base_offset == 8
    stage.stop()
