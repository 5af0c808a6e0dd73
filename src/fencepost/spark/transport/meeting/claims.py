"""Who writes which partition, where no rule decides it: a task claims it from the driver.

On the preserved route a task writes the partitions whose rows it happens to have. Nothing but the
user's plan ensures that no other task has rows of the same partition, so a task must ask before its
first batch of a partition. The driver grants each partition to one attempt of one task for the
whole job. A second one is refused before it sends anything.

    task   -> driver   one line for each partition: [topic, partition, task, attempt]
    driver -> task     one line: "" if it is granted, or the reason

A claim that gets no answer fails the task, and with it the job.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, Self

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import PeerLost, RowRefused
from fencepost.spark.transport.delivery import Attempt
from fencepost.spark.transport.meeting.driver_listener import DriverListener, LineConnection


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


class Claims:
    """The driver's side, for the duration of the job."""

    def __init__(self, host: str, bind_host: str, secret: bytes) -> None:
        self._grants = Grants()
        self._listener = DriverListener(host, bind_host, secret, self._serve, "claims")
        self.address = self._listener.address

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self, task: LineConnection) -> None:
        # A task claims its next partition when it has rows for it, however long that takes.
        task.wait_without_limit()
        while not task.has_ended():
            topic, partition, number, attempt = task.read()
            place = TopicPartition(topic, partition)
            task.send(self._grants.claim(place, Holder(number, attempt)))


class ClaimCall:
    """A task's side."""

    def __init__(self, address: tuple[str, int], secret: bytes, attempt: Attempt) -> None:
        self._attempt = attempt
        self._granted: set[TopicPartition] = set()
        self._driver = LineConnection.to_driver(address, secret)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.__exit__()

    def claim(self, place: TopicPartition) -> None:
        """Returns if this task may write the partition; RowRefused if another one does."""
        if place in self._granted:
            return
        task, attempt = self._attempt.partition_id, self._attempt.task_attempt_id
        try:
            self._driver.send([*place, task, attempt])
            reason = self._driver.read()
        except (OSError, PeerLost) as problem:
            raise PeerLost(f"the driver does not answer a claim for {place}: {problem}") from None
        if reason:
            raise RowRefused(reason)
        self._granted.add(place)
