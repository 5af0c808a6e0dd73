"""Who writes which partition, where no rule decides it: a task claims it from the driver.

On the preserved route a task writes the partitions whose rows it happens to have. Nothing but the
user's plan ensures that no other task has rows of the same partition, so a task must ask before its
first batch of a partition. The driver grants each partition to one attempt of one task for the
whole job. A second one is refused before it sends anything.

    task   -> driver   the secret of this attempt of the job, once
    task   -> driver   one line for each partition: [topic, partition, task, attempt]
    driver -> task     one line: "" if it is granted, or the reason

A claim that gets no answer fails the task, and with it the job.
"""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import threading
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import PeerLost, RowRefused
from fencepost.spark.transport.delivery import Attempt

CALL_SECONDS: Final = 30.0
_MAX_LINE_BYTES: Final = 64 * 1024


class Holder(NamedTuple):
    """The only attempt that may write a partition."""

    task: int
    task_attempt_id: int


class Grants:
    """Which attempt has which partition."""

    def __init__(self) -> None:
        self._holders: dict[TopicPartition, Holder] = {}
        self._lock = threading.Lock()

    def claim(self, place: TopicPartition, wants: Holder) -> str:
        """Grants the partition and returns "", or returns why it is refused."""
        with self._lock:
            holder = self._holders.setdefault(place, wants)
        if holder == wants:
            return ""
        if holder.task == wants.task:
            return f"task {wants.task} of the write stage runs for a second time"
        first, second = sorted((holder.task, wants.task))
        return (
            f"tasks {first} and {second} both have rows for partition {place.partition} of topic "
            f"{place.topic!r}, and with preserve_partitioning one task writes a partition: leave "
            "minPartitions and maxRecordsPerPartition out, do not change the column partition, or "
            "leave preserve_partitioning out. Nothing of the batch is visible"
        )


class _Caller(socketserver.StreamRequestHandler):
    """Answers the claims of one task."""

    server: _Server

    def handle(self) -> None:
        self.server.callers.append(self.connection)
        # A task that is gone, or a caller that is no task of ours.
        with suppress(OSError, ValueError):
            secret = self.server.secret
            if not hmac.compare_digest(self.rfile.read(len(secret)), secret):
                return
            while line := self.rfile.readline(_MAX_LINE_BYTES):
                topic, partition, task, attempt = json.loads(line)
                place = TopicPartition(topic, partition)
                self.wfile.write(_line(self.server.grants.claim(place, Holder(task, attempt))))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, bind_host: str, secret: bytes) -> None:
        super().__init__((bind_host, 0), _Caller)
        self.secret = secret
        self.grants = Grants()
        self.callers: list[socket.socket] = []


class Claims:
    """The driver's side, for the duration of the job."""

    def __init__(self, host: str, bind_host: str, secret: bytes) -> None:
        """`host` is how tasks reach the driver; `bind_host`, where it listens."""
        self._server = _Server(bind_host, secret)
        self.address: tuple[str, int] = (host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="claims", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        # A task that outlives the job gets nothing more.
        for caller in self._server.callers:
            with suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)


class ClaimCall:
    """A task's side."""

    def __init__(self, address: tuple[str, int], secret: bytes, attempt: Attempt) -> None:
        self._attempt = attempt
        self._granted: set[TopicPartition] = set()
        try:
            self._socket = socket.create_connection(address, CALL_SECONDS)
            self._stream = self._socket.makefile("rb")
            self._socket.sendall(secret)
        except OSError as problem:
            raise PeerLost(f"the driver cannot be reached at {address}: {problem}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def claim(self, place: TopicPartition) -> None:
        """Returns if this task may write the partition; RowRefused if another one does."""
        if place in self._granted:
            return
        task, attempt = self._attempt.partition_id, self._attempt.task_attempt_id
        try:
            self._socket.sendall(_line([*place, task, attempt]))
            answer = self._stream.readline(_MAX_LINE_BYTES)
        except OSError as problem:
            raise PeerLost(f"the driver does not answer a claim for {place}: {problem}") from None
        if not answer:
            raise PeerLost(f"the driver has hung up instead of granting {place}")
        if reason := json.loads(answer):
            raise RowRefused(reason)
        self._granted.add(place)


def _line(content: Any) -> bytes:
    return json.dumps(content).encode("utf-8") + b"\n"
