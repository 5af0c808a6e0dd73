"""Cuts a stream of bytes into frames.

A frame is an int32 size and that many bytes. `FrameBuffer` has the two calls of
asyncio.BufferedProtocol: `get_buffer` says where the next bytes may be put, `buffer_updated` that
some have come, and returns the frames which that completed, in order.

    small frames   arrive in an inbox that belongs to the connection; each is copied out as it is cut, so
                   one read of the socket may give many frames at the price of a short copy each
    large frames   (larger than the inbox) get a buffer of their own, into which the socket then writes

What was handed out is never touched again: a frame is valid as long as somebody holds it, and the
log writes from it. A size costs nothing until its bytes come: the buffer of a large frame starts
small and grows fourfold, so a liar who claims 100 MB and sends nothing holds `_FIRST_PART` of our
memory. Who has sent a frame is believed the next time that there is one as large, up to
`_BELIEVED_AT_MOST`. Beyond that a buffer has its full size at once, of memory that the system
provides when it is written to, and only the part that may be filled grows: to copy tens of
megabytes from one buffer to the next would stop everybody else.

New memory has to be cleared, and is in no cache. So the buffers of large frames come from
`LargeBuffers`, which remembers the last few and gives one again when nobody holds a view of it any
more.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from fencepost.base.failures import WireError
from fencepost.base.limits import MAX_REQUEST_BYTES

INBOX_BYTES: Final = 32 * 1024
_FIRST_PART: Final = 128 * 1024
_GROWTH: Final = 4
_BELIEVED_AT_MOST: Final = 2 * 1024 * 1024
_KNOWN_AT_MOST: Final = 8
"""Buffers that are remembered: as many requests as are on their way at a time, and 16 MB at the
most."""
_SIZE: Final = struct.Struct(">i").unpack_from


class LargeBuffers:
    """The last few buffers of large frames, for all connections that share this object."""

    __slots__ = ("_known", "is_scarce")

    def __init__(self) -> None:
        self._known: list[bytearray] = []
        self.is_scarce = False
        """Whether nobody is believed for now: the large frames of all connections together take too
        much."""

    def get(self, size: int) -> memoryview:
        """A buffer of that size; what is in it is of no meaning."""
        for known in self._known:
            if len(known) >= size and _is_free(known):
                return memoryview(known)[:size]
        if size > _BELIEVED_AT_MOST:
            # Memory straight from the system: nobody fills it with zeros twice, and it goes back
            # there when it is free.
            return memoryview(mmap.mmap(-1, size))
        new = bytearray(size)
        self._known.append(new)
        if len(self._known) > _KNOWN_AT_MOST:
            del self._known[0]
        return memoryview(new)


def _is_free(buffer: bytearray) -> bool:
    """Whether nobody holds a view: Python lets a bytearray change its size only then."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True


class FrameBuffer:
    """The receiving side of one connection."""

    __slots__ = (
        "_believed",
        "_filled",
        "_frame",
        "_inbox",
        "_large_buffers",
        "_max_bytes",
        "_size",
        "_usable",
        "_view",
        "broken",
    )

    def __init__(
        self, max_bytes: int = MAX_REQUEST_BYTES, large_buffers: LargeBuffers | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._large_buffers = LargeBuffers() if large_buffers is None else large_buffers
        self._inbox = bytearray(INBOX_BYTES)
        self._view = memoryview(self._inbox)
        self._filled = 0
        # A large frame under way: its buffer, and the size that it will have. While there is one,
        # `_filled` counts its bytes and the inbox is empty.
        self._frame: memoryview | None = None
        self._size = 0
        self._usable = 0
        """How much of the buffer of a large frame may be filled for now."""
        self._believed = _FIRST_PART
        self.broken: WireError | None = None
        """Why nothing more can be cut. Set as soon as a size is wrong, even if frames before it
        were whole."""

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes go; never empty."""
        frame = self._frame
        if frame is None:
            return self._view[self._filled :]
        if self._filled == self._usable:
            frame = self._frame = self._grown(frame)
        return frame[self._filled : self._usable]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Takes note of `count` new bytes; returns the frames that are now whole.

        A size that cannot be is a WireError: at once if no frame stands before it, else on the next
        call (and in `broken`), so that what came before it is not lost.
        """
        self._raise_if_broken()
        self._filled += count
        if self._frame is not None:
            return self._large_updated()
        frames = self._cut()
        if not frames:
            self._raise_if_broken()
        return frames

    @property
    def pending_bytes(self) -> int:
        """Bytes that came and belong to no whole frame yet."""
        return self._filled + (4 if self._frame is not None else 0)

    @property
    def large_bytes(self) -> int:
        """What the buffer of a large frame under way takes, or will take when more of it is read."""
        frame = self._frame
        if frame is None:
            return 0
        return self._usable if self._filled < self._usable else self._next_size()

    def _cut(self) -> list[memoryview]:
        """Takes all whole frames from the inbox and moves the rest to its front."""
        frames: list[memoryview] = []
        inbox, start, end = self._inbox, 0, self._filled
        while end - start >= 4:
            size: int = _SIZE(inbox, start)[0]
            if not 0 <= size <= self._max_bytes:
                self.broken = self._wrong_size(size)
                break
            stop = start + 4 + size
            if stop > end:
                if size + 4 > INBOX_BYTES:
                    self._begin_large(size, start + 4, end)
                    return frames
                break
            frames.append(memoryview(inbox[start + 4 : stop]))
            start = stop
        if start:
            self._view[: end - start] = self._view[start:end]
            self._filled = end - start
        return frames

    def _begin_large(self, size: int, start: int, end: int) -> None:
        """Gives a frame that outgrows the inbox a buffer, with what is there of it."""
        believed = _FIRST_PART if self._large_buffers.is_scarce else self._believed
        self._usable = min(size, believed)
        self._frame = self._large_buffers.get(self._usable)
        self._size = size
        self._filled = end - start
        self._frame[: self._filled] = self._view[start:end]

    def _large_updated(self) -> list[memoryview]:
        assert self._frame is not None
        if self._filled < self._size:
            return []
        frame, self._frame = self._frame, None
        self._filled = 0
        if self._size > self._believed:
            self._believed = min(self._size, _BELIEVED_AT_MOST)
        return [frame]

    def _next_size(self) -> int:
        return min(self._size, self._usable * _GROWTH)

    def _grown(self, frame: memoryview) -> memoryview:
        filled, self._usable = self._usable, self._next_size()
        if self._usable <= len(frame):
            return frame
        is_huge = self._usable > _BELIEVED_AT_MOST
        larger = self._large_buffers.get(self._size if is_huge else self._usable)
        larger[:filled] = frame[:filled]
        return larger

    def _raise_if_broken(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _wrong_size(self, size: int) -> WireError:
        if size < 0:
            return WireError(f"a frame of {size} bytes: a size cannot be negative")
        return WireError(f"a frame of {size} bytes is larger than the {self._max_bytes} allowed")
