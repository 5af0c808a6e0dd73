"""Requests between brokers, over real socket pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fencepost.broker.process import new_event_loop
from fencepost.cluster.link import make_pair
from fencepost.cluster.peers import Peers
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

MARKERS = ApiKey.WRITE_TXN_MARKERS
VERSION = 2


def asking(producer_id: int) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=producer_id)])


def answering(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[WritableTxnMarkerResult(producer_id=each.producer_id) for each in request.markers]
    )


class Broker:
    """One broker's peers; requests that arrive wait in `arrived` unless it answers at once."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.arrived: list[tuple[int, Callable[[Any], None]]] = []
        self.stopped: list[int] = []
        """The requests that were being served when their link was closed."""
        self.has_one = asyncio.Event()
        self.offset = 0
        self.peers = Peers(asyncio.get_running_loop(), self._serve, lambda: self.offset)

    def _serve(
        self, api: ApiKey, version: int, form: Any, answer: Callable[[Any], None]
    ) -> Callable[[], None]:
        assert (api, version) == (MARKERS, VERSION)
        producer_id = form.markers[0].producer_id
        if self.answers:
            answer(answering(form))
        else:
            self.arrived.append((producer_id, answer))
            self.has_one.set()
        return partial(self.stopped.append, producer_id)

    def ask(self, broker_id: int, producer_id: int) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self.peers.request(broker_id, MARKERS, VERSION, asking(producer_id), future.set_result)
        return future


def join(first: Broker, second: Broker) -> None:
    """Gives two brokers, 1 and 2, a link."""
    here, there = make_pair()
    first.peers.connect(2, here)
    second.peers.connect(1, there)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 10))


def test_a_peer_answers_a_request_with_a_form() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker()
        join(first, second)
        assert await first.ask(2, 7) == answering(asking(7))
        assert await second.ask(1, 8) == answering(asking(8))
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_two_brokers_that_ask_each_other_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        first, second = Broker(answers=False), Broker(answers=False)
        join(first, second)
        asked = [first.ask(2, 1), second.ask(1, 2)]
        await first.has_one.wait()
        await second.has_one.wait()
        # Each answers only after the other has asked: neither queue is behind the other.
        for each in (first, second):
            producer_id, answer = each.arrived[0]
            answer(answering(asking(producer_id)))
        assert [reply.markers[0].producer_id for reply in await asyncio.gather(*asked)] == [1, 2]
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_a_later_request_may_be_answered_first() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        slow, quick = first.ask(2, 1), first.ask(2, 2)
        while len(second.arrived) < 2:
            second.has_one.clear()
            await second.has_one.wait()
        second.arrived[1][1](answering(asking(2)))
        assert (await quick).markers[0].producer_id == 2
        assert not slow.done()
        second.arrived[0][1](answering(asking(1)))
        assert (await slow).markers[0].producer_id == 1
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_requests_to_a_dead_peer_are_answered_with_nothing() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        asked = [first.ask(2, number) for number in range(3)]
        await second.has_one.wait()
        second.peers.close()
        assert await asyncio.gather(*asked) == [None, None, None]
        assert first.peers.connected() == []
        assert await first.ask(2, 4) is None

    run(scenario)


def test_an_answer_for_a_peer_that_has_died_is_dropped() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        first.ask(2, 1)
        await second.has_one.wait()
        first.peers.close()
        assert await second.ask(1, 2) is None
        second.arrived[0][1](answering(asking(1)))

    run(scenario)


def test_a_restarted_peer_gets_a_new_link_and_none_of_the_old_requests() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        lost = first.ask(2, 1)
        # The new process is connected before the end of the old link has been read.
        restarted = Broker(answers=False)
        join(first, restarted)
        assert await lost is None
        asked = first.ask(2, 2)
        await restarted.has_one.wait()
        assert [producer_id for producer_id, _ in restarted.arrived] == [2]
        restarted.arrived[0][1](answering(asking(2)))
        assert (await asked).markers[0].producer_id == 2
        assert first.peers.connected() == [2]
        for each in (first, second, restarted):
            each.peers.close()

    run(scenario)


# -- the metadata offset of the sender -------------------------------------------------------------


def test_a_request_waits_until_its_receiver_has_applied_as_much_metadata_as_its_sender() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker()
        join(first, second)
        first.offset, second.offset = 7, 6
        ahead = first.ask(2, 1)
        # It was read: a request in the other direction, which is behind, was answered after it.
        assert await second.ask(1, 9) == answering(asking(9))
        assert not ahead.done()
        second.peers.applied(6)
        assert not ahead.done()
        second.offset = 7
        second.peers.applied(7)
        assert await ahead == answering(asking(1))
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_waiting_requests_are_served_in_the_order_in_which_they_were_sent() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        for number, offset in enumerate((5, 5, 6, 8)):
            first.offset = offset
            first.ask(2, number)
        first.ask(2, 4)
        assert await second.ask(1, 9) is not None
        assert second.arrived == []
        second.offset = 6
        second.peers.applied(6)
        assert [number for number, _ in second.arrived] == [0, 1, 2]
        # A request that arrives now must not overtake those that wait.
        first.offset = 6
        first.ask(2, 5)
        assert await second.ask(1, 9) is not None
        assert [number for number, _ in second.arrived] == [0, 1, 2]
        second.offset = 9
        second.peers.applied(9)
        assert [number for number, _ in second.arrived] == [0, 1, 2, 3, 4, 5]
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_a_fenced_broker_is_disconnected_with_all_that_waits_is_unread_or_is_being_served() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        first.ask(2, 1)
        await second.has_one.wait()
        first.offset = 1
        first.ask(2, 2)
        assert await second.ask(1, 9) is not None
        first.ask(2, 3)
        lost = second.ask(1, 8)
        second.peers.disconnect(1)
        assert await lost is None
        assert second.stopped == [1]
        second.offset = 1
        second.peers.applied(1)
        await asyncio.sleep(0)
        assert [number for number, _ in second.arrived] == [1]
        assert second.peers.connected() == []
        # A late answer has nowhere to go.
        second.arrived[0][1](answering(asking(1)))
        first.peers.close()

    run(scenario)


def test_a_request_that_was_answered_is_not_stopped_with_its_link() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker()
        join(first, second)
        assert await first.ask(2, 1) is not None
        second.peers.close()
        assert second.stopped == []
        first.peers.close()

    run(scenario)


def test_a_request_that_closes_its_own_link_is_stopped() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        append = second.arrived.append

        class Closing(list[Any]):
            def append(self, each: Any) -> None:
                append(each)
                second.peers.disconnect(1)

        second.arrived = Closing()
        assert await first.ask(2, 1) is None
        assert second.stopped == [1]
        first.peers.close()

    run(scenario)
