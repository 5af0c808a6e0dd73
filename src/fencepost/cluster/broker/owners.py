"""Which broker processes are alive, by one locked byte each in the file `owners`.

A broker locks the byte at its id for as long as it lives; the kernel unlocks it when the process is
gone, however it ended. The controller reaps a process before it fences the broker and moves its
partitions. So a broker that applies the fence of another one asks who holds the byte. If it is the
process that it knew, the controller is wrong, and two processes would write one log. Another
process may hold the byte by then: the broker has been restarted.

These are POSIX record locks. A process loses all of its locks on a file when it closes any of its
descriptors of that file, so the file is opened once per process and stays open. The locks are not
inherited, and a broker is exec'd, so no child holds one by accident. A process does not see
its own locks: a second claim of the same byte in one process succeeds.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from typing import Final

from fencepost.base.failures import StorageError

OWNERS: Final = "owners"

_IS_BSD: Final = sys.platform == "darwin"
_FLOCK: Final = struct.Struct("qqihh" if _IS_BSD else "hhqqixxxx")
"""struct flock: type, whence, start, length, pid; on macOS start, length, pid, type, whence."""


class Owners:
    """The file `owners` of one data directory, opened by one process."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, OWNERS)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def claim(self, broker_id: int) -> None:
        """Locks the byte of a broker until this process ends; StorageError if another has it."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, broker_id)
        except (BlockingIOError, PermissionError) as problem:
            raise StorageError(
                f"broker {broker_id} runs already, as process {self.holder_of(broker_id)}"
            ) from problem

    def holder_of(self, broker_id: int) -> int | None:
        """The process that holds the byte of a broker; None if it is free, or held by this one."""
        place, lock = (broker_id, 1, 0), (fcntl.F_WRLCK, os.SEEK_SET)
        wanted = _FLOCK.pack(*place, *lock) if _IS_BSD else _FLOCK.pack(*lock, *place)
        found = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, wanted))
        kind, pid = (found[3], found[2]) if _IS_BSD else (found[0], found[4])
        return None if kind == fcntl.F_UNLCK else pid

    def close(self) -> None:
        """Releases what this process has claimed."""
        os.close(self._descriptor)
