"""Goal: a producer whose epochs are exhausted gets a new producer id in every case.

Method: twin runs (see the package's docstring). The last epoch that a client may hold is 32766.
There is no short way to it: each id is initialised that often, a hundred requests at a time and all
ids side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from fencepost.wire.apis import ApiKey
from tests.broker.raw import RawClient, frame_of
from tests.compat.twin.transactional import (
    Producer,
    add,
    describe,
    end,
    finish,
    init,
    look,
    look_at_id,
    produce,
    start,
    write,
)
from tests.transactions.protocol import TV1, TV2, Protocol

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

LAST_EPOCH: Final = 32766
BURST: Final = 99
INIT_VERSION: Final = 4
NAMES: Final = ("idle", "asks", "fenced", "TV1", "TV2", "late")


def exhaust(talk: Talk, *names: str) -> dict[str, Producer]:
    """Producers that hold the last epoch there is."""
    producers = {}
    for name in names:
        timeout_ms = 300 if name.endswith("late") else 60_000
        producers[name] = start(talk, name, timeout_ms=timeout_ms)
    lines = {name: RawClient(talk.side.bootstrap_servers) for name in names}
    rounds, rest = divmod(LAST_EPOCH, BURST)
    for count in [BURST] * rounds + [rest]:
        for name, line in lines.items():
            timeout_ms = 300 if name.endswith("late") else 60_000
            request = init(name, timeout_ms=timeout_ms).form
            line.send_bytes(frame_of(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request) * count)
        for name, line in lines.items():
            for _ in range(count):
                reply = line.reply(ApiKey.INIT_PRODUCER_ID, INIT_VERSION)
                assert reply.error_code == 0, reply
            if count:
                producers[name].take(reply)
    for name, line in lines.items():
        line.close()
        assert producers[name].epoch == LAST_EPOCH
        look_at_id(talk, "exhausted", name)
    return producers


def come_back(talk: Talk, step: str, producer: Producer) -> None:
    """The producer requests a new epoch with its own, twice, and with one that it never had."""
    name = producer.transactional_id
    identity = {"producer_id": producer.producer_id}
    for epoch in (LAST_EPOCH, LAST_EPOCH, LAST_EPOCH - 1, 0):
        talk.ask(f"{step}: {name} asks at {epoch}", init(name, epoch=epoch, **identity))
        talk.settle(name)
    look_at_id(talk, step, name)


def end_at_the_last_epoch(talk: Talk, producer: Producer, protocol: Protocol) -> None:
    topic = "exhausted"
    last = producer.at()
    write(talk, producer, protocol, topic, b"last")
    finish(talk, producer, protocol, commit=True)
    look_at_id(talk, "ended", producer.transactional_id)
    for commit in (True, False):
        talk.ask(f"the same again, {commit}", end(last, commit=commit), protocol.end_txn)
        talk.settle(producer.transactional_id)
    look_at_id(talk, "again", producer.transactional_id)
    late = last.batch(b"late", sequence=1)
    ask = produce(topic, late, transactional_id=producer.transactional_id)
    talk.ask("a late write", ask, protocol.produce)
    talk.ask("a late add", add(last, topic), 3)
    if protocol is TV2:
        write(talk, producer, protocol, topic, b"first")
        finish(talk, producer, protocol, commit=False)
        look_at_id(talk, "the next", producer.transactional_id)
    come_back(talk, "afterwards", last)


@pytest.mark.timeout(180)
def test_a_producer_at_its_last_epoch(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("exhausted")
        idle, asks, fenced, first, second, late = exhaust(
            talk, *(f"exhausted-{name}" for name in NAMES)
        ).values()
        talk.ask("another producer starts", init(idle.transactional_id))
        look_at_id(talk, "another producer has started", idle.transactional_id)
        come_back(talk, "idle", idle)
        name = asks.transactional_id
        stale = init(name, producer_id=asks.producer_id, epoch=LAST_EPOCH - 1)
        row = "InitProducerId with an earlier epoch when the highest epoch is in use"
        talk.ask("an epoch before the last", stale, differs=row)
        look_at_id(talk, "before the last", name)
        come_back(talk, "asks", asks)
        write(talk, fenced, TV2, "exhausted", b"open")
        talk.ask("fenced", init(fenced.transactional_id))
        talk.settle(fenced.transactional_id)
        look_at_id(talk, "fenced", fenced.transactional_id)
        talk.ask("it aborts late", end(fenced, commit=False), TV2.end_txn)
        talk.ask("the new one", init(fenced.transactional_id))
        come_back(talk, "fenced", fenced)
        end_at_the_last_epoch(talk, first, TV1)
        end_at_the_last_epoch(talk, second, TV2)
        write(talk, late, TV2, "exhausted", b"too late")
        name = late.transactional_id
        talk.until(
            describe(name), lambda r: r.transaction_states[0].transaction_state == "CompleteAbort"
        )
        look_at_id(talk, "timed out", name)
        talk.ask("it aborts late", end(late, commit=False), TV2.end_txn)
        talk.ask("it commits late", end(late, commit=True), TV2.end_txn)
        look(talk, "in the end", "exhausted")

    twins.compare(script)
