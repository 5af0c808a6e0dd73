"""Markers that arrive from another process: a coordinator on another node, or an administrator.

They are written in their order, over several turns of the loop if they are many. Their sender is
told when all of them are durable, with one error per marker and partition. Markers that are stopped
are left to the next coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.base.refusal import Refusal
from fencepost.broker.partitions import leadership
from fencepost.broker.runtime import Runtime
from fencepost.broker.transactions.markers import (
    ABORT_LEADER_POINTS,
    COMMIT_LEADER_POINTS,
    EndMarker,
    MarkerWriter,
)
from fencepost.broker.turns import run_in_turns
from fencepost.partition.partition import Partition

NONE: Final = ErrorCode.NONE

WRITTEN_AT_ONCE: Final = 20
"""Partitions of one marker that are written in one turn without a look at the time."""

Arrived = tuple["EndMarker", "Sequence[TopicPartition]"]
"""A marker and the partitions that it is for."""


class ArrivingMarkers:
    """The markers of one request."""

    __slots__ = (
        "_done",
        "_errors",
        "_is_stopped",
        "_markers",
        "_runtime",
        "_unfinished",
        "_writer",
        "is_answered",
    )

    def __init__(
        self,
        runtime: Runtime,
        writer: MarkerWriter,
        markers: Sequence[Arrived],
        done: Callable[[list[ErrorCode]], None],
    ) -> None:
        """`done` gets the errors in the order of the markers and their partitions."""
        self._runtime = runtime
        self._writer = writer
        self._markers = markers
        self._done = done
        self._errors: list[ErrorCode] = []
        self._unfinished = 1
        """The number of markers that are not durable yet, plus one until all are written."""
        self._is_stopped = False
        self.is_answered = False

    def write(self, written: Callable[[], None] | None = None) -> bool:
        """Writes them; returns whether all are written already. If not, `written` is called."""
        markers = self._markers
        if len(markers) == 1 and len(markers[0][1]) <= WRITTEN_AT_ONCE:
            marker, names = markers[0]
            for name in names:
                self._write(marker, name)
            self._finish_one()
            return True
        return run_in_turns(self._runtime, self._steps(), partial(self._walked, written))

    def stop(self) -> None:
        """Writes nothing more."""
        self._is_stopped = True

    def _steps(self) -> Iterator[None]:
        for marker, names in self._markers:
            yield
            for name in names:
                if self._is_stopped:
                    return
                self._write(marker, name)
                yield

    def _walked(self, written: Callable[[], None] | None) -> None:
        if written is not None:
            written()
        if not self._is_stopped:
            self._finish_one()

    def _write(self, marker: EndMarker, name: TopicPartition) -> None:
        points = COMMIT_LEADER_POINTS if marker.commit else ABORT_LEADER_POINTS
        self._reach(points.marker_received)
        written = self._writer.append(name[0], name[1], marker)
        if isinstance(written, Refusal):
            self._errors.append(self._writer.explain(name, written))
            return
        partition, end_offset = written
        self._reach(points.marker_written)
        position = len(self._errors)
        self._errors.append(NONE)
        if partition.high_watermark < end_offset:
            self._unfinished += 1
            durable = partial(self._durable, position, partition, end_offset)
            self._runtime.when_durable(partition, end_offset, durable)

    def _durable(self, position: int, partition: Partition, end_offset: int) -> None:
        # A partition that moved was synced first, so its marker is written.
        if partition.closed and partition.high_watermark < end_offset:
            self._errors[position] = leadership.gone(partition)
        self._finish_one()

    def _finish_one(self) -> None:
        self._unfinished -= 1
        if self._unfinished == 0:
            self._reach_answer()
            self.is_answered = True
            self._done(self._errors)

    def _reach_answer(self) -> None:
        if self._runtime.crash_points is None:
            return
        for marker, _ in self._markers:
            points = COMMIT_LEADER_POINTS if marker.commit else ABORT_LEADER_POINTS
            self._reach(points.reply_ready)

    def _reach(self, point: str) -> None:
        crash = self._runtime.crash_points
        if crash is not None:
            crash(point)
