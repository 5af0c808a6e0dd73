"""Memory for batches that a Python worker reuses, and that tasks of the same machine can map.

On Linux it is an anonymous file (memfd). A task that knows the process and the descriptor opens it
through /proc. That works on the same machine, for the same user, and only while the file is open; a
token behind the memory proves that it is the right file. A process that dies leaves nothing behind.
Where memfd does not exist or is forbidden, the arena is plain memory, and `handle` is None.

Fresh memory costs more than copying into it, so the next task of a worker reuses the arena
(`keep_arena`). By then no other task may be reading it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from typing import TYPE_CHECKING, Final
from weakref import finalize

if TYPE_CHECKING:
    from fencepost.records.columns import Bytes

ARENA_BYTES: Final = 64 * 1024 * 1024
"""The smallest arena of a task. Only used pages take up memory."""

_NAME: Final = "fencepost-batches"
_TOKEN_BYTES: Final = 16
_HANDLE: Final = struct.Struct(f">QQQ{_TOKEN_BYTES}s")


class Arena:
    """A block of memory of this process."""

    def __init__(self, size_bytes: int) -> None:
        # Here, because a task that only maps an arena does not need numpy.
        import numpy as np

        self.process_id = os.getpid()
        self.handle: bytes | None = None
        """What a peer needs to map it."""
        descriptor = _nameless_file()
        if descriptor is None:
            self.memory: Bytes = np.empty(size_bytes, np.uint8)
            return
        # A peer can open it only while it is open here.
        finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size_bytes + _TOKEN_BYTES)
        mapped = mmap.mmap(descriptor, size_bytes + _TOKEN_BYTES)
        token = mapped[size_bytes:] = secrets.token_bytes(_TOKEN_BYTES)
        self.memory = np.frombuffer(mapped, np.uint8, size_bytes)
        self.handle = _HANDLE.pack(self.process_id, descriptor, size_bytes, token)


def _nameless_file() -> int | None:
    try:
        return os.memfd_create(_NAME)
    except (AttributeError, OSError):
        # Not Linux, or a kernel or sandbox that forbids it.
        return None


_kept: Final[list[Arena]] = []
"""At most one. Tasks of one process may use this at the same time: each step is a single list
operation."""


def take_arena(size_bytes: int) -> Arena:
    """The arena that an earlier task kept, if it is large enough, or a new one."""
    try:
        found = _kept.pop()
    except IndexError:
        found = None
    # A forked process must not share its parent's arena.
    if found is None or found.process_id != os.getpid() or len(found.memory) < size_bytes:
        return Arena(max(size_bytes, ARENA_BYTES))
    return found


def keep_arena(arena: Arena) -> None:
    """Keeps the arena for the next task of this worker."""
    _kept[:] = [arena]


def map_arena(handle: bytes | bytearray) -> memoryview | None:
    """Maps a peer's arena; None if it cannot be reached from this process."""
    process_id, descriptor, size_bytes, token = _HANDLE.unpack(handle)
    path = f"/proc/{process_id}/fd/{descriptor}"
    try:
        # On another machine the path may lead anywhere.
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None
        with open(path, "r+b", buffering=0) as file:
            mapped = mmap.mmap(file.fileno(), size_bytes + _TOKEN_BYTES)
    except (OSError, ValueError):
        return None
    if not secrets.compare_digest(mapped[size_bytes:], token):
        return None
    return memoryview(mapped)[:size_bytes]
