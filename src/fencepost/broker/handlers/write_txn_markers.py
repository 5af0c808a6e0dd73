"""WriteTxnMarkers (27): v1-2

Behaviour: ends transactions on partitions of this node, for a coordinator on another node or for
           `kafka-transactions abort`. Answers once all markers are durable and, on
           __consumer_offsets, the pending offsets are committed or dropped.
Versions:  v1 flexible; v2 (KIP-1228) says which protocol the transaction used.
Errors:    CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION (not on this node),
           NOT_LEADER_OR_FOLLOWER (the group coordinator is loading), INVALID_PRODUCER_EPOCH,
           TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.broker.authorization import CLUSTER_NAME
from fencepost.broker.transactions.markers import EndMarker
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
        context.authorize("ALTER", "CLUSTER", CLUSTER_NAME)
        or context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)
    ):
        return _refuse_all(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    writing = _Writing(request, context)
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
                    self._write(marker, topic.name, index)
                    yield

    def _write(self, marker: EndMarker, topic: str, index: int) -> None:
        if self._services.partitions.get(topic, index) is None:
            self._note(marker, topic, index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        written = self._services.markers.append(topic, index, marker)
        if isinstance(written, Refusal):
            self._note(marker, topic, index, written.error)
            return
        partition, end_offset = written
        self._note(marker, topic, index, ErrorCode.NONE)
        self._unfinished += 1
        durable = partial(self._durable, marker, partition)
        self._services.runtime.when_durable(partition, end_offset, durable)

    def _note(self, marker: EndMarker, topic: str, index: int, error: ErrorCode) -> None:
        of_topic = self._errors.setdefault(marker.producer_id, {}).setdefault(topic, {})
        of_topic[index] = error

    def _durable(self, marker: EndMarker, partition: Partition) -> None:
        if partition.closed:
            self._note(marker, *partition.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._finish_one()

    def walked(self) -> None:
        self.parked.release()
        self._finish_one()

    def _finish_one(self) -> None:
        self._unfinished -= 1
        if self._unfinished == 0:
            self.parked.answer(WriteTxnMarkersResponse(markers=_results(self._errors)))


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
