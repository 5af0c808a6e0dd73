"""The limit of open segment files over all logs of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.base.system import SystemDisk, SystemFile
from fencepost.log import Log, LogConfig, OpenSegments, open_log
from fencepost.log.config import COMPACT
from tests.log.audit import audit
from tests.log.batches import all_batches, append, append_pairs, compact, fold

pytestmark = pytest.mark.interpreted

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)


class CountedFile(SystemFile):
    """A file that is counted out when it is closed."""

    __slots__ = ("disk",)
    disk: OpenFileCountingDisk

    def close(self) -> None:
        self.disk.open_files -= 1
        super().close()


class OpenFileCountingDisk(SystemDisk):
    """The real disk, with a count of open files."""

    def __init__(self) -> None:
        self.open_files = 0

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        file = CountedFile(super().open(path, create=create)._descriptor)
        file.disk = self
        self.open_files += 1
        return file


def a_log(disk: SystemDisk, folder: str, shared: OpenSegments, *, clean: bool = False) -> Log:
    return open_log(disk, folder, SMALL, now_ms=0, clean=clean, open_segments=shared)


def test_only_active_segments_and_a_few_others_stay_open(tmp_path: Path) -> None:
    disk, shared = OpenFileCountingDisk(), OpenSegments(3)
    logs = [a_log(disk, f"{tmp_path}/t-{number}", shared) for number in range(4)]
    for log in logs:
        for _ in range(30):
            append(log)
        assert len(log.segments) > 5
    for log in logs:
        assert [batch.base_offset for batch in all_batches(log)] == list(range(30))
    assert disk.open_files == len(logs) + 3
    for log in logs:
        log.close(clean=True)
    assert disk.open_files == 0
    assert len(shared) == 0


def test_opening_closing_recovery_and_compaction_leak_no_file(tmp_path: Path) -> None:
    disk, shared = OpenFileCountingDisk(), OpenSegments(2)
    folder = f"{tmp_path}/t-0"
    log = a_log(disk, folder, shared)
    for number in range(60):
        append_pairs(log, (b"k%d" % (number % 7), b"%d" % number))
    before = fold(log)
    log.config = LogConfig(segment_bytes=300, cleanup_policy=frozenset({COMPACT}))
    log.roll(0)
    assert compact(log, upper_offset=60, now_ms=0) is not None
    assert fold(log) == before
    assert disk.open_files <= 3
    log.close(clean=True)
    audit(disk, folder)
    for clean in (True, False):
        log = a_log(disk, folder, shared, clean=clean)
        assert fold(log) == before
        log.close(clean=False)
    assert disk.open_files == 0


def test_a_closed_segment_reopens_itself(tmp_path: Path) -> None:
    disk, shared = OpenFileCountingDisk(), OpenSegments(1)
    log = a_log(disk, f"{tmp_path}/t-0", shared)
    for _ in range(30):
        append(log)
    scans = [log.scan(0), log.scan(10), log.scan(20)]
    found = [[next(scan).base_offset for scan in scans] for _ in range(10)]
    assert found == [[n, 10 + n, 20 + n] for n in range(10)]
    log.close(clean=True)
