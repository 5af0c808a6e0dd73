"""The thread of a task that speaks with the brokers, and the line of batches before it."""

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
from fencepost.spark.transport.delivery import Delivery

if TYPE_CHECKING:
    from fencepost.client.blocking import TransactionalWriter

INBOX_BYTES: Final = 16 * 1024 * 1024
"""What may wait for the deliverer. Its sources wait when there is more."""

LISTEN_SECONDS: Final = 0.002
"""How long a deliverer without work waits before it looks for answers of the brokers."""

GIVE_UP_SECONDS: Final = 5.0
"""How long a task that fails waits for its deliverer, which may itself wait for a broker."""


class Parcel(NamedTuple):
    """A batch for the deliverer."""

    place: TopicPartition
    data: bytearray | memoryview
    done: Callable[[], None] | None = None


class Deliverer:
    """The thread that writes to the brokers. It ends when all sources of batches have ended."""

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
        self._waiting: deque[Parcel] = deque()
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

    def put(self, parcel: Parcel) -> None:
        """Takes a batch; waits while too many wait.

        Raises what has gone wrong on the way to the brokers.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or self._is_closed or self._waiting_bytes < INBOX_BYTES
            )
            self._raise_failure()
            self._waiting.append(parcel)
            self._waiting_bytes += len(parcel.data)
            self._changed.notify_all()

    def end(self) -> None:
        """One source has no more."""
        with self._changed:
            self._sources -= 1
            self._changed.notify_all()

    def fail(self, problem: BaseException) -> None:
        """One source has failed, and with it the task."""
        with self._changed:
            self._failure = self._failure or problem
            self._changed.notify_all()
        self._on_failure(problem)

    def finish(self) -> dict[TopicPartition, Written]:
        """Waits until everything of all sources is acknowledged."""
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
                while (parcel := self._next(writer)) is not None:
                    delivery.write(*parcel)
                self._written = writer.flush()
                self.opened_ms = delivery.opened_ms
        except BaseException as problem:  # noqa: BLE001 - raised again by `finish`, in the task's own thread.
            self.fail(problem)

    def _next(self, writer: TransactionalWriter) -> Parcel | None:
        """The next batch; while there is none, answers of the brokers are taken in."""
        while True:
            with self._changed:
                if self._waiting or self._wait(writer.unacknowledged_bytes):
                    return self._pop()
            writer.poll()

    def _wait(self, unacknowledged_bytes: int) -> bool:
        """Waits for work or the end; False when brokers should be listened to meanwhile."""
        return self._changed.wait_for(
            lambda: bool(self._waiting or not self._sources or self._is_closed or self._failure),
            LISTEN_SECONDS if unacknowledged_bytes else None,
        )

    def _pop(self) -> Parcel | None:
        if self._failure is not None or self._is_closed or not self._waiting:
            return None
        parcel = self._waiting.popleft()
        self._waiting_bytes -= len(parcel.data)
        self._changed.notify_all()
        return parcel
