"""Requests between brokers, over real socket pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.peers import Answer, FirstWrite
from fencepost.broker.process import new_event_loop
from fencepost.broker.transactions.markers import EndMarker
from fencepost.cluster.link import make_pair
from fencepost.cluster.peers import Peers

NAMES = [TopicPartition("t", 0)]
DONE = [ErrorCode.NONE]


class Broker:
    """One broker's peers; markers that arrive wait in `arrived` unless it answers at once.

    A marker is known by its producer id. Verifications are answered at once.
    """

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.arrived: list[tuple[int, Answer]] = []
        self.verified: list[FirstWrite] = []
        self.stopped: list[int] = []
        """The markers that were being written when their link was closed."""
        self.has_one = asyncio.Event()
        self.offset = 0
        self.peers = Peers(asyncio.get_running_loop(), lambda: self, lambda: self.offset)

    def verify(self, number: int, write: FirstWrite, answer: Answer) -> None:
        self.verified.append(write)
        answer([ErrorCode.TRANSACTION_ABORTABLE] * len(write.names))

    def write_marker(
        self, number: int, marker: EndMarker, names: Sequence[TopicPartition], answer: Answer
    ) -> Callable[[], None] | None:
        if self.answers:
            answer([ErrorCode.NONE] * len(names))
            return None
        self.arrived.append((marker.producer_id, answer))
        self.has_one.set()
        return partial(self.stopped.append, marker.producer_id)

    def ask(
        self, broker_id: int, producer_id: int, names: Sequence[TopicPartition] = NAMES
    ) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        marker = EndMarker(producer_id, 3, True, 1, 2)
        self.peers.write_marker(broker_id, marker, names, future.set_result)
        return future

    async def has_arrived(self, count: int) -> None:
        while len(self.arrived) < count:
            self.has_one.clear()
            await self.has_one.wait()


def join(first: Broker, second: Broker) -> None:
    """Gives two brokers, 1 and 2, a link."""
    here, there = make_pair()
    first.peers.connect(2, here)
    second.peers.connect(1, there)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 10))


def test_a_peer_answers_with_one_error_per_partition() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        names = [TopicPartition("t", 5), TopicPartition("größe", 2**31 - 1)]
        asked = first.ask(2, 7, names)
        await second.has_one.wait()
        ((producer_id, answer),) = second.arrived
        assert producer_id == 7
        answer([ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
        assert await asked == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
        assert await second.ask(1, 8) == DONE
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_a_peer_verifies_a_first_write() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker()
        join(first, second)
        names = [TopicPartition("t", 1), TopicPartition("u", 0)]
        write = FirstWrite(names, "réfunds", 2**40, 32_767, add=True)
        replied = asyncio.get_running_loop().create_future()
        first.peers.verify(2, write, replied.set_result)
        assert await replied == [ErrorCode.TRANSACTION_ABORTABLE] * 2
        (served,) = second.verified
        assert [getattr(served, each) for each in FirstWrite.__slots__] == [
            getattr(write, each) for each in FirstWrite.__slots__
        ]
        nobody = asyncio.get_running_loop().create_future()
        first.peers.verify(3, write, nobody.set_result)
        assert await nobody is None
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
        assert [each.arrived[0][0] for each in (first, second)] == [2, 1]
        for each in (first, second):
            each.arrived[0][1](DONE)
        assert await asyncio.gather(*asked) == [DONE, DONE]
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_a_later_request_may_be_answered_first() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        slow, quick = first.ask(2, 1), first.ask(2, 2)
        await second.has_arrived(2)
        second.arrived[1][1](DONE)
        assert await quick == DONE
        assert not slow.done()
        second.arrived[0][1]([ErrorCode.NOT_LEADER_OR_FOLLOWER])
        assert await slow == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
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
        second.arrived[0][1](DONE)

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
        restarted.arrived[0][1](DONE)
        assert await asked == DONE
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
        assert await second.ask(1, 9) == DONE
        assert not ahead.done()
        second.peers.applied(6)
        assert not ahead.done()
        second.offset = 7
        second.peers.applied(7)
        assert await ahead == DONE
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
        second.arrived[0][1](DONE)
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


# -- many at once ----------------------------------------------------------------------------------


def test_two_brokers_that_ask_each_other_a_thousand_times_in_one_turn_are_all_answered() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker()
        join(first, second)
        asked = [first.ask(2, number) for number in range(1_000)]
        asked += [second.ask(1, number) for number in range(1_000)]
        assert await asyncio.gather(*asked) == [DONE] * 2_000
        first.peers.close()
        second.peers.close()

    run(scenario)


def test_a_link_that_is_closed_by_one_of_many_requests_serves_none_of_those_behind_it() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        asked = [first.ask(2, number) for number in range(100)]
        await second.has_one.wait()
        # All have been read, in one go; those that are being served are not answered yet.
        await second.has_arrived(100)
        for number, answer in second.arrived[:50]:
            answer(DONE)
            if number == 9:
                second.peers.disconnect(1)
        # Their replies were to go out together at the end of the turn, and went with the link.
        assert await asyncio.gather(*asked) == [None] * 100
        assert second.stopped == list(range(10, 100))
        first.peers.close()

    run(scenario)


def test_requests_behind_one_that_closes_the_link_are_not_served() -> None:
    async def scenario() -> None:
        first, second = Broker(), Broker(answers=False)
        join(first, second)
        arrived = second.arrived

        class Closing(list[Any]):
            def append(self, each: Any) -> None:
                arrived.append(each)
                if each[0] == 9:
                    second.peers.disconnect(1)

        second.arrived = Closing()
        asked = [first.ask(2, number) for number in range(100)]
        assert await asyncio.gather(*asked) == [None] * 100
        assert [number for number, _ in arrived] == list(range(10))
        assert second.stopped == list(range(10))
        first.peers.close()

    run(scenario)
