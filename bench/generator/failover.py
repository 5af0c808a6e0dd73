"""python -m bench.generator.failover: open transactions whose coordinator is killed.

Every producer has its own connections and an open transaction with one record. All coordinators are
on one broker, the victim; the partitions are led by all brokers. Then this process kills the victim
(kill -9), and from that moment every producer tries to commit: it sends EndTxn to its coordinator,
and after a lost connection or an error that clients retry, it pauses, looks its coordinator up at a
broker that answers, and sends EndTxn again. The pause does not grow, so that the figures show when
the cluster is back, not when a client happens to ask. Any other error ends the run.

The result is the time from the kill to the successful commit of each transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import uvloop

from bench.generator import answers
from bench.generator.answers import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_COMES,
    NO_ERROR,
    Answer,
    RefusedError,
)
from bench.generator.crowd import INIT_VERSION, LONGEST_TIMEOUT_MS
from bench.generator.frames import (
    CLIENT_ID,
    CORRELATION_AT,
    EndFrame,
    ProduceFrame,
    init_producer_id,
)
from bench.generator.job import Job
from bench.generator.scripts import END_TV2, PRODUCE_TV2, make_batch
from bench.generator.tally import Stopwatch
from fencepost.base.errors import ErrorCode
from fencepost.client.blocking import Cluster, connect
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import decode_response, encode_request
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest

FIND_VERSION: Final = 4
PATIENCE_SECONDS: Final = 120.0
BEGUN_AT_ONCE: Final = 32
"""How many transactions are begun at the same time."""
TRANSACTIONS: Final = 1
"""The key type of transactional ids in FindCoordinator."""

Address = tuple[str, int]
_RETRIED: Final = frozenset(
    {
        CONCURRENT_TRANSACTIONS,
        *COORDINATOR_COMES,
        ErrorCode.NOT_ENOUGH_REPLICAS.to_bytes(2, "big"),
        ErrorCode.NOT_LEADER_OR_FOLLOWER.to_bytes(2, "big"),
    }
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster, its victim, and the transactions."""

    bootstrap: str
    topic: str
    victim: int
    victim_pid: int
    count: int
    size: int
    backoff_ms: float


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is before the kill."""

    brokers: dict[int, Address]
    leaders: tuple[int, ...]
    """The leader of each partition."""
    names: tuple[str, ...]
    """Transactional ids whose coordinator is the victim."""


class Line(asyncio.Protocol):
    """One connection. Replies arrive in the order of the requests."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._partial = bytearray()
        self._correlation = 0
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._partial += data
        while len(self._partial) >= 4:
            end = 4 + int.from_bytes(self._partial[:4], "big")
            if len(self._partial) < end:
                return
            reply = self._waiting.popleft()
            if not reply.done():
                reply.set_result(bytes(self._partial[:end]))
            del self._partial[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(ConnectionResetError("the broker closed the connection"))
        self._waiting.clear()

    def ask(self, frame: bytearray) -> asyncio.Future[bytes]:
        """Sends a request; the reply comes with its size in front."""
        if self.is_closed:
            raise ConnectionResetError("the broker has closed the connection")
        assert self._transport is not None
        self._correlation += 1
        struct.pack_into(">i", frame, CORRELATION_AT, self._correlation)
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        self._transport.write(bytes(frame))
        return reply

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.close()


class Committer:
    """One producer with one transaction."""

    def __init__(self, plan: Plan, places: Places, name: str, number: int) -> None:
        self._plan = plan
        self._places = places
        self._name = name
        self._partition = number % len(places.leaders)
        self._lines: dict[Address, Line] = {}
        self._coordinator: Address | None = places.brokers[plan.victim]
        # Producers do not all ask the same broker first.
        self._others = itertools.islice(itertools.cycle(places.brokers.values()), number, None)
        self._end = EndFrame(name, END_TV2)
        self._ended = answers.ended(END_TV2)
        self.retries = 0
        self.committed_at = 0.0

    async def begin(self, batch: bytes) -> None:
        """Gets a producer id and writes one record, so that the transaction is open."""
        plan, places = self._plan, self._places
        initialised = answers.initialised(INIT_VERSION)
        request = init_producer_id(self._name, INIT_VERSION, LONGEST_TIMEOUT_MS)
        reply = await self._insist(places.brokers[plan.victim], request, initialised)
        identity = initialised.identity_in(reply)
        frame = ProduceFrame(
            plan.topic, batch, version=PRODUCE_TV2, acks=-1, transactional_id=self._name
        )
        frame.address(self._partition, len(places.leaders))
        frame.seal(*identity, 0)
        leader = places.brokers[places.leaders[self._partition]]
        await self._insist(leader, frame.data, answers.produced(plan.topic, PRODUCE_TV2))
        self._end.prepare(*identity)

    async def _insist(self, address: Address, frame: bytearray, answer: Answer) -> bytes:
        """The reply of a broker that is alive; retried while it asks for it."""
        while True:
            reply = await (await self._line(address)).ask(frame)
            code = answer.error_in(reply)
            if code == NO_ERROR:
                return reply
            if code not in _RETRIED:
                raise answer.refusal(code)
            await self._pause()

    async def commit(self) -> None:
        """Commits, however long it takes."""
        while not await self._try_to_commit():
            self.retries += 1
            await self._pause()
        self.committed_at = time.perf_counter()

    async def _try_to_commit(self) -> bool:
        try:
            if self._coordinator is None:
                self._coordinator = await self._find_coordinator()
            if self._coordinator is None:
                return False
            reply = await (await self._line(self._coordinator)).ask(self._end.data)
        except OSError:
            self._coordinator = None
            return False
        code = self._ended.error_in(reply)
        if code in COORDINATOR_COMES:
            self._coordinator = None
        elif code not in (NO_ERROR, CONCURRENT_TRANSACTIONS):
            raise self._ended.refusal(code)
        return code == NO_ERROR

    async def _find_coordinator(self) -> Address | None:
        line = next((each for each in self._lines.values() if not each.is_closed), None)
        if line is None:
            line = await self._line(next(self._others))
        form = FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=[self._name])
        chunks = encode_request(ApiKey.FIND_COORDINATOR, FIND_VERSION, 0, CLIENT_ID, form)
        reply = await line.ask(bytearray(b"".join(chunks)))
        _, found = decode_response(ApiKey.FIND_COORDINATOR, FIND_VERSION, memoryview(reply)[4:])
        (one,) = found.coordinators
        return None if one.error_code else (one.host, one.port)

    async def _line(self, address: Address) -> Line:
        line = self._lines.get(address)
        if line is None or line.is_closed:
            loop = asyncio.get_running_loop()
            _, line = await loop.create_connection(Line, *address)
            self._lines[address] = line
        return line

    async def _pause(self) -> None:
        await asyncio.sleep(self._plan.backoff_ms / 1000)

    def close(self) -> None:
        """Closes all connections."""
        for line in self._lines.values():
            line.close()


def find_places(cluster: Cluster, plan: Plan) -> Places:
    """Looks up brokers and leaders, and finds enough ids that the victim coordinates."""
    topic = cluster.find_topic(plan.topic)
    assert topic is not None, f"there is no topic {plan.topic}"
    leaders = tuple(one.leader for one in sorted(topic.partitions, key=lambda one: one.index))
    brokers: dict[int, Address] = dict(cluster.describe_cluster().brokers)
    return Places(brokers, leaders, tuple(itertools.islice(_names(cluster, plan), plan.count)))


def _names(cluster: Cluster, plan: Plan) -> Iterator[str]:
    """Transactional ids that the victim coordinates, without an end."""
    for start in itertools.count(step=plan.count):
        keys = [f"failover-{number}" for number in range(start, start + plan.count)]
        assert start < 100 * plan.count, f"broker {plan.victim} coordinates nothing"
        request = FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=keys)
        form: Any = cluster.send_request(ApiKey.FIND_COORDINATOR, request)
        yield from (one.key for one in form.coordinators if one.node_id == plan.victim)


async def measure(plan: Plan, places: Places) -> dict[str, float]:
    """Opens the transactions, kills the victim, and commits them."""
    batch = make_batch(Job(plan.bootstrap, "tv2", size=plan.size))
    committers = [Committer(plan, places, name, number) for number, name in enumerate(places.names)]
    room = asyncio.Semaphore(BEGUN_AT_ONCE)

    async def begin(one: Committer) -> None:
        async with room:
            await one.begin(batch)

    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*map(begin, committers))
        gc.collect()
        gc.freeze()
        watch = Stopwatch()
        killed_at = time.perf_counter()
        os.kill(plan.victim_pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(one.commit() for one in committers))
        elapsed = watch.elapsed()
    finally:
        for one in committers:
            one.close()
    seconds = sorted(one.committed_at - killed_at for one in committers)
    return {
        "first": seconds[0],
        "p50": at_share(seconds, 0.50),
        "p99": at_share(seconds, 0.99),
        "worst": seconds[-1],
        "retries": sum(one.retries for one in committers) / len(committers),
        "generator": elapsed.cpu / elapsed.wall,
        "led by the victim": places.leaders.count(plan.victim) / len(places.leaders),
    }


def at_share(ordered: Sequence[float], share: float) -> float:
    """The value that this share of all values stays below."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it once and prints the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.generator.failover", description=__doc__)
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT,..")
    add("--topic", required=True, help="exists; its partitions are led by several brokers")
    add("--victim", type=int, required=True, help="broker id")
    add("--victim-pid", type=int, required=True, help="the process that is killed")
    add("--count", type=int, default=1000, help="transactions")
    add("--size", type=int, default=1024, help="bytes of a record's value")
    add("--backoff-ms", type=float, default=100.0, help="pause before a retry")
    plan = Plan(**vars(parser.parse_args(arguments)))
    try:
        with connect(plan.bootstrap) as cluster:
            places = find_places(cluster, plan)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(measure(plan, places))
    except (RefusedError, OSError) as failure:
        print(f"the run failed: {failure!r}", file=sys.stderr)
        return 1
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
