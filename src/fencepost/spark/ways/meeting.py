"""How the processes of a job find and recognise each other.

Recognising. The driver makes a secret for each attempt of a job and passes it to the tasks with the
plan. Anyone may connect to the ports of a job, and on a network anyone may listen. So both sides
prove that they have the secret, without sending it:

    caller   -> listener   32 random bytes
    listener -> caller     32 random bytes, HMAC(secret, "listener", both)
    caller   -> listener   HMAC(secret, "caller", both)

The random bytes are new on every connection, so a recorded handshake is worthless, and the two
words keep one side from being answered with its own proof. What follows on the connection is
neither encrypted nor signed: `engine/hosts.py` decides between which hosts that is allowed.

Finding. Tasks reach the driver at the address at which Spark's executors reach it
(`spark.driver.host`); it listens where Spark's driver listens (`spark.driver.bindAddress`). At the
rendezvous every task of a barrier stage sends its address and its attempt, and when all have
connected, each receives those of all. Spark's own `allGather` does this too, but answers a second
late. A task that connects a second time is refused: there must never be two attempts of one task.

    task   -> driver   one line: [task, tasks, host, port, attempt]
    driver -> task     one line: [[host, port, attempt], ...], or an error message
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from fencepost.spark.failures import CountsDisagree, PeerLost

ANSWER_SECONDS: Final = 30.0
"""How long the other side may take for an answer. A stranger that says nothing is disconnected."""

ACCEPT_PAUSE_SECONDS: Final = 0.05
"""How long to wait if a caller cannot be accepted, for instance with too many open files."""

MAX_LINE_BYTES: Final = 64 * 1024
_BACKLOG: Final = 256
_BYTES: Final = 32
_CALLER, _LISTENER = b"caller", b"listener"


# A connection.


def make_secret() -> bytes:
    """A secret for one attempt of a job."""
    return secrets.token_bytes(_BYTES)


def connect(address: tuple[str, int], secret: bytes) -> socket.socket:
    """A connection to a process of this job, with a timeout; PeerLost or OSError."""
    connection = socket.create_connection(address, ANSWER_SECONDS)
    try:
        greet(connection, secret)
    except BaseException:
        connection.close()
        raise
    return connection


def greet(connection: socket.socket, secret: bytes) -> None:
    """The caller's side; PeerLost if the listener does not have the secret."""
    mine = secrets.token_bytes(_BYTES)
    connection.sendall(mine)
    theirs, proof = read_exactly(connection, _BYTES), read_exactly(connection, _BYTES)
    both = mine + theirs
    if not hmac.compare_digest(proof, _proof(secret, _LISTENER, both)):
        raise PeerLost("another program listens there, which does not know this job")
    connection.sendall(_proof(secret, _CALLER, both))


def admit(connection: socket.socket, secret: bytes) -> bool:
    """The listener's side: whether the caller is a process of this job. It has a timeout then."""
    try:
        connection.settimeout(ANSWER_SECONDS)
        theirs, mine = read_exactly(connection, _BYTES), secrets.token_bytes(_BYTES)
        both = theirs + mine
        connection.sendall(mine + _proof(secret, _LISTENER, both))
        proof = read_exactly(connection, _BYTES)
    except (OSError, PeerLost):
        return False
    return hmac.compare_digest(proof, _proof(secret, _CALLER, both))


def read_exactly(connection: socket.socket, size: int) -> bytearray:
    """So many bytes; PeerLost if the other side closes the connection before."""
    data = bytearray(size)
    fill(connection, memoryview(data))
    return data


def fill(connection: socket.socket, room: memoryview) -> None:
    """Reads until the memory is full."""
    while room:
        count = connection.recv_into(room, len(room), socket.MSG_WAITALL)
        if not count:
            raise PeerLost("the other side has closed the connection before its end")
        room = room[count:]


def send_line(connection: socket.socket, content: object) -> None:
    """Sends one line of JSON."""
    connection.sendall(json.dumps(content).encode("ascii") + b"\n")


def read_line(connection: socket.socket) -> Any:
    """The only line that the other side sends; PeerLost if it closes the connection before."""
    with connection.makefile("rb") as stream:
        line = stream.readline(MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise PeerLost("the other side has closed the connection before its end")
    return json.loads(line)


def _proof(secret: bytes, side: bytes, both: bytes | bytearray) -> bytes:
    return hmac.new(secret, side + both, hashlib.sha256).digest()


# Listening.


class Listener(ABC):
    """Accepts processes of one attempt of a job until it is closed.

    Each has its own thread, so a stranger that says nothing keeps no one waiting.
    """

    def __init__(self, host: str, bind_host: str, secret: bytes) -> None:
        """`host` is how others reach this process; `bind_host`, where it listens."""
        self._secret = secret
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        self._listener = socket.create_server((bind_host, 0), family=family, backlog=_BACKLOG)
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._callers: set[socket.socket] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accepts no more callers, and disconnects those that are there."""
        with self._lock:
            self._closed.set()
            for connection in (self._listener, *self._callers):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    @abstractmethod
    def handle(self, caller: socket.socket) -> None:
        """Called for each caller in a thread; the connection ends when it returns."""

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                if self._closed.wait(ACCEPT_PAUSE_SECONDS):
                    return
                continue
            threading.Thread(
                target=self._welcome, args=(caller,), name="listener", daemon=True
            ).start()

    def _welcome(self, caller: socket.socket) -> None:
        with caller:
            with self._lock:
                if self._closed.is_set():
                    return
                self._callers.add(caller)
            try:
                # A caller that is not a process of this attempt, or is gone already.
                with suppress(OSError, ValueError, PeerLost):
                    if admit(caller, self._secret):
                        self.handle(caller)
            finally:
                with self._lock:
                    self._callers.discard(caller)


# The rendezvous.


class Peer(NamedTuple):
    """A task of the stage: where it listens (port 0: nowhere), and which attempt it is."""

    host: str
    port: int
    task_attempt_id: int


class Rendezvous(Listener):
    """The driver's side, for the duration of the job."""

    def __init__(self, host: str, bind_host: str, secret: bytes) -> None:
        super().__init__(host, bind_host, secret)
        self.callers: dict[int, Peer] = {}
        """The tasks that have connected."""
        self._changed = threading.Condition()

    def close(self) -> None:
        """Disconnects the tasks that are still waiting."""
        super().close()
        with self._changed:
            self._changed.notify_all()

    def handle(self, caller: socket.socket) -> None:
        """Answers one task when all have connected."""
        task, tasks, *peer = read_line(caller)
        with self._changed:
            if task in self.callers:
                send_line(caller, f"task {task} of the write stage runs for a second time")
                return
            self.callers[task] = Peer(*peer)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self.callers) == tasks or self._closed.is_set())
            everyone = [peer for _, peer in sorted(self.callers.items())]
        if len(everyone) == tasks:
            send_line(caller, everyone)


class RendezvousCall:
    """A task's side."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        """Connects to the driver; PeerLost says where it was looked for."""
        host, port = address
        try:
            self._driver = connect(address, secret)
        except (OSError, PeerLost) as problem:
            raise PeerLost(
                f"the driver cannot be reached at {host}:{port} (spark.driver.host): {problem}"
            ) from None
        self.local_host = str(self._driver.getsockname()[0])
        """The address of this machine as the driver sees it."""

    def meet(self, task: int, tasks: int, me: Peer) -> list[Peer]:
        """All tasks, in order; waits until all have connected."""
        with self._driver as driver:
            send_line(driver, [task, tasks, *me])
            # The others may wait for a free slot; Spark kills this task if they never come.
            driver.settimeout(None)
            try:
                found = read_line(driver)
            except PeerLost:
                raise PeerLost("the driver has hung up before all tasks were there") from None
        if isinstance(found, str):
            raise CountsDisagree(found)
        return [Peer(*one) for one in found]
