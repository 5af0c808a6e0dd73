"""Requests between brokers as Kafka's own forms, for the trace.

On the links they have a shorter layout (`cluster/peer_messages.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fencepost.base.errors import ErrorCode
    from fencepost.base.ids import TopicPartition
    from fencepost.broker.peers.others import FirstWrite
    from fencepost.broker.transactions.markers import EndMarker


def verification(write: FirstWrite) -> AddPartitionsToTxnRequest:
    """A leader asks a coordinator."""
    topics = [
        AddPartitionsToTxnTopic(name=topic, partitions=indexes)
        for topic, indexes in _indexes_by_topic(write.names).items()
    ]
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=write.transactional_id,
        producer_id=write.producer_id,
        producer_epoch=write.producer_epoch,
        verify_only=not write.add,
        topics=topics,
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def verified(write: FirstWrite, errors: Iterable[ErrorCode]) -> AddPartitionsToTxnResponse:
    """The coordinator's answer."""
    topics = [
        AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
                for index, error in results
            ],
        )
        for topic, results in _errors_by_topic(write.names, errors).items()
    ]
    result = AddPartitionsToTxnResult(transactional_id=write.transactional_id, topic_results=topics)
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


def marker_request(marker: EndMarker, names: Sequence[TopicPartition]) -> WriteTxnMarkersRequest:
    """A coordinator sends a marker to a leader."""
    topics = [
        WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
        for topic, indexes in _indexes_by_topic(names).items()
    ]
    form = WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=topics,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    return WriteTxnMarkersRequest(markers=[form])


def marker_reply(
    marker: EndMarker, names: Sequence[TopicPartition], errors: Iterable[ErrorCode]
) -> WriteTxnMarkersResponse:
    """The leader's answer."""
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic,
            partitions=[
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                for index, error in results
            ],
        )
        for topic, results in _errors_by_topic(names, errors).items()
    ]
    result = WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
    return WriteTxnMarkersResponse(markers=[result])


def _indexes_by_topic(names: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in names:
        topics.setdefault(topic, []).append(index)
    return topics


def _errors_by_topic(
    names: Sequence[TopicPartition], errors: Iterable[ErrorCode]
) -> dict[str, list[tuple[int, ErrorCode]]]:
    topics: dict[str, list[tuple[int, ErrorCode]]] = {}
    for (topic, index), error in zip(names, errors, strict=True):
        topics.setdefault(topic, []).append((index, error))
    return topics
