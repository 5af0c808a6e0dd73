"""A log against a list: random appends, reads, rolls, deletions, crashes and restarts.

After a crash the log must be a prefix of the list, at least up to the recovery point, byte for
byte.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.base.failures import StorageError
from fencepost.log import LogConfig, OpenSegments
from fencepost.log.times import find_timestamp
from fencepost.records.batch import split_batches
from fencepost.simulation.disk import UnsyncedDisk
from tests.halves import examples
from tests.log.audit import audit
from tests.log.batches import FOLDER, SeededRandomness, append, open_log

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=120)


class WrittenBatch:
    """One batch of the list."""

    def __init__(self, base_offset: int, next_offset: int, data: bytes, timestamp: int) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.data = data
        self.timestamp = timestamp


class LogMachine(RuleBasedStateMachine):
    """The list is `written`; everything below `start` was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = UnsyncedDisk()
        self.disk.make_dir("data")
        self.written: list[WrittenBatch] = []
        self.start = 0
        self.synced = 0
        self.recovery_point = 0
        self.log = open_log(self.disk, CONFIG)

    @property
    def end(self) -> int:
        return max(self.start, self.written[-1].next_offset if self.written else 0)

    @rule(count=st.integers(1, 5), size=st.integers(0, 300), timestamp=st.integers(-1, 1000))
    def append(self, count: int, size: int, timestamp: int) -> None:
        batch = append(self.log, count, size=size, timestamp_ms=timestamp)
        self._note(batch.base_offset, batch.next_offset, bytes(batch.data), timestamp)

    def _note(self, base: int, following: int, data: bytes, timestamp: int) -> None:
        self.written.append(WrittenBatch(base, following, data, timestamp))

    @rule(free=st.integers(0, 50))
    def append_to_a_full_disk(self, free: int) -> None:
        self.disk.fill(free)
        try:
            append(self.log, 3, size=100)
            raise AssertionError("an append to a full disk succeeded")
        except StorageError:
            pass
        finally:
            self.disk.empty()

    @rule()
    def roll(self) -> None:
        self.log.roll(0)

    @rule()
    def sync(self) -> None:
        self.synced = self.log.sync()
        self.recovery_point = self.log.saved_recovery_point
        assert self.synced == self.end

    @precondition(lambda self: self.written)
    @rule(place=st.integers(0, 2**20), max_bytes=st.integers(0, 2000), cut=st.integers(0, 2**20))
    def read(self, place: int, max_bytes: int, cut: int) -> None:
        offset = self.start + place % (self.end - self.start + 1)
        bounds = [batch.base_offset for batch in self.written] + [self.end]
        upper = bounds[cut % len(bounds)]
        part = self.log.read(offset, max_bytes, upper_offset=upper)
        data = bytes(part.data)
        wanted = [b for b in self.written if b.next_offset > offset and b.next_offset <= upper]
        whole = b"".join(batch.data for batch in wanted)
        assert whole.startswith(data)
        assert bool(data) == bool(whole)
        assert len(data) <= max(max_bytes, len(wanted[0].data) if wanted else 0)
        ends = {b.next_offset for b in wanted}
        assert not data or part.next_offset in ends
        split_batches(data)

    @precondition(lambda self: self.written)
    @rule(timestamp=st.integers(0, 1000))
    def search(self, timestamp: int) -> None:
        hits = [b for b in self.written if b.timestamp >= timestamp and b.next_offset > self.start]
        found = find_timestamp(self.log, timestamp, self.end)
        expected = max(hits[0].base_offset, self.start) if hits else None
        assert (found.offset if found else None) == expected

    def _cut(self, end: int) -> None:
        """Drops batches that extend past `end`, and all of them if none reaches the start."""
        self.written = [b for b in self.written if b.next_offset <= end]
        if self.end == self.start and self.written and self.written[-1].next_offset < self.start:
            self.written = []

    @rule(place=st.integers(0, 2**20))
    def delete(self, place: int) -> None:
        offset = self.start + place % (self.end - self.start + 1)
        self.log.delete_before(offset)
        self.start = max(self.start, offset)

    @rule()
    def close_and_open(self) -> None:
        self.log.close(clean=True)
        self.synced = self.end
        self.recovery_point = self.log.saved_recovery_point
        audit(self.disk, FOLDER)
        self._open(clean=True)

    @rule()
    def kill_and_open(self) -> None:
        self.disk.kill()
        end = self.end
        self._open(clean=False)
        assert self.log.log_end_offset == end

    @rule(seed=st.none() | st.integers(0, 100))
    def crash_and_open(self, seed: int | None) -> None:
        self.disk.crash(SeededRandomness(seed) if seed is not None else None)
        self._open(clean=False)
        end = self.log.log_end_offset
        assert end >= self.synced
        self._cut(end)

    def _open(self, *, clean: bool) -> None:
        self.log = open_log(
            self.disk,
            CONFIG,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.start,
            open_segments=OpenSegments(2),
        )

    @invariant()
    def the_bounds_agree(self) -> None:
        assert self.log.log_start_offset == self.start
        assert self.log.log_end_offset == self.end
        assert self.log.recovery_point <= self.log.log_end_offset

    @invariant()
    def everything_readable_is_what_was_written(self) -> None:
        if self.disk.calls % 7:  # Not after every step: it reads the whole log.
            return
        expected = [b.data for b in self.written if b.next_offset > self.start]
        assert [bytes(batch.data) for batch in self.log.scan(self.start)] == expected


TestLogAgainstAList = LogMachine.TestCase
TestLogAgainstAList.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
