"""Many aborts take several turns, and never affect the next transaction of a producer."""

from __future__ import annotations

import pytest

from fencepost.broker import turns
from fencepost.broker.transactions import timeouts as transaction_clock
from fencepost.broker.transactions.journal import BY_TIMEOUT
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.protocol import TV1
from tests.transactions.wire import WireProducer, state_of, values

pytestmark = pytest.mark.interpreted


def open_some(stage: Stage, count: int) -> list[WireProducer]:
    create_topic(stage, "t")
    made = [WireProducer(stage, f"p{n}", TV1).initialise() for n in range(count)]
    for each in made:
        each.send("t", each.transactional_id.encode())
    return made


def test_all_open_transactions_are_aborted_at_load_in_slices_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    stage = Stage(
        durability="os",
        settings={
            "transaction.recovery.ongoing": "abort",
            "transaction.state.log.num.partitions": "1",
        },
    ).start()
    made = open_some(stage, 7)
    stage.kill()
    again = stage.again()
    again.advance(100)
    assert {state_of(again, each.transactional_id) for each in made} == {"CompleteAbort"}
    again.stop()


def test_a_transaction_that_began_after_the_scan_is_not_aborted() -> None:
    with Stage(durability="os", settings={"transaction.state.log.num.partitions": "1"}) as stage:
        (one,) = open_some(stage, 1)
        (coordinator,) = stage.node.transactions.coordinators()
        late = transaction_clock.OpenTransaction(coordinator, "p0")
        assert late.is_still_open()
        one.commit()
        stage.advance(5)
        one.send("t", b"next")
        stage.node.transactions.clock._abort([late], BY_TIMEOUT)
        one.commit()
        assert values(stage, "t")[-1] == b"next"
