"""Opens the log of a folder, or prepares the log of a folder that does not exist yet.

`recovery.py` finds the segments. This module adds the rest of the log: the missing offsets, the
leader epochs, the snapshots that can still be used, what must be synced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Final, ParamSpec, TypeVar

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.log.config import LogConfig
from fencepost.log.durability import Durability
from fencepost.log.epochs import LeaderEpochs
from fencepost.log.log import Log
from fencepost.log.recovery import Found, recover_segments
from fencepost.log.saved_points import SavedPoints
from fencepost.log.segment.batches import batches_of
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.segment import Segment
from fencepost.log.segment.wrong_epochs import EpochRun, rising
from fencepost.log.segment_list import SegmentList

_LOGGER: Final = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


def run_to_end(steps: Generator[None, None, T]) -> T:
    """Runs a generator to its end; returns its value."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def opening_log(
    disk: Disk,
    folder: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    open_segments: OpenSegments | None = None,
    lost_power: bool = True,
) -> Generator[None, None, Log]:
    """Opens or creates the log of a folder, and yields after each piece that it has scanned.

    A caller that no longer wants the log closes the generator: no file stays open, and the
    next open begins again.

    `clean` means that the owner closed the log with `close(clean=True)`, and nothing came after.
    Otherwise the segments from the one with `recovery_point` on are checked and cut, and their
    transaction indexes are emptied: the partition scans these segments to rebuild its producers and
    the indexes. `lost_power` says whether bytes that were never synced may be missing. If not, only
    the last append can be torn, and only the batches after the saved point are read.
    """
    shared = OpenSegments() if open_segments is None else open_segments
    points = SavedPoints(disk, folder)
    try:
        disk.make_dir(folder)
        if lost_power:
            points.remove()
        else:
            points.load()
        found = yield from recover_segments(
            disk,
            folder,
            config,
            shared,
            now_ms=now_ms,
            recovery_point=None if clean else recovery_point,
            log_start_offset=log_start_offset,
            lost_power=lost_power,
            points=points,
        )
    except OSError as problem:
        raise StorageError(f"{folder} cannot be opened: {problem}") from problem
    try:
        segments = SegmentList(found.segments)
        recovered_from, end_offset = found.recovered_from, segments.active.next_offset
        durability = Durability(
            disk,
            folder,
            segments,
            recovery_point=max(end_offset, recovery_point) if clean else recovery_point,
            is_known_durable=clean and recovered_from is None and segments.active.size_bytes > 0,
        )
        log = Log(
            disk,
            folder,
            config,
            segments,
            shared,
            epochs=LeaderEpochs(disk, folder),
            durability=durability,
            log_start_offset=log_start_offset,
            recovered_from=recovered_from,
            points=points,
        )
        log.recovered = found.recovered
        _note_missing(log, log_start_offset, recovery_point)
        _note_unsynced(log, durability, found, lost_power=lost_power)
        # Without a power loss the file has every epoch; others are flipped bits.
        if _restore_epochs(log, found.epochs if lost_power else []):
            durability.note_new_file(log.epochs.path)
        if recovered_from is not None:
            for segment in log.segments_from(recovered_from):
                log.check_epochs(segment, found.epochs)
        # Rebuilding a transaction index starts from the producers at `recovered_from`.
        usable = end_offset if recovered_from is None else recovered_from
        log.snapshots.delete_after(usable)
    except OSError as problem:
        for segment in found.segments:
            segment.close()
        raise StorageError(f"{folder} cannot be opened: {problem}") from problem
    return log


def _at_once(steps: Callable[P, Generator[None, None, T]]) -> Callable[P, T]:
    """Runs all steps in one call."""

    def run(*given: P.args, **named: P.kwargs) -> T:
        return run_to_end(steps(*given, **named))

    return run


open_log = _at_once(opening_log)
"""Opens or creates the log of a folder; see `opening_log`."""


def unborn_log(
    disk: Disk,
    folder: str,
    config: LogConfig,
    *,
    now_ms: int,
    make_folder: Callable[[], None],
    open_segments: OpenSegments | None = None,
) -> Log:
    """The log of a folder that does not exist yet: the first batch creates it.

    `assign_epoch`, which comes before the first batch, calls `make_folder`. Until then there is
    nothing to close, sync, recover or delete: an unused partition costs only memory.
    """
    shared = OpenSegments() if open_segments is None else open_segments
    segment = Segment(disk, folder, 0, shared, created_ms=now_ms)
    segment.begin()
    segments = SegmentList([segment])
    return Log(
        disk,
        folder,
        config,
        segments,
        shared,
        epochs=LeaderEpochs(disk, folder, is_new=True),
        durability=Durability(disk, folder, segments, recovery_point=0, is_known_durable=False),
        log_start_offset=0,
        recovered_from=None,
        points=SavedPoints(disk, folder),
        make_folder=make_folder,
    )


def _note_unsynced(log: Log, durability: Durability, found: Found, *, lost_power: bool) -> None:
    """Notes the files that the last process may not have synced."""
    begin = found.unsynced_from
    if begin is None:
        return
    for segment in found.segments[:-1]:
        if segment.base_offset >= begin:
            durability.note_segment(segment)
    if lost_power:
        return  # What is read now is on the disk.
    log.snapshots.note_from(begin)
    if log.epochs.entries:
        durability.note_new_file(log.epochs.path)


def _note_missing(log: Log, log_start_offset: int, recovery_point: int) -> None:
    """Notes the offsets that were on the disk and are in no segment, at both ends of the log."""
    first_base = log.segments[0].base_offset
    if not log.config.is_deleted_from and log_start_offset < first_base:
        log.is_start_lost = True
        log.missing.append((log_start_offset, first_base))
    if recovery_point > log.log_end_offset:
        log.missing.append((log.log_end_offset, recovery_point))
    for first, end in log.missing:
        _LOGGER.error(
            "%s: offsets %d to %d were on the disk and are missing: their files were removed. Put "
            "the files back from a copy while the broker is stopped",
            log.folder,
            first,
            end - 1,
        )


def _restore_epochs(log: Log, found: list[EpochRun]) -> bool:
    """Completes the leader epochs from the batches: the file may be stale or lost.

    Returns whether the file was written.
    """
    epochs = log.epochs
    is_missing = not epochs.entries and log.log_end_offset > log.log_start_offset
    if epochs.is_lost or is_missing:
        found = _epochs_of_batches(log)
    changes = (
        epochs.cut_end(log.log_end_offset),
        epochs.restore(rising(found, log.log_end_offset)),
        epochs.cut_start(log.log_start_offset),
    )
    return any(changes)


def _epochs_of_batches(log: Log) -> list[EpochRun]:
    """The leader epochs of the whole log, as its batches have them."""
    runs: list[EpochRun] = []
    for segment in log.segments:
        for batch in batches_of(segment, headers_only=True):
            if not runs or runs[-1][0] != batch.leader_epoch:
                runs.append((batch.leader_epoch, batch.base_offset))
    return runs
