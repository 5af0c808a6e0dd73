"""WriteTxnMarkers (27): v1-2

Behaviour: ends transactions on partitions of this node, for a coordinator on another node or for
           `kafka-transactions abort`. Answers once all markers are durable and, on
           __consumer_offsets, the pending offsets are committed or dropped.
Versions:  v1 flexible; v2 (KIP-1228) says which protocol the transaction used.
Errors:    CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION (not on this node),
           NOT_LEADER_OR_FOLLOWER (another node leads the partition, or the group coordinator is
           loading), INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.

A request of another broker is stopped when its link is closed: what it has not written by then, the
next coordinator writes. One of a client continues after the client has left, as in Kafka.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE
from fencepost.base.refusal import Refusal
from fencepost.broker import leadership
from fencepost.broker.authorization import CLUSTER_NAME
from fencepost.broker.transactions.markers import (
    ABORT_LEADER_POINTS,
    COMMIT_LEADER_POINTS,
    EndMarker,
)
from fencepost.broker.turns import run_in_turns
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.broker.context import Context
    from fencepost.partition.partition import Partition

Errors = dict[int, dict[str, dict[int, ErrorCode]]]
"""The errors of the markers, by producer id, topic and partition."""


def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse | Parked:
    """Serves one request; see above."""
    if not (
        context.from_peer
        or context.authorize("ALTER", "CLUSTER", CLUSTER_NAME)
        or context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)
    ):
        return _refuse_all(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    writing = _Writing(request, context)
    if context.from_peer:
        writing.parked.when_abandoned(writing.stop)
    is_walked = run_in_turns(context.services.runtime, writing.steps(), writing.walked)
    writing.parked.holds_followers = not is_walked
    return writing.parked


class _Writing:
    """Writes the markers of one request over several turns; answers when all are durable."""

    def __init__(self, request: WriteTxnMarkersRequest, context: Context) -> None:
        self.parked: Final = Parked()
        self._request: Final = request
        self._services: Final = context.services
        self._unfinished = 1
        """The number of markers that are not durable yet, plus one until all are written."""
        self._errors: Errors = {}
        self._is_stopped = False

    def steps(self) -> Iterator[None]:
        for form in self._request.markers:
            marker = EndMarker(
                form.producer_id,
                form.producer_epoch,
                form.transaction_result,
                form.coordinator_epoch,
                form.transaction_version,
            )
            for topic in form.topics:
                for index in topic.partition_indexes:
                    if self._is_stopped:
                        return
                    self._write(marker, topic.name, index)
                    yield

    def stop(self) -> None:
        """Writes nothing more."""
        self._is_stopped = True

    def _write(self, marker: EndMarker, topic: str, index: int) -> None:
        points = COMMIT_LEADER_POINTS if marker.commit else ABORT_LEADER_POINTS
        self._reach(points.marker_received)
        if self._services.partitions.get(topic, index) is None:
            self._note(marker, topic, index, self._why_not_here(topic, index))
            return
        written = self._services.markers.append(topic, index, marker)
        if isinstance(written, Refusal):
            self._note(marker, topic, index, written.error)
            return
        partition, end_offset = written
        self._reach(points.marker_written)
        self._note(marker, topic, index, ErrorCode.NONE)
        self._unfinished += 1
        durable = partial(self._durable, marker, partition, end_offset)
        self._services.runtime.when_durable(partition, end_offset, durable)

    def _why_not_here(self, topic: str, index: int) -> ErrorCode:
        leader = self._services.metadata.leader(topic, index)
        if leader in (NO_NODE, self._services.config.node_id):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _note(self, marker: EndMarker, topic: str, index: int, error: ErrorCode) -> None:
        of_topic = self._errors.setdefault(marker.producer_id, {}).setdefault(topic, {})
        of_topic[index] = error

    def _durable(self, marker: EndMarker, partition: Partition, end_offset: int) -> None:
        # A partition that moved was synced first, so its marker is written.
        if partition.closed and partition.high_watermark < end_offset:
            self._note(marker, *partition.name, leadership.gone(partition))
        self._finish_one()

    def walked(self) -> None:
        self.parked.release()
        self._finish_one()

    def _finish_one(self) -> None:
        self._unfinished -= 1
        if self._unfinished == 0:
            self._reach_answer()
            self.parked.answer(WriteTxnMarkersResponse(markers=_results(self._errors)))

    def _reach_answer(self) -> None:
        if self._services.runtime.crash_points is None:
            return
        for form in self._request.markers:
            commit = form.transaction_result
            points = COMMIT_LEADER_POINTS if commit else ABORT_LEADER_POINTS
            self._reach(points.reply_ready)

    def _reach(self, point: str) -> None:
        crash = self._services.runtime.crash_points
        if crash is not None:
            crash(point)


def _results(errors: Errors) -> list[WritableTxnMarkerResult]:
    """One result per producer id with partitions; of several markers for a partition, the last."""
    return [
        WritableTxnMarkerResult(
            producer_id=producer_id,
            topics=[
                WritableTxnMarkerTopicResult(
                    name=name,
                    partitions=[
                        WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                        for index, error in of_topic.items()
                    ],
                )
                for name, of_topic in topics.items()
            ],
        )
        for producer_id, topics in errors.items()
    ]


def _refuse_all(request: WriteTxnMarkersRequest, error: ErrorCode) -> WriteTxnMarkersResponse:
    """One result per partition of the request."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=form.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=error
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in form.topics
                ],
            )
            for form in request.markers
        ]
    )
