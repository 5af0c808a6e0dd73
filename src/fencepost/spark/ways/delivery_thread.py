"""The thread of a task that writes to the brokers, and its queue of batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fencepost.base.ids import TopicPartition
from fencepost.client.options import ClientOptions
from fencepost.client.transactions import ProducerIdentity
from fencepost.client.writer import Written
from fencepost.spark.connection import cluster_of
from fencepost.spark.ways.delivery import Delivery

if TYPE_CHECKING:
    from fencepost.client.blocking import TransactionalWriter

INBOX_BYTES: Final = 16 * 1024 * 1024
"""The most that may wait in the queue. Beyond it, `put` waits."""

LISTEN_SECONDS: Final = 0.002
"""How long a thread without work waits before it polls for answers of the brokers."""

GIVE_UP_SECONDS: Final = 5.0
"""How long a failing task waits for this thread, which may be waiting for a broker."""


class QueuedBatch(NamedTuple):
    """A batch in the queue."""

    place: TopicPartition
    data: bytearray | memoryview
    done: Callable[[], None] | None = None


class DeliveryThread:
    """Writes to the brokers. It ends when all sources of batches have ended."""

    def __init__(
        self,
        options: ClientOptions,
        identity: ProducerIdentity,
        sources: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._identity = identity
        self._sources = sources
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._waiting: deque[QueuedBatch] = deque()
        self._waiting_bytes = 0
        self._is_closed = False
        self._failure: BaseException | None = None
        self._written: dict[TopicPartition, Written] = {}
        self._thread = threading.Thread(target=self._run, name="deliverer", daemon=True)
        self.opened_ms = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(GIVE_UP_SECONDS)

    # For the sources.

    def put(self, queued: QueuedBatch) -> None:
        """Queues a batch; waits while the queue is full. Raises the failure of the delivery."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or self._is_closed or self._waiting_bytes < INBOX_BYTES
            )
            self._raise_failure()
            self._waiting.append(queued)
            self._waiting_bytes += len(queued.data)
            self._changed.notify_all()

    def end(self) -> None:
        """Notes that one source has no more batches."""
        with self._changed:
            self._sources -= 1
            self._changed.notify_all()

    def fail(self, problem: BaseException) -> None:
        """Notes that one source has failed, and with it the task."""
        with self._changed:
            self._failure = self._failure or problem
            self._changed.notify_all()
        self._on_failure(problem)

    def finish(self) -> dict[TopicPartition, Written]:
        """Waits until all batches of all sources are acknowledged."""
        self._thread.join()
        self._raise_failure()
        return self._written

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The thread.

    def _run(self) -> None:
        try:
            with cluster_of(self._options).writer(self._identity) as writer:
                delivery = Delivery(writer)
                while (queued := self._next(writer)) is not None:
                    delivery.write(*queued)
                self._written = writer.flush()
                self.opened_ms = delivery.opened_ms
        except BaseException as problem:  # noqa: BLE001 - raised again by `finish`.
            self.fail(problem)

    def _next(self, writer: TransactionalWriter) -> QueuedBatch | None:
        """The next batch; polls for answers of the brokers while there is none."""
        while True:
            with self._changed:
                if self._waiting or self._wait(writer.unacknowledged_bytes):
                    return self._pop()
            writer.poll()

    def _wait(self, unacknowledged_bytes: int) -> bool:
        """Waits for work or the end; False if it is time to poll the brokers."""
        return self._changed.wait_for(
            lambda: bool(self._waiting or not self._sources or self._is_closed or self._failure),
            LISTEN_SECONDS if unacknowledged_bytes else None,
        )

    def _pop(self) -> QueuedBatch | None:
        if self._failure is not None or self._is_closed or not self._waiting:
            return None
        queued = self._waiting.popleft()
        self._waiting_bytes -= len(queued.data)
        self._changed.notify_all()
        return queued
