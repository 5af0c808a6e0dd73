"""WriteTxnMarkers: ends a transaction on one partition, behind the back of its coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.ids import TopicPartition
from fencepost.client.calls import Core, Outcome, call_leaders, group_by_topic
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fencepost.client.steps import Reply, Steps


def write_abort_marker(
    core: Core,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> Steps[None]:
    """Ends a transaction on one partition, without its coordinator.

    The marker has the epochs that the partition knows, as that of kafka-transactions.sh; a
    partition without a marker of this producer has no coordinator epoch, and gets 0.
    """

    def build(wanted: Mapping[TopicPartition, None]) -> WriteTxnMarkersRequest:
        topics = [
            WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in group_by_topic(wanted).items()
        ]
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=topics,
            coordinator_epoch=max(0, coordinator_epoch),
        )
        return WriteTxnMarkersRequest(markers=[marker])

    yield from call_leaders(
        core, ApiKey.WRITE_TXN_MARKERS, {partition: None}, build, _read_marker_codes
    )


def _read_marker_codes(reply: Reply) -> Iterable[Outcome[None]]:
    for marker in reply.form.markers:
        for topic in marker.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                yield Outcome(partition, p.error_code, None)
