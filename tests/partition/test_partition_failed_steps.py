"""Step n of operation A fails once; then every operation B runs, and nothing acknowledged is lost.

Method: a partition with several segments, transactions, and a compacted part is built once. For
every operation A, every disk call of it, and every operation B, a copy of that disk is opened, the
call fails while A runs, and then B runs on a disk that works again. B and a second A must succeed.
Then the world is read: as it is, after a kill, and after a clean stop or a power loss. In half
of the worlds the process is killed between A and B.

The model knows the newest committed value of each key, and what every producer has sent.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fencepost.base.failures import StorageError, SyncError
from fencepost.base.ids import TopicPartition
from fencepost.log.compaction import compaction
from fencepost.log.config import COMPACT, DELETE, LogConfig
from fencepost.log.opening import open_log
from fencepost.log.times import find_newest, find_timestamp
from fencepost.partition.partition import Appended, Partition
from fencepost.records.batch import read_header, split_batches
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record, open_batch
from fencepost.simulation.disk import UnsyncedDisk
from tests.halves import EVERY_CALL, half_of
from tests.log.audit import audit
from tests.partition.conftest import retain

FOLDER = "/data/t-0"
NOW = 1_000_000
CONFIG = LogConfig(
    cleanup_policy=frozenset({COMPACT, DELETE}),
    segment_bytes=4_000,
    segment_ms=1_000,
    index_interval_bytes=100,
    retention_ms=-1,
    min_cleanable_dirty_ratio=0.0,
)
KEYS = 6


@dataclass
class Model:
    """What was acknowledged."""

    table: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """The offset and value of the newest committed record of each key."""
    start: int = 0
    sequence: int = 0
    number: int = 0
    open_txns: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)

    def commit(self, offset: int, key: bytes, value: bytes) -> None:
        if offset >= self.table.get(key, (-1, b""))[0]:
            self.table[key] = offset, value

    def expected(self) -> dict[bytes, bytes]:
        return {key: value for key, (at, value) in self.table.items() if at >= self.start}


class World:
    """One partition, its disk, and the model."""

    def __init__(self, disk: UnsyncedDisk, model: Model) -> None:
        self.disk = disk
        self.model = model
        self.recovery_point = 0
        self.now_ms = NOW
        self.partition = self.opened()

    def copy(self) -> World:
        """The same world in another process, after a kill of this one."""
        other = World(copy.deepcopy(self.disk), copy.deepcopy(self.model))
        other.now_ms = self.now_ms
        return other

    def opened(self, *, clean: bool = False, lost_power: bool = False) -> Partition:
        for attempt in range(3):
            try:
                log = open_log(
                    self.disk,
                    FOLDER,
                    CONFIG,
                    now_ms=NOW,
                    clean=clean,
                    recovery_point=self.recovery_point,
                    log_start_offset=self.model.start,
                    lost_power=lost_power,
                )
                name = TopicPartition("t", 0)
                return Partition(name, bytes(16), 0, log, durable_at_append=True)
            except SyncError:
                self.disk.kill()
            except (OSError, StorageError):
                assert attempt < 2, "a call fails only once"
        raise AssertionError

    # -- operations -----------------------------------------------------------------------------

    def append(self) -> None:
        key, value = self._next_pair()
        partition, model = self.partition, self.model
        offset = self._put(key, value, producer_id=1, sequence=model.sequence)
        model.sequence += 1
        model.commit(offset, key, value)
        assert partition.log_end_offset == offset + 1

    def append_and_roll(self) -> None:
        self.now_ms += 2_000
        self.append()

    def commit(self) -> None:
        self._transaction(commit=True)

    def abort(self) -> None:
        self._transaction(commit=False)

    def compact(self) -> None:
        partition = self.partition
        steps = compaction(
            partition.log,
            upper_offset=partition.last_stable_offset,
            now_ms=self.now_ms,
            last_records=partition.last_records(),
        )
        problem: Exception | None = None
        while True:
            try:
                sync = next(steps) if problem is None else steps.throw(problem)
            except StopIteration:
                return
            problem = None
            try:
                if sync is not None:
                    sync.run()
            except StorageError as failed:
                problem = failed

    def remove(self) -> None:
        """DeleteRecords in the middle of the second segment, and retention."""
        segments = self.partition.log.segments
        offset = segments[1].base_offset + 1 if len(segments) > 1 else self.model.start
        self.partition.delete_before(offset)
        self.model.start = self.partition.log_start_offset
        retain(self.partition, self.now_ms)

    def sync(self) -> None:
        self.partition.log.sync()
        self.recovery_point = self.partition.log.saved_recovery_point

    def save(self) -> None:
        self.partition.save_point()

    def read(self) -> None:
        self.check()

    def find_times(self) -> None:
        log = self.partition.log
        assert find_newest(log) is not None
        find_timestamp(log, 1, log.log_end_offset)

    def restart(self) -> None:
        try:
            self.partition.close(clean=True)
        except StorageError:
            self.kill()
            return
        self.recovery_point = self.partition.log.saved_recovery_point
        self.disk.life += 1
        self.partition = self.opened(clean=True)

    def kill(self) -> None:
        self.disk.kill()
        self.partition = self.opened()

    def lose_power(self) -> None:
        self.sync()
        self.disk.crash()
        self.partition = self.opened(lost_power=True)

    def _next_pair(self) -> tuple[bytes, bytes]:
        number = self.model.number
        self.model.number += 1
        return b"k%d" % (number % KEYS), b"%d:" % number + b"v" * 20

    def _put(
        self, key: bytes, value: bytes, *, producer_id: int, sequence: int, txn: bool = False
    ) -> int:
        data = build_batch(
            [Record(0, self.now_ms, key, value)],
            timestamp_ms=self.now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=txn,
        )
        batch = read_header(memoryview(bytearray(data)))
        guard = (
            self.partition.begin_verification(batch, self.now_ms, starts_at_zero=True)
            if txn
            else None
        )
        appended = self.partition.append_from_client(batch, self.now_ms, guard)  # type: ignore[arg-type]
        assert isinstance(appended, Appended), appended
        return appended.base_offset

    def _transaction(self, *, commit: bool) -> None:
        key, value = self._next_pair()
        producer_id = 1000 + self.model.number
        offset = self._put(key, value, producer_id=producer_id, sequence=0, txn=True)
        self.model.open_txns[producer_id] = offset, key, value
        self._end(producer_id, commit=commit)

    def _end(self, producer_id: int, *, commit: bool) -> None:
        ended = self.partition.append_marker(
            producer_id,
            0,
            commit=commit,
            coordinator_epoch=0,
            transaction_version=0,
            now_ms=self.now_ms,
        )
        assert isinstance(ended, int)
        offset, key, value = self.model.open_txns.pop(producer_id)
        if commit:
            self.model.commit(offset, key, value)

    # -- checks ---------------------------------------------------------------------------------

    def end_transactions(self) -> None:
        for producer_id in list(self.model.open_txns):
            self._end(producer_id, commit=True)

    def check(self) -> None:
        """Reads everything, as a read_committed client does."""
        partition = self.partition
        found: dict[bytes, bytes] = {}
        dropping: set[int] = set()
        offset = partition.log_start_offset
        assert offset == self.model.start or offset >= self.model.start
        while offset < partition.last_stable_offset:
            fetched = partition.fetch(offset, 1 << 20, read_committed=True)
            aborted = sorted(fetched.aborted or (), key=lambda txn: txn[1])
            batches = split_batches(fetched.data)
            assert batches, "every read makes progress"
            for batch in batches:
                while aborted and aborted[0][1] <= batch.last_offset:
                    dropping.add(aborted.pop(0)[0])
                if batch.is_control:
                    dropping.discard(batch.producer_id)
                elif batch.producer_id not in dropping:
                    for record in open_batch(batch):
                        if record.offset >= self.model.start:
                            assert record.key is not None
                            assert record.value is not None
                            found[record.key] = record.value
                offset = batch.next_offset
        if not self.model.open_txns:
            assert found == self.model.expected()
        assert partition.log.is_sound


Operation = Callable[[World], None]
OPERATIONS: dict[str, Operation] = {
    "append": World.append,
    "append_and_roll": World.append_and_roll,
    "commit": World.commit,
    "abort": World.abort,
    "compact": World.compact,
    "remove": World.remove,
    "sync": World.sync,
    "save": World.save,
    "read": World.read,
    "find_times": World.find_times,
    "restart": World.restart,
}


@functools.cache
def built() -> World:
    world = World(UnsyncedDisk(), Model())
    for number in range(8):
        world.append()
        if number == 3:
            world.commit()
    world.abort()
    world.append_and_roll()
    world.compact()
    for _ in range(4):
        world.append()
    world.abort()
    world.append_and_roll()
    world.append()
    world.check()
    return world


def calls_of(operation: Operation) -> list[str]:
    """The kinds of the disk calls of an operation."""
    world = built().copy()
    world.disk.kinds = []
    operation(world)
    return world.disk.kinds


def run_failing(world: World, operation: Operation, call: int, *, late: bool) -> None:
    """Runs an operation whose n-th disk call fails; a failed sync ends the process."""
    world.disk.fail_call(call, late=late, short=True)
    try:
        operation(world)
    except SyncError:
        world.kill()
    except (OSError, StorageError):
        pass
    world.disk.heal()


@pytest.mark.parametrize("late", [False, True], ids=["fails", "fails_late"])
@pytest.mark.parametrize("failing", OPERATIONS)
def test_whatever_runs_after_a_failed_step_loses_nothing(failing: str, late: bool) -> None:
    calls = calls_of(OPERATIONS[failing])
    numbers = [n for n, kind in enumerate(calls, 1) if not late or kind in ("rename", "remove")]
    for call in half_of(numbers, failing):
        for number, following in enumerate(OPERATIONS):
            for is_killed in (False, True):
                if is_killed is bool((call // 2 + number) % 2) and not EVERY_CALL:
                    continue
                try:
                    run_pair(failing, call, following, late=late, is_killed=is_killed)
                except Exception as problem:
                    problem.add_note(
                        f"call {call} of {failing} failed{' late' * late}, "
                        f"{'kill, ' * is_killed}then {following}"
                    )
                    raise


def run_pair(failing: str, call: int, following: str, *, late: bool, is_killed: bool) -> None:
    world = built().copy()
    run_failing(world, OPERATIONS[failing], call, late=late)
    if is_killed:
        world.kill()
    OPERATIONS[following](world)
    OPERATIONS[failing](world)
    world.end_transactions()
    world.check()
    world.compact()
    world.check()
    world.append()
    world.kill()
    world.check()
    if call % 2:
        world.restart()
        world.partition.close(clean=True)
        audit(world.disk, FOLDER)
        world.partition = world.opened(clean=True)
    else:
        world.lose_power()
    world.check()
