"""File descriptors: how many there are, who may have how many, and what is done when there are none left.

Theory of operation ------------------- The system gives a process a fixed number of descriptors.
They are shared out at the start, so that no use can take them all:

- a few for the process itself: the loop, the lock, files that are open for a moment (snapshots,
  checkpoints, syncs);
- mapped files on their way to readers, and sealed segments that are read (both are few);
- the files of segments that are written to. No partition keeps one for good
  (`log/open_segments.py`), so the number of partitions is not bounded by it;
- connections get the rest, if that is less than max.connections. The server closes those beyond it.

Others may still take what was left to us: an embedded broker lives in somebody's process, and the
system has a limit for all processes. So every open that fails for want of a descriptor closes half
of the log files that are open and is tried again (`PatientDisk`). A thread that syncs may not touch
segments; it waits a moment and tries again.
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
"""For the process itself: about 20 after the start; the executor's threads, the trace, peers come
to it."""
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
    """A disk whose opens survive that no descriptor is left. Made in the thread of the loop.

    While the broker starts it also remembers the names in the folder that was listed last, until it
    changes something: to open a log is to ask many times what is there, and a start opens tens of
    thousands. No thread runs yet.
    """

    __slots__ = ("_disk", "_folder", "_known", "_make_room", "_names", "_starting", "_thread")

    def __init__(self, disk: Disk, make_room: Callable[[], bool]) -> None:
        self._disk = disk
        self._make_room = make_room
        self._thread = threading.get_ident()
        self._folder = ""
        self._names: list[str] = []
        self._known: frozenset[str] = frozenset()
        self._starting = False

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

    def _is_absent(self, path: str) -> bool:
        """Whether the folder that was listed last is known not to have this file."""
        folder, _, name = path.rpartition("/")
        return folder == self._folder and name not in self._known

    def _forget(self) -> None:
        self._folder = ""

    def set_starting(self, is_starting: bool) -> None:
        self._forget()
        self._starting = is_starting

    # -- what looks

    def list_dir(self, path: str) -> list[str]:
        if path == self._folder:
            return self._names
        names = self._try(lambda: self._disk.list_dir(path))
        if self._starting:
            self._folder, self._names, self._known = path, names, frozenset(names)
        return names

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def exists(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name in self._known if folder == self._folder else self._disk.exists(path)

    def read_file(self, path: str) -> bytes:
        if self._is_absent(path):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._try(lambda: self._disk.read_file(path))

    def sync_dir(self, path: str) -> None:
        self._try(lambda: self._disk.sync_dir(path))

    def sync_all(self, path: str) -> bool:
        return self._try(lambda: self._disk.sync_all(path))

    def space(self, path: str) -> Space:
        return self._disk.space(path)

    def session(self) -> str:
        return self._disk.session()

    # -- what changes

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self._forget()
        return self._try(lambda: self._disk.open(path, create=create))

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        self._forget()
        # From the beginning: a file that is replaced as a whole may be replaced twice.
        self._try(lambda: self._disk.write_file(path, data, sync=sync))

    def remove_tree(self, path: str) -> None:
        self._forget()
        self._try(lambda: self._disk.remove_tree(path))

    def make_dir(self, path: str) -> None:
        if path != self._folder:
            self._forget()
            self._disk.make_dir(path)

    def remove(self, path: str) -> None:
        if not self._is_absent(path):
            self._forget()
            self._disk.remove(path)

    def rename(self, old: str, new: str) -> None:
        self._forget()
        self._disk.rename(old, new)


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
