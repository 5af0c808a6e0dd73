"""Interfaces to clock, randomness and disk, which are passed as constructor arguments.

Only `base/system.py`, `simulation/` and the entry points name a concrete clock, disk or source of
randomness. The network has no interface here: the broker uses the servers, connections and timers
of the running asyncio loop, and only those that every asyncio loop has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview
"""An object whose bytes can be written without a copy."""


class Clock(Protocol):
    """Wall time for timestamps and deadlines. Never assert that it moves forward (KAFKA-8803)."""

    def now_ms(self) -> int: ...


class Randomness(Protocol):
    """A source of random bytes, for cluster, topic and member ids."""

    def bytes(self, count: int) -> bytes: ...


class Readable(Protocol):
    """A file that can be read at any position."""

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        ...


class File(Protocol):
    """One open file. Positions are explicit: there is no shared cursor."""

    def append(self, chunks: Sequence[Buffer]) -> int:
        """Writes all chunks at the end and returns the number of bytes; OSError on failure.

        A failed append may have written a part: the caller truncates the file to its last size.
        """
        ...

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        ...

    def view(self, position: int, count: int) -> Buffer:
        """The same bytes, all of which must exist, for a caller that only passes them on.

        They may stay in the page cache until they are sent, so a failing disk may show only then.
        A caller that looks into the bytes uses `read`.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Returns when everything appended so far survives a power loss."""
        ...

    def close(self) -> None: ...


class Space(NamedTuple):
    """The size of a volume and how much of it is free."""

    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """A tree of folders and files. Paths are strings with '/' as separator."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Opens for reading and appending; FileNotFoundError without the file and `create`."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """The size of a file in bytes."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder, sorted; an absent folder raises FileNotFoundError."""
        ...

    def make_dir(self, path: str) -> None:
        """Creates the folder and its parents; no error if it exists."""
        ...

    def remove(self, path: str) -> None:
        """Deletes a file; no error if it is absent."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Renames atomically, replacing `new`."""
        ...

    def sync_dir(self, path: str) -> None:
        """Makes creations, renames and deletions in this folder survive a power loss."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Replaces the file as a whole: a reader sees the old or the new content, never a mixture.

        With `sync` the new content and its name survive a power loss once this returns.
        """
        ...

    def sync_all(self, path: str) -> bool:
        """Syncs the whole volume of a folder; False where the system cannot guarantee that.

        It also waits for what other processes have written there.
        """
        ...

    def space(self, path: str) -> Space: ...

    def session(self) -> str:
        """An id that changes when unsynced writes may have been lost; empty when unknown.

        On Linux it is the boot id: the page cache survives the death of a process, but not a power
        loss.
        """
        ...
