"""The `.txnindex` of one segment: aborted transactions whose marker lies in it.

The file appears with the first entry. An entry that the disk refuses is kept in memory and written
with the next one, or before the segment is sealed or synced: a segment that was not sealed is read
through after a crash, and its index is made anew. Entries come in the order of their markers, so a
reader of a range of offsets can stop early: an entry's last stable offset says that nothing below
it ends later.
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
    """Read when it is first asked for; the file is open only while it is written."""

    __slots__ = ("_added", "_disk", "_entries", "_written", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._entries: list[AbortedTxn] | None = None
        self._added: list[AbortedTxn] = []
        """Entries that came while the file could not be read."""
        self._written = 0
        self.path = path

    @property
    def is_behind(self) -> bool:
        """Whether there are entries that the disk has refused so far."""
        if self._entries is None:
            return bool(self._added)
        return self._written < len(self._entries)

    def entries(self) -> list[AbortedTxn]:
        """All of them, in the order of their markers."""
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
        """Adds one.

        It counts from now on, also when the disk refuses to read or write and an exception says so.
        """
        if self._entries is None:
            self._added.append(txn)
            self.write_behind()
            return
        entries = self._entries
        assert not entries or txn.last_offset > entries[-1].last_offset, "markers come in order"
        entries.append(txn)
        self.write_behind()

    def write_behind(self) -> None:
        """Writes what is not in the file yet; an OSError, or a CorruptError of the file, leaves it for the next time."""
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
        """Adds those that a reader of [fetch_offset, upper_offset) needs; True when no later one matters."""
        entries = self.entries()
        start = bisect_left(entries, fetch_offset, key=lambda txn: txn.last_offset)
        for txn in entries[start:]:
            if txn.first_offset < upper_offset:
                found.append(txn)
            if txn.last_stable_offset >= upper_offset:
                return True
        return False

    def begin(self) -> None:
        """There is no file yet, so there is none to be read."""
        self._entries = []

    def reset(self) -> None:
        """Forgets everything: whoever recovers the segment builds it again."""
        self._disk.remove(self.path)
        self._entries = []
        self._added = []
        self._written = 0

    def release(self) -> None:
        """Gives the memory back; the file is read again when it is needed."""
        if not self.is_behind:
            self._entries = None
