"""Batches between the tasks of one barrier stage, over plain sockets, to their partition's writer.

Every task gets the ports and attempts of the others, and connects to every task that writes
(`meeting.py`). After the handshake a connection carries frames:

    [kind][u32 size][i32 partition][u16 size of the topic's name] name, content

    BATCH   the content is a batch
    END     the last frame

A connection that breaks before its end fails the task, and with it the job.

Addresses. If all executors are on one host, tasks listen and connect on its loopback interface, so
nothing can reach a network: a task that runs elsewhere after all finds no other, and the job fails.
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
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import PeerLost
from fencepost.spark.ways.delivery import Attempt
from fencepost.spark.ways.meeting import (
    Listener,
    Peer,
    RendezvousCall,
    connect,
    fill,
    read_exactly,
)

if TYPE_CHECKING:
    from fencepost.spark.ways.delivery import DeliveryThread
    from fencepost.spark.ways.packing.by_record import PackedBatch

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


class Exchange:
    """The connections of one task."""

    def __init__(
        self, meeting: Meeting, attempt: Attempt, tasks: int, slots: int, deliverer: DeliveryThread
    ) -> None:
        self._outgoing: dict[int, socket.socket] = {}
        """The connections to the other tasks that write."""
        self.attempts = [attempt.task_attempt_id]
        """The attempt of every task, which sets the length of its first batches."""
        with ExitStack() as opened:
            if tasks > 1:
                me, secret, port = attempt.partition_id, meeting.secret, 0
                call = RendezvousCall(meeting.rendezvous, secret)
                host = own_host(meeting.hosts) or call.local_host if meeting.hosts else LOOPBACK
                if me < slots:
                    _, port = opened.enter_context(Incoming(host, secret, deliverer)).address
                peers = call.meet(me, tasks, Peer(host, port, attempt.task_attempt_id))
                self.attempts = [peer.task_attempt_id for peer in peers]
                for owner, peer in enumerate(peers[:slots]):
                    if owner != me:
                        self._outgoing[owner] = opened.enter_context(_connect(owner, peer, secret))
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def send(self, owner: int, packed: PackedBatch) -> None:
        """Sends a batch to the task that writes its partition; waits while its queue is full."""
        self._send(owner, _BATCH, packed.place, packed.data)
        packed.done()

    def send_end(self) -> None:
        """Tells all peers that this task will send nothing more."""
        for owner in self._outgoing:
            self._send(owner, _END)

    def _send(
        self,
        owner: int,
        kind: int,
        place: TopicPartition = _NOWHERE,
        content: bytearray | memoryview | None = None,
    ) -> None:
        connection, name = self._outgoing[owner], place.topic.encode("utf-8")
        head = _FRAME.pack(kind, len(content or b""), place.partition, len(name))
        try:
            connection.sendall(head + name)
            if content:
                connection.sendall(content)
        except OSError as problem:
            raise PeerLost(f"task {owner} of the write stage is gone: {problem}") from None


def _connect(owner: int, peer: Peer, secret: bytes) -> socket.socket:
    try:
        connection = connect((peer.host, peer.port), secret)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, PeerLost) as problem:
        raise PeerLost(
            f"task {owner} of the write stage cannot be reached at {peer.host}:{peer.port}: "
            f"{problem}"
        ) from None
    return connection


class Incoming(Listener):
    """Receives the batches of other tasks, each task's in a thread."""

    def __init__(self, host: str, secret: bytes, deliverer: DeliveryThread) -> None:
        super().__init__(host, bind_address(host), secret)
        self._deliverer = deliverer
        self._spare: list[bytearray] = []
        """Buffers of acknowledged batches, for reuse by several threads."""

    def handle(self, caller: socket.socket) -> None:
        """Receives all batches of one task."""
        try:
            caller.settimeout(None)
            while self._receive_batch(caller):
                pass
            self._deliverer.end()
        except BaseException as problem:  # noqa: BLE001 - raised again in the task's thread.
            if not self._closed.is_set():
                self._deliverer.fail(problem)

    def _receive_batch(self, caller: socket.socket) -> bool:
        """Passes one batch on; False at the end."""
        kind, size, partition, name_size = _FRAME.unpack(read_exactly(caller, _FRAME.size))
        if kind == _END:
            return False
        place = TopicPartition(read_exactly(caller, name_size).decode("utf-8"), partition)
        room = self._room(size)
        data = memoryview(room)[:size]
        fill(caller, data)
        self._deliverer.put(place, data, lambda: self._spare.append(room))
        return True

    def _room(self, size: int) -> bytearray:
        """A used buffer if there is one: fresh memory costs more than copying."""
        try:
            room = self._spare.pop()
        except IndexError:
            return bytearray(size)
        return room if len(room) >= size else bytearray(size)


def own_host(hosts: Iterable[str]) -> str | None:
    """Which of these is the host of this process: the one to which it can bind."""
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with suppress(OSError), socket.create_server((host, 0), family=family):
            return host
    return None


def bind_address(host: str) -> str:
    """Where a task listens that others reach at this host.

    A name may mean another address here than on other hosts (Debian's 127.0.1.1): all addresses.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""
