"""Between the tasks of one barrier stage: batches go over plain sockets to the task that writes their partition.

Every task learns where the others listen and which attempt they are (`rendezvous.py`), and connects to every task
that writes. A connection begins with a secret that only this attempt of the job knows, and then carries frames one
way:

    [u32 size of the batch][i32 partition][u16 size of the topic's name] name, batch        size 0: the end

A connection that breaks before its end fails the task, and with it the job.
"""

from __future__ import annotations

import hmac
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from fencepost.base.ids import TopicPartition
from fencepost.spark.deliverer import Parcel
from fencepost.spark.delivering import Attempt
from fencepost.spark.failures import NeighbourLost
from fencepost.spark.rendezvous import Call

if TYPE_CHECKING:
    from fencepost.base.seams import Buffer
    from fencepost.spark.deliverer import Deliverer

CONNECT_SECONDS: Final = 30.0
MAX_TASKS: Final = 32
"""Each task has a connection to and from every other: beyond this, the shuffle is the better way."""

_FRAME: Final = struct.Struct(">IiH")


class Exchange:
    """The connections of one task."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        attempt: Attempt,
        tasks: int,
        slots: int,
        deliverer: Deliverer,
    ) -> None:
        self._me = attempt.partition_id
        self._slots = slots
        self._secret = secret
        self._deliverer = deliverer
        self._listener: socket.socket | None = None
        self._outgoing: dict[int, socket.socket] = {}
        self._incoming: list[socket.socket] = []
        self._spare: list[bytearray] = []
        """Memory of batches that have been acknowledged; several threads take from it and add to it."""
        self._is_closed = False
        self.attempts = [attempt.task_attempt_id]
        """The attempt of every task, by which the lengths of first batches differ."""
        if tasks > 1:
            self._meet(Call(address, secret), attempt, tasks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        for one in (self._listener, *self._outgoing.values(), *self._incoming):
            if one is not None:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def send(self, owner: int, place: TopicPartition, data: Buffer) -> None:
        """Sends a batch to the task that writes its partition; waits while that one has too much to do."""
        name = place.topic.encode("utf-8")
        connection = self._outgoing[owner]
        try:
            connection.sendall(_FRAME.pack(len(data), place.partition, len(name)) + name)
            connection.sendall(data)
        except OSError as problem:
            raise NeighbourLost(f"task {owner} of the write stage is gone: {problem}") from None

    def say_end(self) -> None:
        """This task will send nothing more."""
        for owner, connection in self._outgoing.items():
            try:
                connection.sendall(_FRAME.pack(0, 0, 0))
            except OSError as problem:
                raise NeighbourLost(f"task {owner} of the write stage is gone: {problem}") from None

    # How it begins.

    def _meet(self, call: Call, attempt: Attempt, tasks: int) -> None:
        port = self._listen(call.local_host) if self._me < self._slots else 0
        neighbours = call.meet(self._me, tasks, port, attempt.task_attempt_id)
        self.attempts = [neighbour.task_attempt_id for neighbour in neighbours]
        for owner, neighbour in enumerate(neighbours[: self._slots]):
            if owner != self._me:
                self._outgoing[owner] = self._connect(owner, neighbour.host, neighbour.port)

    def _listen(self, host: str) -> int:
        self._listener = socket.create_server((host, 0), backlog=MAX_TASKS)
        threading.Thread(target=self._accept, name="exchange", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def _connect(self, owner: int, host: str, port: int) -> socket.socket:
        try:
            connection = socket.create_connection((host, port), CONNECT_SECONDS)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(self._secret)
        except OSError as problem:
            raise NeighbourLost(
                f"task {owner} of the write stage cannot be reached at {host}:{port}: {problem}"
            ) from None
        return connection

    # What the others send.

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._incoming.append(connection)
            threading.Thread(
                target=self._take_in, args=(connection,), name="exchange", daemon=True
            ).start()

    def _take_in(self, connection: socket.socket) -> None:
        """Everything that one neighbour sends."""
        with connection:
            if not self._knows_secret(connection):
                return
            try:
                while (parcel := self._read_parcel(connection)) is not None:
                    self._deliverer.put(parcel)
                self._deliverer.end()
            except BaseException as problem:  # noqa: BLE001 - raised again in the task's own thread.
                if not self._is_closed:
                    self._deliverer.fail(problem)

    def _knows_secret(self, connection: socket.socket) -> bool:
        """Whether it is a neighbour: on a port of ours anybody may call."""
        try:
            return hmac.compare_digest(_read(connection, len(self._secret)), self._secret)
        except (OSError, NeighbourLost):
            return False

    def _read_parcel(self, connection: socket.socket) -> Parcel | None:
        size, partition, name_size = _FRAME.unpack(_read(connection, _FRAME.size))
        if not size:
            return None
        topic = _read(connection, name_size).decode("utf-8")
        room = self._room(size)
        data = memoryview(room)[:size]
        _fill(connection, data)
        return Parcel(TopicPartition(topic, partition), data, lambda: self._spare.append(room))

    def _room(self, size: int) -> bytearray:
        """Memory that was used before, if there is some: fresh memory costs more than the copying."""
        try:
            room = self._spare.pop()
        except IndexError:
            return bytearray(size)
        return room if len(room) >= size else bytearray(size)


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    _fill(connection, memoryview(data))
    return data


def _fill(connection: socket.socket, room: memoryview) -> None:
    while room:
        count = connection.recv_into(room, len(room), socket.MSG_WAITALL)
        if not count:
            raise NeighbourLost("a task of the write stage has hung up before its end")
        room = room[count:]
