"""WriteTxnMarkers (27): v1-2

Behaviour: ends transactions on partitions of this node, for the coordinator on another one, or for
           `kafka-transactions abort`. Answers once all markers are durable and, on __consumer_offsets, the offsets
           that were pending are settled.
Versions:  v1 flexible; v2 (KIP-1228) says which protocol the transaction used.
Errors:    CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION (not on this node), NOT_LEADER_OR_FOLLOWER (the
           group coordinator is loading), INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED,
           KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.broker.markers import EndMarker, append_marker
from fencepost.broker.operations import CLUSTER_NAME
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fencepost.base.ids import TopicPartition
    from fencepost.broker.context import Context
    from fencepost.partition.partition import Partition


def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse | Parked:
    if not (
        context.authorize("ALTER", "CLUSTER", CLUSTER_NAME)
        or context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)
    ):
        return refuse_all(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    writing = Writing(context)
    response = WriteTxnMarkersResponse(
        markers=merged(writing.write(marker) for marker in request.markers)
    )
    if writing.undurable == 0:
        return response
    parked = Parked()

    def durable() -> None:
        refuse_deleted(response, writing.deleted)
        parked.answer(response)

    writing.when_durable(durable)
    return parked


class Writing:
    """The markers of one request; counts those that are not durable yet."""

    def __init__(self, context: Context) -> None:
        self._node = context.node
        self._finished: Callable[[], None] | None = None
        self.undurable = 0
        self.deleted: set[TopicPartition] = set()
        """Partitions that went before their markers were durable."""

    def when_durable(self, callback: Callable[[], None]) -> None:
        self._finished = callback

    def write(self, form: WritableTxnMarker) -> WritableTxnMarkerResult:
        marker = EndMarker(
            form.producer_id,
            form.producer_epoch,
            form.transaction_result,
            form.coordinator_epoch,
            form.transaction_version,
        )
        return result_of(form, partial(self._write_one, marker))

    def _write_one(self, marker: EndMarker, topic: str, index: int) -> ErrorCode:
        if self._node.partition(topic, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        error, partition, end_offset = append_marker(self._node, topic, index, marker)
        if error is ErrorCode.NONE:
            assert partition is not None
            self.undurable += 1
            self._node.when_durable(partition, end_offset, partial(self._one_durable, partition))
        return error

    def _one_durable(self, partition: Partition) -> None:
        if partition.closed:
            self.deleted.add(partition.name)
        self.undurable -= 1
        if self.undurable == 0 and self._finished is not None:
            self._finished()


def refuse_deleted(response: WriteTxnMarkersResponse, deleted: set[TopicPartition]) -> None:
    for result in response.markers:
        for topic in result.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) in deleted:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def merged(results: Iterable[WritableTxnMarkerResult]) -> list[WritableTxnMarkerResult]:
    """One result per producer id, where a later marker of a partition has the last word; none without a partition."""
    errors: dict[int, dict[str, dict[int, int]]] = {}
    for result in results:
        for topic in result.topics:
            for partition in topic.partitions:
                of_topic = errors.setdefault(result.producer_id, {}).setdefault(topic.name, {})
                of_topic[partition.partition_index] = partition.error_code
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


def refuse_all(request: WriteTxnMarkersRequest, error: ErrorCode) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[result_of(marker, lambda topic, index: error) for marker in request.markers]
    )


def result_of(
    form: WritableTxnMarker, outcome: Callable[[str, int], ErrorCode]
) -> WritableTxnMarkerResult:
    """One row per partition of the request, whatever became of it."""
    return WritableTxnMarkerResult(
        producer_id=form.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=outcome(topic.name, index)
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in form.topics
        ],
    )
