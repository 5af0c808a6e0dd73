"""Leader epochs: the `leader-epoch-checkpoint` file, and OffsetForLeaderEpoch.

An entry is written before the first record of its epoch, without a sync: the log syncs the file
before its recovery point passes that record. A power loss may leave a stale or unreadable file.
Every batch has its leader epoch, so recovery adds the missing entries (`restore`), and a missing
file is written again. A batch whose epoch contradicts the others has a flipped bit and adds none
(`segment/wrong_epochs.py`). Opening the log removes entries beyond its end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from fencepost.base.seams import Disk
from fencepost.log.names import LEADER_EPOCHS
from fencepost.records.text_files import EpochEntry, decode_epochs, encode_epochs

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
        """Whether the file cannot be read and must be rebuilt from the batches."""
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
            log.warning("%s cannot be read and is rebuilt from the batches: %s", self.path, problem)
            self.is_lost = True

    @property
    def latest(self) -> int:
        """The newest epoch; -1 without any."""
        return self.entries[-1].epoch if self.entries else UNDEFINED_EPOCH

    def restore(self, found: Iterable[tuple[int, int]]) -> bool:
        """Adds (epoch, first offset) pairs found in batches; returns whether one was missing."""
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
        """Starts `epoch` at `start_offset` and drops conflicting entries; False if known."""
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
        """The largest epoch not above `epoch` and its end offset; (-1, -1) when unknown."""
        if epoch == UNDEFINED_EPOCH or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = next(entry for entry in self.entries if entry.epoch > epoch)
        floor = [entry.epoch for entry in self.entries if entry.epoch <= epoch]
        return (floor[-1] if floor else epoch), higher.start_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at an offset; -1 when unknown."""
        before = [entry.epoch for entry in self.entries if entry.start_offset <= offset]
        return before[-1] if before else UNDEFINED_EPOCH

    def cut_end(self, end_offset: int) -> bool:
        """Removes epochs that begin at or after the log end; returns whether there were any."""
        kept = [entry for entry in self.entries if entry.start_offset < end_offset]
        if len(kept) == len(self.entries):
            return False
        self._write(kept)
        return True

    def cut_start(self, start_offset: int) -> bool:
        """Makes the epoch of `start_offset` begin there, drops older ones; False if unchanged."""
        before = [entry for entry in self.entries if entry.start_offset <= start_offset]
        if not before or before[-1].start_offset == start_offset:
            return False
        rest = self.entries[len(before) :]
        self._write([EpochEntry(before[-1].epoch, start_offset), *rest])
        return True

    def _write(self, entries: list[EpochEntry]) -> None:
        self._disk.write_file(self.path, encode_epochs(entries), sync=False)
        self.entries = entries
