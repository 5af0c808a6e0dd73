"""The `.txnindex` of one segment: the aborted transactions whose marker is in it.

The first entry creates the file. If the disk fails, an entry is kept in memory and written with the
next one, or before the segment is sealed or synced. After a crash, recovery empties the indexes of
the segments that it scans, and the partition fills them again from the batches.

A file that cannot be what was written is rebuilt from the batches at its first use (`rebuild`): it
is torn, empty, out of order, names offsets of other segments, or may not be read. A file that is
gone is one of a segment without aborted transactions, so only the scrub notices it. It also
notices a flipped bit (`disagrees_with`).

Entries are in the order of their markers. A reader of a range can stop at an entry whose last
stable offset is past the range: no later marker ends a transaction below it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.failures import CorruptError
from fencepost.base.seams import Disk
from fencepost.records.index import (
    ABORTED_TXN_BYTES,
    AbortedTxn,
    decode_aborted_txns,
    encode_aborted_txn,
)

_LOGGER: Final = logging.getLogger(__name__)


class AbortedIndex:
    """The index of one segment; read on first use, and open only during a write."""

    __slots__ = ("_added", "_base_offset", "_disk", "_entries", "_written", "path", "rebuild")

    def __init__(self, disk: Disk, path: str, base_offset: int = 0) -> None:
        self._disk = disk
        self._base_offset = base_offset
        self.rebuild: Callable[[], list[AbortedTxn]] | None = None
        """Reads the aborted transactions from the batches; set by the log when it is open."""
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
            self._load()
        assert self._entries is not None
        return self._entries

    def _load(self) -> None:
        try:
            data = self._disk.read_file(self.path)
            # A crash at the end of a swap leaves an empty file, so without a log this is one.
            found = self._decode(data) if data or self.rebuild else []
        except FileNotFoundError:
            found = []
        except (ValueError, IsADirectoryError, PermissionError) as problem:
            if self.rebuild is None:
                raise CorruptError(f"{self.path}: {problem}") from problem
            _LOGGER.warning("%s is rebuilt from its log: %s", self.path, problem)
            self.replace(self.rebuild())
            return
        self._written = len(found)
        self._entries = found + self._added
        self._added = []

    def _decode(self, data: bytes) -> list[AbortedTxn]:
        """The entries of the file; ValueError if they cannot be what was written."""
        if not data:
            raise ValueError("the file is empty")
        entries = decode_aborted_txns(data)
        for txn in entries:
            if (
                txn.producer_id < 0
                or not 0 <= txn.first_offset < txn.last_offset
                or not 0 <= txn.last_stable_offset <= txn.last_offset + 1
            ):
                raise ValueError("an entry of the transaction index has impossible offsets")
        if entries[0].last_offset < self._base_offset:
            raise ValueError("the transaction index has a marker of another segment")
        return entries

    def replace(self, entries: list[AbortedTxn]) -> None:
        """Replaces file and memory by what the batches say, durably.

        If the disk fails, readers get them from memory, and they are written later.
        """
        newest = entries[-1].last_offset if entries else -1
        self._entries = entries + [txn for txn in self._added if txn.last_offset > newest]
        self._added, self._written = [], 0
        data = b"".join(map(encode_aborted_txn, self._entries))
        try:
            if data:
                self._disk.write_file(self.path, data, sync=True)
            else:
                self._disk.remove(self.path)
        except OSError as problem:
            _LOGGER.warning("%s cannot be written; will be tried again: %s", self.path, problem)
        else:
            self._written = len(self._entries)

    def disagrees_with(self, aborts: Sequence[tuple[int, int]]) -> bool:
        """Whether the index should be rebuilt, given the ABORT markers of a sealed segment.

        Each is (offset, producer id). A marker of a transaction without records has no entry, so a
        rebuild may find that the file was right.
        """
        return [(txn.last_offset, txn.producer_id) for txn in self.entries()] != list(aborts)

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
