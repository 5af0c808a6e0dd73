"""Reconciliation after an unclean stop: producer ids, offsets of unfinished transactions."""

from __future__ import annotations

import errno
import itertools

import pytest

from fencepost.base.failures import FencepostError, StorageError
from fencepost.base.ids import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from fencepost.broker.network.server import Server
from fencepost.broker.storage.layout import Layout
from fencepost.broker.storage.session import SESSION
from fencepost.broker.transactions.reconciliation import SKIPPED_IDS
from fencepost.simulation.disk import PowerLost, UnsyncedDisk, UnsyncedFile
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import batch_of, create_topic, produce
from tests.transactions.protocol import TV1, TV2
from tests.transactions.requests import init_request
from tests.transactions.wire import NONE, WireProducer, consume

pytestmark = pytest.mark.usefixtures("quiet")


def fresh_id(stage: Stage) -> int:
    reply = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request(None))
    assert reply.error_code == NONE
    return int(reply.producer_id)


def sync(stage: Stage, topic: str) -> None:
    for name, partition in stage.node.partitions.by_name.items():
        if name.topic == topic and partition.log_end_offset > 0:
            partition.log.sync()
            stage.disk.sync_dir(stage.node.layout.folder_of(name))
    stage.node.layout.sync_names()


def test_a_producer_id_is_not_reused_even_if_the_metadata_log_lost_its_block() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    stage = stage.kill().again()  # Syncs the metadata log, so that only the next block is lost.
    first = fresh_id(stage)
    assert (
        produce(stage, "t", batch_of(b"old", producer_id=first, epoch=0, sequence=0)).error_code
        == NONE
    )
    sync(stage, "t")
    stage = stage.lose_power().again()
    assert consume(stage, "t").values == [b"old"]
    second = fresh_id(stage)
    assert second > first + SKIPPED_IDS
    assert (
        produce(stage, "t", batch_of(b"new", producer_id=second, epoch=0, sequence=0)).error_code
        == NONE
    )
    assert consume(stage, "t").values == [b"old", b"new"]
    stage.abandon()


def test_after_a_kill_producer_ids_continue_above_those_that_partitions_know() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    for number, producer_id in enumerate((5_000, 2**63 - 1)):
        batch = batch_of(b"%d" % number, producer_id=producer_id, epoch=0, sequence=0)
        assert produce(stage, "t", batch).error_code == NONE
    stage = stage.kill().again()
    assert fresh_id(stage) == 5_001
    stage.abandon()


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_offsets_of_a_transaction_unknown_to_the_coordinator_are_aborted(protocol: object) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    other = WireProducer(stage, "other", TV2).initialise()
    other.send("t", b"x")
    other.send_offsets("g", {("t", 0): 1})
    other.commit()
    stage = stage.kill().again()
    producer = WireProducer(stage, "a", protocol).initialise()  # type: ignore[arg-type]
    producer.send("t", b"lost")
    producer.send_offsets("g", {("t", 0): 5})
    sync(stage, "t")
    sync(stage, CONSUMER_OFFSETS_TOPIC)
    stage = stage.lose_power().again()
    for partition in stage.node.partitions.by_name.values():
        assert len(partition.open_txns) == 0
        assert partition.last_stable_offset == partition.high_watermark
    producer.client = stage
    assert producer.end(commit=True) != NONE
    producer.initialise()
    producer.send("t", b"again")
    producer.send_offsets("g", {("t", 0): 6})
    producer.commit()
    assert b"lost" not in consume(stage, "t").values
    assert consume(stage, "t").values[-1] == b"again"
    stage.abandon()


def test_a_transaction_continues_after_a_kill() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "a", TV2).initialise()
    producer.send("t", b"first")
    producer.client = stage = stage.kill().again()
    producer.send("t", b"second")
    producer.commit()
    assert consume(stage, "t").values == [b"first", b"second"]
    stage.abandon()


# -- the mode in which the data was written decides, not the mode of the start ---------------------


class RefusingDisk(UnsyncedDisk):
    """Refuses to open files below one folder."""

    refused = "nothing"

    def open(self, path: str, *, create: bool = False) -> UnsyncedFile:
        if path.startswith(self.refused):
            raise OSError(errno.EIO, "refused")
        return super().open(path, create=create)


def open_transaction_that_lost_its_coordinator(
    disk: UnsyncedDisk | None = None,
) -> tuple[Stage, WireProducer]:
    """The disk has records of an open transaction that the coordinator's log has lost."""
    stage = Stage(durability="os", disk=disk).start()
    create_topic(stage, "t")
    WireProducer(stage, "other", TV2).initialise()
    stage = stage.kill().again()
    producer = WireProducer(stage, "a", TV2).initialise()
    producer.send("t", b"lost")
    sync(stage, "t")
    return stage.lose_power(), producer


def pinned(stage: Stage) -> list[object]:
    return [
        name
        for name, partition in stage.node.partitions.by_name.items()
        if len(partition.open_txns) or partition.last_stable_offset != partition.high_watermark
    ]


def test_data_written_in_os_mode_is_reconciled_by_a_start_in_fsync_mode() -> None:
    stage, producer = open_transaction_that_lost_its_coordinator()
    stage = stage.again(durability="fsync")
    assert not pinned(stage)
    assert fresh_id(stage) > SKIPPED_IDS
    producer.client = stage
    assert producer.end(commit=True) != NONE
    producer.initialise()
    producer.send("t", b"again")
    producer.commit()
    assert consume(stage, "t").values == [b"again"]
    stage.abandon()


def test_an_interrupted_start_in_fsync_mode_leaves_the_reconciliation_to_the_next() -> None:
    for number in itertools.count(1, 9):
        stage, _ = open_transaction_that_lost_its_coordinator()
        stage.disk.lose_power_at(number)
        try:
            stage.again(durability="fsync").abandon()
        except PowerLost:
            has_ended = False
        else:
            has_ended = True
        stage.disk.crash()
        stage = stage.again(durability="fsync")
        assert not pinned(stage), number
        stage.abandon()
        if has_ended:
            return


def test_a_partition_that_cannot_be_opened_keeps_its_directory_in_os_mode() -> None:
    disk = RefusingDisk()
    stage, _ = open_transaction_that_lost_its_coordinator(disk)
    disk.refused = f"{FOLDER}/t-0"
    stage = stage.again(durability="fsync")
    assert stage.node.partitions.get("t", 0) is None
    disk.refused = "nothing"
    stage = stage.kill().again(durability="fsync")
    assert stage.node.partitions.get("t", 0) is not None
    assert not pinned(stage)
    stage.abandon()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_data_written_in_fsync_mode_is_never_reconciled(durability: str) -> None:
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "a", TV2).initialise()
    producer.send("t", b"first")
    producer.client = stage = stage.lose_power().again(durability=durability)
    producer.send("t", b"second")
    producer.commit()
    assert consume(stage, "t").values == [b"first", b"second"]
    stage.abandon()


def test_a_reconciliation_in_fsync_mode_survives_a_power_loss() -> None:
    stage, _ = open_transaction_that_lost_its_coordinator()
    stage = stage.again(durability="fsync")
    stage.disk.lose_power_at(1)  # Pending work is not completed.
    stage = stage.lose_power().again(durability="fsync")
    assert not pinned(stage)
    stage.abandon()


def test_the_first_start_in_os_mode_records_the_mode_before_any_other_write() -> None:
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t")
    stage.stop()
    disk = stage.disk
    stage = stage.again(durability="os")
    disk.lose_power_at(1)  # Whatever is not on the disk by now is lost.
    stage.lose_power()
    layout = Layout(disk, FOLDER)
    layout.load()
    assert layout.lost_power
    assert not layout.is_synced


def test_data_counts_as_os_mode_from_the_first_start_in_that_mode() -> None:
    stage = Stage(durability="fsync").start()
    create_topic(stage, "t")
    WireProducer(stage, "other", TV2).initialise()
    stage.stop()
    stage = stage.again(durability="os")
    producer = WireProducer(stage, "a", TV2).initialise()
    producer.send("t", b"lost")
    sync(stage, "t")
    stage = stage.lose_power().again(durability="fsync")
    assert not pinned(stage)
    stage.abandon()


def test_a_start_in_fsync_mode_makes_data_of_os_mode_durable() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t", settings={"segment.ms": "1"})
    producer = WireProducer(stage, "a", TV2).initialise()
    for number in range(30):
        producer.send("t", b"%d" % number)
        producer.commit()
        stage.advance(1000)
    producer.send("t", b"open")
    written = stage.partition("t", 0)
    assert len(written.log.segments) > 3
    producer.client = stage = stage.kill().again(durability="fsync")
    producer.client = stage = stage.lose_power().again(durability="fsync")
    producer.commit()
    assert consume(stage, "t").values == [b"%d" % number for number in range(30)] + [b"open"]
    stage.abandon()


def test_a_directory_without_a_recorded_mode_is_reconciled() -> None:
    stage, _ = open_transaction_that_lost_its_coordinator()
    stage.disk.write_file(f"{FOLDER}/{SESSION}", b"power 0", sync=True)  # As in version 1.
    stage = stage.again(durability="fsync")
    assert not pinned(stage)
    stage.abandon()


def half_committed(disk: UnsyncedDisk) -> Stage:
    """A broker that died after the first of two markers of a commit; everything is on disk."""
    stage = Stage(durability="os", disk=disk).start()
    create_topic(stage, "first")
    create_topic(stage, "second")
    producer = WireProducer(stage, "a", TV2).initialise()
    producer.send("first", b"1")
    producer.send("second", b"2")

    def die(point: str) -> None:
        if point == "commit.marker-appended":
            raise RuntimeError(point)

    stage.node.runtime.crash_points = die
    with pytest.raises(ClosedError):
        producer.end(commit=True)
    for topic in ("first", "second", TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC):
        sync(stage, topic)
    return stage.lose_power()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_coordinator_whose_log_cannot_be_opened_for_a_while_aborts_no_half_of_a_commit(
    durability: str,
) -> None:
    disk = RefusingDisk()
    stage = half_committed(disk)
    disk.refused = f"{FOLDER}/{TRANSACTION_STATE_TOPIC}-"
    for _ in range(2):
        with pytest.raises(StorageError, match="Nothing was settled"):
            stage.again(durability=durability)
    disk.refused = "nothing"
    again = stage.again(durability=durability)
    again.advance(10_000)
    assert consume(again, "first").values == [b"1"]
    assert consume(again, "second").values == [b"2"]
    again.stop()


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_partition_that_missed_the_reconciliation_is_served_after_the_next_start(
    ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = RefusingDisk()
    stage, _ = open_transaction_that_lost_its_coordinator(disk)
    disk.refused = f"{FOLDER}/t-0"
    with caplog.at_level("ERROR", logger="fencepost"):
        stage = stage.again()
    assert "t-0 is offline until the next start" in caplog.text
    disk.refused = "nothing"
    stage.advance(60_000)
    assert stage.node.partitions.get("t", 0) is None, "nothing would ever end its open transaction"
    getattr(stage, ending)()
    stage = stage.again()
    assert stage.node.partitions.get("t", 0) is not None
    assert not pinned(stage)
    stage.abandon()


def test_several_brokers_do_not_start_before_every_log_was_compared() -> None:
    disk = RefusingDisk()
    stage, _ = open_transaction_that_lost_its_coordinator(disk)
    disk.refused = f"{FOLDER}/t-0"

    def recover() -> None:
        run = Stage(durability="os", disk=disk)
        try:
            run.run(run.node.recover())
        finally:
            run.abandon()

    for _ in range(2):
        with pytest.raises(StorageError, match="t-0 could not be opened"):
            recover()
    disk.refused = "nothing"
    recover()
    layout = Layout(disk, FOLDER)
    layout.load()
    assert layout.clean
    stage = stage.again()
    assert not pinned(stage)
    stage.abandon()


def test_a_start_that_cannot_listen_leaves_the_reconciliation_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, _ = open_transaction_that_lost_its_coordinator()
    real = Server.listen

    async def refuse(*_: object) -> int:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(Server, "listen", refuse)
    with pytest.raises(FencepostError, match="in use"):
        stage.again()
    monkeypatch.setattr(Server, "listen", real)
    stage = stage.again()
    assert not pinned(stage)
    stage.abandon()
