"""WriteTxnMarkers (27): v1-2

Behaviour: ends transactions on partitions of this node, for an administrator
           (`kafka-transactions abort`). Answers once all markers are durable and, on
           __consumer_offsets, the pending offsets are committed or dropped. The brokers of a
           cluster send each other markers over their links (`broker/peers.py`).
Versions:  v1 flexible; v2 (KIP-1228) says which protocol the transaction used.
Errors:    CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION (not on this node),
           NOT_LEADER_OR_FOLLOWER (another node leads the partition, or the group coordinator is
           loading), INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.

A request continues after its client has left, as in Kafka.
"""

from __future__ import annotations

from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.authorization import CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.transactions.arriving_markers import Arrived, ArrivingMarkers
from fencepost.broker.transactions.journal import Client
from fencepost.broker.transactions.markers import EndMarker
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

Errors = dict[int, dict[str, dict[int, ErrorCode]]]
"""The errors of the markers, by producer id, topic and partition."""


def handle(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse | Parked:
    """Serves one request; see above."""
    if not (
        context.may("ALTER", "CLUSTER", CLUSTER_NAME)
        or context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)
    ):
        return _refuse_all(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    services, parked = context.services, Parked()
    markers = [_arrived(form) for form in request.markers]
    arriving = ArrivingMarkers(
        services.runtime, services.markers, markers, partial(_answer, parked, markers, context)
    )
    is_written = arriving.write(parked.release)
    parked.holds_followers = not is_written
    return parked


def _arrived(form: WritableTxnMarker) -> Arrived:
    marker = EndMarker(
        form.producer_id,
        form.producer_epoch,
        form.transaction_result,
        form.coordinator_epoch,
        form.transaction_version,
    )
    return marker, [
        TopicPartition(topic.name, index)
        for topic in form.topics
        for index in topic.partition_indexes
    ]


def _answer(
    parked: Parked, markers: list[Arrived], context: Context, found: list[ErrorCode]
) -> None:
    errors: Errors = {}
    journal = context.services.transactions.journal
    by = Client(context.client_address, context.client_id)
    places = ((marker, name) for marker, names in markers for name in names)
    for (marker, name), error in zip(places, found, strict=True):
        errors.setdefault(marker.producer_id, {}).setdefault(name[0], {})[name[1]] = error
        if error is ErrorCode.NONE:
            journal.marked_by_request(name, marker, by)
    parked.answer(WriteTxnMarkersResponse(markers=_results(errors)))


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
