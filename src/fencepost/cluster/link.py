"""A connection between two processes of one cluster: a socket pair that carries messages and files.

    int32  the size of what follows
    int8   the kind of the message
    int8   the number of files that come with it
    bytes  its body

The parent creates both ends and passes them on, so there is no port to listen on and no peer to
authenticate. A link carries open files too: ends of other links. A file arrives with the first
byte of its message, and the receiver takes the files of a message in the order in which they were
sent.

A link ends when either process closes its end or dies; messages that arrived before are delivered
first. What was sent and not read when the other process died is gone, and so is the process
that would have read it. `on_end` is called once.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer

MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""Larger than the metadata of a million partitions. A larger size is a bug of the sender."""

_READ_BYTES: Final = 64 * 1024
_FILES_PER_READ: Final = 16
_FILE_BYTES: Final = array.array("i").itemsize
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(_FILES_PER_READ * _FILE_BYTES)
_SIZE_BYTES: Final = 4
_HEAD_BYTES: Final = 2
"""The kind and the number of files."""

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
    ) -> None:
        end.setblocking(False)
        self._loop: Final = loop
        self._socket: Final = end
        self._on_message: Final = on_message
        self._on_end: Final = on_end
        # Read into one buffer: a new one for each read costs more than the rest of a message.
        self._buffer: Final = memoryview(bytearray(_READ_BYTES))
        self._received = bytearray()
        self._files: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._is_writing = False
        self._is_broken = False
        """Whether the other end takes nothing any more."""
        self.is_open = True
        loop.add_reader(end.fileno(), self._read)

    def send(self, kind: int, body: Sequence[Buffer], files: Sequence[int] = ()) -> None:
        """Sends a message; closes the files here, which the other end receives. Never blocks."""
        if not self.is_open or self._is_broken:
            _close_all(files)
            return
        size = _HEAD_BYTES + sum(len(part) for part in body)
        assert size <= MAX_MESSAGE_BYTES, f"a message of {size} bytes"
        head = size.to_bytes(_SIZE_BYTES, "big") + bytes((kind, len(files)))
        self._unsent.append((memoryview(b"".join((head, *body))), list(files)))
        if not self._is_writing:
            self._write()

    def unsent_bytes(self) -> int:
        """What the other end has not taken yet."""
        return sum(len(data) for data, _ in self._unsent)

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
        self._drop_unsent()

    # -- sending ----------------------------------------------------------------------------------

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
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()
            return
        for level, kind, data in ancillary:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            files = array.array("i")
            files.frombytes(data[: len(data) // _FILE_BYTES * _FILE_BYTES])
            self._files.extend(files)
        if not count:
            self._end()
            return
        self._received += self._buffer[:count]
        self._deliver()

    def _deliver(self) -> None:
        received, start = self._received, 0
        while self.is_open and len(received) - start >= _SIZE_BYTES:
            head = start + _SIZE_BYTES
            size = int.from_bytes(received[start:head], "big")
            if not _HEAD_BYTES <= size <= MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {size} bytes on a link between processes")
            start_of_next = head + size
            if len(received) < start_of_next:
                break
            kind, file_count = received[head], received[head + 1]
            body = memoryview(bytes(received[head + _HEAD_BYTES : start_of_next]))
            start = start_of_next
            files = [self._files.popleft() for _ in range(file_count)]
            self._on_message(kind, body, files)
        del received[:start]

    def _end(self) -> None:
        if self.is_open:
            self.close()
            self._on_end()


def _close_all(files: Sequence[int] | deque[int]) -> None:
    for each in files:
        os.close(each)
