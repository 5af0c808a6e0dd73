"""A connection between two processes of one cluster: a socket pair that carries messages and files.

    int32  the size of what follows
    int8   the kind of the message
    int8   the number of files that come with it
    bytes  its body

The parent creates both ends and passes them on, so there is no port to listen on and no peer to
authenticate. A link carries open files too: ends of other links. A file arrives with the first
byte of its message, and the receiver takes the files of a message in the order in which they were
sent.

A message goes out with `send` at once, or with `post` at the end of this turn of the loop, together
with all others of the turn: under load the brokers send each other several messages per turn, and a
call of the system costs more than a message. Messages arrive in the order of these calls.

Messages are delivered for a few milliseconds per turn, so that a thousand of them do not keep the
loop from anything else. What was read and is not delivered yet counts as unread.

A link ends when either process closes its end or dies; messages that arrived before are delivered
first. What was sent and not read when the other process died is gone, and so is the process
that would have read it. `on_end` is called once.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer
from fencepost.broker.turns import Turn

MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""Larger than the metadata of a million partitions. A larger size is a bug of the sender."""

_READ_BYTES: Final = 64 * 1024
_FILES_PER_READ: Final = 16
_FILE_BYTES: Final = array.array("i").itemsize
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(_FILES_PER_READ * _FILE_BYTES)
_HEAD: Final = struct.Struct(">iBB")
_SIZE_BYTES: Final = 4
_HEAD_BYTES: Final = 2
"""The kind and the number of files."""
_UNTIMED_MESSAGES: Final = 16
"""Messages that are delivered between two looks at the time."""

OnMessage = Callable[[int, memoryview, list[int]], None]
"""Called with the kind, the body, and the files of a message."""


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new link."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class Link:
    """One end of a link, on an event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        *,
        on_message: OnMessage,
        on_end: Callable[[], None],
        with_files: bool = True,
    ) -> None:
        """Without `with_files` the other end sends none, which makes reading cheaper."""
        end.setblocking(False)
        self._loop: Final = loop
        self._socket: Final = end
        self._on_message: Final = on_message
        self._on_end: Final = on_end
        # Read into one buffer: a new one for each read costs more than the rest of a message.
        self._buffer: Final = memoryview(bytearray(_READ_BYTES))
        self._with_files: Final = with_files
        self._received = bytearray()
        """The beginning of a message that has not arrived completely."""
        self._wanted_bytes = 0
        """The size at which `_received` is complete."""
        self._undelivered = b""
        """Complete messages that wait for the next turn."""
        self._files: deque[int] = deque()
        self._posted: list[Buffer] = []
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._is_writing = False
        self._is_broken = False
        """Whether the other end no longer accepts anything."""
        self.is_open = True
        loop.add_reader(end.fileno(), self._read)

    def send(self, kind: int, body: Sequence[Buffer], files: Sequence[int] = ()) -> None:
        """Sends a message; closes the files here, which the other end receives. Never blocks."""
        if not self.is_open or self._is_broken:
            _close_all(files)
            return
        self._take_posted()
        head = _head_of(sum(len(part) for part in body), kind, len(files))
        self._unsent.append((memoryview(b"".join((head, *body))), list(files)))
        if not self._is_writing:
            self._write()

    def post(self, kind: int, body: bytes) -> None:
        """Sends a message at the end of this turn, with all others of the turn. Never blocks."""
        if not self.is_open or self._is_broken:
            return
        if not self._posted:
            self._loop.call_soon(self._flush)
        self._posted.append(_head_of(len(body), kind, 0))
        self._posted.append(body)

    def close(self) -> None:
        """Ends the link without calling `on_end`."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket.fileno())
        if self._is_writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        _close_all(self._files)
        self._files.clear()
        self._undelivered = b""
        self._drop_unsent()

    # -- sending ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Sends what was posted, if it is not sent yet."""
        if self._posted:
            self._take_posted()
            if not self._is_writing:
                self._write()

    def _take_posted(self) -> None:
        if self._posted:
            self._unsent.append((memoryview(b"".join(self._posted)), []))
            self._posted = []

    def _write(self) -> None:
        try:
            while self._unsent:
                data, files = self._unsent[0]
                sent = self._send_some(data, files)
                # The files travel with the first byte.
                _close_all(files)
                if sent < len(data):
                    self._unsent[0] = data[sent:], []
                else:
                    self._unsent.popleft()
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._socket.fileno(), self._write)
            return
        except OSError:
            # The other process is gone. What it sent before is still read, up to the end.
            self._is_broken = True
            self._drop_unsent()
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._socket.fileno())

    def _drop_unsent(self) -> None:
        self._posted = []
        for _, files in self._unsent:
            _close_all(files)
        self._unsent.clear()

    def _send_some(self, data: memoryview, files: Sequence[int]) -> int:
        if not files:
            return self._socket.send(data)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
        return self._socket.sendmsg([data], [rights])

    # -- receiving --------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._undelivered:
            return  # The next turn delivers that first.
        try:
            count = self._receive()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()
            return
        if not count:
            self._end()
            return
        if not self._received:
            self._deliver(self._buffer[:count].tobytes())
            return
        self._received += self._buffer[:count]
        if len(self._received) >= self._wanted_bytes:
            received, self._received = self._received, bytearray()
            self._deliver(bytes(received))

    def _receive(self) -> int:
        """Reads into the buffer; the number of bytes."""
        if not self._with_files:
            return self._socket.recv_into(self._buffer)
        count, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
        for level, kind, data in ancillary:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            files = array.array("i")
            files.frombytes(data[: len(data) // _FILE_BYTES * _FILE_BYTES])
            self._files.extend(files)
        return count

    def _deliver_rest(self) -> None:
        data, self._undelivered = self._undelivered, b""
        if self.is_open:
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        """Delivers the messages in `data`, which begins with one; keeps what is left of it."""
        view, start, end, count = memoryview(data), 0, len(data), 0
        turn = Turn()
        self._wanted_bytes = _SIZE_BYTES + _HEAD_BYTES
        while self.is_open and end - start >= _SIZE_BYTES + _HEAD_BYTES:
            size, kind, file_count = _HEAD.unpack_from(data, start)
            if not _HEAD_BYTES <= size <= MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {size} bytes on a link between processes")
            start_of_next = start + _SIZE_BYTES + size
            if start_of_next > end:
                self._wanted_bytes = start_of_next - start
                break
            if count == _UNTIMED_MESSAGES:
                count = 0
                if turn.is_over():
                    self._undelivered = data[start:]
                    self._loop.call_soon(self._deliver_rest)
                    return
            count += 1
            files = [self._files.popleft() for _ in range(file_count)] if file_count else []
            body = view[start + _SIZE_BYTES + _HEAD_BYTES : start_of_next]
            start = start_of_next
            self._on_message(kind, body, files)
        if start < end and self.is_open:
            self._received += view[start:]

    def _end(self) -> None:
        if self.is_open:
            self.close()
            self._on_end()


def _head_of(body_bytes: int, kind: int, file_count: int) -> bytes:
    size = _HEAD_BYTES + body_bytes
    assert size <= MAX_MESSAGE_BYTES, f"a message of {size} bytes"
    return _HEAD.pack(size, kind, file_count)


def _close_all(files: Sequence[int] | deque[int]) -> None:
    for each in files:
        os.close(each)
