"""A broker that stops, crashes or unloads a coordinator during a transaction, over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.broker.coordinators import log_loader
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    committed_offsets,
    describe,
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


@pytest.mark.parametrize("end", ["stop", "kill", "power"])
@pytest.mark.parametrize("position", range(len(STEPS)), ids=list(STEPS))
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


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_open_transactions_are_aborted_at_the_start_if_configured(
    lives: Callable[..., Lives], protocol: Protocol, end: str
) -> None:
    """The live producer gets the same errors as after a timeout."""
    world = lives(transaction_recovery_ongoing="abort")
    one = WireProducer(world.stage, "a", protocol).initialise()
    one.send("refunds", b"before")
    one.send_offsets("g", {("settlements", 0): 1})
    world.restart(end, one)
    stage = world.stage
    assert logged_states(stage, "a")[-2:] == ["PrepareAbort", "CompleteAbort"]
    assert values(stage, "refunds") == []
    assert committed_offset(stage, "g", "settlements") == -1
    assert one.produce("refunds", b"after").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    if protocol is TV1:
        assert one.end(commit=True) == ErrorCode.PRODUCER_FENCED
        one.initialise()
    else:
        assert one.end(commit=True) == ErrorCode.INVALID_TXN_STATE
        one.abort()
    one.send("refunds", b"again")
    one.commit()
    assert values(stage, "refunds") == [b"again"]


# -- coordinator partitions are unloaded and loaded in a running broker ----------------------------


def move_away(stage: Stage, topic: str) -> list[int]:
    """Unloads every coordinator partition of a topic; returns their indexes."""
    service = stage.node.transactions if topic == TRANSACTION_STATE_TOPIC else stage.node.groups
    indexes = list(range(stage.node.metadata.partition_count(topic)))
    for index in indexes:
        service.unload(index)
    return indexes


def come_back(stage: Stage, topic: str, indexes: list[int]) -> None:
    service = stage.node.transactions if topic == TRANSACTION_STATE_TOPIC else stage.node.groups
    for index in indexes:
        partition = stage.node.partitions.get(topic, index)
        assert partition is not None
        service.load(index, partition)


def answers(one: WireProducer) -> dict[str, int]:
    """The error of each request that needs the transaction coordinator."""
    probe = one.twin()
    return {
        "init": probe.init(),
        "add": probe.add_one("refunds"),
        "group": probe.add_offsets("g"),
        "offsets": probe.commit_offsets("g", {("settlements", 0): 1})["settlements", 0],
        "end": probe.end(commit=True),
        "describe": describe(one.client, "a").error_code,
    }


def test_a_transaction_coordinator_partition_can_move_away_and_back(
    stage: Stage, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NOT_COORDINATOR, then COORDINATOR_LOAD_IN_PROGRESS, then the transaction continues."""
    prepare(stage)
    one = WireProducer(stage, "a", protocol).initialise()
    one.send("refunds", b"before")
    one.send_offsets("g", {("settlements", 0): 1})
    indexes = move_away(stage, TRANSACTION_STATE_TOPIC)
    told = answers(one)
    held = told.pop("offsets")
    assert set(told.values()) == {ErrorCode.NOT_COORDINATOR}
    assert held == NONE, "the group already knows the transaction, so it need not ask"
    assert one.produce("audit", b"v").error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert one.produce("refunds", b"meanwhile").error_code == NONE, (
        "an added partition need not ask"
    )
    monkeypatch.setattr(log_loader, "ENTRIES_PER_TURN", 1)
    come_back(stage, TRANSACTION_STATE_TOPIC, indexes)
    told = answers(one)
    del told["offsets"]
    assert set(told.values()) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert one.produce("audit", b"v").error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    stage.advance(1)
    assert state_of(stage, "a") == "Ongoing"
    one.send("refunds", b"after")
    one.commit()
    assert values(stage, "refunds") == [b"before", b"meanwhile", b"after"]
    assert committed_offset(stage, "g", "settlements") == 1


def test_a_group_coordinator_partition_can_move_away_and_back(
    stage: Stage, protocol: Protocol
) -> None:
    prepare(stage)
    one = WireProducer(stage, "a", protocol).initialise()
    one.send_offsets("g", {("settlements", 0): 1})
    indexes = move_away(stage, CONSUMER_OFFSETS_TOPIC)
    told = one.commit_offsets("g", {("settlements", 0): 2})
    assert set(told.values()) == {ErrorCode.NOT_COORDINATOR}
    come_back(stage, CONSUMER_OFFSETS_TOPIC, indexes)
    stage.settle()
    (pending,) = committed_offsets(stage, "g", "settlements", stable=True)
    assert pending.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT, "pending offsets are in the log"
    one.send_offsets("g", {("settlements", 0): 2})
    one.commit()
    assert committed_offset(stage, "g", "settlements") == 2


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


def test_a_topic_deleted_inside_a_transaction_does_not_prevent_its_end(
    stage: Stage, protocol: Protocol
) -> None:
    prepare(stage)
    one = WireProducer(stage, "a", protocol).initialise()
    one.send("refunds", b"v")
    one.send("audit", b"v")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="audit")], timeout_ms=1_000)
    stage.call(ApiKey.DELETE_TOPICS, 6, request)
    one.commit()
    assert state_of(stage, "a") == "CompleteCommit"
    assert values(stage, "refunds") == [b"v"]


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
