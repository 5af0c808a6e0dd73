"""The other brokers of a cluster, as the services of this one see them.

A service reaches another broker through `Peers`: `cluster/peers.py` in a cluster, `NO_PEERS` in a
single broker. There are two requests: the verification of a first write, which a leader sends to
the coordinator, and a marker, which a coordinator sends to the leader.

`PeerRequests` is the other direction: it serves what other brokers send. The link that a request
came on proves that a broker has sent it, so it needs no authorization. A trace shows the requests
in the form that Kafka's brokers use among themselves, AddPartitionsToTxn and WriteTxnMarkers; on
the links they have a shorter layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.broker.context import Context, Services
from fencepost.broker.transactions.arriving_markers import ArrivingMarkers
from fencepost.wire.apis import ApiKey
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
    from fencepost.base.errors import ErrorCode
    from fencepost.base.ids import TopicPartition
    from fencepost.broker.trace import Trace
    from fencepost.broker.transactions.markers import EndMarker

Answer = Callable[["list[ErrorCode]"], None]
"""Called once with one error per partition."""

Done = Callable[["list[ErrorCode] | None"], None]
"""The same, or called with None if the peer's process is dead or unknown."""

CLIENT_ID: Final = "fencepost-peer"
HOST: Final = "peer"

ADD: Final = ApiKey.ADD_PARTITIONS_TO_TXN
ADD_VERSION: Final = 5
WRITE: Final = ApiKey.WRITE_TXN_MARKERS
WRITE_VERSION: Final = 2
"""The versions whose forms have all that brokers send each other."""


class FirstWrite:
    """The first write of a transaction to some partitions of one leader."""

    __slots__ = ("add", "names", "producer_epoch", "producer_id", "transactional_id")

    def __init__(
        self,
        names: Sequence[TopicPartition],
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        add: bool,
    ) -> None:
        self.names = names
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.add = add
        """Whether the coordinator adds the partitions (TV2), or checks that they were added."""


class Peers:
    """Sends requests to other brokers; here, for a single broker, there are none.

    A request is sent once, and `done` is called once, at once if there is no such peer. None means
    that no copy of the request will be served: what the peer did before it died is in its logs.
    """

    def __init__(self) -> None:
        self.is_cluster = False
        """Whether there can be other brokers."""

    def verify(self, broker_id: int, write: FirstWrite, done: Done) -> None:
        """Asks the coordinator of a transaction whether a first write may go ahead."""
        done(None)

    def write_marker(
        self, broker_id: int, marker: EndMarker, names: Sequence[TopicPartition], done: Done
    ) -> None:
        """Sends a marker to the leader of these partitions."""
        done(None)


NO_PEERS: Final = Peers()


# -- what other brokers send
# ------------------------------------------------------------------------


class PeerRequests:
    """Serves the requests of other brokers."""

    def __init__(self, services: Services, trace: Trace | None = None) -> None:
        self._services: Final = services
        self._trace: Final = trace

    def verify(self, number: int, write: FirstWrite, answer: Answer) -> None:
        """Answers whether a first write may go ahead, as the coordinator of its transaction.

        It need not be stopped if the link is closed: it changes its own transaction at most, as the
        next question of the leader would.
        """
        if self._trace is not None:
            answer = self._traced_verification(self._trace, number, write, answer)
        self._services.transactions.verify_here(write, answer)

    def write_marker(
        self, number: int, marker: EndMarker, names: Sequence[TopicPartition], answer: Answer
    ) -> Callable[[], None] | None:
        """Writes a marker to partitions of this broker; answers when it is durable on all.

        Returns what stops it if its link is closed before; None if it is answered.
        """
        if self._trace is not None:
            answer = self._traced_marker(self._trace, number, marker, names, answer)
        services = self._services
        arriving = ArrivingMarkers(services.runtime, services.markers, ((marker, names),), answer)
        arriving.write()
        return None if arriving.is_answered else arriving.stop

    # -- the trace --------------------------------------------------------------------------------

    def _traced_verification(
        self, trace: Trace, number: int, write: FirstWrite, answer: Answer
    ) -> Answer:
        context = Context(self._services, ADD_VERSION, CLIENT_ID, HOST, number)
        trace.request(ADD, _verification_form(write), context, HOST, None)

        reply = partial(_verified_form, write)
        return partial(_trace_answer, trace, ADD, context, reply, answer)

    def _traced_marker(
        self,
        trace: Trace,
        number: int,
        marker: EndMarker,
        names: Sequence[TopicPartition],
        answer: Answer,
    ) -> Answer:
        context = Context(self._services, WRITE_VERSION, CLIENT_ID, HOST, number)
        trace.request(WRITE, _marker_form(marker, names), context, HOST, None)

        reply = partial(_marked_form, marker, names)
        return partial(_trace_answer, trace, WRITE, context, reply, answer)


def _trace_answer(
    trace: Trace,
    api: ApiKey,
    context: Context,
    reply: Callable[[list[ErrorCode]], object],
    answer: Answer,
    errors: list[ErrorCode],
) -> None:
    trace.reply(api, reply(errors), context, HOST, None)
    answer(errors)


# -- the forms of a trace
# ------------------------------------------------------------------------


def _verification_form(write: FirstWrite) -> AddPartitionsToTxnRequest:
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


def _verified_form(write: FirstWrite, errors: Iterable[ErrorCode]) -> AddPartitionsToTxnResponse:
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


def _marker_form(marker: EndMarker, names: Sequence[TopicPartition]) -> WriteTxnMarkersRequest:
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


def _marked_form(
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
