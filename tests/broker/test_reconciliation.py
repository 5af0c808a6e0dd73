"""What a start settles after a stop that was not clean: producer ids, and offsets of transactions that nobody ends."""

from __future__ import annotations

import pytest

from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC
from fencepost.broker.reconciliation import SKIPPED_IDS
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Stage
from tests.broker.requests import batch_of, create_topic, produce
from tests.transactions.requests import init_request
from tests.transactions.wire import NONE, TV1, TV2, WireProducer, consume

pytestmark = pytest.mark.usefixtures("quiet")


def fresh_id(stage: Stage) -> int:
    reply = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request(None))
    assert reply.error_code == NONE
    return int(reply.producer_id)


def sync(stage: Stage, topic: str) -> None:
    for name, partition in stage.node.shard.partitions.items():
        if name.topic == topic and partition.log_end_offset > 0:
            partition.log.sync()
            stage.disk.sync_dir(stage.node.layout.folder_of(name))
    stage.node.layout.sync_names()


def test_an_id_is_not_handed_out_twice_though_the_metadata_log_lost_its_block() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    stage = stage.kill().again()  # Which syncs the metadata log; the block comes after it.
    first = fresh_id(stage)
    assert (
        produce(stage, "t", batch_of(b"old", producer_id=first, epoch=0, sequence=0)).error_code
        == NONE
    )
    sync(stage, "t")
    stage = stage.lose_power().again()
    assert consume(stage, "t").values == [b"old"]
    second = fresh_id(stage)
    assert second > first + SKIPPED_IDS
    assert (
        produce(stage, "t", batch_of(b"new", producer_id=second, epoch=0, sequence=0)).error_code
        == NONE
    )
    assert consume(stage, "t").values == [b"old", b"new"]
    stage.abandon()


def test_after_a_kill_ids_go_on_above_those_that_partitions_know() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    for number, producer_id in enumerate((5_000, 2**63 - 1)):
        batch = batch_of(b"%d" % number, producer_id=producer_id, epoch=0, sequence=0)
        assert produce(stage, "t", batch).error_code == NONE
    stage = stage.kill().again()
    assert fresh_id(stage) == 5_001
    stage.abandon()


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_offsets_of_a_transaction_that_no_coordinator_knows_are_aborted(protocol: object) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    other = WireProducer(stage, "other", TV2).initialise()
    other.send("t", b"x")
    other.send_offsets("g", {("t", 0): 1})
    other.commit()
    stage = stage.kill().again()
    producer = WireProducer(stage, "a", protocol).initialise()  # type: ignore[arg-type]
    producer.send("t", b"lost")
    producer.send_offsets("g", {("t", 0): 5})
    sync(stage, "t")
    sync(stage, CONSUMER_OFFSETS_TOPIC)
    stage = stage.lose_power().again()
    for partition in stage.node.shard.partitions.values():
        assert len(partition.open_txns) == 0
        assert partition.last_stable_offset == partition.high_watermark
    producer.client = stage
    assert producer.end(commit=True) != NONE
    producer.initialise()
    producer.send("t", b"again")
    producer.send_offsets("g", {("t", 0): 6})
    producer.commit()
    assert b"lost" not in consume(stage, "t").values
    assert consume(stage, "t").values[-1] == b"again"
    stage.abandon()


def test_a_transaction_goes_on_after_the_death_of_the_process_alone() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "a", TV2).initialise()
    producer.send("t", b"first")
    producer.client = stage = stage.kill().again()
    producer.send("t", b"second")
    producer.commit()
    assert consume(stage, "t").values == [b"first", b"second"]
    stage.abandon()
