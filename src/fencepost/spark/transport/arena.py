"""Memory for batches that stays with a Python worker, and that tasks of the same machine can look into.

On Linux it is a file without a name (memfd). Whoever is told the process and the descriptor opens
it through /proc, which works on the same machine, for the same user, and only while the file is
open; a token behind the memory shows that it is the one that was meant. Nothing is left behind by a
process that dies. Where there is no such file, or it is not allowed, it is plain memory, and
`introduction` is None.

Fresh memory costs more than the copying into it, so an arena is taken over by the next task of a
worker (`leave`). Whoever leaves one must know that nobody looks into it any more.
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
"""What a task has at least. Only what is used becomes real memory."""

_NAME: Final = "fencepost-batches"
_TOKEN_BYTES: Final = 16
_INTRODUCTION: Final = struct.Struct(f">QQQ{_TOKEN_BYTES}s")


class Arena:
    """Some memory of this process."""

    def __init__(self, size_bytes: int) -> None:
        # Whoever makes one has loaded it; whoever only looks into one need not.
        import numpy as np

        self.process_id = os.getpid()
        self.introduction: bytes | None = None
        """What a neighbour needs to look into it."""
        descriptor = _nameless_file()
        if descriptor is None:
            self.memory: Bytes = np.empty(size_bytes, np.uint8)
            return
        # Not before: a neighbour can open it only while it is open here.
        finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size_bytes + _TOKEN_BYTES)
        mapped = mmap.mmap(descriptor, size_bytes + _TOKEN_BYTES)
        token = mapped[size_bytes:] = secrets.token_bytes(_TOKEN_BYTES)
        self.memory = np.frombuffer(mapped, np.uint8, size_bytes)
        self.introduction = _INTRODUCTION.pack(self.process_id, descriptor, size_bytes, token)


def _nameless_file() -> int | None:
    try:
        return os.memfd_create(_NAME)
    except (AttributeError, OSError):
        # Another system than Linux; or a kernel or a sandbox that forbids it.
        return None


_left: Final[list[Arena]] = []
"""At most one. Tasks of one process may take and leave at the same time: each step is one operation
of a list."""


def take_arena(size_bytes: int) -> Arena:
    """The arena that a task before has left, if it is large enough, or a new one."""
    try:
        found = _left.pop()
    except IndexError:
        found = None
    # A process that was forked must not share what its parent has left.
    if found is None or found.process_id != os.getpid() or len(found.memory) < size_bytes:
        return Arena(max(size_bytes, ARENA_BYTES))
    return found


def leave_arena(arena: Arena) -> None:
    """For the next task."""
    _left[:] = [arena]


def look_into(introduction: bytes | bytearray) -> memoryview | None:
    """The memory that was introduced; None where it cannot be reached from here."""
    process_id, descriptor, size_bytes, token = _INTRODUCTION.unpack(introduction)
    path = f"/proc/{process_id}/fd/{descriptor}"
    try:
        # On another machine this may be anything.
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None
        with open(path, "r+b", buffering=0) as file:
            mapped = mmap.mmap(file.fileno(), size_bytes + _TOKEN_BYTES)
    except (OSError, ValueError):
        return None
    if not secrets.compare_digest(mapped[size_bytes:], token):
        return None
    return memoryview(mapped)[:size_bytes]
