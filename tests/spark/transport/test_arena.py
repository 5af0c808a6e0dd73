"""The memory that a worker lends to a peer: what the peer sees, what is refused, what is reused."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")
pytest.importorskip("numba", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import PeerLost
from fencepost.spark.transport import arena as arenas
from fencepost.spark.transport.arena import Arena, keep_arena, map_arena, take_arena
from fencepost.spark.transport.exchange import Outgoing
from fencepost.spark.transport.packing import PackedBatch
from fencepost.spark.transport.regions import Regions

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="memory is shared on Linux only"
)

SECONDS = 20.0
PLACE = TopicPartition("t", 1)
ACCEPTED = struct.pack(">q", -1)

NEIGHBOUR = """
import sys
from fencepost.spark.transport.arena import map_arena
memory = map_arena(bytes.fromhex(sys.argv[1]))
assert memory is not None
print(bytes(memory[10:14]).decode())
memory[20:24] = b"back"
"""


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "_kept", [])


def handle_of(arena: Arena) -> bytes:
    assert arena.handle is not None
    return arena.handle


def test_another_process_reads_and_writes_the_same_bytes() -> None:
    arena = Arena(4096)
    arena.memory[10:14] = list(b"here")
    command = [sys.executable, "-c", NEIGHBOUR, handle_of(arena).hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "here\n"
    assert arena.memory[20:24].tobytes() == b"back"


def test_memory_that_does_not_match_its_handle_is_not_mapped() -> None:
    arena, other = Arena(4096), Arena(4096)
    handle = handle_of(arena)
    assert map_arena(handle) is not None
    # The same numbers may mean something else, as on another machine.
    assert map_arena(handle[:-1] + bytes([handle[-1] ^ 1])) is None
    assert map_arena(handle[:24] + handle_of(other)[24:]) is None
    with open("/dev/null") as null:
        numbers = struct.pack(">QQ", arena.process_id, null.fileno())
        assert map_arena(numbers + handle[16:]) is None
    no_such_process = struct.pack(">Q", 2**40)
    assert map_arena(no_such_process + handle[8:]) is None


def test_freed_memory_is_not_mapped() -> None:
    arena = Arena(4096)
    handle = handle_of(arena)
    del arena
    assert map_arena(handle) is None


def test_without_shared_memory_an_arena_is_private_and_has_no_handle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(_: str) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", forbidden)
    arena = take_arena(100)
    arena.memory[:4] = list(b"here")
    assert arena.memory[:4].tobytes() == b"here"
    assert arena.handle is None


def test_the_next_task_reuses_the_memory_of_the_last_one() -> None:
    first = take_arena(100)
    keep_arena(first)
    assert take_arena(100) is first
    assert take_arena(100) is not first


def test_memory_that_is_too_small_or_of_another_process_is_not_reused() -> None:
    first = take_arena(100)
    keep_arena(first)
    assert len(take_arena(len(first.memory) + 1).memory) > len(first.memory)
    first.process_id += 1
    keep_arena(first)
    assert take_arena(100) is not first


def test_memory_that_is_still_lent_out_is_not_reused_by_the_next_task() -> None:
    regions = Regions(1000, 4)
    region = regions.take()
    regions.release()
    assert Regions(1000, 4).arena is not regions.arena
    regions.give_back(region)
    regions.release()
    assert Regions(1000, 4).arena is regions.arena


class Lender:
    """A task's end of a connection, and what became of its batches."""

    def __init__(self, end: socket.socket) -> None:
        self.arena = Arena(4096)
        self.losses: list[PeerLost] = []
        self.is_lost = threading.Event()
        self.done: list[int] = []
        self.outgoing = Outgoing(3, end, self._lose)

    def _lose(self, problem: PeerLost) -> None:
        self.losses.append(problem)
        self.is_lost.set()

    def send(self, at: int) -> None:
        self.arena.memory[at : at + 5] = list(b"batch")
        data = self.arena.memory[at : at + 5].data
        done = lambda: self.done.append(at)  # noqa: E731
        self.outgoing.send(PackedBatch(PLACE, 1, data, done, self.arena, at))

    def until_accepted(self) -> None:
        while not self.outgoing._is_accepted:
            pass


@pytest.fixture
def ends() -> Iterator[tuple[Lender, Any]]:
    here, there = socket.socketpair()
    there.settimeout(SECONDS)
    with here, there:
        yield Lender(here), there


def test_lent_memory_is_released_when_the_peer_returns_it(
    ends: tuple[Lender, socket.socket],
) -> None:
    lender, peer = ends
    lender.send(0)
    assert lender.done == [0], "sent, because the peer has not accepted the memory yet"
    peer.sendall(ACCEPTED)
    lender.until_accepted()
    lender.send(100)
    lender.send(200)
    assert lender.done == [0]
    peer.sendall(struct.pack(">qq", 200, 100))
    lender.outgoing.await_lent()
    assert lender.done == [0, 200, 100]
    assert lender.losses == []


def test_losing_a_peer_with_lent_memory_ends_the_wait(
    ends: tuple[Lender, socket.socket],
) -> None:
    lender, peer = ends
    lender.send(0)
    peer.sendall(ACCEPTED)
    lender.until_accepted()
    lender.send(100)
    peer.shutdown(socket.SHUT_WR)
    assert lender.is_lost.wait(SECONDS)
    with pytest.raises(PeerLost, match="task 3 of the write stage has hung up"):
        lender.outgoing.await_lent()
    with pytest.raises(PeerLost, match="task 3"):
        lender.send(200)
    assert lender.done == [0]
