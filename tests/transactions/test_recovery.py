"""A broker that stops, crashes or unloads a coordinator during a transaction, over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.halves import half_of
from tests.transactions.protocol import TV2, Protocol
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    find_coordinator,
    logged_states,
    state_of,
    values,
)

STEPS: dict[str, Callable[[WireProducer], object]] = {
    "find the coordinator": lambda one: find_coordinator(one.client, "a"),
    "init": lambda one: one.initialise(),
    "join refunds": lambda one: one.join(("refunds", 0)),
    "write refunds": lambda one: one.send("refunds", b"refund"),
    "join audit": lambda one: one.join(("audit", 1)),
    "write audit": lambda one: one.send("audit", b"audit", index=1),
    "write refunds again": lambda one: one.send("refunds", b"refund 2"),
    "offsets": lambda one: one.send_offsets("g", {("settlements", 0): 1}),
    "end": lambda one: one.commit(),
}
"""The requests of a refund, in order; a restart may follow any of them."""


def prepare(stage: Stage) -> None:
    create_topic(stage, "settlements")
    create_topic(stage, "refunds")
    create_topic(stage, "audit", 2)
    for key, key_type in (("a", 1), ("g", GROUP)):
        await_coordinator(stage, key, key_type)


class Lives:
    """One broker after the other on the same disk, and a producer that outlives them."""

    def __init__(self, *, durability: str = "os", **settings: str) -> None:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        self.stage = Stage(durability=durability, settings=given).start()
        prepare(self.stage)

    def restart(self, end: str, producer: WireProducer | None = None) -> None:
        """The next broker after a clean stop, kill -9, or a power loss."""
        if end == "stop":
            self.stage.stop()
        elif end == "kill":
            self.stage.kill()
        else:
            self.stage.lose_power()
        self.stage = self.stage.again()
        self.stage.settle()
        if producer is not None:
            producer.client = self.stage


@pytest.fixture
def lives() -> Iterator[Callable[..., Lives]]:
    made: list[Lives] = []

    def make(**settings: str) -> Lives:
        made.append(Lives(**settings))
        return made[-1]

    yield make
    for each in made:
        each.stage.abandon()
        assert not each.stage.fatal
        assert not each.stage.problems


# -- a restart between any two requests ------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "end"), half_of([*product(range(len(STEPS)), ("stop", "kill", "power"))])
)
def test_a_restart_between_any_two_requests_does_not_affect_the_transaction(
    lives: Callable[..., Lives], protocol: Protocol, position: int, end: str
) -> None:
    world = lives(durability="fsync" if end == "power" else "os")
    one = WireProducer(world.stage, "a", protocol)
    for number, step in enumerate(STEPS.values()):
        step(one)
        if number == position:
            world.restart(end, one)
    stage = world.stage
    assert values(stage, "refunds") == [b"refund", b"refund 2"]
    assert values(stage, "audit", index=1) == [b"audit"]
    assert committed_offset(stage, "g", "settlements") == 1
    assert logged_states(stage, "a")[-2:] == ["PrepareCommit", "CompleteCommit"]


# -- transaction.recovery.ongoing ------------------------------------------------------------------


# -- coordinator partitions are unloaded and loaded in a running broker ----------------------------


def move_away(stage: Stage, topic: str) -> list[int]:
    """Unloads every coordinator partition of a topic; returns their indexes."""
    service = stage.node.transactions if topic == TRANSACTION_STATE_TOPIC else stage.node.groups
    indexes = list(range(stage.node.metadata.partition_count(topic)))
    for index in indexes:
        service.unload(index)
    return indexes


def test_case_48_an_unconfirmed_marker_does_not_count_as_written(
    stage: Stage, protocol: Protocol
) -> None:
    """There is no other broker whose reply could be wrong, but the rule still holds."""
    prepare(stage)
    one = WireProducer(stage, "a", protocol).initialise()
    one.send("refunds", b"v")
    one.send("audit", b"v")
    partition = stage.node.partitions.by_name.pop(("audit", 0))  # type: ignore[call-overload]
    assert one.end(commit=True) == NONE
    stage.advance(60_000)
    assert state_of(stage, "a") == "PrepareCommit"
    stage.node.partitions.by_name[partition.name] = partition
    stage.advance(200)
    assert state_of(stage, "a") == "CompleteCommit"
    assert values(stage, "audit") == [b"v"]


def test_kafka_20310_the_next_producer_id_survives_a_restart_between_prepare_and_complete(
    lives: Callable[..., Lives],
) -> None:
    """The Prepare record has the next producer id, and its completion uses it."""
    world = lives()
    one = WireProducer(world.stage, "a", TV2).initialise()
    stage = world.stage
    raise_epoch(stage, "a", 32_766)
    one.epoch = 32_766
    one.send("refunds", b"v")
    one.send_offsets("g", {("settlements", 0): 1})
    move_away(stage, CONSUMER_OFFSETS_TOPIC)
    again = one.twin()
    old_id = one.producer_id
    assert one.end(commit=True) == NONE
    assert (one.producer_id != old_id, one.epoch) == (True, 0)
    assert state_of(stage, "a") == "PrepareCommit"
    world.restart("kill", again)
    assert state_of(world.stage, "a") == "CompleteCommit"
    assert again.end(commit=True) == NONE
    assert again.identity == one.identity
    again.send("refunds", b"next")
    again.commit()
    assert values(world.stage, "refunds") == [b"v", b"next"]


def raise_epoch(stage: Stage, transactional_id: str, epoch: int) -> None:
    """Moves an id to the epoch that it would have after 32,766 transactions."""
    for coordinator in stage.node.transactions.coordinators():
        txn = coordinator.state.transactions.get(transactional_id)
        if txn is not None:
            txn.producer_epoch = epoch
