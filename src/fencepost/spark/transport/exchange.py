"""Between the tasks of one barrier stage: batches go over plain sockets to the task that writes their partition.

Every task learns where the others listen and which attempt they are (`rendezvous.py`), and connects
to every task that writes. A connection begins with a secret that only this attempt of the job
knows, and then carries frames:

    [kind][u32 size][i32 partition][u16 size of the topic's name][u64 place in the arena] name,
    content

    BATCH   the content is a batch
    ARENA   the content introduces the sender's memory (`arena.py`): batches may be lent from now on, if the other says so
    LENT    the batch lies in that memory; there is no content
    END     there is nothing more to come

A task of the same machine can look into the memory of its neighbour, so that nothing but LENT has
to travel: half of all bytes of two tasks, which otherwise cost as much as sending them to a broker.
The other way go eight bytes each: ACCEPTED, or the place of a batch that is done with.

A connection that breaks before its end fails the task, and with it the job.
"""

from __future__ import annotations

import hmac
import socket
import struct
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import NeighbourLost
from fencepost.spark.transport.arena import look_into
from fencepost.spark.transport.delivery import Attempt
from fencepost.spark.transport.delivery_thread import Parcel
from fencepost.spark.transport.rendezvous import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.spark.transport.arena import Arena
    from fencepost.spark.transport.delivery_thread import Deliverer
    from fencepost.spark.transport.packing import PackedBatch

CONNECT_SECONDS: Final = 30.0
MAX_TASKS: Final = 32
"""Each task has a connection to and from every other: beyond this, the shuffle is the better
way."""

_FRAME: Final = struct.Struct(">BIiHQ")
_END, _BATCH, _ARENA, _LENT = range(4)
_NOWHERE: Final = TopicPartition("", 0)

_ANSWER: Final = struct.Struct(">q")
_ACCEPTED: Final = -1


class Outgoing:
    """The connection to one task that writes.

    One thread sends; another one hears what comes back.
    """

    def __init__(
        self, owner: int, connection: socket.socket, on_loss: Callable[[NeighbourLost], None]
    ) -> None:
        """`on_loss` is told, from another thread, when the connection ends and a batch is not back."""
        self._owner = owner
        self._connection = connection
        self._on_loss = on_loss
        self._offered: Arena | None = None
        self._is_accepted = False
        self._lent: dict[int, Callable[[], None]] = {}
        """What to do when a batch is back, by its place."""
        self._changed = threading.Condition()
        self._is_over = False

    def send(self, packed: PackedBatch) -> None:
        """Lends the batch if that is possible, else sends it; waits while the neighbour has too much to do."""
        if packed.arena is not None and self._offered is None:
            self._offer(packed.arena)
        if self._is_accepted and packed.arena is self._offered:
            with self._changed:
                if self._is_over:
                    raise self._lost("has hung up")
                self._lent[packed.at] = packed.done
            self._send(_LENT, packed.place, len(packed.data), packed.at)
        else:
            self._send(_BATCH, packed.place, len(packed.data), content=packed.data)
            packed.done()

    def say_end(self) -> None:
        self._send(_END, _NOWHERE)

    def await_lent(self) -> None:
        """Waits until everything that was lent is back."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lent or self._is_over)
            if self._lent:
                raise self._lost("has hung up")

    def close(self) -> None:
        _close(self._connection)

    def _offer(self, arena: Arena) -> None:
        self._offered = arena
        if arena.introduction is None:
            return
        self._send(_ARENA, _NOWHERE, len(arena.introduction), content=arena.introduction)
        threading.Thread(target=self._hear, name="exchange", daemon=True).start()

    def _send(
        self,
        kind: int,
        place: TopicPartition,
        size: int = 0,
        at: int = 0,
        content: bytes | bytearray | memoryview = b"",
    ) -> None:
        name = place.topic.encode("utf-8")
        head = _FRAME.pack(kind, size, place.partition, len(name), at)
        try:
            self._connection.sendall(head + name)
            if content:
                self._connection.sendall(content)
        except OSError as problem:
            raise self._lost(f"is gone: {problem}") from None

    def _lost(self, how: str) -> NeighbourLost:
        return NeighbourLost(f"task {self._owner} of the write stage {how}")

    def _hear(self) -> None:
        with suppress(OSError, NeighbourLost):
            while True:
                (answer,) = _ANSWER.unpack(_read(self._connection, _ANSWER.size))
                if answer == _ACCEPTED:
                    self._is_accepted = True
                    continue
                with self._changed:
                    self._lent.pop(answer)()
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._lent:
            # The thread that packs may be waiting for this memory.
            self._on_loss(self._lost("has hung up"))


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
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: list[socket.socket] = []
        self._spare: list[bytearray] = []
        """Memory of batches that have been acknowledged; several threads take from it and add to
        it."""
        self._is_closed = False
        self.attempts = [attempt.task_attempt_id]
        """The attempt of every task, by which the lengths of first batches differ."""
        if tasks > 1:
            self._meet(Call(address, secret), attempt, tasks)

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
        """Brings a batch to the task that writes its partition."""
        self._outgoing[owner].send(packed)

    def say_end(self) -> None:
        """This task will send nothing more."""
        for neighbour in self._outgoing.values():
            neighbour.say_end()

    def await_lent(self) -> None:
        """Waits until nobody looks into this task's memory any more."""
        for neighbour in self._outgoing.values():
            neighbour.await_lent()

    # How it begins.

    def _meet(self, call: Call, attempt: Attempt, tasks: int) -> None:
        port = self._listen(call.local_host) if self._me < self._slots else 0
        neighbours = call.meet(self._me, tasks, port, attempt.task_attempt_id)
        self.attempts = [neighbour.task_attempt_id for neighbour in neighbours]
        for owner, neighbour in enumerate(neighbours[: self._slots]):
            if owner != self._me:
                connection = self._connect(owner, neighbour.host, neighbour.port)
                self._outgoing[owner] = Outgoing(owner, connection, self._fail)

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
        """Everything that one neighbour sends. The connection stays open for what it has lent."""
        if not self._knows_secret(connection):
            connection.close()
            return
        try:
            self._take_parcels(connection)
            self._deliverer.end()
        except BaseException as problem:  # noqa: BLE001 - raised again in the task's own thread.
            self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        if not self._is_closed:
            self._deliverer.fail(problem)

    def _take_parcels(self, connection: socket.socket) -> None:
        arena: memoryview | None = None
        while True:
            kind, size, partition, name_size, at = _FRAME.unpack(_read(connection, _FRAME.size))
            place = TopicPartition(_read(connection, name_size).decode("utf-8"), partition)
            if kind == _BATCH:
                self._deliverer.put(self._read_batch(connection, place, size))
            elif kind == _LENT:
                assert arena is not None, "lent before it was accepted"
                done = partial(_give_back, connection, at)
                self._deliverer.put(Parcel(place, arena[at : at + size], done))
            elif kind == _ARENA:
                arena = look_into(_read(connection, size))
                if arena is not None:
                    connection.sendall(_ANSWER.pack(_ACCEPTED))
            else:
                return

    def _knows_secret(self, connection: socket.socket) -> bool:
        """Whether it is a neighbour: on a port of ours anybody may call."""
        try:
            return hmac.compare_digest(_read(connection, len(self._secret)), self._secret)
        except (OSError, NeighbourLost):
            return False

    def _read_batch(self, connection: socket.socket, place: TopicPartition, size: int) -> Parcel:
        room = self._room(size)
        data = memoryview(room)[:size]
        _fill(connection, data)
        return Parcel(place, data, lambda: self._spare.append(room))

    def _room(self, size: int) -> bytearray:
        """Memory that was used before, if there is some: fresh memory costs more than the copying."""
        try:
            room = self._spare.pop()
        except IndexError:
            return bytearray(size)
        return room if len(room) >= size else bytearray(size)


def _give_back(connection: socket.socket, at: int) -> None:
    # Who has lent it may be gone; then the job fails for that reason.
    with suppress(OSError):
        connection.sendall(_ANSWER.pack(at))


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


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
