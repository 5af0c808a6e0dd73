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

from collections.abc import Iterator
from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.authorization import CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.transactions.arriving_markers import Arrived, ArrivingMarkers
from fencepost.broker.transactions.journal import client_of
from fencepost.broker.transactions.markers import EndMarker
from fencepost.broker.turns import in_turns, run_in_turns, then
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

Errors = dict[int, dict[str, dict[int, ErrorCode]]]
"""The errors of the markers, by producer id, topic and partition."""


def handle(request: WriteTxnMarkersRequest, context: Context) -> object:
    """Serves one request; see above."""
    if not (
        context.may("ALTER", "CLUSTER", CLUSTER_NAME)
        or context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME)
    ):
        response = WriteTxnMarkersResponse()
        steps = _refusing(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, response)
        return in_turns(context.services.runtime, steps, response, holds_followers=True)
    markers: list[Arrived] = []
    steps = _reading(request, markers)
    return then(context.services.runtime, steps, partial(_write, markers, context))


def _write(markers: list[Arrived], context: Context) -> Parked:
    services, parked = context.services, Parked()
    arriving = ArrivingMarkers(
        services.runtime, services.markers, markers, partial(_answer, parked, markers, context)
    )
    is_written = arriving.write(parked.release)
    parked.holds_followers = not is_written
    return parked


def _reading(request: WriteTxnMarkersRequest, markers: list[Arrived]) -> Iterator[None]:
    for form in request.markers:
        marker = EndMarker(
            form.producer_id,
            form.producer_epoch,
            form.transaction_result,
            form.coordinator_epoch,
            form.transaction_version,
        )
        names: list[TopicPartition] = []
        markers.append((marker, names))
        yield
        for topic in form.topics:
            yield
            for index in topic.partition_indexes:
                names.append(TopicPartition(topic.name, index))
                yield


def _answer(
    parked: Parked, markers: list[Arrived], context: Context, found: list[ErrorCode]
) -> None:
    response = WriteTxnMarkersResponse()
    steps = _describing(markers, context, found, response)
    run_in_turns(context.services.runtime, steps, partial(parked.answer, response))


def _describing(
    markers: list[Arrived],
    context: Context,
    found: list[ErrorCode],
    response: WriteTxnMarkersResponse,
) -> Iterator[None]:
    """One result per producer id with partitions; of several markers for a partition, the last."""
    errors: Errors = {}
    journal = context.services.transactions.journal
    by = client_of(context)
    position = 0
    for marker, names in markers:
        yield
        for name in names:
            error = found[position]
            position += 1
            errors.setdefault(marker.producer_id, {}).setdefault(name[0], {})[name[1]] = error
            if error is ErrorCode.NONE:
                journal.marked_by_request(name, marker, by)
            yield
    for producer_id, topics in errors.items():
        result = WritableTxnMarkerResult(producer_id=producer_id)
        response.markers.append(result)
        for topic, of_topic in topics.items():
            told = WritableTxnMarkerTopicResult(name=topic)
            result.topics.append(told)
            for index, error in of_topic.items():
                told.partitions.append(
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                )
                yield


def _refusing(
    request: WriteTxnMarkersRequest, error: ErrorCode, response: WriteTxnMarkersResponse
) -> Iterator[None]:
    """One result per partition of the request."""
    for form in request.markers:
        result = WritableTxnMarkerResult(producer_id=form.producer_id)
        response.markers.append(result)
        yield
        for topic in form.topics:
            told = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(told)
            yield
            for index in topic.partition_indexes:
                told.partitions.append(
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                )
                yield
