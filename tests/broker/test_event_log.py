"""Lines about timeouts and fences: complete when there are few, bounded in a storm."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from fencepost.broker.event_log import LINES_PER_SECOND
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.end_txn import EndTxnRequest
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.wire import WireProducer


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level(logging.INFO, logger="fencepost.broker.event_log")
    with Stage(durability="os") as stage:
        create_topic(stage, "refunds")
        yield stage


def events(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "fencepost.broker.event_log"]


def test_a_timeout_is_one_line_with_id_epoch_and_client(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    writer = WireProducer(stage, "a").initialise(timeout_ms=1_000)
    writer.send("refunds", b"x")
    stage.advance(20_000)
    (line,) = events(caplog)
    fields = line.__dict__
    assert fields["event"] == "transaction_timed_out"
    assert fields["transactional_id"] == "a"
    assert (fields["producer_id"], fields["producer_epoch"]) == writer.identity
    assert fields["timeout_ms"] == 1_000
    assert fields["client"] in line.getMessage()
    assert "is aborted after" in line.getMessage()
    assert "its timeout of 1000 ms has passed" in line.getMessage()


def test_a_takeover_names_both_clients(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    first = WireProducer(stage, "a").initialise()
    first.send("refunds", b"x")
    second = WireProducer(stage.connect(), "a").initialise()
    (line,) = events(caplog)
    assert line.__dict__["event"] == "transaction_taken_over"
    assert (line.__dict__["producer_id"], line.__dict__["producer_epoch"]) == first.identity
    assert {"client", "client_id", "by_client", "by_client_id"} <= line.__dict__.keys()
    WireProducer(stage, "a").initialise()
    idle = events(caplog)[-1]
    assert idle.__dict__["event"] == "producer_fenced"
    assert (idle.__dict__["producer_id"], idle.__dict__["producer_epoch"]) == second.identity


def test_the_end_by_an_operator_is_one_line_with_who_did_it_and_from_where(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    writer = WireProducer(stage, "a").initialise()
    writer.send("refunds", b"x")
    request = EndTxnRequest(
        transactional_id="a",
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        committed=True,
    )
    stage.connect_as("fencepost-txn-commit").call(ApiKey.END_TXN, 3, request)
    (line,) = events(caplog)
    fields = line.__dict__
    assert fields["event"] == "transaction_ended_by_administrator"
    assert (fields["by_client_id"], fields["by_principal"]) == (
        "fencepost-txn-commit",
        "User:ANONYMOUS",
    )
    assert fields["by_client"].startswith("127.0.0.1:")
    assert fields["client_id"] == "raw"
    assert "is committed after" in line.getMessage()
    assert "the producer is not fenced: by an administrator" in line.getMessage()


def test_a_first_start_and_an_end_by_the_client_are_no_events(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    writer = WireProducer(stage, "a").initialise()
    writer.send("refunds", b"x")
    writer.commit()
    writer.send("refunds", b"x")
    writer.abort()
    assert events(caplog) == []


def test_a_storm_of_fences_writes_a_bounded_number_of_lines(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    WireProducer(stage, "a").initialise()
    for _ in range(500):
        WireProducer(stage, "a").init()
    assert len(events(caplog)) == LINES_PER_SECOND
    stage.advance(1_000)
    last = events(caplog)[-1]
    assert last.getMessage() == "and 480 more of the event `producer_fenced` within a second"
    assert last.__dict__["left_out"] == 480
    caplog.clear()
    WireProducer(stage, "a").init()
    assert len(events(caplog)) == 1
