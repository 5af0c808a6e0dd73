"""Which leader wrote what: `leader-epoch-checkpoint`, and the question a consumer asks of it.

An entry is written before the first record of its epoch, but nothing is synced here: the log syncs
the file before its recovery point passes that record. So a loss of power may leave a file that is
old or unreadable; every batch carries its epoch, and recovery puts back what is missing
(`restore`). Entries beyond the end of the log are cut off when the log is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from fencepost.base.seams import Disk
from fencepost.log.names import LEADER_EPOCHS
from fencepost.records.checkpoint import EpochEntry, decode_epochs, encode_epochs

log = logging.getLogger(__name__)

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class LeaderEpochs:
    """Epochs and their first offsets, both increasing."""

    __slots__ = ("_disk", "entries", "is_lost", "path")

    def __init__(self, disk: Disk, folder: str, *, is_new: bool = False) -> None:
        self._disk = disk
        self.path = f"{folder}/{LEADER_EPOCHS}"
        self.entries: list[EpochEntry] = []
        self.is_lost = False
        """The file cannot be read: what it said is to be learned from the batches."""
        if is_new:
            return
        try:
            data = disk.read_file(self.path)
            if not data:
                raise ValueError("the file is empty")
            self.entries = decode_epochs(data)
        except FileNotFoundError:
            pass
        except ValueError as problem:
            log.warning("%s cannot be read and is made anew: %s", self.path, problem)
            self.is_lost = True

    @property
    def latest(self) -> int:
        return self.entries[-1].epoch if self.entries else UNDEFINED_EPOCH

    def restore(self, found: Iterable[tuple[int, int]]) -> bool:
        """Takes over what batches say, each an epoch and its first offset; whether that was news."""
        entries = list(self.entries)
        for epoch, start_offset in found:
            if not entries or (
                epoch > entries[-1].epoch and start_offset > entries[-1].start_offset
            ):
                entries.append(EpochEntry(epoch, start_offset))
        is_new = self.is_lost or len(entries) > len(self.entries)
        if is_new:
            self._write(entries)
        self.is_lost = False
        return is_new

    def assign(self, epoch: int, start_offset: int) -> bool:
        """From `start_offset` on records belong to `epoch`; what contradicts that is dropped.

        Whether that was news.
        """
        assert epoch >= 0
        assert start_offset >= 0
        entries = self.entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return False
        kept = list(entries)
        while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
            kept.pop()
        self._write([*kept, EpochEntry(epoch, start_offset)])
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch that is not above `epoch`, and where it ended; (-1, -1) when unknown."""
        if epoch == UNDEFINED_EPOCH or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = next(entry for entry in self.entries if entry.epoch > epoch)
        floor = [entry.epoch for entry in self.entries if entry.epoch <= epoch]
        return (floor[-1] if floor else epoch), higher.start_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch in which an offset was written; -1 when that is not known."""
        before = [entry.epoch for entry in self.entries if entry.start_offset <= offset]
        return before[-1] if before else UNDEFINED_EPOCH

    def cut_end(self, end_offset: int) -> bool:
        """Forgets epochs that begin at or after the end of a shortened log; whether there were any."""
        kept = [entry for entry in self.entries if entry.start_offset < end_offset]
        if len(kept) == len(self.entries):
            return False
        self._write(kept)
        return True

    def cut_start(self, start_offset: int) -> bool:
        """Lets the epoch that `start_offset` lies in begin there, and forgets the older ones; whether that was news."""
        before = [entry for entry in self.entries if entry.start_offset <= start_offset]
        if not before or before[-1].start_offset == start_offset:
            return False
        rest = self.entries[len(before) :]
        self._write([EpochEntry(before[-1].epoch, start_offset), *rest])
        return True

    def _write(self, entries: list[EpochEntry]) -> None:
        self._disk.write_file(self.path, encode_epochs(entries), sync=False)
        self.entries = entries
