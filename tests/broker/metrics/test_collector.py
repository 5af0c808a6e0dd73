"""Every metric moves as documented: one story each, on a whole broker with a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TRANSACTION_STATE_TOPIC
from fencepost.broker import turns
from fencepost.broker.metrics import collector
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from tests.broker.metrics.scraped import MeasuredStage, moved, samples_of
from tests.broker.moves.moving import OTHER, THIS, join_other, move, move_record, write
from tests.broker.requests import batch_of, create_topic, fetch, produce
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import marker_request
from tests.transactions.wire import WireProducer

MINUTE_MS = 60_000


@pytest.fixture
def stage() -> Iterator[MeasuredStage]:
    with MeasuredStage() as stage:
        create_topic(stage, "refunds", partitions=3)
        yield stage


def producer(stage: MeasuredStage, name: str = "a", protocol: Protocol = TV1) -> WireProducer:
    return WireProducer(stage, name, protocol).initialise()


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_a_commit_is_counted_and_timed(stage: MeasuredStage, protocol: Protocol) -> None:
    writer = producer(stage, protocol=protocol)
    before = stage.scrape()
    writer.send("refunds", b"x")
    writer.send("refunds", b"y", index=1)
    stage.advance(2_500)
    opened = stage.scrape()
    assert opened["fencepost_transactions{state=Ongoing}"] == 1
    assert opened["fencepost_transactions_open"] == 1
    assert opened["fencepost_transactions_oldest_open_seconds"] == 2.5
    writer.commit()
    after = moved(before, stage.scrape())
    assert after["fencepost_transactions_started_total"] == 1
    assert after["fencepost_transactions_committed_total"] == 1
    assert after["fencepost_transaction_commit_seconds_count"] == 1
    assert after["fencepost_transaction_lifetime_seconds_count"] == 1
    assert after["fencepost_transaction_lifetime_seconds_sum"] == 2.5
    assert after["fencepost_transaction_verification_seconds_count"] == 2
    assert after["fencepost_transactions{state=CompleteCommit}"] == 1
    assert "fencepost_transactions_open" not in after
    assert not any("aborted" in name for name in after)


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_an_abort_by_the_client_has_that_reason(stage: MeasuredStage, protocol: Protocol) -> None:
    writer = producer(stage, protocol=protocol)
    before = stage.scrape()
    writer.send("refunds", b"x")
    writer.abort()
    after = moved(before, stage.scrape())
    assert after["fencepost_transactions_aborted_total{reason=client}"] == 1
    assert "fencepost_producers_fenced_total{reason=newer_instance}" not in after
    assert "fencepost_transaction_commit_seconds_count" not in after


def test_an_abort_of_nothing_is_no_transaction(stage: MeasuredStage) -> None:
    writer = producer(stage, protocol=TV2)
    before = stage.scrape()
    writer.abort()
    assert "fencepost_transactions_aborted_total{reason=client}" not in moved(
        before, stage.scrape()
    )


def test_a_timeout_aborts_and_fences(stage: MeasuredStage) -> None:
    writer = producer(stage)
    before = stage.scrape()
    writer.send("refunds", b"x")
    stage.advance(2 * MINUTE_MS)
    after = moved(before, stage.scrape())
    assert after["fencepost_transactions_aborted_total{reason=timeout}"] == 1
    assert after["fencepost_producers_fenced_total{reason=timeout}"] == 1


def test_a_newer_instance_fences_and_aborts_what_was_open(stage: MeasuredStage) -> None:
    producer(stage).send("refunds", b"x")
    before = stage.scrape()
    producer(stage)
    after = moved(before, stage.scrape())
    assert after["fencepost_transactions_aborted_total{reason=newer_instance}"] == 1
    assert after["fencepost_producers_fenced_total{reason=newer_instance}"] == 1
    before = stage.scrape()
    producer(stage)
    after = moved(before, stage.scrape())
    assert after["fencepost_producers_fenced_total{reason=newer_instance}"] == 1
    assert "fencepost_transactions_aborted_total{reason=newer_instance}" not in after


@pytest.mark.parametrize("protocol", [TV1, TV2])
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_an_operator_has_that_reason(
    stage: MeasuredStage, protocol: Protocol, commit: bool
) -> None:
    writer = producer(stage, protocol=protocol)
    writer.send("refunds", b"x")
    before = stage.scrape()
    operator = stage.connect_as("fencepost-txn-commit" if commit else "fencepost-txn-abort")
    request = EndTxnRequest(
        transactional_id="a",
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        committed=commit,
    )
    assert operator.call(ApiKey.END_TXN, protocol.end_txn, request).error_code == ErrorCode.NONE
    after = moved(before, stage.scrape())
    by_administrator = {name: count for name, count in after.items() if "administrator" in name}
    expected = (
        {
            "fencepost_transactions_committed_by_administrator_total": 1.0,
        }
        if commit
        else {"fencepost_transactions_aborted_total{reason=administrator}": 1.0}
    )
    if protocol is TV2:
        expected["fencepost_producers_fenced_total{reason=administrator}"] = 1.0
    assert by_administrator == expected
    assert "fencepost_transactions_aborted_total{reason=client}" not in after


def test_the_fence_of_an_operator_has_that_reason_and_the_restart_after_it_has_none(
    stage: MeasuredStage,
) -> None:
    producer(stage)
    before = stage.scrape()
    operator = stage.connect_as("fencepost-txn-fence")
    request = InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=30_000)
    assert operator.call(ApiKey.INIT_PRODUCER_ID, 4, request).error_code == ErrorCode.NONE
    producer(stage)
    after = moved(before, stage.scrape())
    assert after["fencepost_producers_fenced_total{reason=administrator}"] == 1
    assert "fencepost_producers_fenced_total{reason=newer_instance}" not in after


def test_a_producer_that_recovers_from_an_error_fences_nobody(stage: MeasuredStage) -> None:
    writer = producer(stage)
    writer.send("refunds", b"x")
    before = stage.scrape()
    identity = {"producer_id": writer.producer_id, "epoch": writer.epoch}
    assert writer.init(**identity) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert writer.init(**identity) in (ErrorCode.NONE, ErrorCode.PRODUCER_FENCED)
    after = moved(before, stage.scrape())
    assert after["fencepost_transactions_aborted_total{reason=client}"] == 1
    assert not any("producers_fenced" in name for name in after)


def test_a_restart_may_abort_what_it_finds_open() -> None:
    stage = MeasuredStage(settings={"transaction.recovery.ongoing": "abort"}).start()
    create_topic(stage, "refunds")
    producer(stage).send("refunds", b"x")
    stage.kill()
    again = MeasuredStage(
        settings={"transaction.recovery.ongoing": "abort"}, disk=stage.disk
    ).start()
    again.advance(1_000)
    found = again.scrape()
    assert found["fencepost_transactions_aborted_total{reason=restart}"] == 1
    assert found["fencepost_producers_fenced_total{reason=restart}"] == 1
    assert found["fencepost_transactions_started_total"] == 0
    again.stop()


def test_a_commit_that_a_load_finishes_counts_but_was_not_timed() -> None:
    stage = MeasuredStage().start()
    create_topic(stage, "refunds")
    writer = producer(stage)
    writer.send("refunds", b"x")

    class Died(Exception):  # noqa: N818 - it is no error
        pass

    def die(point: str) -> None:
        if point == "commit.prepare-durable":
            raise Died

    stage.node.runtime.crash_points = die
    stage.connect().send(ApiKey.END_TXN, TV1.end_txn, writer.end_request(commit=True))
    stage.settle()
    stage.kill()
    again = MeasuredStage(disk=stage.disk).start()
    again.advance(1_000)
    found = again.scrape()
    assert found["fencepost_transactions_committed_total"] == 1
    assert found["fencepost_transaction_commit_seconds_count"] == 0
    assert found["fencepost_recovery_seconds"] > 0
    assert found["fencepost_coordinator_load_seconds_max{topic=__transaction_state}"] > 0
    again.stop()


def test_a_pinned_partition_shows_its_lag_and_age_until_the_transaction_ends(
    stage: MeasuredStage,
) -> None:
    writer = producer(stage)
    writer.send("refunds", b"x", b"y", index=2)
    produce(stage, "refunds", batch_of(b"z"), index=2)
    stage.advance(4_000)
    found = stage.scrape()
    assert found["fencepost_partitions_pinned"] == 1
    assert found["fencepost_last_stable_offset_lag_max"] == 3
    assert found["fencepost_last_stable_offset_lag_age_seconds_max"] == 4
    assert found["fencepost_last_stable_offset_lag{partition=2,topic=refunds}"] == 3
    assert found["fencepost_last_stable_offset_lag_age_seconds{partition=2,topic=refunds}"] == 4
    assert found["fencepost_partitions_with_late_transactions"] == 0
    writer.commit()
    found = stage.scrape()
    assert found["fencepost_partitions_pinned"] == 0
    assert not any("topic=refunds" in name for name in found)


def test_only_the_longest_pinned_partitions_get_series(
    stage: MeasuredStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "MAX_PINNED_SERIES", 2)
    for index in range(3):
        producer(stage, f"writer-{index}").send("refunds", b"x", index=index)
        stage.advance(1_000)
    found = stage.scrape()
    assert found["fencepost_partitions_pinned"] == 3
    shown = sorted(name for name in found if "topic=refunds" in name)
    assert shown == [
        "fencepost_last_stable_offset_lag_age_seconds{partition=0,topic=refunds}",
        "fencepost_last_stable_offset_lag_age_seconds{partition=1,topic=refunds}",
        "fencepost_last_stable_offset_lag{partition=0,topic=refunds}",
        "fencepost_last_stable_offset_lag{partition=1,topic=refunds}",
    ]


def test_a_hanging_transaction_is_late_on_its_partition_by_its_last_write() -> None:
    """KIP-664: no coordinator knows it, so nothing ends it."""
    settings = {"transaction.partition.verification.enable": "false"}
    with MeasuredStage(settings=settings) as stage:
        create_topic(stage, "refunds")
        writer = producer(stage)
        now_ms = stage.clock.now_ms()
        assert writer.produce("refunds", b"x", timestamp_ms=now_ms).error_code == ErrorCode.NONE
        stage.advance(19 * MINUTE_MS)
        found = stage.scrape()
        assert found["fencepost_partitions_with_late_transactions"] == 0
        stage.advance(2 * MINUTE_MS)
        found = stage.scrape()
        assert found["fencepost_partitions_with_late_transactions"] == 1
        assert found["fencepost_last_stable_offset_lag_age_seconds_max"] == 21 * 60
        assert found["fencepost_transactions_late"] == 0  # No coordinator has it.


def test_an_open_transaction_that_the_clock_did_not_end_is_late(stage: MeasuredStage) -> None:
    producer(stage).send("refunds", b"x")
    stage.clock.jump(21 * MINUTE_MS)  # The scan for timeouts has not run yet.
    found = stage.scrape()
    assert found["fencepost_transactions_late"] == 1
    assert found["fencepost_transactions_oldest_open_seconds"] == 21 * 60


def test_a_first_write_that_the_coordinator_refuses_is_counted(stage: MeasuredStage) -> None:
    writer = producer(stage)
    before = stage.scrape()
    told = writer.produce("refunds", b"x")
    assert told.error_code != ErrorCode.NONE
    after = moved(before, stage.scrape())
    assert after["fencepost_transaction_verification_failures_total"] == 1
    error = ErrorCode(told.error_code).name
    assert after[f"fencepost_request_errors_total{{api=Produce,error={error}}}"] == 1


def test_the_marker_of_an_administrator_is_counted(stage: MeasuredStage) -> None:
    writer = producer(stage)
    writer.send("refunds", b"x")
    request = marker_request(writer, {"refunds": [0]}, commit=False)
    stage.call(ApiKey.WRITE_TXN_MARKERS, 1, request)
    found = stage.scrape()
    assert found["fencepost_transaction_markers_by_request_total"] == 1
    assert found["fencepost_partitions_pinned"] == 0
    assert found["fencepost_transactions_open"] == 1  # The coordinator does not know.


def test_requests_and_bytes_are_counted_by_api(stage: MeasuredStage) -> None:
    before = stage.scrape()
    value = bytes(10_000)
    produce(stage, "refunds", batch_of(value))
    fetch(stage, "refunds", 0)
    after = moved(before, stage.scrape())
    assert after["fencepost_request_seconds_count{api=Produce}"] == 1
    assert after["fencepost_request_seconds_count{api=Fetch}"] == 1
    assert 10_000 < after["fencepost_request_received_bytes_total{api=Produce}"] < 11_000
    assert 10_000 < after["fencepost_reply_sent_bytes_total{api=Fetch}"] < 11_000
    assert 10_000 < after["fencepost_log_size_bytes"] < 11_000
    assert not any("errors" in name for name in after)


def test_a_request_without_a_reply_is_counted(stage: MeasuredStage) -> None:
    before = stage.scrape()
    request = WireProducer(stage, "none").produce_request("refunds", b"x", producer_id=-1, epoch=-1)
    request.acks, request.transactional_id = 0, None
    stage.connect().send(ApiKey.PRODUCE, 9, request)
    stage.settle()
    assert moved(before, stage.scrape())["fencepost_request_seconds_count{api=Produce}"] == 1


def test_producer_ids_and_partitions_are_those_of_this_broker(stage: MeasuredStage) -> None:
    writer = producer(stage)
    writer.send("refunds", b"x", index=0)
    writer.send("refunds", b"x", index=1)
    writer.commit()
    found = stage.scrape()
    assert found["fencepost_producer_ids"] == 2
    assert found["fencepost_partitions"] == len(stage.node.partitions.by_name) - 1


def test_a_scrape_in_slices_survives_the_deletion_of_what_it_reads(
    stage: MeasuredStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SHORT_TURN_SECONDS", 0.0)
    monkeypatch.setattr(collector, "ITEMS_PER_LOOK", 1)
    create_topic(stage, "gone", partitions=50)
    for index in range(3):
        producer(stage, f"writer-{index}").send("refunds", b"x", index=index)
    line = stage.connect()
    deletion = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in ("gone", "refunds")], timeout_ms=1_000
    )

    async def scrape_and_delete() -> bytes:
        scrape = asyncio.ensure_future(stage.collector.collect())
        for _ in range(20):
            await asyncio.sleep(0)
        line.send(ApiKey.DELETE_TOPICS, 6, deletion)
        stage.serve()
        return await scrape

    samples_of(stage.run(scrape_and_delete()).decode())
    stage.settle()
    found = stage.scrape()
    assert found["fencepost_partitions_pinned"] == 0
    assert found["fencepost_partitions"] == len(stage.node.partitions.by_name) - 1


def test_no_label_names_a_transactional_id_or_a_client(stage: MeasuredStage) -> None:
    writer = producer(stage, "secret-id")
    writer.send("refunds", b"x")
    writer.send_offsets("secret-group", {("refunds", 0): 1})
    text = stage.run(stage.collector.collect()).decode()
    assert "secret" not in text


def test_groups_are_counted_by_state(stage: MeasuredStage) -> None:
    writer = producer(stage)
    writer.send_offsets("g", {("refunds", 0): 1})
    writer.commit()
    found = stage.scrape()
    assert found["fencepost_groups{state=Empty}"] == 1
    assert found["fencepost_groups{state=Stable}"] == 0


def moves(stage: MeasuredStage) -> tuple[float, float]:
    """Moves of transaction and of group coordinators to this broker."""
    found = stage.scrape()
    name = "fencepost_coordinator_moves_total"
    return found[f"{name}{{topic=__transaction_state}}"], found[
        f"{name}{{topic=__consumer_offsets}}"
    ]


def test_neither_a_start_nor_a_recovery_is_a_move_of_a_coordinator(stage: MeasuredStage) -> None:
    producer(stage).send("refunds", b"x")
    assert moves(stage) == (0, 0)
    stage.kill()
    again = MeasuredStage(disk=stage.disk).start()
    again.advance(1_000)
    assert again.scrape()["fencepost_transactions_open"] == 1
    assert moves(again) == (0, 0)
    again.stop()


def test_a_coordinator_that_comes_from_another_broker_is_a_move(stage: MeasuredStage) -> None:
    producer(stage)
    join_other(stage)
    move(stage, TRANSACTION_STATE_TOPIC, to=OTHER)
    move(stage, "refunds", 0, to=OTHER)
    assert moves(stage) == (0, 0), "the broker that loses it does not count"
    move(stage, TRANSACTION_STATE_TOPIC, to=THIS)
    move(stage, "refunds", 0, to=THIS)
    assert moves(stage) == (1, 0)
    there = write(stage, move_record(stage, TRANSACTION_STATE_TOPIC, 0, OTHER))
    back = write(stage, move_record(stage, TRANSACTION_STATE_TOPIC, 0, THIS))
    stage.settle()
    assert there.is_done
    assert back.is_done
    assert moves(stage) == (2, 0)


def test_a_coordinator_without_a_leader_moves_only_if_another_broker_led_it_last(
    stage: MeasuredStage,
) -> None:
    producer(stage)
    join_other(stage)
    give_up(stage, TRANSACTION_STATE_TOPIC, last=THIS)
    move(stage, TRANSACTION_STATE_TOPIC, to=THIS)
    assert moves(stage) == (0, 0)
    give_up(stage, TRANSACTION_STATE_TOPIC, last=OTHER)
    move(stage, TRANSACTION_STATE_TOPIC, to=THIS)
    assert moves(stage) == (1, 0)


def give_up(stage: MeasuredStage, topic: str, *, last: int) -> None:
    """Partition 0 has no leader; its last one is the only replica in sync."""
    record = move_record(stage, topic, 0, to=NO_NODE)
    record.isr = [last]
    change = write(stage, record)
    stage.settle()
    assert change.is_done
