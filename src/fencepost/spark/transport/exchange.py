"""Batches between the tasks of one barrier stage, over plain sockets, to their partition's writer.

Every task gets the addresses and attempts of the others (`rendezvous.py`), and connects to every
task that writes. A connection begins with a secret that only this attempt of the job has, and then
carries frames:

    [kind][u32 size][i32 partition][u16 size of the topic's name][u64 place in the arena] name,
    content

    BATCH   the content is a batch
    ARENA   the content is the handle of the sender's arena (`arena.py`); the receiver may accept it
    LENT    the batch is in that arena; there is no content
    END     the last frame

A task of the same machine can map the arena of its peer. Then only LENT frames travel. With two
tasks that saves half of all bytes, which would cost as much as sending them to a broker. Answers
are eight bytes each: ACCEPTED, or the position of a batch that is no longer needed.

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
from fencepost.spark.failures import PeerLost
from fencepost.spark.transport.arena import map_arena
from fencepost.spark.transport.delivery import Attempt
from fencepost.spark.transport.delivery_thread import QueuedBatch
from fencepost.spark.transport.rendezvous import RendezvousCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.spark.transport.arena import Arena
    from fencepost.spark.transport.delivery_thread import DeliveryThread
    from fencepost.spark.transport.packing import PackedBatch

CONNECT_SECONDS: Final = 30.0
MAX_TASKS: Final = 32
"""Each task has a connection to and from every other: beyond this, the shuffle is better."""

_FRAME: Final = struct.Struct(">BIiHQ")
_END, _BATCH, _ARENA, _LENT = range(4)
_NOWHERE: Final = TopicPartition("", 0)

_ANSWER: Final = struct.Struct(">q")
_ACCEPTED: Final = -1


class Outgoing:
    """The connection to one task that writes: one thread sends, another reads the answers."""

    def __init__(
        self, owner: int, connection: socket.socket, on_loss: Callable[[PeerLost], None]
    ) -> None:
        """`on_loss` is called, in another thread, if the connection ends while a batch is lent."""
        self._owner = owner
        self._connection = connection
        self._on_loss = on_loss
        self._offered: Arena | None = None
        self._is_accepted = False
        self._lent: dict[int, Callable[[], None]] = {}
        """What to call when a batch is given back, by its position in the arena."""
        self._changed = threading.Condition()
        self._is_over = False

    def send(self, packed: PackedBatch) -> None:
        """Lends the batch if possible, else sends it; waits while the peer's queue is full."""
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

    def send_end(self) -> None:
        self._send(_END, _NOWHERE)

    def await_lent(self) -> None:
        """Waits until all lent batches are given back."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lent or self._is_over)
            if self._lent:
                raise self._lost("has hung up")

    def close(self) -> None:
        _close(self._connection)

    def _offer(self, arena: Arena) -> None:
        self._offered = arena
        if arena.handle is None:
            return
        self._send(_ARENA, _NOWHERE, len(arena.handle), content=arena.handle)
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

    def _lost(self, how: str) -> PeerLost:
        return PeerLost(f"task {self._owner} of the write stage {how}")

    def _hear(self) -> None:
        with suppress(OSError, PeerLost):
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
        deliverer: DeliveryThread,
    ) -> None:
        self._me = attempt.partition_id
        self._slots = slots
        self._secret = secret
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
            self._meet(RendezvousCall(address, secret), attempt, tasks)

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

    def await_lent(self) -> None:
        """Waits until no peer uses this task's arena any more."""
        for peer in self._outgoing.values():
            peer.await_lent()

    # Connecting.

    def _meet(self, call: RendezvousCall, attempt: Attempt, tasks: int) -> None:
        port = self._listen(call.local_host) if self._me < self._slots else 0
        peers = call.meet(self._me, tasks, port, attempt.task_attempt_id)
        self.attempts = [peer.task_attempt_id for peer in peers]
        for owner, peer in enumerate(peers[: self._slots]):
            if owner != self._me:
                connection = self._connect(owner, peer.host, peer.port)
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
                return
            self._incoming.append(connection)
            threading.Thread(
                target=self._receive, args=(connection,), name="exchange", daemon=True
            ).start()

    def _receive(self, connection: socket.socket) -> None:
        """Receives all batches of one peer; the connection stays open for the lent ones."""
        if not self._has_secret(connection):
            connection.close()
            return
        try:
            self._receive_batches(connection)
            self._deliverer.end()
        except BaseException as problem:  # noqa: BLE001 - raised again in the task's thread.
            self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        if not self._is_closed:
            self._deliverer.fail(problem)

    def _receive_batches(self, connection: socket.socket) -> None:
        arena: memoryview | None = None
        while True:
            kind, size, partition, name_size, at = _FRAME.unpack(_read(connection, _FRAME.size))
            place = TopicPartition(_read(connection, name_size).decode("utf-8"), partition)
            if kind == _BATCH:
                self._deliverer.put(self._read_batch(connection, place, size))
            elif kind == _LENT:
                assert arena is not None, "lent before it was accepted"
                done = partial(_give_back, connection, at)
                self._deliverer.put(QueuedBatch(place, arena[at : at + size], done))
            elif kind == _ARENA:
                arena = map_arena(_read(connection, size))
                if arena is not None:
                    connection.sendall(_ANSWER.pack(_ACCEPTED))
            else:
                return

    def _has_secret(self, connection: socket.socket) -> bool:
        """Whether the caller is a peer: anyone may connect to the port."""
        try:
            return hmac.compare_digest(_read(connection, len(self._secret)), self._secret)
        except (OSError, PeerLost):
            return False

    def _read_batch(
        self, connection: socket.socket, place: TopicPartition, size: int
    ) -> QueuedBatch:
        room = self._room(size)
        data = memoryview(room)[:size]
        _fill(connection, data)
        return QueuedBatch(place, data, lambda: self._spare.append(room))

    def _room(self, size: int) -> bytearray:
        """A used buffer if there is one: fresh memory costs more than copying."""
        try:
            room = self._spare.pop()
        except IndexError:
            return bytearray(size)
        return room if len(room) >= size else bytearray(size)


def _give_back(connection: socket.socket, at: int) -> None:
    # The lender may be gone; then the job fails for that reason.
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
            raise PeerLost("a task of the write stage has hung up before its end")
        room = room[count:]
