"""The refunds processor with three client libraries and faults: nothing is lost or duplicated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import pytest

import fencepost
from fencepost.broker.node import Node
from fencepost.wire.apis import ApiKey
from fencepost_examples.refunds.processor.__main__ import CLIENTS
from fencepost_examples.refunds.processor.ports import (
    AbortableError,
    FatalError,
    FencedError,
    KafkaFailure,
    Message,
)
from fencepost_examples.refunds.processor.processor import RefundsProcessor, next_offsets
from fencepost_examples.refunds.processor.rows import REFUND_AUDIT, REFUNDS_EMITTED
from tests.broker.raw import RawClient
from tests.halves import EVERY_CALL, HALF
from tests.transactions.refunds_stage import (
    Ahead,
    Died,
    DyingKafka,
    RefundsBroker,
    Watched,
    settlement,
)
from tests.transactions.wire import values


@pytest.fixture(params=CLIENTS)
def world(request: pytest.FixtureRequest) -> Iterator[RefundsBroker]:
    settings = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}
    with fencepost.Broker(config=settings) as broker:
        made = RefundsBroker(broker, request.param)
        try:
            yield made
        finally:
            made.close()


def test_settlements_become_refunds_audit_rows_and_offsets(world: RefundsBroker) -> None:
    world.settle(25)
    world.work()
    world.assert_exactly_once()
    first, *_ = values(world.raw, REFUNDS_EMITTED)
    assert json.loads(first or b"") == {
        "refund_id": "RFD-0",
        "amount_paise": 250_000,
        "merchant": "merchant-0",
    }
    first, *_ = values(world.raw, REFUND_AUDIT)
    assert json.loads(first or b"") == {
        "refund_id": "RFD-0",
        "actor": "system",
        "reason": "merchant-initiated",
    }


def test_a_refused_write_is_aborted_and_retried(world: RefundsBroker) -> None:
    """An abortable error from a real broker: the audit topic is forbidden for a while."""
    world.settle(4)

    class NoAudit:
        def authorize(
            self, principal: str, host: str, operation: str, kind: str, name: str
        ) -> bool:
            return (operation, name) != ("WRITE", REFUND_AUDIT)

    def change(authorizer: Any) -> Callable[[Node], None]:
        def set_it(node: Node) -> None:
            node.services.authorizer = authorizer

        return set_it

    allowing = world.broker.call(lambda node: node.services.authorizer)
    kafka = Watched(world.connect())
    shard = RefundsProcessor(kafka)
    shard.start()
    world.broker.call(change(NoAudit()))
    while "abort" not in kafka.calls:
        assert shard.process_some() == 0
    assert world.rows(REFUNDS_EMITTED) == world.rows(REFUND_AUDIT) == []
    world.broker.call(change(allowing))
    world.finish(shard)
    world.assert_exactly_once()


def test_a_zombie_processor_closes_and_stops(world: RefundsBroker) -> None:
    world.settle(2)
    shard = RefundsProcessor(world.connect())
    shard.start()
    world.finish(shard)
    world.settle(2)
    world.work()
    world.settle(2)
    with pytest.raises(FencedError):
        for _ in range(20):
            shard.process_some()
    world.work()
    world.assert_exactly_once()


def test_a_transaction_that_times_out_is_repeated_by_a_new_instance(world: RefundsBroker) -> None:
    world.settle(3)
    slow = world.connect()
    slow.init_transactions()
    messages: list[Message] = []
    while not messages:
        messages = list(slow.poll())
    slow.begin()
    slow.send(REFUNDS_EMITTED, b"k", settlement(88))
    slow.send_offsets(next_offsets(messages))

    def let_time_pass(node: Node) -> None:
        node.runtime.clock = Ahead(node.runtime.clock, 120_000)
        node.transactions.clock.abort_timed_out()

    world.broker.call(let_time_pass)
    with pytest.raises(KafkaFailure) as told:
        slow.commit()
    assert isinstance(told.value, (FencedError, AbortableError, FatalError))
    world.work()
    world.assert_exactly_once()


# -- crashes ---------------------------------------------------------------------------------------

REQUESTS: Final = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)


@pytest.mark.parametrize(
    ("world", "api", "when"),
    [
        (client, api, when)
        for number, (api, when) in enumerate(product(REQUESTS, ("before it", "after it")))
        for client in (CLIENTS if EVERY_CALL else [list(CLIENTS)[(number + HALF) % len(CLIENTS)]])
    ],
    indirect=["world"],
    ids=lambda value: value.name if isinstance(value, ApiKey) else value,
)
def test_a_connection_that_breaks_at_any_request_loses_and_duplicates_nothing(
    world: RefundsBroker, api: ApiKey, when: str
) -> None:
    world.settle(3)
    world.broker.call(lambda node: node.faults.drop(api, effect=when == "after it"))
    world.work()
    assert world.broker.call(lambda node: not node.faults), "the fault was used"
    world.assert_exactly_once()


def test_a_process_that_dies_at_any_call_loses_and_duplicates_nothing(world: RefundsBroker) -> None:
    """init, poll, begin, four writes, offsets, commit: the next instance completes the work."""
    deaths = [(number, False) for number in range(9)] + [(8, True)]
    for lives_for, after in deaths:
        world.settle(2)
        shard = RefundsProcessor(DyingKafka(world.connect(), lives_for, after=after))
        with pytest.raises(Died):
            shard.start()
            for _ in range(50):
                shard.process_some()
        world.work()
        world.assert_exactly_once()


def test_the_broker_may_be_restarted_at_any_time(world: RefundsBroker) -> None:
    world.settle(3)
    shard = RefundsProcessor(world.connect())
    shard.start()
    world.finish(shard)
    world.settle(3)
    world.raw.close()
    world.broker.restart()
    world.raw = RawClient(world.broker.bootstrap_servers)
    world.finish(shard)
    world.assert_exactly_once()
