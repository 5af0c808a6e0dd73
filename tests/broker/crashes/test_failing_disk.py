"""Reads that fail: clients get an error, later the records, and never aborted ones.

(`test_crash_matrix.py` and `test_failed_steps.py` fail every other kind of call.)
"""

from __future__ import annotations

import errno

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import split_batches
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.broker.node_stage import Stage
from tests.broker.requests import NOW_MS, create_topic, fetch
from tests.transactions.protocol import TV2
from tests.transactions.wire import WireProducer, consume

pytestmark = pytest.mark.usefixtures("quiet")


def aborted_and_committed(stage: Stage) -> WireProducer:
    create_topic(stage, "t", settings={"internal.segment.bytes": "300"})
    producer = WireProducer(stage, "x", TV2)
    producer.initialise()
    for number in range(8):
        producer.produce("t", b"%d" % number, timestamp_ms=NOW_MS + number)
        assert producer.end(commit=number % 2 == 0) == ErrorCode.NONE
    return producer


@pytest.mark.parametrize("kinds", [("read", "view"), ("open", "read_file"), ()])
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_failed_read_gets_a_storage_error_and_succeeds_the_next_time(
    kinds: tuple[str, ...], error: int
) -> None:
    """Nothing is cached after a start, so indexes and aborted transactions are read too."""
    stage = Stage(durability="os").start()
    aborted_and_committed(stage)
    stage.stop()
    failed = 0
    for call in range(1, 30):
        stage = stage.again()
        for ask in (read_all_committed, offset_by_time):
            stage.disk.fail_for_a_while(call, 1, error, kinds=kinds)
            told, found = ask(stage)
            stage.disk.heal()
            if told == ErrorCode.NONE:
                assert found == ask(stage)[1]
            else:
                failed += 1
                assert told == ErrorCode.KAFKA_STORAGE_ERROR
                assert ask(stage)[0] == ErrorCode.NONE
            assert (stage.fatal, stage.problems) == ([], [])
        stage.stop()
    assert failed > 2


def read_all_committed(stage: Stage) -> tuple[int, list[bytes]]:
    """With the ids of aborted transactions, which a reader needs to skip their records."""
    values: list[bytes] = []
    offset = 0
    while True:
        got = fetch(stage, "t", offset=offset, isolation_level=1)
        if got.error_code or not got.records:
            return got.error_code, values
        batches = split_batches(got.records)
        aborted = {(each.producer_id, each.first_offset) for each in got.aborted_transactions or ()}
        values += [repr(aborted).encode(), bytes(got.records)]
        offset = batches[-1].next_offset


def offset_by_time(stage: Stage) -> tuple[int, list[bytes]]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=NOW_MS + 3)
    topic = ListOffsetsTopic(name="t", partitions=[asked])
    reply = stage.call(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(replica_id=-1, topics=[topic]))
    told = reply.topics[0].partitions[0]
    return told.error_code, [b"%d" % told.offset] if not told.error_code else []


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_records_aborted_while_the_transaction_index_cannot_be_read_stay_hidden(
    durability: str,
) -> None:
    stage = Stage(durability=durability).start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "x", TV2)
    producer.initialise()
    producer.produce("t", b"first")
    assert producer.end(commit=False) == ErrorCode.NONE
    stage.stop()
    producer.client = stage = stage.again()
    producer.produce("t", b"aborted")
    stage.disk.fail_for_a_while(1, 3, errno.EIO, kinds=["read_file"])
    assert producer.end(commit=False) == ErrorCode.NONE
    stage.disk.heal()
    producer.produce("t", b"seen")
    assert producer.end(commit=True) == ErrorCode.NONE
    assert consume(stage, "t").values == [b"seen"]
    producer.client = stage = stage.kill().again()
    assert consume(stage, "t").values == [b"seen"]
    stage.stop()
    stage = stage.again()
    assert consume(stage, "t").values == [b"seen"]
    stage.stop()
