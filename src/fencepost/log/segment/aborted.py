"""The `.txnindex` of one segment: the aborted transactions whose marker is in it.

The first entry creates the file. If the disk fails, an entry is kept in memory and written with the
next one, or before the segment is sealed or synced. After a crash, recovery empties the indexes of
the segments that it scans, and the partition fills them again from the batches.

Entries are in the order of their markers. A reader of a range can stop at an entry whose last
stable offset is past the range: no later marker ends a transaction below it.
"""

from __future__ import annotations

from bisect import bisect_left

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Disk
from fencepost.records.index import (
    ABORTED_TXN_BYTES,
    AbortedTxn,
    decode_aborted_txns,
    encode_aborted_txn,
)


class AbortedIndex:
    """The index of one segment; read on first use, and open only during a write."""

    __slots__ = ("_added", "_disk", "_entries", "_written", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._entries: list[AbortedTxn] | None = None
        self._added: list[AbortedTxn] = []
        """Entries that were added while the file could not be read."""
        self._written = 0
        self.path = path

    @property
    def is_behind(self) -> bool:
        """Whether there are entries that are not in the file yet."""
        if self._entries is None:
            return bool(self._added)
        return self._written < len(self._entries)

    def entries(self) -> list[AbortedTxn]:
        """All entries, in the order of their markers."""
        if self._entries is None:
            try:
                self._entries = decode_aborted_txns(self._disk.read_file(self.path))
            except FileNotFoundError:
                self._entries = []
            except ValueError as problem:
                raise CorruptError(f"{self.path}: {problem}") from problem
            self._written = len(self._entries)
            self._entries += self._added
            self._added = []
        return self._entries

    def append(self, txn: AbortedTxn) -> None:
        """Adds an entry; it counts even if an exception reports that the disk failed."""
        if self._entries is None:
            self._added.append(txn)
            self.write_behind()
            return
        entries = self._entries
        assert not entries or txn.last_offset > entries[-1].last_offset, "markers come in order"
        entries.append(txn)
        self.write_behind()

    def write_behind(self) -> None:
        """Writes the missing entries; they stay pending after an OSError or a CorruptError."""
        if not self.is_behind:
            return
        entries = self.entries()
        file = self._disk.open(self.path, create=True)
        try:
            known_bytes = self._written * ABORTED_TXN_BYTES
            if file.size() != known_bytes:
                file.truncate(known_bytes)
            file.append([encode_aborted_txn(txn) for txn in entries[self._written :]])
        finally:
            file.close()
        self._written = len(entries)

    def collect(self, fetch_offset: int, upper_offset: int, found: list[AbortedTxn]) -> bool:
        """Collects the entries for [fetch_offset, upper_offset); True when no more follow."""
        entries = self.entries()
        start = bisect_left(entries, fetch_offset, key=lambda txn: txn.last_offset)
        for txn in entries[start:]:
            if txn.first_offset < upper_offset:
                found.append(txn)
            if txn.last_stable_offset >= upper_offset:
                return True
        return False

    def begin(self) -> None:
        """Starts an empty index without a file."""
        self._entries = []

    def count_below(self, offset: int) -> int:
        """The number of entries whose marker is below an offset."""
        return bisect_left(self.entries(), offset, key=lambda txn: txn.last_offset)

    def cut(self, offset: int) -> None:
        """Removes the entries whose marker is at or above an offset."""
        entries, kept = self.entries(), self.count_below(offset)
        if kept == len(entries):
            return
        file = self._disk.open(self.path, create=True)
        try:
            file.truncate(kept * ABORTED_TXN_BYTES)
        finally:
            file.close()
        del entries[kept:]
        self._written = kept

    def reset(self) -> None:
        """Removes the file and all entries."""
        self._disk.remove(self.path)
        self._entries = []
        self._added = []
        self._written = 0

    def release(self) -> None:
        """Frees the memory, unless the file lacks entries; the next use reads the file again."""
        if not self.is_behind:
            self._entries = None
