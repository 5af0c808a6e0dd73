"""Links between the processes of a cluster, over real socket pairs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fencepost.base.failures import WireError
from fencepost.broker import turns
from fencepost.broker.process import new_event_loop
from fencepost.cluster.link import Link, make_pair


class End:
    """One end of a link, and what arrived there."""

    def __init__(self, end: socket.socket, react: Callable[[End], None] | None = None) -> None:
        self.received: list[tuple[int, bytes]] = []
        self.files: list[int] = []
        self.ended = asyncio.Event()
        self.ends = 0
        self._wanted = 0
        self._enough = asyncio.Event()
        self._react = react
        self.link = Link(
            asyncio.get_running_loop(), end, on_message=self._on_message, on_end=self._on_end
        )

    def send(self, kind: int, *body: bytes, files: Sequence[int] = ()) -> None:
        self.link.send(kind, body, files)

    async def messages(self, count: int) -> list[tuple[int, bytes]]:
        self._wanted = count
        if len(self.received) < count:
            await asyncio.wait_for(self._enough.wait(), 30)
        return self.received

    def _on_message(self, kind: int, body: memoryview, files: list[int]) -> None:
        self.received.append((kind, bytes(body)))
        self.files += files
        if self._react is not None:
            self._react(self)
        if len(self.received) >= self._wanted:
            self._enough.set()

    def _on_end(self) -> None:
        self.ends += 1
        self.ended.set()


def run(scenario: Callable[[socket.socket, socket.socket], object]) -> None:
    """Runs a scenario on the loop that brokers use, and closes both ends."""

    async def main() -> None:
        here, there = make_pair()
        with here, there:
            await scenario(here, there)  # type: ignore[misc]

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def test_messages_arrive_in_order_with_their_kinds() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        sender.send(3, b"one")
        sender.send(4)
        sender.send(3, b"", b"t", b"wo")
        assert await receiver.messages(3) == [(3, b"one"), (4, b""), (3, b"two")]
        sender.link.close()
        receiver.link.close()

    run(scenario)


class CountedSocket(socket.socket):
    """A socket that counts its writes."""

    writes = 0

    def send(self, *given: Any) -> int:
        self.writes += 1
        return super().send(*given)


def test_posted_messages_of_one_turn_share_a_write_and_keep_their_order_with_others() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        counted = CountedSocket(fileno=here.detach())
        sender, receiver = End(counted), End(there)
        for number in range(100):
            sender.link.post(1, b"%d" % number)
        assert counted.writes == 0
        assert await receiver.messages(100) == [(1, b"%d" % number) for number in range(100)]
        assert counted.writes == 1
        sender.link.post(1, b"posted")
        sender.send(2, b"sent")
        sender.link.post(1, b"last")
        assert (await receiver.messages(103))[100:] == [(1, b"posted"), (2, b"sent"), (1, b"last")]
        sender.link.close()
        receiver.link.close()

    run(scenario)


def test_what_messages_of_one_read_post_goes_out_in_one_write() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        counted = CountedSocket(fileno=there.detach())
        sender, receiver = End(here), End(counted, lambda end: end.link.post(2, b"reply"))
        for _ in range(10):
            sender.link.post(1, b"request")
        assert await sender.messages(10) == [(2, b"reply")] * 10
        assert counted.writes == 1
        sender.link.close()
        receiver.link.close()

    run(scenario)


def test_what_was_posted_in_the_turn_in_which_a_link_is_closed_is_not_sent() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        sender.link.post(1, b"nobody reads this")
        sender.link.close()
        sender.link.post(1, b"nor this")
        await asyncio.wait_for(receiver.ended.wait(), 30)
        assert receiver.received == []
        receiver.link.close()

    run(scenario)


def test_many_messages_are_delivered_over_several_turns_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)

    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        loop, turns = asyncio.get_running_loop(), 0

        def count() -> None:
            nonlocal turns
            if 0 < len(receiver.received) < 1_000:
                turns += 1
            loop.call_soon(count)

        count()
        for number in range(1_000):
            sender.link.post(1, b"%d" % number)
        sender.link.post(2, bytes(200_000))
        received = await receiver.messages(1_001)
        assert received[:1_000] == [(1, b"%d" % number) for number in range(1_000)]
        assert received[1_000] == (2, bytes(200_000))
        assert turns > 10
        sender.link.close()
        receiver.link.close()

    run(scenario)


def test_messages_that_wait_for_the_next_turn_are_dropped_when_the_link_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)

    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        for _ in range(1_000):
            sender.link.post(1, b"x")
        await receiver.messages(1)
        receiver.link.close()
        delivered = len(receiver.received)
        assert delivered < 1_000
        await asyncio.wait_for(sender.ended.wait(), 30)
        assert len(receiver.received) == delivered

    run(scenario)


def test_both_ends_may_send_more_than_the_kernel_holds_before_either_reads() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        large = os.urandom(8_000_000)
        ends = End(here), End(there)
        for each in ends:
            each.send(1, large)
            each.send(2, b"after it")
        for each in ends:
            assert await each.messages(2) == [(1, large), (2, b"after it")]
            each.link.close()

    run(scenario)


def test_a_message_carries_files_that_the_other_end_can_use() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        pipes = [os.pipe() for _ in range(5)]
        sender.send(1, b"no file")
        for number, (read_end, _) in enumerate(pipes):
            sender.send(2, b"%d" % number, files=[read_end])
        await receiver.messages(6)
        for number, (_, write_end) in enumerate(pipes):
            os.write(write_end, b"%d" % number)
            assert os.read(receiver.files[number], 10) == b"%d" % number
            os.close(write_end)
            os.close(receiver.files[number])
        sender.link.close()
        receiver.link.close()

    run(scenario)


def test_the_files_of_a_message_arrive_with_it_behind_a_large_one() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        read_end, write_end = os.pipe()
        sender.send(1, bytes(5_000_000))
        sender.send(2, bytes(5_000_000), files=[read_end])
        await receiver.messages(2)
        assert len(receiver.files) == 1
        os.close(write_end)
        assert os.read(receiver.files[0], 1) == b""
        os.close(receiver.files[0])
        sender.link.close()
        receiver.link.close()

    run(scenario)


def test_what_was_sent_before_the_end_is_delivered_before_the_end_is_reported() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        sender.send(1, b"last words")
        sender.link.close()
        await asyncio.wait_for(receiver.ended.wait(), 30)
        assert receiver.received == [(1, b"last words")]
        assert receiver.ends == 1

    run(scenario)


def test_sending_to_a_link_that_ended_does_nothing_and_leaks_no_file() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender, receiver = End(here), End(there)
        receiver.link.close()
        await asyncio.wait_for(sender.ended.wait(), 30)
        read_end, write_end = os.pipe()
        sender.send(1, b"nobody reads this", files=[read_end])
        with pytest.raises(BrokenPipeError):
            os.write(write_end, b"x")
        os.close(write_end)
        assert sender.ends == 1

    run(scenario)


def test_a_link_may_be_closed_by_the_message_that_it_delivers() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        sender = End(here)
        receiver = End(there, react=lambda end: end.link.close())
        sender.send(1, b"stop")
        sender.send(1, b"too late")
        await receiver.messages(1)
        await asyncio.wait_for(sender.ended.wait(), 30)
        assert receiver.received == [(1, b"stop")]
        assert receiver.ends == 0

    run(scenario)


def test_a_size_that_cannot_be_is_refused() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        problem: asyncio.Future[BaseException] = loop.create_future()
        loop.set_exception_handler(lambda _, context: problem.set_result(context["exception"]))
        receiver = End(there)
        here.sendall(b"\xff\xff\xff\xff\x01\x00")
        assert isinstance(await asyncio.wait_for(problem, 30), WireError)
        receiver.link.close()

    run(scenario)


def test_the_end_is_reported_when_the_other_process_is_killed() -> None:
    async def scenario(here: socket.socket, there: socket.socket) -> None:
        end = End(here)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=subprocess.PIPE, pass_fds=[there.fileno()]
        )
        there.close()
        child.kill()
        await child.wait()
        await asyncio.wait_for(end.ended.wait(), 30)

    run(scenario)
