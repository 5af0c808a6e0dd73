"""Where fencepost touches the world: four small protocols, each a constructor argument somewhere.

Rule: no room but `base/system.py`, `simulation/` and the composition root names a concrete clock,
disk or source of randomness. The network has no protocol of its own: the broker asks the running
asyncio loop for servers, connections and timers, and uses only what every asyncio loop has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview
"""Anything whose bytes can be written without a copy."""


class Clock(Protocol):
    """Wall time for timestamps and deadlines. Never assert that it moves forward (KAFKA-8803)."""

    def now_ms(self) -> int: ...


class Randomness(Protocol):
    """Randomness: cluster and topic ids, member ids."""

    def bytes(self, count: int) -> bytes: ...


class Readable(Protocol):
    """What can be read from any place."""

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        ...


class File(Protocol):
    """One open file. Offsets are explicit: nobody shares a cursor."""

    def append(self, chunks: Sequence[Buffer]) -> int:
        """Writes all chunks at the end, or raises OSError; returns the number of bytes written.

        A failed append may have written a part: the caller truncates to the size it knows.
        """
        ...

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        ...

    def view(self, position: int, count: int) -> Buffer:
        """The same bytes, all of which must be there, for somebody who only hands them on.

        They may lie in the page cache until they are sent, so that a disk that fails then shows it
        to the one who sends. Whoever looks into the bytes uses `read`.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Returns when everything appended so far would survive a loss of power."""
        ...

    def close(self) -> None: ...


class Space(NamedTuple):
    """Of the volume that a folder lies on."""

    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """A tree of folders and files. Paths are strings with '/' between their parts."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Opens for reading and appending; FileNotFoundError unless `create`."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Of a file, in bytes."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder, sorted; an absent folder raises FileNotFoundError."""
        ...

    def make_dir(self, path: str) -> None:
        """Creates the folder and its parents; no error when it is there."""
        ...

    def remove(self, path: str) -> None:
        """Deletes a file; no error when it is not there."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""
        ...

    def sync_dir(self, path: str) -> None:
        """Makes creations, renames and deletions in this folder survive a loss of power."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Replaces the file as a whole: a reader sees the old or the new content, never a mixture.

        With `sync` the new content and its name survive a loss of power once this returns.
        """
        ...

    def sync_all(self, path: str) -> bool:
        """Makes everything that was written to the volume of a folder survive a loss of power, in one go.

        False where the system cannot promise that. It also waits for what other processes have
        written there.
        """
        ...

    def space(self, path: str) -> Space: ...

    def session(self) -> str:
        """Stays the same as long as nothing written can have been lost, synced or not; empty when unknown.

        On Linux it is the id of the boot: the death of a process leaves the page cache, the loss of
        power does not.
        """
        ...
