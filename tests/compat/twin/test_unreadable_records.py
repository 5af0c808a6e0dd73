"""Goal: batches with unreadable records are refused here wherever Apache Kafka refuses them.

Method: twin runs (see the package's docstring). Every batch of `tests/records/malformed.py` in
every codec, to a topic that keeps batches as they are, to a compacted one, and to one with its own
codec. Kafka answers some of them with UNKNOWN_SERVER_ERROR, and accepts some that other clients
cannot read: those are rows of docs/compatibility.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.records.compression import CODECS, Codec
from fencepost.wire.forms.produce import PartitionProduceData, TopicProduceData
from tests.compat.twin.likeness import EPOCH_MS, HOUR_MS
from tests.compat.twin.test_partitions import plain_producer
from tests.compat.twin.transactional import (
    Producer,
    add,
    finish,
    list_offsets,
    look,
    look_at_id,
    produce,
    produce_all,
    start,
)
from tests.compat.twin.transactional import batch as good_batch
from tests.records.malformed import (
    GOOD,
    LYING,
    ODD,
    batch,
    bomb,
    damaged_streams,
    odd_streams,
    record,
    resealed,
)
from tests.records.test_compression import READ_BY_US
from tests.transactions.protocol import TV1, TV2, Protocol

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

SETTINGS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "zipped": {"compression.type": "gzip"},
}
LENGTHS = {
    *(name for name in LYING if name.startswith("a record of ")),
    "a record one byte too long",
    "a last record one byte too long",
    "a record one byte too short",
    "a last record one byte too short",
    "a record as long as the rest",
}
"""Lengths of records, which Kafka does not compare if it only skims a compressed batch."""
NULLS = {name for name in ODD if " of -2" in name}
NOT_CHECKED = "a record whose length or offset delta is wrong"
NULL_ROW = "lengths below -1 and header names that are not UTF-8"
REASON = "records that cannot be read"
STREAM_ROW = "bytes after a compressed stream, and streams that only some clients can read"


def malformed(payload: bytes, count: int, **more: Any) -> bytearray:
    return batch(payload, count, timestamp_ms=EPOCH_MS, **more)


def outcome(reply: Any) -> Any:
    """What the reply to one batch says, whatever the reason given."""
    return reply.responses[0].partition_responses[0].error_code


def is_refused(reply: Any) -> bool:
    return bool(outcome(reply) != ErrorCode.NONE)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("codec", sorted(CODECS), ids=lambda codec: codec.name)
def test_records_that_no_reader_can_read(twins: Twins, kind: str, codec: Codec) -> None:
    def script(talk: Talk) -> None:
        topic = f"lying-{kind}-{codec.name}"
        talk.topic(topic, 1, SETTINGS[kind])
        skims = codec is not Codec.NONE and (kind != "zipped" or codec is Codec.GZIP)
        for name, (payload, count) in LYING.items():
            ask = produce(topic, malformed(payload, count, codec=codec))
            row = NOT_CHECKED if skims and name in LENGTHS else None
            talk.ask(name, ask, see=is_refused, differs=row)
        talk.ask("a good one", produce(topic, malformed(GOOD, 2)), see=outcome)

    twins.compare(script)


def test_the_errors_for_records_that_no_reader_can_read(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic = "lying-errors"
        talk.topic(topic)
        for name, (payload, count) in LYING.items():
            row = REASON if name == "a record with an endless length" else None
            talk.ask(name, produce(topic, malformed(payload, count)), differs=row)
            talk.ask(f"{name}, then", list_offsets(topic))

    twins.compare(script)


@pytest.mark.parametrize("codec", sorted(CODECS), ids=lambda codec: codec.name)
def test_records_that_some_readers_can_read(twins: Twins, codec: Codec) -> None:
    def script(talk: Talk) -> None:
        topic = f"odd-{codec.name}"
        talk.topic(topic)
        for name, (payload, count) in ODD.items():
            ask = produce(topic, malformed(payload, count, codec=codec))
            row = None
            if name in NULLS or name == "a header name that is not UTF-8":
                row = NULL_ROW
            elif name.startswith("offset delta") and codec is Codec.NONE:
                row = NOT_CHECKED
            talk.ask(name, ask, see=is_refused, differs=row)

    twins.compare(script)


@pytest.mark.parametrize("kind", SETTINGS)
def test_streams_that_their_codec_cannot_read(twins: Twins, kind: str) -> None:
    def script(talk: Talk) -> None:
        topic = f"streams-{kind}"
        talk.topic(topic, 1, SETTINGS[kind])
        for name, (codec, packed) in damaged_streams().items():
            ask = produce(topic, malformed(b"", 2, codec=codec, packed=packed))
            talk.ask(name, ask, see=is_refused)
        for name, (codec, packed) in odd_streams().items():
            ask = produce(topic, malformed(b"", 2, codec=codec, packed=packed))
            row = STREAM_ROW if name in ONLY_KAFKA_READS else None
            if name == "plain lz4 with a block of nothing" and kind != "zipped":
                row = STREAM_ROW  # Kafka accepts it where it only skims.
            talk.ask(name, ask, see=is_refused, differs=row)

    twins.compare(script)


ONLY_KAFKA_READS = {
    "gzip and a byte",
    "gzip and text",
    "snappy and a byte",
    "snappy in two streams",
    "lz4 and a byte",
    "lz4 and text",
    "plain lz4 and a byte",
    "plain lz4 with a block of nothing at its end",
    "lz4 twice",
    "lz4 with a wrong content checksum",
    "plain lz4 before a frame to skip",
    *READ_BY_US,
}


def test_the_error_for_what_is_no_stream_at_all(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("no-stream")
        for codec in sorted(CODECS - {Codec.NONE}):
            ask = produce("no-stream", malformed(b"", 2, codec=codec, packed=b"text" * 20))
            talk.ask(f"text as {codec.name}", ask, differs=REASON)
            talk.ask(f"text as {codec.name}, then", list_offsets("no-stream"))

    twins.compare(script)


@pytest.mark.parametrize("codec", sorted(CODECS - {Codec.NONE}), ids=lambda codec: codec.name)
def test_a_valid_record_of_300_megabytes(twins: Twins, codec: Codec) -> None:
    packed = bomb(codec, 300 << 20)

    def script(talk: Talk) -> None:
        topic = f"bomb-{codec.name}"
        talk.topic(topic, 1, {"max.message.bytes": str(64 << 20)})
        ask = produce(topic, malformed(b"", 1, codec=codec, packed=packed))
        talk.ask("a bomb", ask, see=is_refused, differs="a batch that decompresses to over 256 MiB")
        talk.ask("the next", produce(topic, good_batch(b"good")), see=outcome)

    twins.compare(script)


# -- producers
# --------------------------------------------------------------------------------------------


def broken(who: Producer, sequence: int, *, transactional: bool) -> bytearray:
    return malformed(
        record() + record(1, value_length=100),
        2,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def test_an_idempotent_producer_with_unreadable_batches(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("unreadable")
        who = plain_producer(talk)

        def good(step: str, sequence: int) -> None:
            records = who.batch(b"a", b"b", sequence=sequence, transactional=False)
            talk.ask(step, produce("unreadable", records))

        def bad(step: str, sequence: int, whose: Producer = who) -> None:
            records = broken(whose, sequence, transactional=False)
            talk.ask(step, produce("unreadable", records))

        bad("first", 0)
        good("the first, readable", 0)
        bad("second", 2)
        bad("in place of the first", 0)
        bad("after a gap", 9)
        bad("of an unknown producer", 0, who.at(producer_id=who.producer_id + 70))
        bad("of a later epoch", 0, who.at(epoch=4))
        good("the first again", 0)
        good("the second, readable", 2)
        look(talk, "then", "unreadable")

    twins.compare(script)


@pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)
def test_a_transaction_with_unreadable_batches(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = f"unreadable-txn-{protocol.name}"
        talk.topic(topic, 2)
        who = start(talk, topic)

        def bad(step: str, sequence: int, index: int = 0) -> None:
            records = broken(who, sequence, transactional=True)
            ask = produce(topic, records, transactional_id=topic, index=index)
            talk.ask(step, ask, protocol.produce)

        def good(step: str, sequence: int) -> None:
            records = who.batch(b"a", sequence=sequence)
            talk.ask(step, produce(topic, records, transactional_id=topic), protocol.produce)

        bad("not added", 0)
        if protocol is TV1:
            talk.ask("added", add(who, topic, 0, 1), 3)
        bad("first", 0)
        look_at_id(talk, "after the first", topic)
        good("the first, readable", 0)
        bad("second", 1)
        bad("first of another partition", 0, index=1)
        good("the second, readable", 1)
        look(talk, "open", topic)
        finish(talk, who, protocol, commit=True)
        bad("without a transaction", 2)
        look(talk, "then", topic)
        look(talk, "then", topic, index=1)
        look_at_id(talk, "then", topic)

    twins.compare(script)


def test_one_unreadable_partition_of_a_request(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("unreadable-one", 3)
        data = [
            PartitionProduceData(index=0, records=good_batch(b"first")),
            PartitionProduceData(index=1, records=malformed(record(value_length=100), 1)),
            PartitionProduceData(index=2, records=good_batch(b"third")),
        ]
        request = [TopicProduceData(name="unreadable-one", partition_data=data)]
        talk.ask("three", produce_all(request, None))
        for index in range(3):
            talk.ask(f"end of {index}", list_offsets("unreadable-one", index=index))

    twins.compare(script)


# -- times
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=lambda codec: codec.name)
def test_times_of_records_that_the_header_does_not_show(twins: Twins, codec: Codec) -> None:
    def script(talk: Talk) -> None:
        topic = f"times-{codec.name}"
        talk.topic(topic, 1, {"message.timestamp.before.max.ms": str(2 * HOUR_MS)})

        def send(step: str, *deltas: int, newest: int | None = None) -> None:
            payload = b"".join(record(number, time=delta) for number, delta in enumerate(deltas))
            raw = malformed(payload, len(deltas), codec=codec)
            if newest is not None:
                raw[35:43] = newest.to_bytes(8, "big", signed=True)
                resealed(raw)
            talk.ask(step, produce(topic, raw))

        send("as the header says", 0, 0)
        send("in the future", 0, 3 * HOUR_MS)
        send("in the past", 0, -2 * HOUR_MS)
        send("the first in the past", -2 * HOUR_MS, 0)
        send("no time at all", -1 - EPOCH_MS, 0)
        send("a header from the future", 0, 5, newest=EPOCH_MS + 4 * HOUR_MS)
        send("a header without a time", 0, 5, newest=-1)
        send("later than the header", 0, 9, 4)
        look(talk, "then", topic)

    twins.compare(script)
