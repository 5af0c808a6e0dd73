"""Splits a stream of bytes into frames.

A frame is an int32 size and that many bytes. `FrameBuffer` has the two calls of
asyncio.BufferedProtocol: `get_buffer` returns the place for the next bytes; `buffer_updated` counts
new bytes and returns the frames that they completed, in order.

    small frames   arrive in the connection's inbox; each is copied out, so one read of the socket
                   may yield many frames at the price of a short copy each
    large frames   (larger than the inbox) get a separate buffer, which the socket writes into

A returned frame is never modified again: it is valid as long as a reference exists, and the log
writes from it. A claimed size costs nothing until its bytes arrive: the buffer of a large frame
starts small and grows fourfold, so a client that claims 100 MB and sends nothing holds
`_FIRST_PART` bytes of memory. After a connection has sent a large frame, its next one gets a buffer
of that size at once, up to `_TRUSTED_AT_MOST`. Above that, a buffer has its full size at once, of
memory that the system provides on first write, and only the usable part grows: copying tens of
megabytes from one buffer to the next would stall all other connections.

New memory has to be cleared, and is in no cache. So the buffers of large frames come from
`LargeBuffers`, which keeps the last few and reuses one when no view of it is left.
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
_TRUSTED_AT_MOST: Final = 2 * 1024 * 1024
_KEPT_AT_MOST: Final = 8
"""Buffers that are kept: about one per large request in flight, 16 MB in all."""
_TLS_HANDSHAKE: Final = 0x1603
"""The first bytes of a client that speaks TLS; as a size, more than 350 MB."""
_SIZE: Final = struct.Struct(">i").unpack_from


class LargeBuffers:
    """The last few buffers of large frames, shared by all connections."""

    __slots__ = ("_kept", "is_scarce")

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self.is_scarce = False
        """Whether all large frames together use too much memory, so that no claimed size is
        trusted."""

    def get(self, size: int) -> memoryview:
        """A buffer of that size with arbitrary content."""
        for kept in self._kept:
            if len(kept) >= size and _is_free(kept):
                return memoryview(kept)[:size]
        if size > _TRUSTED_AT_MOST:
            # Memory from the system: it is not zeroed twice, and it is returned when it is free.
            return memoryview(mmap.mmap(-1, size))
        new = bytearray(size)
        self._kept.append(new)
        if len(self._kept) > _KEPT_AT_MOST:
            del self._kept[0]
        return memoryview(new)


def _is_free(buffer: bytearray) -> bool:
    """Whether no view exists: Python resizes a bytearray only then."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True


class FrameBuffer:
    """The receiving side of one connection."""

    __slots__ = (
        "_filled",
        "_frame",
        "_inbox",
        "_large_buffers",
        "_max_bytes",
        "_size",
        "_trusted_size",
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
        # A large frame in progress: its buffer, and its final size. While there is one, `_filled`
        # counts its bytes and the inbox is empty.
        self._frame: memoryview | None = None
        self._size = 0
        self._usable = 0
        """How much of the buffer of a large frame may be filled for now."""
        self._trusted_size = _FIRST_PART
        self.broken: WireError | None = None
        """Why no more frames can be read. Set as soon as a size is wrong, even after complete
        frames."""

    def allow(self, max_bytes: int) -> None:
        """Accept frames of this size from now on."""
        self._max_bytes = max_bytes

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """The place for the next bytes; never empty."""
        frame = self._frame
        if frame is None:
            return self._view[self._filled :] if self._filled else self._view
        if self._filled == self._usable:
            frame = self._frame = self._grown(frame)
        return frame[self._filled : self._usable]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Count `count` new bytes and return the frames that are now complete.

        An impossible size is a WireError: at once if no frame precedes it, else on the next call
        (and in `broken`), so that the frames before it are not lost.
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
    def large_bytes(self) -> int:
        """The size of the buffer of a large frame in progress, now or after the next growth."""
        frame = self._frame
        if frame is None:
            return 0
        return self._usable if self._filled < self._usable else self._next_size()

    def _cut(self) -> list[memoryview]:
        """Take all complete frames from the inbox and move the rest to its front."""
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
            if start < end:
                self._view[: end - start] = self._view[start:end]
            self._filled = end - start
        return frames

    def _begin_large(self, size: int, start: int, end: int) -> None:
        """Start a buffer for a frame that exceeds the inbox, with its first bytes."""
        trusted = _FIRST_PART if self._large_buffers.is_scarce else self._trusted_size
        self._usable = min(size, trusted)
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
        if self._size > self._trusted_size:
            self._trusted_size = min(self._size, _TRUSTED_AT_MOST)
        return [frame]

    def _next_size(self) -> int:
        return min(self._size, self._usable * _GROWTH)

    def _grown(self, frame: memoryview) -> memoryview:
        filled, self._usable = self._usable, self._next_size()
        if self._usable <= len(frame):
            return frame
        is_huge = self._usable > _TRUSTED_AT_MOST
        larger = self._large_buffers.get(self._size if is_huge else self._usable)
        larger[:filled] = frame[:filled]
        return larger

    def _raise_if_broken(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _wrong_size(self, size: int) -> WireError:
        if size < 0:
            return WireError(f"a frame of {size} bytes: a size cannot be negative")
        if size >> 16 == _TLS_HANDSHAKE:
            return WireError("its bytes are a TLS handshake, but this listener does not use TLS")
        return WireError(f"a frame of {size} bytes is larger than the {self._max_bytes} allowed")
