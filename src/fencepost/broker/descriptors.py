"""File descriptors: how many there are, who may have how many, and what is done when there are none left.

Theory of operation
-------------------
The system gives a process a fixed number of descriptors. They are shared out at the start, so that no use can take them all:

- a few for the process itself: the loop, the lock, files that are open for a moment (snapshots, checkpoints, syncs);
- mapped files on their way to readers, and sealed segments that are read (both are few);
- the files of segments that are written to. No partition keeps one for good (`log/open_segments.py`), so the number
  of partitions is not bounded by it;
- connections get the rest, if that is less than max.connections. The server closes those beyond it.

Others may still take what was left to us: an embedded broker lives in somebody's process, and the system has a limit for all
processes. So every open that fails for want of a descriptor closes half of the log files that are open and is tried again
(`PatientDisk`). A thread that syncs may not touch segments; it waits a moment and tries again.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from fencepost.base.seams import Disk, File, Space

OWN: Final = 64
"""For the process itself: about 20 after the start; the executor's threads, the trace, peers come to it."""
MAPPINGS: Final = 128
SEALED: Final = 64
SMALLEST_SHARE: Final = 16
UNLIMITED: Final = 1 << 20
"""What is made of 'no limit': descriptors cost memory, and nobody needs more."""

RETRY_SECONDS: Final = 0.02
RETRIES: Final = 500
"""A thread waits up to ten seconds for a descriptor before it gives up, and the process with it."""

EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)

T = TypeVar("T")


class Descriptors(NamedTuple):
    """What each use may have."""

    growing: int
    sealed: int
    mappings: int
    connections: int


def share_out(limit: int, max_connections: int) -> Descriptors:
    """The shares of a process that may have `limit` descriptors."""
    if limit <= 0 or limit > UNLIMITED:
        limit = UNLIMITED
    mappings, sealed = min(MAPPINGS, limit // 8), min(SEALED, limit // 8)
    rest = limit - min(OWN, limit // 4) - mappings - sealed
    growing = max(SMALLEST_SHARE, rest // 2, rest - max_connections)
    connections = min(max_connections, max(SMALLEST_SHARE, rest - growing))
    return Descriptors(growing, max(1, sealed), mappings, connections)


def open_file_limit() -> int:
    """How many descriptors this process may have; the usual limit where the system does not say."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024


def raise_open_file_limit() -> tuple[int, int]:
    """Takes as many as the system lets us have without asking; the limit before and after."""
    before = open_file_limit()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return before, open_file_limit()


class PatientDisk:
    """A disk whose opens survive that no descriptor is left. Made in the thread of the loop."""

    __slots__ = ("_disk", "_make_room", "_thread")

    def __init__(self, disk: Disk, make_room: Callable[[], bool]) -> None:
        self._disk = disk
        self._make_room = make_room
        self._thread = threading.get_ident()

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as problem:
            if problem.errno not in EXHAUSTED:
                raise
            if threading.get_ident() != self._thread:
                return _wait_for(call)
            if not self._make_room():
                raise
        return call()

    def open(self, path: str, *, create: bool = False) -> File:
        return self._try(lambda: self._disk.open(path, create=create))

    def list_dir(self, path: str) -> list[str]:
        return self._try(lambda: self._disk.list_dir(path))

    def read_file(self, path: str) -> bytes:
        return self._try(lambda: self._disk.read_file(path))

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        # From the beginning: a file that is replaced as a whole may be replaced twice.
        self._try(lambda: self._disk.write_file(path, data, sync=sync))

    def sync_dir(self, path: str) -> None:
        self._try(lambda: self._disk.sync_dir(path))

    def remove_tree(self, path: str) -> None:
        self._try(lambda: self._disk.remove_tree(path))

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def make_dir(self, path: str) -> None:
        self._disk.make_dir(path)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def space(self, path: str) -> Space:
        return self._disk.space(path)


def _wait_for(call: Callable[[], T]) -> T:
    """For a thread: the loop and the clients give descriptors back all the time."""
    for _ in range(RETRIES):
        time.sleep(RETRY_SECONDS)
        try:
            return call()
        except OSError as problem:
            if problem.errno not in EXHAUSTED:
                raise
    return call()
