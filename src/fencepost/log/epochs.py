"""Which leader wrote what: `leader-epoch-checkpoint`, and the question a consumer asks of it.

An entry is written before the first record of its epoch, so the file never lacks one. Entries that a
crash left behind, beyond the end of the log, are cut off when the log is opened.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Disk
from fencepost.log.names import LEADER_EPOCHS
from fencepost.records.checkpoint import EpochEntry, decode_epochs, encode_epochs

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class LeaderEpochs:
    """Epochs and their first offsets, both increasing."""

    __slots__ = ("_disk", "_path", "entries")

    def __init__(self, disk: Disk, folder: str, *, is_new: bool = False) -> None:
        self._disk = disk
        self._path = f"{folder}/{LEADER_EPOCHS}"
        self.entries: list[EpochEntry] = []
        if is_new:
            return
        try:
            self.entries = decode_epochs(disk.read_file(self._path))
        except FileNotFoundError:
            pass
        except ValueError as problem:
            raise CorruptError(f"{self._path}: {problem}") from problem

    @property
    def latest(self) -> int:
        return self.entries[-1].epoch if self.entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """From `start_offset` on records belong to `epoch`; what contradicts that is dropped."""
        assert epoch >= 0
        assert start_offset >= 0
        entries = self.entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return
        kept = list(entries)
        while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
            kept.pop()
        self._write([*kept, EpochEntry(epoch, start_offset)])

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

    def cut_end(self, end_offset: int) -> None:
        """Forgets epochs that begin at or after the end of a shortened log."""
        kept = [entry for entry in self.entries if entry.start_offset < end_offset]
        if len(kept) != len(self.entries):
            self._write(kept)

    def cut_start(self, start_offset: int) -> None:
        """Lets the epoch that `start_offset` lies in begin there, and forgets the older ones."""
        before = [entry for entry in self.entries if entry.start_offset <= start_offset]
        if before and before[-1].start_offset < start_offset:
            rest = self.entries[len(before) :]
            self._write([EpochEntry(before[-1].epoch, start_offset), *rest])

    def _write(self, entries: list[EpochEntry]) -> None:
        self._disk.write_file(self._path, encode_epochs(entries), sync=True)
        self.entries = entries
