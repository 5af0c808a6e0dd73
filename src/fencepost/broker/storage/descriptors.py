"""File descriptors: how they are divided, and what happens when none is left.

Theory of operation. A process has a fixed number of descriptors. They are divided at the start, so
that no use can exhaust them:

- a few for the process itself: the loop, the lock, files that are open for a moment (snapshots,
  checkpoints, syncs);
- mapped files that are being sent, and sealed segments that are being read (both are few);
- segments being written. No partition keeps its file open (`log/segment/open_segments.py`),
  so this does not limit the number of partitions;
- connections get the rest, up to max.connections. The server closes connections beyond it.

Descriptors can still run out: an embedded broker shares its process with other code, and the system
has a limit for all processes. So an open that fails for lack of a descriptor closes half of the
open log files and tries again (`PatientDisk`). A sync runs in a thread, which must not touch
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
"""For the process itself: about 20 after the start, plus the executor's threads and the trace."""
MAPPINGS: Final = 128
SEALED: Final = 64
SMALLEST_SHARE: Final = 16
UNLIMITED: Final = 1 << 20
"""Stands for 'no limit': descriptors cost memory, and more are never needed."""

RETRY_SECONDS: Final = 0.02
RETRIES: Final = 500
"""A thread waits up to ten seconds for a descriptor; then it fails, and the process ends."""

EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)

T = TypeVar("T")


class Descriptors(NamedTuple):
    """The number of descriptors for each use."""

    growing: int
    sealed: int
    mappings: int
    connections: int


def share_out(limit: int, max_connections: int) -> Descriptors:
    """Divides `limit` descriptors."""
    if limit <= 0 or limit > UNLIMITED:
        limit = UNLIMITED
    mappings, sealed = min(MAPPINGS, limit // 8), min(SEALED, limit // 8)
    rest = limit - min(OWN, limit // 4) - mappings - sealed
    growing = max(SMALLEST_SHARE, rest // 2, rest - max_connections)
    connections = min(max_connections, max(SMALLEST_SHARE, rest - growing))
    return Descriptors(growing, max(1, sealed), mappings, connections)


def open_file_limit() -> int:
    """The soft limit of this process; 1024 where the system has no such limit."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024


def raise_open_file_limit() -> tuple[int, int]:
    """Raises the soft limit to the hard one; returns the limit before and after."""
    before = open_file_limit()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return before, open_file_limit()


class PatientDisk:
    """A disk that frees descriptors when an open finds none left. Created on the loop's thread.

    During a start it also caches the names in the last listed folder, until it changes something:
    opening a log checks many names, and a start opens tens of thousands of logs. No other thread
    runs yet.
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
        """Whether the cached listing shows that the file is absent."""
        folder, _, name = path.rpartition("/")
        return folder == self._folder and name not in self._known

    def _forget(self) -> None:
        self._folder = ""

    def set_starting(self, is_starting: bool) -> None:
        """Switches the cache of names on or off."""
        self._forget()
        self._starting = is_starting

    # -- calls that change nothing

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

    # -- calls that change something

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self._forget()
        return self._try(lambda: self._disk.open(path, create=create))

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        self._forget()
        # A retry writes the whole file again, which is harmless.
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
    """Retries in a thread: the loop and the clients release descriptors all the time."""
    for _ in range(RETRIES):
        time.sleep(RETRY_SECONDS)
        try:
            return call()
        except OSError as problem:
            if problem.errno not in EXHAUSTED:
                raise
    return call()
