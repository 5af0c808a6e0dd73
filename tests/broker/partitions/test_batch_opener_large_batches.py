"""Large batches whose records are checked are opened over several turns and appended in order."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import split_batches
from fencepost.records.compression import Codec
from fencepost.records.opened import open_batch
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from fencepost.wire.forms.produce import TopicProduceData
from tests.broker.node_stage import Line, Stage
from tests.broker.requests import (
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    delete_topic,
    fetch,
    produce_request,
    read_topic,
)
from tests.transactions.protocol import TV2
from tests.transactions.wire import WireProducer

pytestmark = pytest.mark.usefixtures("one_step_per_turn")

MANY = 5000
COMPACTED = {"cleanup.policy": "compact"}


def many(count: int = MANY, codec: int = Codec.ZSTD, **more: Any) -> bytearray:
    return batch_of(*[b"%d" % n for n in range(count)], codec=codec, **{"key": b"k", **more})


def send(line: Line, topic: str, *batches: bytearray) -> list[int]:
    return [
        line.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, batch))
        for batch in batches
    ]


def outcome(line: Line, correlation_id: int) -> Any:
    reply = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, correlation_id)
    return reply.responses[0].partition_responses[0]


@pytest.fixture(params=["os", "fsync"])
def stage(request: pytest.FixtureRequest) -> Any:
    with Stage(durability=request.param) as started:
        create_topic(started, "compacted", settings=COMPACTED)
        yield started


def test_a_large_batch_takes_several_turns_and_others_are_served_meanwhile(stage: Stage) -> None:
    line, other = stage.connect(), stage.connect()
    (sent,) = send(line, "compacted", many())
    turns = 0
    while sent not in line.replies:
        stage.loop.turn()
        assert other.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
        turns += 1
    assert turns >= MANY // 1000 - 1  # The first thousand are checked at once.
    assert outcome(line, sent).error_code == 0
    assert len(read_topic(stage, "compacted")) == MANY


def test_the_batches_of_a_producer_stay_in_order(stage: Stage) -> None:
    line = stage.connect()
    identity = {"producer_id": 7, "epoch": 0}
    sent = send(
        line,
        "compacted",
        many(sequence=0, **identity),
        batch_of(b"small", key=b"k", sequence=MANY, **identity),
        many(sequence=MANY + 1, **identity),
        batch_of(b"last", key=b"k", sequence=2 * MANY + 1, **identity),
    )
    told = [outcome(line, each) for each in sent]
    assert [each.error_code for each in told] == [0] * 4
    assert [each.base_offset for each in told] == [0, MANY, MANY + 1, 2 * MANY + 1]


def test_a_large_batch_with_records_without_a_key_is_refused(stage: Stage) -> None:
    line = stage.connect()
    values = [b"%d" % n for n in range(MANY)]
    batch = batch_of(*values, codec=Codec.LZ4)
    told = outcome(line, send(line, "compacted", batch)[0])
    assert told.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in told.record_errors] == list(range(100))
    assert read_topic(stage, "compacted") == []


def test_a_large_batch_with_damage_deep_inside_is_refused(stage: Stage) -> None:
    from crc32c import crc32c

    batch = many(codec=Codec.NONE)
    batch[-2:] = b"\xff\xff"
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    line = stage.connect()
    assert outcome(line, send(line, "compacted", batch)[0]).error_code == ErrorCode.INVALID_RECORD
    assert outcome(line, send(line, "compacted", many())[0]).error_code == 0


def test_a_topic_may_be_deleted_while_its_batch_is_being_opened(stage: Stage) -> None:
    line = stage.connect()
    sent = send(line, "compacted", many(), batch_of(b"behind", key=b"k"))
    assert delete_topic(stage, "compacted") == 0
    for each in sent:
        assert outcome(line, each).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(stage, "again", settings=COMPACTED)
    assert outcome(line, send(line, "again", many())[0]).error_code == 0


def test_a_large_batch_is_written_after_its_client_has_disconnected(stage: Stage) -> None:
    line = stage.connect()
    send(line, "compacted", many())
    line.wire.close()
    stage.advance(10)
    assert len(read_topic(stage, "compacted")) == MANY


def test_a_stop_does_not_wait_for_a_large_batch(stage: Stage) -> None:
    send(stage.connect(), "compacted", many())
    stage.stop()
    assert not stage.fatal
    again = stage.again()
    assert len(read_topic(again, "compacted")) in (0, MANY)
    again.stop()


def test_a_large_batch_may_be_part_of_a_transaction(stage: Stage) -> None:
    producer = WireProducer(stage, "t", TV2).initialise()
    told = producer.produce(
        "compacted", *[b"%d" % n for n in range(MANY)], key=b"k", codec=Codec.ZSTD
    )
    assert told.error_code == 0
    producer.commit()
    assert fetch(stage, "compacted", isolation_level=1).last_stable_offset == MANY + 1


def test_many_small_batches_in_one_request_are_opened_in_turns(stage: Stage) -> None:
    create_topic(stage, "wide", 20, settings=COMPACTED)
    request = produce_request("wide", many(900))
    (data,) = request.topic_data
    data.partition_data += [
        part
        for index in range(1, 20)
        for part in produce_request("wide", many(900), index=index).topic_data[0].partition_data
    ]
    assert isinstance(data, TopicProduceData)
    line = stage.connect()
    sent = line.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    assert sent not in line.replies
    reply = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, sent)
    told = reply.responses[0].partition_responses
    assert [each.error_code for each in told] == [0] * 20


@pytest.mark.parametrize("count", [3, MANY], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["gzip", "uncompressed", "zstd", "lz4", "snappy"])
def test_a_batch_is_stored_in_the_codec_of_its_topic_with_the_same_records(
    stage: Stage, kind: str, count: int
) -> None:
    create_topic(stage, "repacked", settings={"compression.type": kind})
    line = stage.connect()
    sent = many(count, codec=Codec.LZ4, producer_id=9, epoch=3, sequence=0)
    assert outcome(line, send(line, "repacked", sent)[0]).error_code == 0
    (before,) = split_batches(sent)
    (after,) = split_batches(fetch(stage, "repacked").records)
    codec = Codec.NONE if kind == "uncompressed" else Codec[kind.upper()]
    assert after.codec == codec
    assert open_batch(after) == open_batch(before)
    for field in ("base_timestamp", "max_timestamp", "producer_id", "producer_epoch"):
        assert getattr(after, field) == getattr(before, field)


def test_a_batch_with_acks_0_gets_no_reply_unless_it_is_refused(stage: Stage) -> None:
    line = stage.connect()
    request = produce_request("compacted", many(), acks=0)
    line.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    assert line.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
    stage.settle()  # The reply to the second request does not wait for the disk.
    assert len(read_topic(stage, "compacted")) == MANY
    keyless = produce_request("compacted", many(key=None), acks=0)
    line.send(ApiKey.PRODUCE, PRODUCE_VERSION, keyless)
    stage.advance(10)
    assert line.is_closed
