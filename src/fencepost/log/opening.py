"""Opens the log of a folder, or prepares the log of a folder that does not exist yet.

`recovery.py` finds the segments. Here the rest of the log is put together from them: the offsets
that are missing, the leader epochs, the snapshots that are still of use, what must be synced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.log.config import LogConfig
from fencepost.log.durability import Durability
from fencepost.log.epochs import LeaderEpochs
from fencepost.log.log import Log
from fencepost.log.recovery import recover_segments
from fencepost.log.segment.batches import batches_of
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.log.segment.segment import Segment
from fencepost.log.segment.wrong_epochs import EpochRun, rising
from fencepost.log.segment_list import SegmentList

_LOGGER: Final = logging.getLogger(__name__)


def open_log(
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
) -> Log:
    """Opens or creates the log of a folder.

    `clean` means that the owner closed the log with `close(clean=True)`, and nothing came after.
    Otherwise the segments from the one with `recovery_point` on are checked and cut, and their
    transaction indexes are emptied: the partition scans these segments to rebuild its producers and
    the indexes. `lost_power` says whether bytes that were never synced may be missing. If not, only
    the last append can be torn.
    """
    shared = OpenSegments() if open_segments is None else open_segments
    try:
        found = recover_segments(
            disk,
            folder,
            config,
            shared,
            now_ms=now_ms,
            recovery_point=None if clean else recovery_point,
            log_start_offset=log_start_offset,
            lost_power=lost_power,
        )
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
        )
        _note_missing(log, log_start_offset, recovery_point)
        if recovered_from is not None:
            for segment in found.segments[:-1]:
                if segment.base_offset >= recovered_from:
                    durability.note_segment(segment)
        # Without a loss of power the file has every epoch; others are flipped bits.
        if _restore_epochs(log, found.epochs if lost_power else []):
            durability.note_new_file(log.epochs.path)
        if recovered_from is not None:
            for segment in log.segments_from(recovered_from):
                log.check_epochs(segment, found.epochs)
        # Rebuilding a transaction index starts from the producers at `recovered_from`.
        usable = end_offset if recovered_from is None else recovered_from
        log.snapshots.delete_after(usable)
    except OSError as problem:
        raise StorageError(f"{folder} cannot be opened: {problem}") from problem
    return log


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
        make_folder=make_folder,
    )


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
