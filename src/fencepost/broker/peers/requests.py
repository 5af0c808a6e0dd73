"""Serves the requests of other brokers: verifications of first writes, and markers.

The link that a request came on proves that a broker has sent it, so it needs no authorization. A
trace shows the requests in the form that Kafka's brokers use among themselves: AddPartitionsToTxn
and WriteTxnMarkers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.broker.context import Context
from fencepost.broker.transactions.arriving_markers import ArrivingMarkers
from fencepost.wire.apis import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.base.errors import ErrorCode
    from fencepost.base.ids import TopicPartition
    from fencepost.broker.context import Services
    from fencepost.broker.peers.others import FirstWrite
    from fencepost.broker.trace import Trace
    from fencepost.broker.transactions.markers import EndMarker

    Answer = Callable[[list[ErrorCode]], None]

CLIENT_ID: Final = "fencepost-peer"
HOST: Final = "peer"

ADD: Final = ApiKey.ADD_PARTITIONS_TO_TXN
ADD_VERSION: Final = 5
WRITE: Final = ApiKey.WRITE_TXN_MARKERS
WRITE_VERSION: Final = 2
"""The versions whose forms have all that brokers send each other."""


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
        # Here and below, because only a trace needs the forms.
        from fencepost.broker.transactions import peer_forms

        context = Context(self._services, ADD_VERSION, CLIENT_ID, HOST, number)
        trace.request(ADD, peer_forms.verification(write), context, HOST, None)

        reply = partial(peer_forms.verified, write)
        return partial(_trace_answer, trace, ADD, context, reply, answer)

    def _traced_marker(
        self,
        trace: Trace,
        number: int,
        marker: EndMarker,
        names: Sequence[TopicPartition],
        answer: Answer,
    ) -> Answer:
        from fencepost.broker.transactions import peer_forms

        context = Context(self._services, WRITE_VERSION, CLIENT_ID, HOST, number)
        trace.request(WRITE, peer_forms.marker_request(marker, names), context, HOST, None)

        reply = partial(peer_forms.marker_reply, marker, names)
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
