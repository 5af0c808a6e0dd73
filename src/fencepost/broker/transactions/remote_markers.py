"""Sends markers to the nodes that lead their partitions.

The markers that one turn of the loop has for one node travel in one WriteTxnMarkers, as in Kafka's
marker queue: under load, many transactions end in the same turn.

A marker is sent once. Its sender hears of it when the node has answered, or when the node's process
is dead and can serve nothing any more; only then may it send the marker again. In TV1 a late second
copy would end part of the producer's next transaction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.base.ids import TopicPartition
    from fencepost.broker.peers import Peers
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.transactions.markers import EndMarker

VERSION: Final = 2
"""It says which protocol the transaction used (KIP-1228)."""

MARKERS_PER_REQUEST: Final = 1_000
"""Transactions in one request: a new coordinator may have ten thousand to finish, and the first of
them should not wait for the last."""


class Sender(Protocol):
    """What has a marker to send: an `Ending`."""

    @property
    def is_abandoned(self) -> bool:
        """Whether the marker must not be sent any more."""
        ...

    def sent(self) -> None:
        """The marker was handed to the link."""

    def answered(self, names: Sequence[TopicPartition], errors: list[ErrorCode] | None) -> None:
        """The node has answered, with one error per partition; None if it is dead."""


class _Unsent:
    """One marker and its partitions, all led by one node."""

    __slots__ = ("marker", "names", "sender")

    def __init__(self, marker: EndMarker, names: list[TopicPartition], sender: Sender) -> None:
        self.marker = marker
        self.names = names
        self.sender = sender


class RemoteMarkers:
    """The markers that this turn of the loop sends to other nodes."""

    def __init__(self, runtime: Runtime, peers: Peers) -> None:
        self._runtime = runtime
        self._peers = peers
        self._unsent: dict[int, list[_Unsent]] = {}

    def send(
        self, leader: int, marker: EndMarker, names: list[TopicPartition], sender: Sender
    ) -> None:
        """Sends a marker at the end of this turn, and tells its sender the result."""
        if not self._unsent:
            self._runtime.call_later(0, self._send_all)
        self._unsent.setdefault(leader, []).append(_Unsent(marker, names, sender))

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for leader, queued in unsent.items():
            markers = [each for each in queued if not each.sender.is_abandoned]
            for start in range(0, len(markers), MARKERS_PER_REQUEST):
                self._request(leader, markers[start : start + MARKERS_PER_REQUEST])

    def _request(self, leader: int, sent: list[_Unsent]) -> None:
        request = WriteTxnMarkersRequest(markers=[_form_of(each) for each in sent])
        self._peers.request(
            leader, ApiKey.WRITE_TXN_MARKERS, VERSION, request, partial(_answered, sent)
        )
        for each in sent:
            each.sender.sent()


def _form_of(unsent: _Unsent) -> WritableTxnMarker:
    marker = unsent.marker
    topics: dict[str, list[int]] = {}
    for topic, index in unsent.names:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in topics.items()
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _answered(sent: list[_Unsent], reply: WriteTxnMarkersResponse | None) -> None:
    if reply is None:
        for each in sent:
            each.sender.answered(each.names, None)
        return
    errors = {
        (result.producer_id, topic.name, partition.partition_index): partition.error_code
        for result in reply.markers
        for topic in result.topics
        for partition in topic.partitions
    }
    for each in sent:
        producer_id = each.marker.producer_id
        each.sender.answered(
            each.names,
            [ErrorCode(errors[producer_id, topic, index]) for topic, index in each.names],
        )
