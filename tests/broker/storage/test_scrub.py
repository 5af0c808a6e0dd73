"""The scrub: damage below the recovery point is reported after a start."""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import CorruptError
from fencepost.base.system import SystemDisk
from fencepost.broker.storage.scrub import START_DELAY_MS, SegmentRead
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.segment import Segment
from tests.broker.conftest import Complaints
from tests.broker.damage.test_damaged_coordinators import (
    ONE,
    TRANSACTIONS,
    committed,
    fenced,
    initialise,
    offset_of_group,
    places,
    segments,
)
from tests.broker.damage.test_damaged_directory import (
    METADATA,
    SMALL_SEGMENTS,
    content,
    flip,
    read_around,
    written,
)
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import batch_of, create_topic, delete_topic, fetch, produce
from tests.transactions.wire import NONE

SEGMENT = f"{FOLDER}/t-0/{0:020d}.log"


def scrubbed(stage: Stage) -> Stage:
    """The next start, after its scrub."""
    again = stage.again()
    again.advance(START_DELAY_MS + 60_000)
    return again


def about(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if word in line]


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_flipped_bit_in_an_old_segment_is_reported_after_the_start_with_advice(
    ending: str, durability: str, complaints: Complaints
) -> None:
    stage = written(durability)
    stage.advance(70_000)
    getattr(stage, ending)()
    flip(stage, SEGMENT, 200)
    again = scrubbed(stage)
    (line,) = about(complaints(), "t-0/")
    for part in (SEGMENT, "offsets 2 to 2", "CORRUPT_MESSAGE", "fencepost repair"):
        assert part in line
    (summary,) = about(complaints(), "scrub:")
    assert "1 damaged, 0 unreadable" in summary
    values, refused = read_around(again, "t", 100)
    assert refused == [2]
    assert len(values) == 99
    again.loop.call_soon(again.node.scrub._begin)  # The next pass repeats only the summary.
    again.advance(60_000)
    assert len(about(complaints(), "They are kept")) == 1
    assert len(about(complaints(), "scrub:")) == 2
    again.stop()


def test_every_region_of_a_batch_is_checked(complaints: Complaints) -> None:
    stage = written("os", records=30)
    stage.stop()
    whole = stage.disk.read_file(SEGMENT)
    unnoticed = 0
    for place in [each for each in places(whole) if each < 160]:
        flip(stage, SEGMENT, place)
        before = len(about(complaints(), SEGMENT))
        again = scrubbed(stage)
        unnoticed += len(about(complaints(), SEGMENT)) == before
        values, refused = read_around(again, "t", 30)
        assert len(values) + len(refused) == 30
        again.stop()
        flip(stage, SEGMENT, place)
    assert unnoticed == 0


def test_a_sound_directory_causes_no_warning(complaints: Complaints) -> None:
    stage = scrubbed(written("os").kill())
    stage.stop()
    scrubbed(stage).stop()
    assert about(complaints(), "scrub") == []


@pytest.mark.parametrize("what", ["missing", "cut"])
def test_a_missing_or_truncated_segment_in_the_middle_is_reported(
    what: str, complaints: Complaints
) -> None:
    stage = written("os")
    stage.advance(70_000)
    stage.kill()
    path = segments(stage, f"{FOLDER}/t-0")[2]
    if what == "missing":
        stage.disk.remove(path)
    else:
        stage.disk.write_file(path, stage.disk.read_file(path)[:250], sync=True)
    again = scrubbed(stage)
    assert len(about(complaints(), "fail their check")) == 1
    first = int(re.findall(r"offsets (\d+) to", about(complaints(), "fail their check")[0])[0])
    assert fetch(again, "t", first).error_code == ErrorCode.CORRUPT_MESSAGE
    again.stop()


def test_a_segment_that_cannot_be_read_is_reported_and_the_others_are_read(
    complaints: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = written("os")
    stage.stop()
    flip(stage, segments(stage, f"{FOLDER}/t-0")[3], 200)
    real = SegmentRead.run

    def run(self: SegmentRead) -> None:
        if self._path == SEGMENT:
            self.problem = OSError(errno.EIO, "Input/output error")
        else:
            real(self)

    monkeypatch.setattr(SegmentRead, "run", run)
    again = scrubbed(stage)
    assert "Input/output error" in about(complaints(), f"{SEGMENT} cannot be read")[0]
    assert "1 damaged, 1 unreadable" in about(complaints(), "scrub:")[0]
    assert produce(again, "t", batch_of(b"next")).error_code == NONE
    again.stop()


@pytest.mark.parametrize("event", ["retention", "compaction", "roll", "deletion"])
@pytest.mark.parametrize("when", range(0, 40, 4))
def test_segments_that_change_during_the_scrub_are_not_reported(
    event: str, when: int, complaints: Complaints
) -> None:

    stage = Stage(durability="os").start()
    policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    settings = {**SMALL_SEGMENTS, **(policy if event == "compaction" else {})}
    create_topic(stage, "t", settings=settings)
    for number in range(100):
        produce(stage, "t", batch_of(b"%d" % number, key=b"%d" % (number % 3)))
    stage.stop()
    again = stage.again()
    again.run(_sleep(START_DELAY_MS - 1))
    again.run(_sleep(1 + when))
    partition = again.partition("t", 0)
    if event == "retention":
        partition.delete_before(60)
        again.node.housekeeping.retain_soon(partition)
    elif event == "compaction":
        steps = again.node.housekeeping._compact_one(partition)
        for sync in steps:
            if sync is not None:
                sync.run()
    elif event == "roll":
        for number in range(50):
            produce(again, "t", batch_of(b"%d" % number, key=b"k"))
    else:
        delete_topic(again, "t")
    again.advance(60_000)
    assert complaints() == []
    again.stop()


def _sleep(milliseconds: float) -> Any:
    import asyncio

    return asyncio.sleep(milliseconds / 1000)


def test_a_coordinator_saves_its_state_when_its_log_is_found_damaged(
    complaints: Complaints,
) -> None:
    stage, zombie = fenced()
    stage.stop()
    again = stage.again()
    again.settle()
    flip(again, segments(again, TRANSACTIONS)[0], 100)  # After the load, before the scrub.
    again.advance(START_DELAY_MS + 10_000)
    assert about(complaints(), TRANSACTIONS)
    again.kill()
    again = again.again()
    again.settle()
    zombie.client = again
    assert zombie.add_one("t") == ErrorCode.PRODUCER_FENCED
    assert initialise(again, "a") == NONE
    again.stop()


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("place", [3, 9, 70])
def test_a_metadata_log_that_rots_under_its_broker_is_replaced_by_a_checkpoint(
    durability: str, ending: str, place: int, complaints: Complaints
) -> None:
    stage = written(durability, records=3)
    stage.stop()
    again = stage.again()
    flip(again, METADATA, place)  # After the load, before the scrub.
    again.advance(START_DELAY_MS + 10_000)
    assert about(complaints(), "a checkpoint replaces the damaged log, and nothing is lost")
    create_topic(again, "later")
    getattr(again, ending)()
    again = again.again()
    for name in ("t", "later"):
        assert produce(again, name, batch_of(b"next")).error_code == NONE
    assert fetch(again, "t").high_watermark == 4
    again.stop()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_crash_while_a_checkpoint_replaces_a_damaged_metadata_log_changes_nothing_or_all(
    durability: str,
) -> None:
    outcomes = []
    for call in itertools.count(1):
        stage = written(durability, records=3)
        stage.advance(START_DELAY_MS + 10_000)
        flip(stage, METADATA, 70)
        stage.loop.call_soon(stage.node.scrub._begin)
        dies_at = stage.disk.calls + call
        stage.disk.lose_power_at(call)
        with contextlib.suppress(Exception):  # The process is dead: how it fails means nothing.
            stage.advance(10_000)
        is_over = stage.disk.calls < dies_at
        stage.kill()
        before = content(stage)
        try:
            again = stage.again()
        except CorruptError:
            assert content(stage) == before
            outcomes.append("refused")
        else:
            assert fetch(again, "t").high_watermark == 3
            again.stop()
            outcomes.append("served")
        if is_over:
            break
    assert outcomes == sorted(outcomes), "once the checkpoint is there, every start is served"
    assert set(outcomes) == {"refused", "served"}


def test_groups_with_a_damaged_log_are_served_from_memory_with_a_warning(
    complaints: Complaints,
) -> None:
    stage = committed()
    stage.stop()
    again = stage.again()
    again.settle()
    flip(again, segments(again, f"{FOLDER}/__consumer_offsets-0")[0], 70)
    again.advance(START_DELAY_MS + 10_000)
    assert about(complaints(), "are served from memory until the next start")
    assert offset_of_group(again) == (0, 5)
    again.stop()


def test_damage_disappears_when_retention_removes_its_segment() -> None:
    stage = written("os")
    stage.stop()
    flip(stage, SEGMENT, 200)
    again = scrubbed(stage)
    partition = again.partition("t", 0)
    assert len(partition.log.segments[0].damage) == 1
    partition.delete_before(50)
    again.node.housekeeping.retain_soon(partition)
    again.advance(1_000)
    assert partition.log.is_sound
    assert fetch(again, "t", 50).error_code == NONE
    again.stop()


def test_a_damaged_log_is_not_compacted() -> None:
    stage = Stage(durability="os").start()
    settings = {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    create_topic(stage, "t", settings=settings)
    for number in range(50):
        produce(stage, "t", batch_of(b"%d" % number, key=b"k"))
    stage.stop()
    flip(stage, SEGMENT, 200)
    again = scrubbed(stage)
    values, refused = read_around(again, "t", 50)
    assert len(values) + len(refused) == 50
    again.stop()


def test_a_stop_interrupts_the_read_of_a_large_segment(tmp_path: Path) -> None:
    class Stopping:
        is_stopped = False
        reads = 0

        def pause(self, seconds: float) -> None:
            self.reads += 1
            self.is_stopped = self.reads == 3

    path = tmp_path / f"{0:020d}.log"
    batch = bytes(batch_of(b"x" * 1000))
    path.write_bytes(batch * 1000)
    segment = Segment(SystemDisk(), str(tmp_path), 0, OpenSegments(), size_bytes=len(batch) * 1000)
    segment.next_offset = 1000
    scrub = Stopping()
    reading = SegmentRead(SystemDisk(), segment, scrub)  # type: ignore[arg-type]
    thread = threading.Thread(target=reading.run)
    thread.start()
    thread.join()
    assert (scrub.reads, reading.found, reading.problem) == (3, None, None)


def test_a_node_can_stop_in_the_middle_of_a_pass() -> None:
    stage = written("os")
    stage.stop()
    again = stage.again(settings={**stage._given, **ONE})
    again.run(_sleep(START_DELAY_MS + 5))
    again.stop()
    assert again.problems == []
    assert again.fatal == []
