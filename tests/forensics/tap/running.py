"""A tap in a thread of this process, before scripted brokers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fencepost.client.options import Endpoint
from fencepost.forensics.tap.proxy import Proxy, TapOptions
from fencepost.records.trace import Body

SECONDS = 30.0


class Lines:
    """A sink that keeps lines, and waits for one."""

    def __init__(self) -> None:
        self.lines: list[Body] = []
        self._arrived = threading.Condition()

    def write(self, line: Body) -> None:
        with self._arrived:
            self.lines.append(line)
            self._arrived.notify_all()

    def close(self) -> None:
        pass

    def wait_for(self, wanted: Callable[[Body], Any]) -> Body:
        """The first line that is wanted, when it has come."""

        def found() -> list[Body]:
            return [line for line in self.lines if wanted(line)]

        with self._arrived:
            assert self._arrived.wait_for(found, SECONDS), self.lines[-5:]
            return found()[0]

    def events(self, event: str) -> list[Body]:
        return [line for line in self.lines if line.get("event") == event]


class RunningTap:
    """The address of a tap, its lines, and its proxy."""

    def __init__(self, proxy: Proxy, lines: Lines) -> None:
        self.proxy = proxy
        self.lines = lines

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.proxy.addresses.first), SECONDS)
        client.settimeout(SECONDS)
        return client


@contextmanager
def running_tap(*to: int, tls: Any = None, keeps_bytes: bool = False) -> Iterator[RunningTap]:
    """A tap before brokers on these local ports."""
    lines = Lines()
    loop = asyncio.new_event_loop()
    started: list[Proxy] = []

    async def start() -> None:
        brokers = tuple(Endpoint("127.0.0.1", port) for port in to)
        options = TapOptions(Endpoint("127.0.0.1", 0), brokers, tls, keeps_bytes=keeps_bytes)
        started.append(Proxy(options, [lines], lambda *_: None))

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="tap")
    thread.start()
    try:
        yield RunningTap(started[0], lines)
    finally:
        loop.call_soon_threadsafe(started[0].close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()


class ScriptedBroker:
    """A listener whose connections a test accepts and answers by itself."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.settimeout(SECONDS)
        self.port: int = self._listener.getsockname()[1]

    def accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(SECONDS)
        return connection

    def close(self) -> None:
        self._listener.close()


@contextmanager
def scripted_broker() -> Iterator[ScriptedBroker]:
    with contextlib.closing(ScriptedBroker()) as broker:
        yield broker


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Reads that many bytes; fewer at the end of the stream."""
    data = bytearray()
    while len(data) < size and (piece := connection.recv(min(1 << 20, size - len(data)))):
        data += piece
    return bytes(data)
