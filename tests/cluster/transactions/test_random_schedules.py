"""Random histories of three brokers: kills, moves, lagging metadata, slow links, from one seed.

Producers of both protocols write and end transactions with the retries of a client while brokers
die, come back, and get and lose partitions. At the end every committed record was read once, no
record of an aborted transaction was read, and no transaction is open.

`FENCEPOST_HISTORIES=500` runs that many, and `FENCEPOST_HISTORY_SEED=7` one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from typing import Any, Final

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.broker.peers import Answer, FirstWrite
from fencepost.broker.transactions.ending import Ending
from fencepost.broker.transactions.first_writes import FirstWrites
from fencepost.wire.apis import ApiKey
from tests.cluster.transactions.brokers_stage import BrokersStage
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import (
    add_offsets_request,
    add_request,
    commit_offsets_request,
    init_request,
    transaction_of,
)
from tests.transactions.wire import WireProducer, committed_offset, values

BROKERS: Final = 3
PARTITIONS: Final = 4
TRANSACTIONS: Final = 10
"""The least number of each client; all go on until there were enough faults."""
FAULTS: Final = 15
GIVES_UP_AFTER_MS: Final = 600_000

RETRIED: Final = frozenset(
    {
        None,  # The connection was lost.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


def seeds() -> list[int]:
    if "FENCEPOST_HISTORY_SEED" in os.environ:
        return [int(os.environ["FENCEPOST_HISTORY_SEED"])]
    return list(range(int(os.environ.get("FENCEPOST_HISTORIES", "12"))))


class ClientProducer:
    """One producer: transactions until it has done enough of them."""

    def __init__(self, cluster: BrokersStage, name: str, protocol: Protocol, seed: int) -> None:
        self.cluster = cluster
        self.name = name
        self.group = f"group-{name}"
        self.random = random.Random(seed)
        self.wire = WireProducer(cluster, name, protocol)
        self.committed: list[tuple[int, bytes]] = []
        """(partition, value), in the order of the transactions."""
        self.offset = -1
        """The last committed offset of the group."""
        self.is_done = False

    async def call(self, api: ApiKey, version: int, form: Any) -> Any:
        """The reply, or None if the connection was lost."""
        call = self.cluster.send(api, version, form)
        while not call.is_done:  # noqa: ASYNC110 - on the virtual loop.
            await asyncio.sleep(0.001)
        return call.reply

    async def retried(self, attempt: Any) -> ErrorCode:
        deadline_ms = self.cluster.clock.now_ms() + GIVES_UP_AFTER_MS
        while True:
            error = await attempt()
            if error not in RETRIED:
                return ErrorCode(error)
            assert self.cluster.clock.now_ms() < deadline_ms, f"{self.name}: {error!r} for ever"
            await asyncio.sleep(0.02)

    async def run(self, faults: Faults) -> None:
        await self.initialise()
        number = 0
        while number < TRANSACTIONS or faults.count < FAULTS:
            await self.transact(number)
            number += 1
            # A broker that leads everything answers within one moment of the virtual time.
            await asyncio.sleep(self.random.uniform(0.02, 0.3))
        self.is_done = True

    async def transact(self, number: int) -> None:
        written: list[tuple[int, bytes]] = []
        error = ErrorCode.NONE
        for index in self.random.sample(range(PARTITIONS), self.random.randint(1, 3)):
            value = b"%s-%d-%d" % (self.name.encode(), number, index)
            error = await self.write(index, value)
            if error is not ErrorCode.NONE:
                break
            written.append((index, value))
        sends_offsets = self.random.random() < 0.3
        if error is ErrorCode.NONE and sends_offsets:
            error = await self.commit_offset(number)
        commit = error is ErrorCode.NONE and self.random.random() < 0.7
        error = await self.end(commit=commit)
        if error is not ErrorCode.NONE:
            # Fenced by the timeout: it was aborted.
            await self.initialise()
        elif commit:
            self.committed += written
            self.offset = number if sends_offsets else self.offset

    async def initialise(self) -> None:
        wire = self.wire

        async def attempt() -> int | None:
            reply = await self.call(
                ApiKey.INIT_PRODUCER_ID, wire.protocol.init, init_request(self.name)
            )
            if reply is not None and reply.error_code == ErrorCode.NONE:
                wire._take(reply.producer_id, reply.producer_epoch)
            return None if reply is None else reply.error_code

        assert await self.retried(attempt) is ErrorCode.NONE

    async def write(self, index: int, value: bytes) -> ErrorCode:
        wire = self.wire

        async def add() -> int | None:
            reply = await self.call(
                ApiKey.ADD_PARTITIONS_TO_TXN, 3, add_request(transaction_of(wire, {"t": [index]}))
            )
            if reply is None:
                return None
            topics = reply.results_by_transaction[0].topic_results
            return int(topics[0].results_by_partition[0].partition_error_code)

        async def produce() -> int | None:
            request = wire.produce_request("t", value, index=index)
            reply = await self.call(ApiKey.PRODUCE, wire.protocol.produce, request)
            if reply is None:
                return None
            return int(reply.responses[0].partition_responses[0].error_code)

        error = ErrorCode.NONE
        if wire.protocol.adds_explicitly:
            error = await self.retried(add)
        if error is ErrorCode.NONE:
            error = await self.retried(produce)
        if error is ErrorCode.NONE:
            wire.sequences["t", index] += 1
        return error

    async def commit_offset(self, offset: int) -> ErrorCode:
        wire = self.wire

        async def add() -> int | None:
            reply = await self.call(
                ApiKey.ADD_OFFSETS_TO_TXN, 4, add_offsets_request(wire, self.group)
            )
            return None if reply is None else reply.error_code

        async def commit() -> int | None:
            request = commit_offsets_request(wire, self.group, {("t", 0): offset})
            reply = await self.call(
                ApiKey.TXN_OFFSET_COMMIT, wire.protocol.txn_offset_commit, request
            )
            return None if reply is None else int(reply.topics[0].partitions[0].error_code)

        error = ErrorCode.NONE
        if wire.protocol.adds_explicitly:
            error = await self.retried(add)
        return await self.retried(commit) if error is ErrorCode.NONE else error

    async def end(self, *, commit: bool) -> ErrorCode:
        wire = self.wire

        async def attempt() -> int | None:
            reply = await self.call(
                ApiKey.END_TXN, wire.protocol.end_txn, wire.end_request(commit=commit)
            )
            if reply is not None and reply.error_code == ErrorCode.NONE:
                wire.ended(reply)
            return None if reply is None else reply.error_code

        return await self.retried(attempt)


class Faults:
    """Everything that goes wrong."""

    def __init__(self, cluster: BrokersStage, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.count = 0
        cluster.delay_ms = lambda: self.random.choice((0.1, 1, 5, 40))

    async def run(self, clients: list[ClientProducer]) -> None:
        kinds = [self.kill, self.move, self.lag, self.hold]
        while not all(client.is_done for client in clients):
            await asyncio.sleep(self.random.uniform(0, 0.1))
            kind = self.random.choice(kinds)
            await kind()
            self.count += 1

    async def kill(self) -> None:
        cluster, choose = self.cluster, self.random
        dead = choose.choice(cluster.living()).broker_id
        cluster.kill(dead)
        await asyncio.sleep(choose.uniform(0, 0.5))
        cluster.fail_over(dead, leader=choose.choice((None, cluster.living()[0].broker_id)))
        await asyncio.sleep(choose.uniform(0, 0.5))
        cluster.start(dead)

    async def move(self) -> None:
        choose = self.random
        topic = choose.choice(("t", "t", TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC))
        count = self.cluster.living()[0].metadata.partition_count(topic)
        leader = choose.choice(self.cluster.living()).broker_id
        self.cluster.move(topic, choose.randrange(count), leader)

    async def lag(self) -> None:
        slow = self.random.choice(self.cluster.living()).broker_id
        self.cluster.lag(slow)
        for _ in range(self.random.randint(1, 3)):
            await self.random.choice((self.move, self.hold, self.kill_another))()
            await asyncio.sleep(self.random.uniform(0, 0.2))
        self.cluster.catch_up(slow)

    async def kill_another(self) -> None:
        others = [each for each in self.cluster.living() if not each.is_lagging]
        if len(others) == BROKERS - 1:
            dead = self.random.choice(others).broker_id
            self.cluster.kill(dead)
            await asyncio.sleep(self.random.uniform(0, 0.2))
            self.cluster.fail_over(dead)
            self.cluster.start(dead)

    async def hold(self) -> None:
        broker = self.random.choice(self.cluster.living())
        if not broker.links:
            return
        end = broker.links[self.random.choice(sorted(broker.links))]
        end.is_held = True
        self.cluster.loop.call_later(self.random.uniform(0, 3), end.release)


def play_history(seed: int) -> None:
    """One history, and the checks at its end."""
    choose = random.Random(seed)
    with BrokersStage(
        brokers=BROKERS,
        topics={"t": [1 + index % BROKERS for index in range(PARTITIONS)]},
        transactions=(1, 2, 3),
        offsets=(3, 1),
        durability=choose.choice(("os", "fsync")),
    ) as cluster:
        clients = [
            ClientProducer(
                cluster, f"id-{number}", choose.choice((TV1, TV2)), choose.randrange(1 << 30)
            )
            for number in range(5)
        ]
        faults = Faults(cluster, choose.randrange(1 << 30))

        async def play() -> None:
            await asyncio.gather(*(client.run(faults) for client in clients), faults.run(clients))

        cluster.loop.run_until_complete(play())
        cluster.advance(120_000)
        assert cluster.open_transactions() == []
        check_records(cluster, clients)
        for client in clients:
            assert committed_offset(cluster, client.group, "t") == client.offset
        assert any(client.committed for client in clients)


def check_records(cluster: BrokersStage, clients: list[ClientProducer]) -> None:
    for index in range(PARTITIONS):
        read = values(cluster, "t", index=index)
        for client in clients:
            expected = [value for at, value in client.committed if at == index]
            of_client = [each for each in read if (each or b"").startswith(client.name.encode())]
            assert of_client == expected


@pytest.mark.parametrize("seed", seeds())
def test_every_committed_record_is_read_once_and_nothing_stays_open(seed: int) -> None:
    play_history(seed)


def is_caught() -> bool:
    """Whether one of some histories fails its checks."""
    for seed in range(20):
        try:
            play_history(seed)
        except AssertionError:
            return True
    return False


@pytest.mark.interpreted
def test_histories_catch_a_coordinator_that_takes_a_dead_leader_for_a_marker_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = Ending._answered

    def planted(
        ending: Ending, names: Sequence[TopicPartition], errors: list[ErrorCode] | None
    ) -> None:
        answered(ending, names, [ErrorCode.NONE] * len(names) if errors is None else errors)

    monkeypatch.setattr(Ending, "_answered", planted)
    assert is_caught()


@pytest.mark.interpreted
def test_histories_catch_a_marker_that_is_settled_by_a_broker_that_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Ending._refused

    def planted(ending: Ending, name: TopicPartition, error: ErrorCode) -> None:
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            ending._not_needed(name, error)
        else:
            refused(ending, name, error)

    monkeypatch.setattr(Ending, "_refused", planted)
    assert is_caught()


def test_histories_catch_a_leader_that_does_not_verify_first_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planted(asking: FirstWrites, write: FirstWrite, done: Answer) -> None:
        done([ErrorCode.NONE] * len(write.names))

    monkeypatch.setattr(FirstWrites, "ask", planted)
    assert is_caught()
