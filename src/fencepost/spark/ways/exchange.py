"""Batches between the tasks of one barrier stage, over plain sockets, to their partition's writer.

Every task gets the ports and attempts of the others (`meeting/rendezvous.py`), and connects to
every task that writes. A connection begins with a handshake (`meeting/handshake.py`) and then
carries frames:

    [kind][u32 size][i32 partition][u16 size of the topic's name] name, content

    BATCH   the content is a batch
    END     the last frame

A connection that breaks before its end fails the task, and with it the job.

Addresses. If all executors are on one host, tasks listen and connect on its loopback interface, so
nothing can reach a network: a task that is elsewhere all the same finds nobody, and the job fails.
Between hosts, where the user has allowed it, a task is reached at the host that Spark has for its
executor's block store, since other executors fetch shuffle blocks there. The driver passes the
hosts of all executors, and the one to which a task can bind is its own. The address from which it
calls the driver may be another one if the host has several, and so may be the address of a task in
`BarrierTaskContext.getTaskInfos`, which is the same.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import PeerLost
from fencepost.spark.ways.delivery import Attempt
from fencepost.spark.ways.delivery_thread import QueuedBatch
from fencepost.spark.ways.meeting.driver_listener import ACCEPT_PAUSE_SECONDS
from fencepost.spark.ways.meeting.handshake import admit, connect, fill, read_exactly
from fencepost.spark.ways.meeting.rendezvous import Peer, RendezvousCall

if TYPE_CHECKING:
    from fencepost.spark.ways.delivery_thread import DeliveryThread
    from fencepost.spark.ways.packing.packer import PackedBatch

MAX_TASKS: Final = 32
"""Each task has a connection to and from every other: beyond this, the shuffle is better."""

_FRAME: Final = struct.Struct(">BIiH")
_END, _BATCH = range(2)
_NOWHERE: Final = TopicPartition("", 0)

LOOPBACK: Final = "127.0.0.1"


class Meeting(NamedTuple):
    """Where and how the tasks of one attempt meet."""

    rendezvous: tuple[str, int]
    """The driver's address."""
    secret: bytes
    """Only the tasks of this attempt have it, and it is never sent to one of them by another."""
    hosts: tuple[str, ...] = ()
    """The hosts of all executors if rows may go between them, unencrypted; empty for one host."""

    def call(self) -> RendezvousCall:
        """Connects to the driver."""
        return RendezvousCall(self.rendezvous, self.secret)


class Outgoing:
    """The connection to one task that writes."""

    def __init__(self, owner: int, connection: socket.socket) -> None:
        self._owner = owner
        self._connection = connection

    def send(self, packed: PackedBatch) -> None:
        """Sends the batch; waits while the peer's queue is full."""
        self._send(_BATCH, packed.place, packed.data)
        packed.done()

    def send_end(self) -> None:
        """Reports to the peer that no batch follows."""
        self._send(_END, _NOWHERE)

    def close(self) -> None:
        """Closes the connection."""
        _close(self._connection)

    def _send(
        self, kind: int, place: TopicPartition, content: bytes | bytearray | memoryview = b""
    ) -> None:
        name = place.topic.encode("utf-8")
        head = _FRAME.pack(kind, len(content), place.partition, len(name))
        try:
            self._connection.sendall(head + name)
            if content:
                self._connection.sendall(content)
        except OSError as problem:
            raise PeerLost(f"task {self._owner} of the write stage is gone: {problem}") from None


class Exchange:
    """The connections of one task."""

    def __init__(
        self,
        meeting: Meeting,
        attempt: Attempt,
        tasks: int,
        slots: int,
        deliverer: DeliveryThread,
    ) -> None:
        self._me = attempt.partition_id
        self._slots = slots
        self._secret = meeting.secret
        self._deliverer = deliverer
        self._listener: socket.socket | None = None
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: list[socket.socket] = []
        self._spare: list[bytearray] = []
        """Buffers of acknowledged batches, for reuse by several threads."""
        self._is_closed = False
        self.attempts = [attempt.task_attempt_id]
        """The attempt of every task, which sets the length of its first batches."""
        if tasks > 1:
            self._meet(meeting, attempt, tasks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        for one in self._outgoing.values():
            one.close()
        for connection in (self._listener, *self._incoming):
            if connection is not None:
                _close(connection)

    def send(self, owner: int, packed: PackedBatch) -> None:
        """Sends a batch to the task that writes its partition."""
        self._outgoing[owner].send(packed)

    def send_end(self) -> None:
        """Tells all peers that this task will send nothing more."""
        for peer in self._outgoing.values():
            peer.send_end()

    # Connecting.

    def _meet(self, meeting: Meeting, attempt: Attempt, tasks: int) -> None:
        call = meeting.call()
        host = own_host(meeting.hosts) or call.local_host if meeting.hosts else LOOPBACK
        port = self._listen(host) if self._me < self._slots else 0
        peers = call.meet(self._me, tasks, Peer(host, port, attempt.task_attempt_id))
        self.attempts = [peer.task_attempt_id for peer in peers]
        for owner, peer in enumerate(peers[: self._slots]):
            if owner != self._me:
                connection = self._connect(owner, peer.host, peer.port)
                self._outgoing[owner] = Outgoing(owner, connection)

    def _listen(self, host: str) -> int:
        self._listener = _listener_at(bind_address(host))
        threading.Thread(target=self._accept, name="exchange", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def _connect(self, owner: int, host: str, port: int) -> socket.socket:
        try:
            connection = connect((host, port), self._secret)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, PeerLost) as problem:
            raise PeerLost(
                f"task {owner} of the write stage cannot be reached at {host}:{port}: {problem}"
            ) from None
        return connection

    # Receiving.

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                # Too many open files, for instance.
                time.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            self._incoming.append(connection)
            threading.Thread(
                target=self._receive, args=(connection,), name="exchange", daemon=True
            ).start()

    def _receive(self, connection: socket.socket) -> None:
        """Receives all batches of one peer."""
        if not admit(connection, self._secret):
            connection.close()
            return
        try:
            self._receive_batches(connection)
            self._deliverer.end()
        except BaseException as problem:  # noqa: BLE001 - raised again in the task's thread.
            if not self._is_closed:
                self._deliverer.fail(problem)

    def _receive_batches(self, connection: socket.socket) -> None:
        while True:
            kind, size, partition, name_size = _FRAME.unpack(read_exactly(connection, _FRAME.size))
            if kind == _END:
                return
            place = TopicPartition(read_exactly(connection, name_size).decode("utf-8"), partition)
            self._deliverer.put(self._read_batch(connection, place, size))

    def _read_batch(
        self, connection: socket.socket, place: TopicPartition, size: int
    ) -> QueuedBatch:
        room = self._room(size)
        data = memoryview(room)[:size]
        fill(connection, data)
        return QueuedBatch(place, data, lambda: self._spare.append(room))

    def _room(self, size: int) -> bytearray:
        """A used buffer if there is one: fresh memory costs more than copying."""
        try:
            room = self._spare.pop()
        except IndexError:
            return bytearray(size)
        return room if len(room) >= size else bytearray(size)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def own_host(hosts: Iterable[str]) -> str | None:
    """Which of these is the host of this process: the one to which it can bind."""
    for host in hosts:
        with suppress(OSError), _listener_at(host):
            return host
    return None


def _listener_at(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=MAX_TASKS)


def bind_address(host: str) -> str:
    """Where a task listens that others reach at this host.

    A name may mean another address here than on other hosts (Debian's 127.0.1.1): all addresses.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""
