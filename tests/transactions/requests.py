"""Builds the requests of transactional producers and their readers, as forms.

The sender is anything with a transactional id, a producer id and an epoch: `wire.WireProducer`, and
the producers of the twin runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fencepost.wire.forms.add_offsets_to_txn import AddOffsetsToTxnRequest
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from fencepost.wire.forms.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    from fencepost.base.seams import Buffer

    T = TypeVar("T")

Place = tuple[str, int]
"""Topic and partition."""


class Sender(Protocol):
    """The sender of a request."""

    transactional_id: str
    producer_id: int
    epoch: int


def by_topic(pairs: Iterable[tuple[Place, T]]) -> dict[str, list[T]]:
    """Groups the values of partitions by topic, as requests do."""
    found: dict[str, list[T]] = {}
    for (topic, _), each in pairs:
        found.setdefault(topic, []).append(each)
    return found


# -- the coordinator -------------------------------------------------------------------------------


def init_request(
    transactional_id: str | None,
    *,
    timeout_ms: int = 60_000,
    producer_id: int = -1,
    epoch: int = -1,
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def transaction_of(
    sender: Sender, partitions: Mapping[str, Sequence[int]], *, verify_only: bool = False
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=sender.transactional_id,
        producer_id=sender.producer_id,
        producer_epoch=sender.epoch,
        verify_only=verify_only,
        topics=[
            AddPartitionsToTxnTopic(name=name, partitions=list(indexes))
            for name, indexes in partitions.items()
        ],
    )


def add_request(*transactions: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(transactions=list(transactions))


def add_offsets_request(sender: Sender, group: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=sender.transactional_id,
        producer_id=sender.producer_id,
        producer_epoch=sender.epoch,
        group_id=group,
    )


def end_request(sender: Sender, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=sender.transactional_id,
        producer_id=sender.producer_id,
        producer_epoch=sender.epoch,
        committed=commit,
    )


# -- partitions ------------------------------------------------------------------------------------


def produce_request(
    batches: Mapping[Place, Buffer | None], *, transactional_id: str | None, acks: int = -1
) -> ProduceRequest:
    """Any batches for any partitions in one request."""
    topics = by_topic(
        (place, PartitionProduceData(index=place[1], records=records))
        for place, records in batches.items()
    )
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=t, partition_data=p) for t, p in topics.items()],
    )


def marker_request(
    sender: Sender,
    partitions: Mapping[str, Sequence[int]],
    *,
    commit: bool,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> WriteTxnMarkersRequest:
    marker = WritableTxnMarker(
        producer_id=sender.producer_id,
        producer_epoch=sender.epoch,
        transaction_result=commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=list(indexes))
            for name, indexes in partitions.items()
        ],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def list_offsets_request(
    topic: str, time_ms: int, *, index: int, isolation_level: int
) -> ListOffsetsRequest:
    asked = ListOffsetsPartition(partition_index=index, timestamp=time_ms)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )


# -- offsets of groups -----------------------------------------------------------------------------


def commit_offsets_request(
    sender: Sender,
    group: str,
    offsets: Mapping[Place, int],
    *,
    metadata: str | None = "",
    leader_epoch: int = -1,
    **fields: Any,
) -> TxnOffsetCommitRequest:
    """The fields are those of a member: member_id, generation_id, group_instance_id."""
    topics = by_topic(
        (
            place,
            TxnOffsetCommitRequestPartition(
                partition_index=place[1],
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            ),
        )
        for place, offset in offsets.items()
    )
    return TxnOffsetCommitRequest(
        transactional_id=sender.transactional_id,
        group_id=group,
        producer_id=sender.producer_id,
        producer_epoch=sender.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=t, partitions=p) for t, p in topics.items()],
        **fields,
    )


def offset_fetch_request(
    group: str, topic: str | None, *indexes: int, stable: bool
) -> OffsetFetchRequest:
    """For these partitions of a topic; None for all of them."""
    topics = None
    if topic is not None:
        topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(indexes or (0,)))]
    groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
    return OffsetFetchRequest(groups=groups, require_stable=stable)
