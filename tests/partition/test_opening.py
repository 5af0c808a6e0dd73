"""Saved points: after a kill little of the log is read, and the state is as before the kill."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.base.failures import StorageError
from fencepost.base.ids import TopicPartition
from fencepost.log.config import LogConfig
from fencepost.log.opening import open_log, opening_log
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.partition import partition as partition_module
from fencepost.partition.partition import Appended, Partition
from fencepost.records.batch import SealedBatch
from fencepost.records.saved_point import FILE_NAME, decode_point
from fencepost.simulation.disk import PowerLost, UnsyncedDisk
from tests.partition.batches import client_batch
from tests.partition.conftest import retain

pytestmark = pytest.mark.interpreted

FOLDER = "/data/t-0"
POINT = f"{FOLDER}/{FILE_NAME}"
NAME = TopicPartition("t", 0)
NOW = 2_000
VALUE = b"v" * 3_000
CONFIG = LogConfig(segment_bytes=300_000, retention_ms=-1)


class Life:
    """One partition that is killed and opened again."""

    def __init__(self) -> None:
        self.disk = UnsyncedDisk()
        self.disk.make_dir(FOLDER)
        self.epoch = 0
        self.start = 0
        self.partition = self.open()

    def open(self, *, lost_power: bool = False, clean: bool = False, point: int = 0) -> Partition:
        log = open_log(
            self.disk,
            FOLDER,
            CONFIG,
            now_ms=0,
            clean=clean,
            recovery_point=point,
            log_start_offset=self.start,
            lost_power=lost_power,
        )
        self.partition = Partition(NAME, bytes(16), self.epoch, log, durable_at_append=True)
        return self.partition

    def kill(self) -> Partition:
        self.disk.kill()
        return self.open(point=self.partition.log.saved_recovery_point)

    def send(self, producer_id: int = 7, *, transactional: bool = False) -> Appended:
        batch = self.next_batch(producer_id, transactional=transactional)
        return self.write(batch)

    def next_batch(self, producer_id: int, *, transactional: bool) -> SealedBatch:
        state = self.partition.producers.get(producer_id)
        return client_batch(
            VALUE,
            producer_id=producer_id,
            epoch=0 if state is None else state.epoch,
            sequence=0 if state is None else state.last_sequence + 1,
            transactional=transactional,
        )

    def write(self, batch: SealedBatch) -> Appended:
        guard: Any = None
        if batch.is_transactional:
            guard = self.partition.begin_verification(batch, NOW, starts_at_zero=False)
        written = self.partition.append_from_client(batch, NOW, guard)
        assert isinstance(written, Appended), written
        return written

    def end(self, producer_id: int, *, commit: bool) -> None:
        state = self.partition.producers.get(producer_id)
        assert state is not None
        written = self.partition.append_marker(
            producer_id,
            state.epoch,
            commit=commit,
            coordinator_epoch=0,
            transaction_version=1,
            now_ms=NOW,
        )
        assert isinstance(written, int)

    def fill(self, count: int = 20) -> None:
        """Batches of three producers, an aborted transaction, and one that stays open."""
        self.send(1, transactional=True)
        self.end(1, commit=False)
        self.send(2, transactional=True)
        for number in range(count):
            self.send(3 + number % 2)

    def saved_offset(self) -> int | None:
        if not self.disk.exists(POINT):
            return None
        point = decode_point(self.disk.read_file(POINT))
        return None if point is None else point.segment.offset


def view(partition: Partition) -> object:
    """Everything that a client or a coordinator can notice, and the files behind it."""
    log = partition.log
    start, end = partition.log_start_offset, partition.log_end_offset
    return (
        start,
        end,
        partition.high_watermark,
        partition.last_stable_offset,
        sorted(partition.producers.save()),
        len(partition.open_txns),
        log.aborted_between(start, end),
        [log.epochs.epoch_at(offset) for offset in range(start, end)],
        [batch.base_offset for batch in log.scan(start)],
        [log.place_of(offset) for offset in range(start, end)],
        log.active.size_bytes and log.active.first_timestamp,
        (log.active.max_timestamp, log.active.max_timestamp_offset),
    )


def filled(count: int = 20) -> Life:
    life = Life()
    life.fill(count)
    life.partition.save_point()
    return life


def offsets_scanned(life: Life) -> int | None:
    return life.partition.log.recovered_from


# -- what a kill leaves ---------------------------------------------------------------------------


def test_after_a_kill_recovery_begins_at_the_saved_point() -> None:
    life = filled()
    saved = life.partition.log_end_offset
    life.send(3)
    life.end(2, commit=False)
    before = view(life.partition)
    assert view(life.kill()) == before
    assert offsets_scanned(life) == saved


def test_without_a_saved_point_the_active_segment_is_read_from_its_beginning() -> None:
    life = filled()
    life.disk.remove(POINT)
    before = view(life.partition)
    assert view(life.kill()) == before
    assert offsets_scanned(life) == 0


def test_after_a_power_loss_the_saved_point_is_removed_and_not_used() -> None:
    life = filled()
    life.partition.log.sync()
    before = view(life.partition)
    life.disk.sync_all("/")
    life.disk.crash()
    assert view(life.open(lost_power=True)) == before
    assert offsets_scanned(life) == 0
    assert not life.disk.exists(POINT)


@pytest.mark.parametrize("again", [Life.kill, lambda life: stop_and_start(life)])
def test_a_producer_may_send_its_last_five_batches_again(again: Callable[[Life], object]) -> None:
    life = filled()
    batches = []
    for _ in range(5):
        batch = life.next_batch(9, transactional=False)
        batches.append((bytes(batch.data), life.write(batch).base_offset))
    life.partition.save_point()
    again(life)
    for data, offset in batches:
        sequence = int.from_bytes(data[53:57], "big")
        batch = client_batch(VALUE, producer_id=9, epoch=0, sequence=sequence)
        assert life.write(batch).base_offset == offset


def stop_and_start(life: Life) -> None:
    life.partition.close(clean=True)
    life.open(clean=True, point=life.partition.log.saved_recovery_point)


def test_the_window_of_a_producer_survives_a_roll_and_a_kill() -> None:
    life = filled()
    for _ in range(5):
        life.send(9)
    life.partition._roll(NOW)
    before = view(life.partition)
    assert view(life.kill()) == before
    life.send(9)
    before = view(life.partition)
    assert view(life.kill()) == before


def test_a_point_is_saved_as_the_log_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "POINT_BYTES", 50_000)
    monkeypatch.setattr(partition_module, "POINT_PRODUCER_BYTES", 0)
    life = Life()
    offsets = set()
    for _ in range(40):
        life.send()
        offsets.add(life.saved_offset())
    assert offsets == {None, 9, 18, 27, 36}
    life.kill()
    assert offsets_scanned(life) == 36
    for _ in range(5):  # Four are in the log after the point, and count.
        life.send()
    assert life.saved_offset() == 45


def test_housekeeping_finds_what_is_worth_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "WORTH_SAVING", 100_000)
    life = Life()
    before = life.partition.is_worth_saving
    for _ in range(20):
        life.send()
    assert (before, life.partition.is_worth_saving) == (False, True)
    life.partition.save_point()
    is_worth_saving: bool = life.partition.is_worth_saving
    assert not is_worth_saving
    life.disk.sync_all("/")
    life.disk.crash()
    assert life.open(lost_power=True).is_worth_saving, "the point is gone"


# -- points that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 3, 9, 40, 90, -1])
def test_a_damaged_point_is_ignored(position: int) -> None:
    life = filled()
    data = bytearray(life.disk.read_file(POINT))
    data[position] ^= 0x10
    life.disk.write_file(POINT, bytes(data), sync=False)
    before = view(life.partition)
    assert view(life.kill()) == before
    assert offsets_scanned(life) == 0


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("left", [None, 0, 5])
def test_a_point_whose_indexes_are_gone_is_ignored(suffix: str, left: int | None) -> None:
    life = filled()
    path = f"{FOLDER}/{0:020d}{suffix}"
    data = life.disk.read_file(path)
    assert data
    if left is None:
        life.disk.remove(path)
    else:
        life.disk.write_file(path, data[:left], sync=False)
    before = view(life.partition)
    assert view(life.kill()) == before
    assert offsets_scanned(life) == 0


def test_a_point_beyond_the_end_of_the_file_is_ignored() -> None:
    life = filled()
    path = life.partition.log.active.path(".log")
    first = life.disk.read_file(path)[:16_000]
    life.disk.write_file(path, first, sync=False)
    again = life.kill()
    assert offsets_scanned(life) == 0
    assert life.saved_offset() is None
    state = view(again)
    assert view(life.kill()) == state


def test_a_point_where_no_batch_begins_is_ignored() -> None:
    life = filled()
    life.send(3)
    path = life.partition.log.active.path(".log")
    data = life.disk.read_file(path)
    point = decode_point(life.disk.read_file(POINT))
    assert point is not None
    moved = data[: point.segment.position - 3_100] + data[point.segment.position - 3_090 :]
    life.disk.write_file(path, moved, sync=False)
    life.kill()
    assert offsets_scanned(life) == 0


def test_the_producers_in_a_point_of_another_topic_are_not_used() -> None:
    life = filled()
    before = view(life.partition)
    data = life.disk.read_file(POINT)
    other = Partition(
        NAME, b"another topic id", 0, life.partition.log, durable_at_append=True, recover=False
    )
    other.save_point()
    assert life.disk.read_file(POINT) != data
    assert view(life.kill()) == before


def test_a_log_with_known_damage_gets_no_point() -> None:
    life = Life()
    life.fill()
    path = life.partition.log.active.path(".log")
    data = bytearray(life.disk.read_file(path))
    data[5_000] ^= 1
    life.disk.write_file(path, bytes(data), sync=False)
    life.kill()
    assert life.partition.log.active.damage
    life.partition.save_point()
    assert life.saved_offset() is None


# -- crashes and failures -------------------------------------------------------------------------


def calls_of(life: Life, work: Callable[[], object]) -> int:
    before = life.disk.calls
    work()
    return life.disk.calls - before


def test_a_save_that_fails_at_any_call_loses_nothing() -> None:
    count = calls_of(life := filled(), life.partition.save_point)
    for number in range(1, count + 1):
        life = filled()
        life.send(3)
        life.disk.fail_call(number)
        life.partition.save_point()
        life.send(4)
        before = view(life.partition)
        assert view(life.kill()) == before
        life.send(4)
        life.partition.save_point()
        before = view(life.partition)
        assert view(life.kill()) == before
        assert offsets_scanned(life) == life.partition.log_end_offset


def test_a_kill_at_any_call_of_a_save_loses_nothing() -> None:
    count = calls_of(life := filled(), life.partition.save_point)
    for number in range(1, count + 1):
        life = filled()
        life.send(3)
        life.end(2, commit=False)
        before = view(life.partition)
        life.disk.lose_power_at(number)
        with pytest.raises(PowerLost):
            life.partition.save_point()
        assert view(life.kill()) == before


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_kill_or_a_failure_at_any_call_of_an_open_loses_nothing(spoiled: bool) -> None:
    def world() -> tuple[Life, object]:
        life = filled()
        life.send(3)
        life.end(2, commit=False)
        state = view(life.partition)
        if spoiled:
            life.disk.remove(f"{FOLDER}/{0:020d}.index")
        return life, state

    life, _ = world()
    count = calls_of(life, life.kill)
    for number in range(1, count + 1):
        life, before = world()
        point = life.partition.log.saved_recovery_point
        life.disk.kill()
        life.disk.lose_power_at(number)
        with pytest.raises(PowerLost):
            life.open(point=point)
        assert view(life.kill()) == before
        life, before = world()
        life.disk.kill()
        life.disk.fail_call(number)
        try:
            state = view(life.open(point=point))
        except (OSError, StorageError):
            pass
        else:
            assert state == before
        life.disk.heal()
        life.disk.kill()
        assert view(life.open(point=point)) == before


def test_an_open_that_is_given_up_leaves_no_file_open_and_can_be_repeated() -> None:
    life = filled()
    life.send(3)
    before = view(life.partition)
    point = life.partition.log.saved_recovery_point
    life.disk.kill()
    for steps_done in range(2):
        shared = OpenSegments()
        steps = opening_log(
            life.disk,
            FOLDER,
            CONFIG,
            now_ms=0,
            clean=False,
            recovery_point=point,
            open_segments=shared,
            lost_power=False,
        )
        for _ in range(steps_done):
            next(steps, None)
        steps.close()
        assert len(shared) == 0
    assert view(life.open(point=point)) == before


# -- random lives ---------------------------------------------------------------------------------


class RandomLife(Life):
    """Random steps; a kill must not change what can be seen."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def step(self) -> None:
        steps = (
            *(self.do_send,) * 8,
            *(self.do_end,) * 3,
            *(self.do_save,) * 2,
            *(self.do_kill,) * 2,
            self.do_torn_kill,
            self.do_roll,
            self.do_delete_records,
            self.do_restart,
            self.do_power_loss,
            self.do_new_epoch,
        )
        self.random.choice(steps)()

    def do_send(self) -> None:
        producer_id = self.random.randrange(4)
        for _ in range(self.random.randrange(1, 6)):
            state = self.partition.producers.get(producer_id)
            is_open = state is not None and state.in_txn
            self.send(producer_id, transactional=is_open or self.random.random() < 0.5)

    def do_end(self) -> None:
        open_ids = [each.producer_id for each in self.partition.producers if each.in_txn]
        if open_ids:
            self.end(self.random.choice(open_ids), commit=self.random.random() < 0.5)

    def do_save(self) -> None:
        self.partition.save_point()

    def do_kill(self) -> None:
        before = view(self.partition)
        assert view(self.kill()) == before

    def do_torn_kill(self) -> None:
        before = view(self.partition)
        path = self.partition.log.active.path(".log")
        torn = bytes(self.next_batch(3, transactional=False).data)
        cut = self.random.randrange(1, len(torn))
        self.disk.write_file(path, self.disk.read_file(path) + torn[:cut], sync=False)
        after = view(self.kill())
        # A torn batch at the point itself makes the point useless: the window may be shorter.
        assert _without_windows(after) == _without_windows(before)

    def do_roll(self) -> None:
        self.partition._roll(NOW)

    def do_delete_records(self) -> None:
        start, end = self.partition.log_start_offset, self.partition.high_watermark
        if start < end:
            self.partition.delete_before(self.random.randrange(start, end + 1))
            self.start = self.partition.log_start_offset
            retain(self.partition, NOW)

    def do_restart(self) -> None:
        before = view(self.partition)
        stop_and_start(self)
        assert view(self.partition) == before

    def do_power_loss(self) -> None:
        self.partition.log.sync()
        point = self.partition.log.saved_recovery_point
        before = view(self.partition)
        self.disk.crash()
        after = view(self.open(lost_power=True, point=point))
        assert _without_windows(after) == _without_windows(before)

    def do_new_epoch(self) -> None:
        self.epoch += 1
        self.partition.bump_leader_epoch(self.epoch)


def _without_windows(state: Any) -> object:
    parts = list(state)
    parts[4] = [producer[:-1] for producer in parts[4]]
    return parts


@pytest.mark.parametrize("seed", range(60))
def test_a_random_life_is_the_same_after_every_kill(seed: int) -> None:
    life = RandomLife(seed)
    for _ in range(40):
        life.step()
