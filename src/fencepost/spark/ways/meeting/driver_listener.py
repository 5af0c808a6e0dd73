"""Where the driver listens to the tasks of one attempt of a job, and how a task calls it.

Two rules run at the driver while a job runs: where tasks find each other (`rendezvous.py`), and
which try of a task may write (`permits.py`). They share this: a caller proves that it belongs to
the attempt (`handshake.py`), is served in a thread of its own, so that a stranger that says nothing
keeps nobody waiting, and is disconnected when the job ends. What both sides send are lines of JSON.

Tasks reach the driver at the address at which Spark's executors reach it (`spark.driver.host`); it
listens where Spark's driver listens (`spark.driver.bindAddress`).
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

from fencepost.spark.failures import PeerLost
from fencepost.spark.ways.meeting.handshake import admit, connect

CALL_SECONDS: Final = 30.0
"""How long a caller may take for a line, and the driver for its answer."""

MAX_LINE_BYTES: Final = 64 * 1024
ACCEPT_PAUSE_SECONDS: Final = 0.05
"""How long to wait if a caller cannot be accepted, for instance with too many open files."""
_BACKLOG: Final = 256


class DriverListener:
    """Serves the tasks of one attempt of a job until it is closed."""

    def __init__(
        self,
        host: str,
        bind_host: str,
        secret: bytes,
        serve: Callable[[LineConnection], None],
        name: str,
    ) -> None:
        """`host` is how tasks reach the driver; `bind_host`, where it listens.

        `serve` is called for each task, in a thread; the connection ends when it returns.
        """
        self._secret = secret
        self._serve = serve
        self._name = name
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        self._listener = socket.create_server((bind_host, 0), family=family, backlog=_BACKLOG)
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._callers: set[socket.socket] = set()
        self._is_closed = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)

    def start(self) -> None:
        """Begins to accept tasks."""
        self._thread.start()

    def close(self) -> None:
        """Accepts no more tasks, and disconnects those that are there."""
        self._is_closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            self._is_closed = True
            for caller in self._callers:
                with suppress(OSError):
                    caller.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                if self._is_closing.wait(ACCEPT_PAUSE_SECONDS):
                    return
                continue
            threading.Thread(
                target=self._welcome, args=(caller,), name=self._name, daemon=True
            ).start()

    def _welcome(self, caller: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                caller.close()
                return
            self._callers.add(caller)
        try:
            # A caller that is not a task of this attempt, or is gone already.
            with suppress(OSError, ValueError, PeerLost):
                if admit(caller, self._secret):
                    caller.settimeout(CALL_SECONDS)
                    with LineConnection(caller) as lines:
                        self._serve(lines)
        finally:
            with self._lock:
                self._callers.discard(caller)
            caller.close()


class LineConnection:
    """Lines of JSON in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")

    @classmethod
    def to_driver(cls, address: tuple[str, int], secret: bytes) -> Self:
        """A task's connection to its driver; PeerLost says where it was looked for."""
        host, port = address
        try:
            return cls(connect(address, secret))
        except (OSError, PeerLost) as problem:
            raise PeerLost(
                f"the driver cannot be reached at {host}:{port} (spark.driver.host): {problem}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._connection.close()

    @property
    def local_host(self) -> str:
        """The address of this end."""
        return str(self._connection.getsockname()[0])

    def wait_without_limit(self) -> None:
        """Lets the next answer take any time."""
        self._connection.settimeout(None)

    def send(self, content: object) -> None:
        """Sends one line."""
        self._connection.sendall(json.dumps(content).encode("ascii") + b"\n")

    def read(self) -> Any:
        """The next line; PeerLost if the other side has closed the connection."""
        line = self._stream.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise PeerLost("the other side has closed the connection before its end")
        return json.loads(line)
