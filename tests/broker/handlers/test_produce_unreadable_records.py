"""A batch whose records cannot be read is refused with INVALID_RECORD, and nothing is written.

Its readers would never get past it. Method: every batch of `tests/records/malformed.py`, in every
codec, to topics that handle batches differently; then what is around such a batch: its producer,
its transaction, the other partitions of its request, and requests behind it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_DECOMPRESSED_BYTES
from fencepost.records.batch import split_batches
from fencepost.records.compression import CODECS, Codec
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.conftest import NewTopic
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient
from tests.broker.requests import (
    NOW_MS,
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    fetch,
    produce,
    produce_request,
    read_topic,
)
from tests.records.malformed import (
    LYING,
    ODD,
    batch,
    bomb,
    damaged_streams,
    odd_streams,
    record,
    resealed,
)
from tests.records.test_compression import READ_BY_ALL
from tests.records.test_scan import READABLE
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import list_offsets_request
from tests.transactions.wire import WireProducer, consume
from tools.fencepost_process import FencepostProcess

INVALID = ErrorCode.INVALID_RECORD
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "zipped": {"compression_type": "gzip"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
}
BROKEN = record(off_by=1) + record(1)


def malformed(payload: bytes, count: int, **more: Any) -> bytearray:
    return batch(payload, count, timestamp_ms=NOW_MS, **more)


def broken(**identity: Any) -> bytearray:
    """A batch of two records, of which the first claims one byte too many."""
    return malformed(BROKEN, 2, **identity)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(durability="os") as started:
        create_topic(started, "t", 3)
        yield started


# -- what is refused
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LYING, *(name for name in ODD if name not in READABLE)])
def test_a_batch_with_unreadable_records_is_refused_by_every_topic(
    client: RawClient, new_topic: NewTopic, name: str
) -> None:
    payload, count = {**LYING, **ODD}[name]
    for settings in KINDS.values():
        topic = new_topic(**settings)
        for codec in sorted(CODECS):
            reply = produce(client, topic, malformed(payload, count, codec=codec))
            assert (reply.error_code, reply.base_offset) == (INVALID, -1), (settings, codec)
            assert reply.error_message
        assert produce(client, topic, batch_of(b"good", key=b"k")).base_offset == 0
        assert read_topic(client, topic) == [b"good"]


STREAMS = {**damaged_streams(), **odd_streams()}
READABLE_STREAMS = {*READ_BY_ALL, "long zstd with a changed middle"}


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in READABLE_STREAMS])
def test_a_batch_that_its_codec_cannot_read_is_refused_by_every_topic(
    client: RawClient, new_topic: NewTopic, name: str
) -> None:
    codec, packed = STREAMS[name]
    for settings in KINDS.values():
        topic = new_topic(**settings)
        reply = produce(client, topic, malformed(b"", 2, codec=codec, packed=packed))
        assert (reply.error_code, reply.base_offset) == (INVALID, -1), settings
        assert reply.error_message
        assert produce(client, topic, batch_of(b"good", key=b"k")).base_offset == 0
        assert read_topic(client, topic) == [b"good"]


@pytest.mark.parametrize("name", sorted(READABLE_STREAMS))
def test_an_odd_stream_that_every_client_can_read_is_accepted(
    client: RawClient, new_topic: NewTopic, name: str
) -> None:
    codec, packed = STREAMS[name]
    topic = new_topic()
    assert produce(client, topic, malformed(b"", 2, codec=codec, packed=packed)).error_code == 0
    assert len(read_topic(client, topic)) == 2


@pytest.mark.parametrize("name", sorted(READABLE - {"the largest time"}))
def test_odd_records_that_every_client_can_read_are_accepted(
    client: RawClient, new_topic: NewTopic, name: str
) -> None:
    payload, count = ODD[name]
    topic = new_topic()
    assert produce(client, topic, malformed(payload, count)).error_code == 0
    assert read_topic(client, topic) == [b"value"] * count


@pytest.mark.parametrize("version", [3, 7, 8, 11, 12])
def test_every_version_refuses_unreadable_records(
    client: RawClient, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic()
    reply = client.call(ApiKey.PRODUCE, version, produce_request(topic, broken()))
    assert reply.responses[0].partition_responses[0].error_code == INVALID
    assert read_topic(client, topic) == []


def test_unreadable_records_with_acks_0_close_the_connection(stage: Stage) -> None:
    line = stage.connect()
    line.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("t", broken(), acks=0))
    stage.advance(10)
    assert line.is_closed
    assert read_topic(stage, "t") == []


# -- what is around it
# ---------------------------------------------------------------------------------------


def test_an_unreadable_batch_does_not_affect_the_other_partitions_of_its_request(
    stage: Stage,
) -> None:
    request = produce_request("t", batch_of(b"first"))
    for index, records in ((1, broken()), (2, batch_of(b"third", codec=Codec.LZ4))):
        more = produce_request("t", records, index=index)
        request.topic_data[0].partition_data += more.topic_data[0].partition_data
    reply = stage.call(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    told = reply.responses[0].partition_responses
    assert [each.error_code for each in told] == [0, INVALID, 0]
    assert [each.base_offset for each in told] == [0, -1, 0]
    written = [read_topic(stage, "t", index=index) for index in range(3)]
    assert written == [[b"first"], [], [b"third"]]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_an_idempotent_producer_goes_on_where_an_unreadable_batch_was_refused(
    stage: Stage, codec: int
) -> None:
    who: dict[str, Any] = {"producer_id": 7, "epoch": 0}
    known = {"producer_id": 7, "producer_epoch": 0}
    outcomes = [
        produce(stage, "t", records)
        for records in (
            malformed(BROKEN, 2, codec=codec, base_sequence=0, **known),
            batch_of(b"a", b"b", sequence=0, codec=codec, **who),
            malformed(BROKEN, 2, codec=codec, base_sequence=2, **known),
            malformed(BROKEN, 2, codec=codec, base_sequence=0, **known),
            batch_of(b"a", b"b", sequence=0, codec=codec, **who),
            batch_of(b"c", sequence=2, codec=codec, **who),
        )
    ]
    told = [(each.error_code, each.base_offset) for each in outcomes]
    refused = (INVALID, -1)
    assert told == [refused, (0, 0), refused, refused, (0, 0), (0, 2)]
    assert read_topic(stage, "t") == [b"a", b"b", b"c"]


def test_the_records_are_checked_before_the_producer(stage: Stage) -> None:
    """As in Kafka: a fenced producer learns first that its batch is unreadable."""
    produce(stage, "t", batch_of(b"new", producer_id=7, epoch=3, sequence=0))
    old = broken(producer_id=7, producer_epoch=1, base_sequence=9)
    assert produce(stage, "t", old).error_code == INVALID


@pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_transaction_survives_an_unreadable_batch(
    stage: Stage, protocol: Protocol, is_first: bool
) -> None:
    producer = WireProducer(stage, "id", protocol).initialise()
    if protocol is TV1:
        producer.add_one("t")
    if not is_first:
        producer.send("t", b"first")
    sequence = producer.sequences["t", 0]
    bad = broken(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )
    request = produce_request("t", bad, transactional_id="id")
    reply = stage.call(ApiKey.PRODUCE, protocol.produce, request)
    told = reply.responses[0].partition_responses[0]
    assert (told.error_code, told.base_offset) == (INVALID, -1)
    producer.send("t", b"good")
    producer.commit()
    assert consume(stage, "t").values == [*([] if is_first else [b"first"]), b"good"]
    producer.send("t", b"next")
    producer.abort()
    again = WireProducer(stage, "id", protocol).initialise()
    again.send("t", b"last")
    again.commit()
    assert consume(stage, "t").values[-2:] == [b"good", b"last"]


# -- times
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_time_of_every_record_is_checked_and_not_what_the_header_says(
    client: RawClient, new_topic: NewTopic, codec: int
) -> None:
    topic = new_topic(message_timestamp_before_max_ms="1000")
    now_ms = _now_ms(client, new_topic())
    for delta, places in ((7_200_000, [1]), (-2_000, [1]), (0, [])):
        payload = record() + record(1, time=delta)
        reply = produce(client, topic, batch(payload, 2, codec=codec, timestamp_ms=now_ms))
        expected = ErrorCode.INVALID_TIMESTAMP if places else ErrorCode.NONE
        assert reply.error_code == expected
        assert [each.batch_index for each in reply.record_errors] == places


def _now_ms(client: RawClient, topic: str) -> int:
    """The time of the broker."""
    create_topic(client, f"{topic}-now", settings={"message.timestamp.type": "LogAppendTime"})
    return int(produce(client, f"{topic}-now", batch_of(b"now")).log_append_time_ms)


def test_a_record_without_a_time_is_accepted_whatever_the_topic_requires(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_before_max_ms="1000")
    now_ms = _now_ms(client, new_topic())
    payload = record() + record(1, time=-1 - now_ms)
    assert produce(client, topic, batch(payload, 2, timestamp_ms=now_ms)).error_code == 0


@pytest.mark.parametrize("settings", [{}, {"compression_type": "zstd"}], ids=["as it is", "zstd"])
def test_the_largest_time_of_a_batch_is_that_of_its_records(
    client: RawClient, new_topic: NewTopic, settings: dict[str, str]
) -> None:
    topic = new_topic(**settings)
    raw = malformed(record() + record(1, time=5) + record(2, time=3), 3)
    raw[35:43] = struct.pack(">q", NOW_MS - 77)
    assert produce(client, topic, resealed(raw)).error_code == 0
    (stored,) = split_batches(fetch(client, topic).records)
    assert stored.is_sound
    assert stored.max_timestamp == NOW_MS + 5
    request = list_offsets_request(topic, NOW_MS + 4, index=0, isolation_level=0)
    reply = client.call(ApiKey.LIST_OFFSETS, 7, request)
    found = reply.topics[0].partitions[0]
    assert (found.timestamp, found.offset) == (NOW_MS + 5, 1)


def test_times_that_no_reader_can_add_up_are_refused(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_after_max_ms=str(2**63 - 1))
    payload, count = ODD["the largest time"]
    assert produce(client, topic, malformed(payload, count)).error_code == INVALID


# -- the setting
# ------------------------------------------------------------------------------------------


def test_without_validation_only_compacted_and_repacked_topics_are_checked() -> None:
    with Stage(durability="os", settings={"record.validation.enable": "false"}) as stage:
        create_topic(stage, "t")
        create_topic(stage, "c", settings={"cleanup.policy": "compact"})
        create_topic(stage, "z", settings={"compression.type": "gzip"})
        outcomes = [produce(stage, topic, broken()).error_code for topic in "tcz"]
        assert outcomes == [0, INVALID, INVALID]
        assert produce(stage, "t", batch_of(b"good")).base_offset == 2


# -- large batches and bombs
# ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_step_per_turn")
@pytest.mark.parametrize("codec", sorted(CODECS))
def test_others_are_served_while_the_records_of_a_large_batch_are_checked(
    stage: Stage, codec: int
) -> None:
    line, other = stage.connect(), stage.connect()
    values = [b"%d" % number for number in range(5000)]
    sent = line.send(
        ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("t", batch_of(*values, codec=codec))
    )
    behind = line.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("t", batch_of(b"behind")))
    turns = 0
    while sent not in line.replies:
        stage.loop.turn()
        assert other.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
        turns += 1
    assert turns >= 4
    for each, offset in ((sent, 0), (behind, 5000)):
        reply = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, each)
        told = reply.responses[0].partition_responses[0]
        assert (told.error_code, told.base_offset) == (0, offset)


@pytest.mark.usefixtures("one_step_per_turn")
def test_batches_that_are_checked_in_turns_do_not_mix(stage: Stage) -> None:
    """Short ones are unpacked into one buffer, also while others wait to be continued."""
    lines = [stage.connect() for _ in range(4)]
    sent = []
    for number, line in enumerate(lines):
        # Of another length in each, so that no batch can pass for another.
        values = [b"%d of %d" % (each, number) + b"." * number for each in range(2500)]
        request = produce_request("t", batch_of(*values, codec=Codec.LZ4 + number % 2))
        sent.append(line.send(ApiKey.PRODUCE, PRODUCE_VERSION, request))
    for line, each in zip(lines, sent, strict=True):
        reply = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, each)
        assert reply.responses[0].partition_responses[0].error_code == 0
    written = read_topic(stage, "t")
    assert len(written) == 4 * 2500
    assert {(value or b"").rstrip(b".") for value in written} == {
        b"%d of %d" % (each, number) for number in range(4) for each in range(2500)
    }


HUGE = {"max.message.bytes": str(64 << 20)}
BOMB_BYTES = 300 << 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_bombs_of_every_codec_are_refused_with_bounded_memory(tmp_path: Path) -> None:
    """A valid record of 300 MB: more than a broker opens."""
    with (
        FencepostProcess(tmp_path / "data") as process,
        RawClient(process.bootstrap_servers) as client,
    ):
        create_topic(client, "t", settings=HUGE)
        assert produce(client, "t", batch_of(b"warm")).error_code == 0
        before = peak_bytes(process)
        for codec in sorted(CODECS - {Codec.NONE}):
            packed = bomb(codec, BOMB_BYTES)
            reply = produce(client, "t", malformed(b"", 1, codec=codec, packed=packed))
            assert reply.error_code == INVALID
            assert f"more than {MAX_DECOMPRESSED_BYTES} bytes" in reply.error_message
        # The requests, and what a growing buffer reserves.
        assert peak_bytes(process) - before < MAX_DECOMPRESSED_BYTES + (100 << 20)
        assert produce(client, "t", batch_of(b"next")).base_offset == 1


def peak_bytes(process: FencepostProcess) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("codec", sorted(CODECS - {Codec.NONE}))
def test_a_batch_that_unpacks_to_megabytes_is_accepted(stage: Stage, codec: int) -> None:
    create_topic(stage, "huge", settings=HUGE)
    packed = bomb(codec, 20 << 20)
    reply = produce(stage, "huge", malformed(b"", 1, codec=codec, packed=packed))
    assert reply.error_code == 0
    assert [len(value or b"") for value in read_topic(stage, "huge")] == [20 << 20]
