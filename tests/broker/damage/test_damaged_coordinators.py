"""Damage in `__transaction_state` and `__consumer_offsets`: unreadable is never treated as absent.

A bit flips in any region of any batch, a segment is truncated or missing, with and without a
checkpoint, after a stop and after a kill. In every case a fenced producer stays fenced and a
committed offset does not go back.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.broker.storage.directory_check import DirectoryCheck
from fencepost.broker.storage.repair import Repair, Repaired
from fencepost.log import scan
from fencepost.log.segment.reading import seek_position
from fencepost.log.segment.segment import Segment
from fencepost.records.batch import HEADER_BYTES, split_batches
from fencepost.records.coordinator_checkpoint import FILE_NAME
from fencepost.simulation.disk import PowerLost
from fencepost.wire.apis import ApiKey
from tests.broker.damage.test_damaged_directory import content, flip
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import batch_of, create_topic, produce
from tests.transactions.protocol import TV1, TV2
from tests.transactions.requests import init_request, offset_fetch_request
from tests.transactions.wire import NONE, WireProducer, consume

ONE = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
SMALL = {
    **ONE,
    "transaction.state.log.segment.bytes": "1000",
    "offsets.topic.segment.bytes": "1000",
    "log.cleaner.enable": "false",
}
TRANSACTIONS = f"{FOLDER}/{TRANSACTION_STATE_TOPIC}-0"
OFFSETS = f"{FOLDER}/{CONSUMER_OFFSETS_TOPIC}-0"
TRANSACTION_LOG = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def segments(stage: Stage, folder: str) -> list[str]:
    return [f"{folder}/{n}" for n in stage.disk.list_dir(folder) if n.endswith(".log")]


def initialise(stage: Stage, transactional_id: str) -> ErrorCode:
    reply = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request(transactional_id))
    return ErrorCode(reply.error_code)


def fenced(protocol: Any = TV1, settings: dict[str, str] = ONE, **more: Any) -> tuple[Stage, Any]:
    """A producer that was fenced, among others."""
    stage = Stage(settings=settings, **more).start()
    create_topic(stage, "t")
    WireProducer(stage, "before", protocol).initialise()
    zombie = WireProducer(stage, "a", protocol).initialise()
    owner = WireProducer(stage, "a", protocol).initialise()
    owner.send("t", b"owner")
    owner.commit()
    WireProducer(stage, "after", protocol).initialise()
    return stage, zombie


def places(data: bytes) -> list[int]:
    """A byte of every field of every batch, and some of its records."""
    found, start = [], 0
    fields = (0, 7, 8, 11, 12, 16, 17, 21, 22, 23, 26, 35, 43, 50, 51, 53, 57, 60)
    for batch in split_batches(data):
        found += [start + field for field in fields]
        found += range(start + HEADER_BYTES, start + batch.size_bytes, 29)
        start += batch.size_bytes
        found.append(start - 1)
    return found


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_flipped_bit_anywhere_in_the_transaction_log_never_lets_a_zombie_write(
    ending: str, durability: str
) -> None:
    stage, zombie = fenced(durability=durability)
    getattr(stage, ending)()
    path = segments(stage, TRANSACTIONS)[0]
    whole = stage.disk.read_file(path)
    refused = 0
    for place in places(whole)[:: 2 if durability == "os" else 7]:
        files = content(stage, TRANSACTIONS)
        flip(stage, path, place)
        again = stage.again()
        zombie.client = again
        again.settle()
        error = zombie.add_one("t")
        assert error in (UNAVAILABLE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        refused += error == UNAVAILABLE
        assert produce(again, "t", batch_of(b"others go on")).error_code == NONE
        again.kill()
        restore(stage, TRANSACTIONS, files)
    assert refused > 0
    again = stage.again()
    assert initialise(again, "a") == NONE
    again.stop()


def restore(stage: Stage, folder: str, files: dict[str, bytes | None]) -> None:
    for name in stage.disk.list_dir(folder):
        stage.disk.remove(f"{folder}/{name}")
    for path, data in files.items():
        assert data is not None
        stage.disk.write_file(path, data, sync=True)


def write_checkpoint(stage: Stage) -> None:
    """As `CheckpointKeeper` does every few thousand records."""
    (coordinator,) = stage.node.transactions.coordinators()
    coordinator.checkpoint._save()
    stage.settle()
    assert stage.disk.exists(f"{TRANSACTIONS}/{FILE_NAME}")


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_damage_below_a_checkpoint_has_no_effect(ending: str) -> None:
    stage, zombie = fenced(settings=SMALL)
    write_checkpoint(stage)
    getattr(stage, ending)()
    for path in segments(stage, TRANSACTIONS):
        flip(stage, path, 100)
    for _ in range(2):
        again = stage.again()
        again.settle()
        zombie.client = again
        assert zombie.add_one("t") == ErrorCode.PRODUCER_FENCED
        assert initialise(again, "before") == NONE
        getattr(again, ending)()


def test_damage_after_a_checkpoint_makes_the_ids_unavailable_until_it_is_undone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage, zombie = fenced()
    write_checkpoint(stage)
    path = segments(stage, TRANSACTIONS)[0]
    size = len(stage.disk.read_file(path))
    WireProducer(stage, "a", TV1).initialise()
    stage.stop()
    flip(stage, path, size + 70)
    for _ in range(3):  # A start must not make the next one accept the damage.
        with caplog.at_level(logging.ERROR):
            stage = stage.again()
            stage.settle()
        assert "fencepost repair /data __transaction_state-0" in caplog.text
        assert initialise(stage, "a") == UNAVAILABLE
        zombie.client = stage
        assert zombie.end(commit=True) == UNAVAILABLE
        stage.stop()
        caplog.clear()
    flip(stage, path, size + 70)
    again = stage.again()
    zombie.client = again
    assert zombie.add_one("t") == ErrorCode.PRODUCER_FENCED
    assert initialise(again, "a") == NONE
    again.stop()


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("missing", ["first", "middle", "cut", "end", "all"])
def test_missing_or_truncated_files_make_the_ids_unavailable_at_every_start(
    missing: str, ending: str
) -> None:
    stage, zombie = fenced(settings=SMALL)
    for _ in range(20):
        WireProducer(stage, "filler", TV1).initialise()
    stage.advance(70_000)  # Recovery points are written.
    getattr(stage, ending)()
    paths = segments(stage, TRANSACTIONS)
    assert len(paths) >= 3
    whole = {path: stage.disk.read_file(path) for path in paths}
    if missing == "cut":
        stage.disk.write_file(paths[1], whole[paths[1]][: len(whole[paths[1]]) // 2], sync=True)
    else:
        gone = {"first": paths[:1], "middle": paths[1:2], "end": paths[-2:], "all": paths}[missing]
        for path in gone:
            stage.disk.remove(path)
    for _ in range(3):
        stage = stage.again()
        stage.settle()
        zombie.client = stage
        assert zombie.add_one("t") == UNAVAILABLE
        assert initialise(stage, "new") == UNAVAILABLE
        stage.advance(70_000)
        getattr(stage, ending)()
    for path, data in whole.items():
        stage.disk.write_file(path, data, sync=True)
    again = stage.again()
    zombie.client = again
    assert zombie.add_one("t") == ErrorCode.PRODUCER_FENCED
    again.stop()


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_a_commit_hidden_by_damage_is_completed_once_the_bytes_are_restored(protocol: Any) -> None:
    stage = Stage(settings=ONE).start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "a", protocol).initialise()
    producer.send("t", b"committed")
    stage.node.runtime.crash_points = _die_at("commit.prepare-appended")
    with pytest.raises(ClosedError):
        producer.end(commit=True)
    stage.kill()
    path = segments(stage, TRANSACTIONS)[0]
    prepared = split_batches(stage.disk.read_file(path))
    position = sum(batch.size_bytes for batch in prepared[:-1])
    flip(stage, path, position + 65)
    again = stage.again()
    again.advance(120_000)  # Past the timeout of the transaction: it must not be aborted.
    assert consume(again, "t").values == []
    again.kill()
    flip(again, path, position + 65)
    again = again.again()
    again.settle()
    assert consume(again, "t").values == [b"committed"]
    again.stop()


def _die_at(wanted: str) -> Any:
    def reached(point: str) -> None:
        if point == wanted:
            raise RuntimeError(point)

    return reached


def committed(settings: dict[str, str] = ONE, **more: Any) -> Stage:
    """A group that has committed offsets 1 to 5 of a topic, the last one in a transaction."""
    stage = Stage(settings=settings, **more).start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "a", TV2).initialise()
    for offset in range(1, 6):
        producer.send("t", b"x")
        producer.send_offsets("g", {("t", 0): offset})
        producer.commit()
    return stage


def offset_of_group(stage: Stage) -> tuple[int, int]:
    """The error, and the offset."""
    reply = stage.call(ApiKey.OFFSET_FETCH, 8, offset_fetch_request("g", "t", 0, stable=False))
    group = reply.groups[0]
    if group.error_code:
        return group.error_code, -1
    return 0, group.topics[0].partitions[0].committed_offset


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_flipped_bit_anywhere_in_the_offsets_log_never_moves_an_offset_back(ending: str) -> None:
    stage = committed(durability="os")
    getattr(stage, ending)()
    path = segments(stage, OFFSETS)[0]
    whole = stage.disk.read_file(path)
    refused = 0
    for place in places(whole)[::3]:
        files = content(stage, OFFSETS)
        flip(stage, path, place)
        again = stage.again()
        again.settle()
        error, offset = offset_of_group(again)
        assert (error, offset) in ((0, 5), (UNAVAILABLE, -1))
        refused += bool(error)
        again.kill()
        restore(stage, OFFSETS, files)
    assert refused > len(places(whole)) // 6
    again = stage.again()
    assert offset_of_group(again) == (0, 5)
    again.stop()


def test_a_transaction_with_offsets_of_a_damaged_partition_waits_for_it() -> None:
    stage = committed()
    stage.stop()
    path = segments(stage, OFFSETS)[0]
    flip(stage, path, 70)
    stage = stage.again()
    stage.settle()
    producer = WireProducer(stage, "a", TV2).initialise()
    assert set(producer.commit_offsets("g", {("t", 0): 9}).values()) == {UNAVAILABLE}
    producer.send("t", b"y")
    producer.commit()
    stage.stop()
    flip(stage, path, 70)
    again = stage.again()
    assert offset_of_group(again) == (0, 5)
    again.stop()


@pytest.mark.interpreted
@pytest.mark.parametrize("topic", [TRANSACTIONS, OFFSETS])
def test_failing_reads_delay_the_load_of_a_coordinator_and_lose_nothing(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = committed()
    stage.stop()
    broken = [True]

    def seek(segment: Segment, offset: int) -> int | None:
        if broken[0] and segment.folder == topic:
            raise OSError(errno.EIO, "EIO")
        return seek_position(segment, offset)

    monkeypatch.setattr(scan, "seek_position", seek)
    again = stage.again()
    again.settle()
    told = (initialise(again, "a"), offset_of_group(again)[0])
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in told
    broken[0] = False
    again.advance(6_000)
    assert initialise(again, "a") == NONE
    assert offset_of_group(again) == (0, 5)
    again.stop()


@pytest.mark.parametrize("folder", [TRANSACTIONS, OFFSETS])
def test_after_a_power_loss_in_os_mode_a_damaged_coordinator_log_prevents_the_start(
    folder: str,
) -> None:
    stage = committed(settings=SMALL, durability="os")
    stage.advance(70_000)
    for partition in stage.node.partitions.by_name.values():
        if partition.log_end_offset:
            partition.log.sync()
    stage.node.layout.sync_names()
    stage.lose_power()
    path = segments(stage, folder)[0]
    flip(stage, path, 70)
    for _ in range(2):
        with pytest.raises(StorageError, match="Nothing was settled"):
            stage.again()
    flip(stage, path, 70)
    again = stage.again()
    again.settle()
    assert offset_of_group(again) == (0, 5)
    assert initialise(again, "a") == NONE
    again.stop()


# -- accepting the loss ----------------------------------------------------------------------------


def repair(stage: Stage, name: TopicPartition) -> list[Repaired]:
    return Repair(stage.disk, FOLDER, name).run()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_a_repair_fences_all_producers_whose_records_may_be_lost(
    protocol: Any, ending: str, durability: str
) -> None:
    stage, zombie = fenced(protocol, durability=durability)
    owner = WireProducer(stage, "a", protocol).initialise()
    owner.send("t", b"open")
    held = owner.twin()
    getattr(stage, ending)()
    path = segments(stage, TRANSACTIONS)[0]
    batches = split_batches(stage.disk.read_file(path))
    start = 0
    for number, batch in enumerate(batches):
        if number >= 2:
            flip(stage, path, start + HEADER_BYTES + 20)
        start += batch.size_bytes
    done = repair(stage, TRANSACTION_LOG)
    assert [(each.first_offset, each.is_lost) for each in done] == [(2, True)]
    assert stage.disk.exists(f"{path}.damaged")
    again = stage.again()
    again.settle()
    for producer in (zombie, held):
        producer.client = again
        assert producer.add_one("t") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert producer.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    opened = again.partition("t", 0)
    assert opened.last_stable_offset == opened.high_watermark == opened.log_end_offset
    fresh = WireProducer(again, "a", protocol).initialise()
    assert fresh.producer_id not in (zombie.producer_id, held.producer_id)
    fresh.send("t", b"fresh")
    fresh.commit()
    assert consume(again, "t").values == [b"owner", b"fresh"]
    # The second start finds a normal log.
    again = getattr(again, ending)() or again
    again = again.again()
    again.settle()
    fresh.client = again
    fresh.send("t", b"and on")
    fresh.commit()
    assert consume(again, "t").values == [b"owner", b"fresh", b"and on"]
    again.stop()
    assert damage_in(again) == []


def damage_in(stage: Stage) -> list[str]:
    found = DirectoryCheck(stage.disk, FOLDER, lambda _: None).run()
    return [f"{each.file} {each.problem}" for each in found if each.is_damage]


@pytest.mark.parametrize("place", [0, 3, 7, 8, 11, 16])
def test_a_batch_with_only_a_damaged_offset_or_length_is_restored(place: int) -> None:
    stage, _ = fenced()
    stage.stop()
    path = segments(stage, TRANSACTIONS)[0]
    whole = stage.disk.read_file(path)
    start = sum(batch.size_bytes for batch in split_batches(whole)[:2])
    flip(stage, path, start + place)
    done = repair(stage, TRANSACTION_LOG)
    assert [each.is_lost for each in done] == [False]
    assert stage.disk.read_file(path) == whole


@pytest.mark.parametrize("missing", ["first", "middle", "cut", "end", "all"])
def test_a_repair_fills_the_offsets_of_missing_files(missing: str) -> None:
    stage, zombie = fenced(settings=SMALL)
    for _ in range(20):
        WireProducer(stage, "filler", TV1).initialise()
    stage.stop()
    paths = segments(stage, TRANSACTIONS)
    end_offset = stage.node.partitions.by_name[TRANSACTION_LOG].log_end_offset
    if missing == "cut":
        stage.disk.write_file(paths[1], stage.disk.read_file(paths[1])[:300], sync=True)
    else:
        gone = {"first": paths[:1], "middle": paths[1:2], "end": paths[-2:], "all": paths}[missing]
        for path in gone:
            stage.disk.remove(path)
    assert damage_in(stage)
    assert all(each.is_lost for each in repair(stage, TRANSACTION_LOG))
    assert damage_in(stage) == []
    assert repair(stage, TRANSACTION_LOG) == []
    again = stage.again()
    again.settle()
    opened = again.node.partitions.by_name[TRANSACTION_LOG]
    assert opened.log_end_offset >= end_offset - 1
    zombie.client = again
    assert zombie.add_one("t") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert initialise(again, "a") == NONE
    again.stop()


def test_a_repair_below_a_checkpoint_fences_no_producer() -> None:
    stage, _ = fenced()
    owner = WireProducer(stage, "a", TV2).initialise()
    owner.send("t", b"first")
    write_checkpoint(stage)
    stage.stop()
    flip(stage, segments(stage, TRANSACTIONS)[0], 100)
    assert [each.is_lost for each in repair(stage, TRANSACTION_LOG)] == [True]
    owner.client = again = stage.again()
    again.settle()
    owner.send("t", b"second")
    owner.commit()
    assert consume(again, "t").values == [b"owner", b"first", b"second"]
    again.stop()


def test_groups_continue_from_the_last_readable_offsets_after_a_repair() -> None:
    stage = committed()
    stage.stop()
    path = segments(stage, OFFSETS)[0]
    data = stage.disk.read_file(path)
    batches = split_batches(data)
    last = max(n for n, batch in enumerate(batches) if not batch.is_control)
    flip(stage, path, sum(batch.size_bytes for batch in batches[:last]) + 70)
    assert len(repair(stage, TopicPartition(CONSUMER_OFFSETS_TOPIC, 0))) == 1
    again = stage.again()
    again.settle()
    assert offset_of_group(again) == (0, 4)
    again.stop()


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_offsets_whose_marker_is_lost_are_not_unstable_after_a_repair(
    ending: str, durability: str
) -> None:
    stage = committed(durability=durability)
    getattr(stage, ending)()
    path = segments(stage, OFFSETS)[0]
    batches = split_batches(stage.disk.read_file(path))
    assert batches[-1].is_control
    flip(stage, path, sum(batch.size_bytes for batch in batches[:-1]) + 65)
    assert len(repair(stage, TopicPartition(CONSUMER_OFFSETS_TOPIC, 0))) == 1
    for _ in range(2):
        stage = stage.again()
        stage.settle()
        reply = stage.call(ApiKey.OFFSET_FETCH, 8, offset_fetch_request("g", "t", 0, stable=True))
        told = reply.groups[0].topics[0].partitions[0]
        assert told.error_code == NONE  # Not UNSTABLE_OFFSET_COMMIT.
        assert told.committed_offset in (4, 5)  # 5 where the commit is certain.
        offsets = stage.partition(CONSUMER_OFFSETS_TOPIC, 0)
        assert offsets.last_stable_offset == offsets.log_end_offset
        getattr(stage, ending)()


@pytest.mark.parametrize("crash", range(1, 12))
def test_an_interrupted_repair_can_be_repeated(crash: int) -> None:
    stage, zombie = fenced()
    stage.stop()
    path = segments(stage, TRANSACTIONS)[0]
    flip(stage, path, 100)
    stage.disk.lose_power_at(crash)
    with contextlib.suppress(PowerLost):
        repair(stage, TRANSACTION_LOG)
    stage.disk.crash()
    again = stage.again()  # Either unavailable or repaired.
    again.settle()
    zombie.client = again
    assert zombie.add_one("t") in (UNAVAILABLE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    again.stop()
    repair(stage, TRANSACTION_LOG)
    again = again.again()
    again.settle()
    zombie.client = again
    assert zombie.add_one("t") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    again.stop()


@pytest.mark.parametrize("crash", range(1, 30, 2))
def test_an_interrupted_start_after_a_repair_can_be_repeated(crash: int) -> None:
    stage, zombie = fenced(durability="fsync")
    stage.stop()
    flip(stage, segments(stage, TRANSACTIONS)[0], 100)
    repair(stage, TRANSACTION_LOG)
    stage.disk.lose_power_at(crash)
    with contextlib.suppress(PowerLost, StorageError, ConfigError):
        stage.again().settle()
    stage.disk.crash()
    again = stage.again()
    again.settle()
    zombie.client = again
    assert zombie.add_one("t") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert initialise(again, "a") == NONE
    again.stop()


def test_the_metadata_log_and_unknown_partitions_are_not_repaired() -> None:
    stage = Stage().start()
    stage.stop()
    for name in ("__cluster_metadata", "nobody"):
        with pytest.raises(ConfigError):
            repair(stage, TopicPartition(name, 0))
