"""A damaged directory: nothing is removed, and every problem is reported.

Damage in the metadata log refuses the start before a byte is changed. Damage in a partition affects
only its own batch.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition
from fencepost.records.batch import split_batches
from fencepost.records.text_files import decode_offsets
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import batch_of, create_topic, fetch, produce, records_in

pytestmark = pytest.mark.usefixtures("quiet")

SMALL_SEGMENTS = {"internal.segment.bytes": "1000"}
METADATA = f"{FOLDER}/__cluster_metadata-0/{0:020d}.log"
RECOVERY_POINTS = f"{FOLDER}/recovery-point-offset-checkpoint"


def written(durability: str, records: int = 100) -> Stage:
    stage = Stage(durability=durability).start()
    create_topic(stage, "t", settings=SMALL_SEGMENTS)
    for number in range(records):
        produce(stage, "t", batch_of(b"%d" % number))
    return stage


def flip(stage: Stage, path: str, position: int) -> None:
    data = bytearray(stage.disk.read_file(path))
    data[position] ^= 0x10
    stage.disk.write_file(path, bytes(data), sync=True)


def content(stage: Stage, folder: str = FOLDER) -> dict[str, bytes | None]:
    """Every file below a folder."""
    found: dict[str, bytes | None] = {}
    for name in stage.disk.list_dir(folder):
        path = f"{folder}/{name}"
        try:
            found[path] = stage.disk.read_file(path)
        except IsADirectoryError:
            found[path] = None
            found |= content(stage, path)
    return found


def read_around(stage: Stage, topic: str, end: int) -> tuple[list[bytes | None], list[int]]:
    """The values that a reader gets if it skips unreadable offsets, and those offsets."""
    values: list[bytes | None] = []
    refused = []
    offset = 0
    while offset < end:
        got = fetch(stage, topic, offset)
        if got.error_code != ErrorCode.NONE:
            assert got.error_code == ErrorCode.CORRUPT_MESSAGE
            refused.append(offset)
            offset += 1
            continue
        values += [record.value for record in records_in(got.records)]
        offset = split_batches(got.records)[-1].next_offset
    return values, refused


def test_a_flipped_bit_in_the_active_segment_loses_one_batch_after_a_kill() -> None:
    stage = written("os")
    partition = stage.partition("t", 0)
    path = partition.log.segments[-1].path(".log")
    first = partition.log.segments[-1].base_offset
    stage.kill()
    stage.disk.remove(RECOVERY_POINTS)
    for position in (3, 9, 65):
        flip(stage, path, position)
        again = stage.again()
        values, refused = read_around(again, "t", 100)
        assert refused == [first]
        assert values == [b"%d" % number for number in range(100) if number != first]
        again.kill()
        flip(again, path, position)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("records", [10, 100])
@pytest.mark.parametrize("place", [3, 9])
def test_a_first_batch_that_cannot_be_found_loses_one_batch_and_not_the_partition(
    durability: str, ending: str, records: int, place: int
) -> None:
    """Without snapshots a start reads the log from its beginning, to learn its producers."""
    stage = written(durability, records)
    stage.advance(5_000)
    getattr(stage, ending)()
    for name in stage.disk.list_dir(f"{FOLDER}/t-0"):
        if name.endswith(".snapshot"):
            stage.disk.remove(f"{FOLDER}/t-0/{name}")
    flip(stage, f"{FOLDER}/t-0/{0:020d}.log", place)
    again = stage.again()
    values, refused = read_around(again, "t", records)
    assert (len(values), refused) == (records - 1, [0])
    assert produce(again, "t", batch_of(b"next")).base_offset == records
    again.stop()


def test_recovery_points_follow_the_segments_flushed_in_the_background() -> None:
    stage = written("os")
    stage.advance(2_000)
    partition = stage.partition("t", 0)
    base = partition.log.segments[-1].base_offset
    assert base > 0
    points = decode_offsets(stage.disk.read_file(RECOVERY_POINTS))
    assert points[TopicPartition("t", 0)] == base
    again = stage.lose_power().again()
    # Sealed segments are on the disk although no client ever waited for a sync.
    values, refused = read_around(again, "t", base)
    assert (values, refused) == ([b"%d" % number for number in range(base)], [])
    opened = again.partition("t", 0)
    assert opened.log.recovered_from == base
    again.stop()


def test_a_failed_flush_stops_the_broker() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t", settings=SMALL_SEGMENTS)
    stage.advance(5_000)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    stage.disk.sync_dir = refuse  # type: ignore[assignment]
    for number in range(20):
        produce(stage, "t", batch_of(b"%d" % number))
    stage.settle()
    assert "did not confirm a sync" in stage.fatal[0]
    stage.abandon()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_any_damage_in_the_metadata_log_prevents_the_start_and_changes_nothing(
    durability: str, ending: str
) -> None:
    stage = Stage(durability=durability).start()
    for name in ("a", "b", "c"):
        create_topic(stage, name)
        produce(stage, name, batch_of(b"value"))
    getattr(stage, ending)()
    size = len(stage.disk.read_file(METADATA))
    header = [*range(12), *range(16, 61)]
    for position in [*header, *range(61, size - 1, 23), size - 1]:
        flip(stage, METADATA, position)
        before = content(stage)
        with pytest.raises(StorageError, match=r"damaged.*Nothing was changed"):
            stage.again()
        assert content(stage) == before
        flip(stage, METADATA, position)
    again = stage.again()
    for name in ("a", "b", "c"):
        assert [r.value for r in records_in(fetch(again, name).records)] == [b"value"]
    again.stop()


def test_a_torn_tail_of_the_metadata_log_is_truncated_and_the_broker_starts() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "a")
    stage.kill()
    whole = stage.disk.read_file(METADATA)
    for torn in (b"\0", b"\0" * 40, whole[:30], whole[:60]):
        stage.disk.write_file(METADATA, whole + torn, sync=True)
        stage = stage.again()
        assert "a" in stage.node.metadata.topics
        stage.kill()
        whole = stage.disk.read_file(METADATA)


def test_a_metadata_log_below_its_recovery_point_prevents_the_start() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "a")
    stage.advance(5_000)
    stage.kill()
    for keep in (0, 100):
        spoiled: dict[str, Any] = {METADATA: stage.disk.read_file(METADATA)}
        stage.disk.write_file(METADATA, spoiled[METADATA][:keep], sync=True)
        before = content(stage)
        with pytest.raises(StorageError, match="was on disk up to"):
            stage.again()
        assert content(stage) == before
        stage.disk.write_file(METADATA, spoiled[METADATA], sync=True)
