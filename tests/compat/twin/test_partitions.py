"""Goal: a partition accepts, refuses and returns batches and markers as Apache Kafka's does.

Method: twin runs (see the package's docstring).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c

from fencepost.records.compression import Codec
from fencepost.wire.forms.produce import PartitionProduceData, TopicProduceData
from tests.compat.twin.administered import delete
from tests.compat.twin.likeness import EPOCH_MS, HOUR_MS
from tests.compat.twin.transactional import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Producer,
    add,
    batch,
    describe,
    end,
    fetch,
    finish,
    init,
    list_offsets,
    look,
    look_at_id,
    marker,
    produce,
    produce_all,
    producers,
    start,
    write,
)
from tests.transactions.protocol import TV1, TV2, Protocol

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

NO_PRODUCER = "a transactional batch without a producer id, or with one below 0"
BELOW = "a batch with a producer id below -1 and without a sequence"
AFTER = "bytes after the batch of a partition"
BOTH = pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)


def plain_producer(talk: Talk) -> Producer:
    """An idempotent producer without a transactional id."""
    producer = Producer("")
    producer.take(talk.ask("a producer", init(None)))
    return producer


# -- sequences and epochs
# -------------------------------------------------------------------------------------


def test_sequences_of_an_idempotent_producer(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("sequences")
        producer = plain_producer(talk)

        def send(step: str, sequence: int, count: int = 2, **identity: int) -> None:
            who = producer.at(**identity)
            values = [b"%d" % number for number in range(count)]
            records = who.batch(*values, sequence=sequence, transactional=False)
            talk.ask(step, produce("sequences", records))

        send("first", 0)
        send("second", 2)
        send("the first again", 0)
        send("the second again", 2)
        send("the end of the second", 3, 1)
        send("over the end of the second", 3, 2)
        send("the first, longer", 0, 3)
        send("a gap", 5)
        for number in range(4):
            send(f"on, {number}", 4 + 2 * number)
        send("the fifth from the end", 2)
        send("the sixth from the end", 0)
        send("an epoch ahead with a sequence", 7, epoch=1)
        send("an epoch ahead", 0, epoch=1)
        send("the old epoch", 12, epoch=0)
        send("the old epoch, a repetition", 2, epoch=0)
        send("two epochs ahead", 0, epoch=3)
        send("a negative epoch", 0, epoch=-1)
        send("an unknown producer id", 40, producer_id=producer.producer_id + 50)
        send("an unknown producer id, continued", 42, producer_id=producer.producer_id + 50)
        send("at the wrap", 2**31 - 2, producer_id=producer.producer_id + 60)
        send("over the wrap", 0, producer_id=producer.producer_id + 60)
        send("near the wrap", 2**31 - 3, 2, producer_id=producer.producer_id + 61)
        send("across the wrap", 2**31 - 1, 3, producer_id=producer.producer_id + 61)
        send("after the wrap", 2, 1, producer_id=producer.producer_id + 61)
        send("one after the wrap that is missing", 4, 1, producer_id=producer.producer_id + 61)
        look(talk, "then", "sequences")

    twins.compare(script)


@BOTH
def test_another_client_claims_a_later_epoch_of_a_producer(
    twins: Twins, protocol: Protocol
) -> None:
    def script(talk: Talk) -> None:
        topic = f"claims-{protocol.name}"
        talk.topic(topic)
        producer = start(talk, topic)
        write(talk, producer, protocol, topic, b"first")
        claim = producer.at(epoch=producer.epoch + 1)
        for transactional in (True, False):
            records = claim.batch(b"foreign", sequence=0, transactional=transactional)
            ask = produce(topic, records, transactional_id=topic)
            talk.ask(f"a claim, transactional {transactional}", ask, protocol.produce)
        ask = produce(topic, producer.batch(b"second", sequence=1), transactional_id=topic)
        row = (
            "a batch of an open transaction after another client unsuccessfully claimed a later "
            "epoch of its producer"
        )
        talk.ask("the next", ask, protocol.produce, differs=row)
        finish(talk, producer, protocol, commit=False)

    twins.compare(script)


def test_a_first_sequence_gap_after_a_refused_write_of_the_other_protocol(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("leftover")
        producer = start(talk, "leftover")

        def send(step: str, sequence: int, version: int, differs: str | None = None) -> None:
            records = producer.batch(b"x", sequence=sequence)
            ask = produce("leftover", records, transactional_id="leftover")
            talk.ask(step, ask, version, differs=differs)

        send("not added", 0, TV1.produce)
        producer.take(talk.ask("the next epoch", init("leftover")))
        row = (
            "a first TV2 batch with a sequence other than 0, after a TV1 batch was refused at an "
            "earlier epoch"
        )
        send("a gap", 1, TV2.produce, differs=row)

    twins.compare(script)


@BOTH
def test_sequences_of_a_transactional_producer(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        topic = f"txn-sequences-{protocol.name}"
        talk.topic(topic, 3)
        producer = start(talk, topic)

        def send(step: str, sequence: int, index: int = 0, **more: Any) -> None:
            records = producer.batch(b"a", b"b", sequence=sequence, **more)
            ask = produce(topic, records, transactional_id=topic, index=index)
            talk.ask(step, ask, protocol.produce)

        if protocol is TV1:
            talk.ask("added", add(producer, topic, 0, 1), 3)
        send("a first that is not the first", 5)
        send("then the first", 0)
        send("the next", 2)
        send("again", 2)
        send("a gap", 9)
        send("outside of the transaction", 4, transactional=False)
        send("another partition, not from the first", 3, index=1)
        send("not added", 0, index=2)
        look_at_id(talk, "open", topic)
        look(talk, "open", topic)
        finish(talk, producer, protocol, commit=False)
        send("the next, without a transaction", 4)
        send("a repetition after the end", 2)
        send("outside, after the end", 4, transactional=False)
        look(talk, "then", topic)
        look(talk, "then", topic, index=1)

    twins.compare(script)


# -- refused batches
# ------------------------------------------------------------------------------------------


def spoil(records: bytearray, layout: str, position: int, value: int, *, seal: bool) -> bytearray:
    """The batch with another value in its header, and a corrected CRC if `seal` is set."""
    struct.pack_into(layout, records, position, value)
    if seal:
        struct.pack_into(">I", records, 17, crc32c(memoryview(records)[21:]))
    return records


def bad_batches() -> dict[str, bytes | bytearray]:
    """Batches that no broker should accept, by what is wrong with them."""
    good = bytes(batch(b"a", b"b"))
    return {
        "an empty one": b"",
        "a byte": b"\0",
        "two in one": good + good,
        "a piece of one": good[:40],
        "one byte short": good[:-1],
        "a wrong CRC": spoil(bytearray(good), ">I", 17, 1, seal=False),
        "magic 0": spoil(bytearray(good), ">b", 16, 0, seal=False),
        "magic 1": spoil(bytearray(good), ">b", 16, 1, seal=False),
        "magic 3": spoil(bytearray(good), ">b", 16, 3, seal=False),
        "magic -1": spoil(bytearray(good), ">b", 16, -1, seal=False),
        "a base offset": spoil(bytearray(good), ">q", 0, 7, seal=False),
        "a leader epoch": spoil(bytearray(good), ">i", 12, 7, seal=False),
        "a length of 0": spoil(bytearray(good), ">i", 8, 0, seal=False),
        "a length too small": spoil(bytearray(good), ">i", 8, 30, seal=False),
        "a length too large": spoil(bytearray(good), ">i", 8, 1000, seal=False),
        "a negative length": spoil(bytearray(good), ">i", 8, -5, seal=False),
        "too many records": spoil(bytearray(good), ">i", 57, 3, seal=True),
        "too few records": spoil(bytearray(good), ">i", 57, 1, seal=True),
        "no records": spoil(bytearray(good), ">i", 57, 0, seal=True),
        "a negative count": spoil(bytearray(good), ">i", 57, -1, seal=True),
        "a wrong last offset": spoil(bytearray(good), ">i", 23, 5, seal=True),
        "a control batch": spoil(bytearray(good), ">h", 21, 0x20, seal=True),
        "a transactional control batch": spoil(bytearray(good), ">h", 21, 0x30, seal=True),
        "log append time": spoil(bytearray(good), ">h", 21, 0x08, seal=True),
        "a delete horizon": spoil(bytearray(good), ">h", 21, 0x40, seal=True),
        "unknown attributes": spoil(bytearray(good), ">h", 21, 0x80, seal=True),
        "transactional without a producer": spoil(bytearray(good), ">h", 21, 0x10, seal=True),
        "a producer id without a sequence": batch(b"a", producer_id=77, producer_epoch=0),
        "a producer id without an epoch": batch(b"a", producer_id=77, base_sequence=0),
        "a sequence without a producer id": batch(b"a", base_sequence=3),
        "a negative producer id": batch(b"a", producer_id=-5, producer_epoch=0, base_sequence=0),
        "a time of the far future": batch(b"a", time_ms=EPOCH_MS + 3 * HOUR_MS),
        "a negative time": batch(b"a", time_ms=-1),
        "a time of 1970": batch(b"a", time_ms=0),
        "too large": batch(b"x" * 1_100_000),
    }


@pytest.mark.parametrize("version", [3, 7, 8, 11, 12])
def test_bad_batches_are_refused(twins: Twins, version: int) -> None:
    def script(talk: Talk) -> None:
        topic = f"bad-{version}"
        talk.topic(topic)
        talk.ask("a good one first", produce(topic, batch(b"good")), version)
        for name, records in bad_batches().items():
            talk.ask(name, produce(topic, records), version)
            talk.ask(f"{name}, then", list_offsets(topic))
        for acks in (2, -2, 1, -1):
            talk.ask(f"acks {acks}", produce(topic, batch(b"a"), acks=acks), version)
        for codec in Codec:
            records = batch(b"a" * 100, codec=codec)
            talk.ask(f"codec {codec.name}", produce(topic, records), version)
        talk.ask("an unknown partition", produce(topic, batch(b"a"), index=1), version)
        talk.ask("a negative partition", produce(topic, batch(b"a"), index=-1), version)
        talk.ask("an unknown topic", produce("bad-none", batch(b"a")), version)
        talk.ask("an illegal name", produce("a b", batch(b"a")), version)
        talk.ask("an empty name", produce("", batch(b"a")), version)
        talk.ask("an internal topic", produce("__consumer_offsets", batch(b"a")), version)
        talk.ask("another internal topic", produce("__transaction_state", batch(b"a")), version)
        talk.ask("no topic", produce_all([], None), version)
        empty = [TopicProduceData(name=topic)]
        talk.ask("no partition", produce_all(empty, None), version)
        good, bad = (PartitionProduceData(index=index, records=batch(b"both")) for index in (0, 5))
        both = [TopicProduceData(name=topic, partition_data=[good, bad])]
        talk.ask("a good and a bad partition", produce_all(both, None), version)

    twins.compare(script)


def test_batches_that_only_one_broker_refuses(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("odd")
        unknown = spoil(batch(b"a"), ">h", 21, 5, seal=True)
        ask = produce("odd", unknown)
        talk.ask("an unknown codec", ask, differs="a batch with a codec that does not exist")
        other = spoil(batch(b"a"), ">h", 21, int(Codec.GZIP), seal=True)
        talk.ask(
            "a codec that it is not", produce("odd", other), differs="records that cannot be read"
        )
        nothing = produce("odd", None)
        talk.ask_in_vain("no batch", nothing, differs="incomplete requests")

    twins.compare(script)


def test_odd_ids_and_bytes_that_only_kafka_accepts(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic = "odd-ids"
        talk.topic(topic, 8)
        who = start(talk, topic)
        good = bytes(batch(b"a"))
        nobody = {"producer_id": -2, "producer_epoch": -1, "base_sequence": -1}
        below = {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        cases: list[tuple[str, bytes | bytearray, str | None]] = [
            ("transactional", spoil(bytearray(good), ">h", 21, 0x10, seal=True), NO_PRODUCER),
            ("transactional, -2", batch(b"a", **below), NO_PRODUCER),
            ("-2 without a sequence", batch(b"a", **nobody), BELOW),
            ("three bytes after it", good + b"abc", AFTER),
            ("part of a batch after it", good + good[:40], AFTER),
            ("text after it", good + b"not a batch, but text after one", AFTER),
            ("zeros after it", good + bytes(100), AFTER),
            ("two batches", good + good, None),
        ]
        for index, (name, records, row) in enumerate(cases):
            talk.ask(f"{name}: added", add(who, topic, index), 3)
            ask = produce(topic, records, index=index, transactional_id=topic)
            talk.ask(name, ask, differs=row)

    twins.compare(script)


def test_topics_are_written_to_by_id(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic_id = talk.topic("by-id")

        def send(step: str, identity: bytes, index: int = 0) -> None:
            data = [PartitionProduceData(index=index, records=batch(b"x"))]
            ask = produce_all([TopicProduceData(topic_id=identity, partition_data=data)], None)
            talk.ask(step, ask, 13)

        send("a known id", topic_id)
        send("an unknown partition", topic_id, 1)
        send("an unknown id", bytes(15) + b"\x77")
        send("no id", bytes(16))
        look(talk, "then", "by-id")

    twins.compare(script)


def test_topics_refuse_records_that_their_settings_forbid(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for topic, settings in {
            "compacted": {"cleanup.policy": "compact"},
            "stamped": {"message.timestamp.type": "LogAppendTime"},
            "narrow": {"max.message.bytes": "100"},
            "recent": {
                "message.timestamp.before.max.ms": "1000",
                "message.timestamp.after.max.ms": "1000",
            },
            "zipped": {"compression.type": "gzip"},
        }.items():
            talk.topic(topic, 1, settings)
            for version in (7, 11):
                talk.ask(f"{topic}, v{version}", produce(topic, batch(b"a", b"b")), version)
                wide = produce(topic, batch(b"x" * 200))
                talk.ask(f"wide to {topic}, v{version}", wide, version)
            who = plain_producer(talk)
            for step in ("first", "again"):
                records = who.batch(b"a", sequence=0, transactional=False)
                talk.ask(f"{step} to {topic}", produce(topic, records))
            talk.ask(f"end of {topic}", list_offsets(topic))

    twins.compare(script)


def test_transactional_batches_need_their_transactional_id(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic = "need-id"
        talk.topic(topic, 2)
        first, second = start(talk, "need-id-1"), start(talk, "need-id-2")
        for version in (3, 8, 11, 12):
            ask = produce(topic, first.batch(b"x", sequence=0))
            talk.ask(f"no id, v{version}", ask, version)
            ask = produce(topic, first.batch(b"x", sequence=0), transactional_id="need-id-2")
            talk.ask(f"another's id, v{version}", ask, version)
            ask = produce(topic, first.batch(b"x", sequence=0), transactional_id="")
            talk.ask(f"an empty id, v{version}", ask, version)
            ask = produce(topic, first.batch(b"x", sequence=0), transactional_id="need-id-none")
            talk.ask(f"an unknown id, v{version}", ask, version)
            ask = produce(topic, batch(b"plain"), transactional_id="need-id-1")
            talk.ask(f"a plain batch with an id, v{version}", ask, version)
            two = [
                PartitionProduceData(index=0, records=first.batch(b"x", sequence=0)),
                PartitionProduceData(index=1, records=second.batch(b"x", sequence=0)),
            ]
            ask = produce_all([TopicProduceData(name=topic, partition_data=two)], "need-id-1")
            talk.ask(f"two producers, v{version}", ask, version)
            mixed = [
                PartitionProduceData(index=0, records=batch(b"plain")),
                PartitionProduceData(index=1, records=second.batch(b"x", sequence=0)),
            ]
            ask = produce_all([TopicProduceData(name=topic, partition_data=mixed)], None)
            talk.ask(f"one plain, one transactional, no id, v{version}", ask, version)
            look_at_id(talk, f"v{version}", "need-id-1")
        for index in (0, 1):
            look(talk, "in the end", topic, index=index)

    twins.compare(script)


# -- markers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_markers_from_any_client(twins: Twins, version: int) -> None:
    """WriteTxnMarkers, as a coordinator or an administrator sends it."""

    def script(talk: Talk) -> None:
        topic = f"markers-{version}"
        talk.topic(topic, 3)
        producer = start(talk, topic)

        def mark(
            step: str,
            who: Producer,
            partitions: dict[str, list[int]] | None = None,
            *,
            commit: bool = True,
            **more: int,
        ) -> None:
            ask = marker(who, partitions or {topic: [0]}, commit=commit, **more)
            talk.ask(step, ask, version)

        nobody = producer.at(producer_id=producer.producer_id + 500, epoch=3)
        mark("of a producer that wrote nothing", nobody)
        mark("the same again", nobody)
        mark("at a lower epoch", nobody.at(epoch=2))
        mark("at a higher epoch", nobody.at(epoch=4), commit=False)
        mark("of a later coordinator", nobody.at(epoch=4), coordinator_epoch=5)
        mark("of an earlier coordinator", nobody.at(epoch=5), coordinator_epoch=4)
        mark("of an earlier coordinator at a lower epoch", nobody, coordinator_epoch=4)
        mark("of a negative coordinator", nobody.at(epoch=9), coordinator_epoch=-1)
        mark("to an unknown partition", nobody, {topic: [0, 9]}, coordinator_epoch=9)
        mark("to an unknown topic", nobody, {"markers-none": [0], topic: [1]})
        mark("to no partition", nobody, {topic: []})
        for number, (epoch, transaction_version, commit) in enumerate(
            (epoch, tv, commit)
            for epoch in (1, 2, 0)
            for tv in (0, 1, 2)
            for commit in (True, False)
        ):
            start(talk, f"{topic}-{number}")
            who = start(talk, f"{topic}-{number}")
            write(talk, who, TV2, topic, b"open")
            moved = who.at(epoch=epoch)
            for attempt in (1, 2):
                mark(
                    f"attempt {attempt}, epoch {epoch}, TV{transaction_version}, commit {commit}",
                    moved,
                    commit=commit,
                    transaction_version=transaction_version,
                )
            finish(talk, who, TV2, commit=commit)
        look(talk, "in the end", topic)
        talk.ask("producers of 2", producers(topic, 2))
        below_zero = marker(nobody.at(epoch=-1), {topic: [0]}, commit=True)
        talk.ask("below 0", below_zero, version, differs="a marker with a negative producer epoch")

    twins.compare(script)


@BOTH
def test_end_txn_after_a_marker_of_a_later_coordinator(twins: Twins, protocol: Protocol) -> None:
    """One partition refuses its marker for good, so the transaction stays prepared."""

    def script(talk: Talk) -> None:
        topic = f"overtaken-{protocol.name}"
        talk.topic(topic, 3)
        producer = start(talk, topic)
        for index in range(3):
            write(talk, producer, protocol, topic, b"x", index=index)
        talk.ask(
            "a later coordinator", marker(producer, {topic: [1]}, commit=False, coordinator_epoch=9)
        )
        late = producer.at()
        producer.take(talk.ask("the end", end(producer, commit=True), protocol.end_txn))
        talk.until(describe(topic), lambda r: r.transaction_states[0].topics[0].partitions == [1])
        look_at_id(talk, "overtaken", topic)
        for index in range(3):
            look(talk, "overtaken", topic, index=index)
        talk.ask("the end again", end(late, commit=True), protocol.end_txn)
        talk.ask("the next end", end(producer, commit=False), protocol.end_txn)
        talk.ask("a new producer", init(topic))

    twins.compare(script)


def test_markers_in_one_request(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("many-markers", 2)
        first, second = start(talk, "many-1"), start(talk, "many-2")
        for who in (first, second):
            for index in (0, 1):
                write(talk, who, TV2, "many-markers", b"x", index=index)
        ask = marker(first, {"many-markers": [0, 1]}, commit=True)
        ask.form.markers += marker(second, {"many-markers": [0, 1]}, commit=False).form.markers
        talk.ask("both", ask)
        ask = marker(first, {"many-markers": [0]}, commit=True)
        ask.form.markers += marker(
            first.at(epoch=-5), {"many-markers": [0, 1]}, commit=True
        ).form.markers
        talk.ask("one twice", ask)
        ask.form.markers.clear()
        look(talk, "then", "many-markers")
        ask = marker(first, {"__transaction_state": [0], "__consumer_offsets": [0]}, commit=True)
        talk.ask("to internal topics", ask)

    twins.compare(script)


# -- visibility
# -----------------------------------------------------------------------------------------


def without_aborted(reply: Any) -> Any:
    """A bounded fetch without its list of aborted transactions."""
    reply.responses[0].partitions[0].aborted_transactions = None
    return reply


def test_readers_of_interleaved_transactions(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic = "interleaved"
        talk.topic(topic)
        a, b, c, d = (start(talk, f"interleaved-{name}") for name in "abcd")

        def read(moment: str, end: int) -> None:
            look(talk, moment, topic)
            for offset in range(0, end + 1, 3):
                talk.ask(f"{moment}: from {offset}", fetch(topic, offset))
                for max_bytes in (1, 200):
                    ask = fetch(topic, offset, max_bytes=max_bytes)
                    talk.ask(f"{moment}: from {offset}, {max_bytes}", ask, see=without_aborted)
            row = "Fetch of an offset out of range"
            talk.ask(f"{moment}: beyond", fetch(topic, end + 1), differs=row)
            talk.ask(f"{moment}: before", fetch(topic, -1), differs=row)

        talk.ask("plain", produce(topic, batch(b"plain")))
        write(talk, a, TV1, topic, b"a0", b"a1")
        write(talk, b, TV2, topic, b"b0")
        write(talk, a, TV1, topic, b"a2")
        read("two open", 5)
        finish(talk, a, TV1, commit=False)
        write(talk, c, TV2, topic, b"c0", b"c1", b"c2")
        read("the older one aborted", 9)
        finish(talk, c, TV2, commit=True)
        write(talk, d, TV1, topic, b"d0")
        finish(talk, b, TV2, commit=False)
        read("the last holds", 12)
        finish(talk, d, TV1, commit=True)
        write(talk, a, TV1, topic, b"a3")
        finish(talk, a, TV1, commit=False)
        read("all ended", 15)
        row = "aborted transactions in a Fetch reply"
        talk.ask("one batch of all", fetch(topic, 0, max_bytes=1), differs=row)
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            # Not -3, the highest: it is the time of one of the markers.
            for time_ms in (-1, -2, -4, -5, -6, -7, EPOCH_MS, EPOCH_MS + 1, 0):
                ask = list_offsets(topic, time_ms, isolation=isolation)
                word = time_ms if time_ms <= 0 else time_ms - EPOCH_MS
                talk.ask(f"offset for {word} at {isolation}", ask)

    twins.compare(script)


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_offsets_by_time_stop_at_the_last_stable_offset(twins: Twins, isolation: int) -> None:
    def script(talk: Talk) -> None:
        topic = f"times-{isolation}"
        talk.topic(topic)
        producer = start(talk, topic)

        def ask_all(moment: str) -> None:
            for step, time_ms in {
                "latest": -1,
                "earliest": -2,
                "the highest": -3,
                "before": EPOCH_MS - 1,
                "at the first": EPOCH_MS,
                "between": EPOCH_MS + 500,
                "at the last": EPOCH_MS + 2000,
                "after": EPOCH_MS + 2001,
            }.items():
                ask = list_offsets(topic, time_ms, isolation=isolation)
                talk.ask(f"{moment}: {step}", ask)

        ask_all("empty")
        talk.ask("plain", produce(topic, batch(b"plain")))
        ask_all("one record")
        talk.ask("added", add(producer, topic), 3)
        records = producer.batch(b"open", sequence=0, time_ms=EPOCH_MS + 1000)
        talk.ask("transactional", produce(topic, records, transactional_id=topic), 11)
        talk.ask("plain after it", produce(topic, batch(b"plain", time_ms=EPOCH_MS + 2000)))
        ask_all("open")
        finish(talk, producer, TV1, commit=False)
        ask_all("aborted")

    twins.compare(script)


def test_writes_with_acks_0(twins: Twins) -> None:
    """acks=0: silence is success, and a failure is the end of the connection."""

    def script(talk: Talk) -> None:
        talk.topic("silent")
        for name, ask in {
            "good": produce("silent", batch(b"x"), acks=0),
            "good again": produce("silent", batch(b"x"), acks=0),
            "an unknown partition": produce("silent", batch(b"x"), index=9, acks=0),
            "no batch at all": produce("silent", b"", acks=0),
            "an unknown topic": produce("silent-none", batch(b"x"), acks=0),
        }.items():
            for version in (3, 11, 12):
                talk.send(name, ask, version)
                talk.ask(f"after {name}, v{version}", list_offsets("silent"))

    twins.compare(script)


def test_a_topic_is_deleted_during_an_open_transaction(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for topic in ("leaving", "staying"):
            talk.topic(topic)
        for protocol in (TV1, TV2):
            for commit in (True, False):
                name = f"deserted-{protocol.name}-{commit}"
                talk.topic(name)
                producer = start(talk, name)
                write(talk, producer, protocol, name, b"x")
                write(talk, producer, protocol, "staying", b"x")
                talk.quiet(delete(name))
                talk.until(list_offsets(name), lambda r: r.topics[0].partitions[0].error_code == 3)
                look_at_id(talk, "deserted", name)
                late = producer.batch(b"late", sequence=1)
                ask = produce(name, late, transactional_id=name)
                talk.ask(f"{name}: a late write", ask, protocol.produce)
                finish(talk, producer, protocol, commit=commit)
                look_at_id(talk, "ended", name)
        look(talk, "in the end", "staying")

    twins.compare(script)


def test_a_topic_is_recreated_during_an_open_transaction(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        name = "reborn"
        talk.topic(name)
        producer = start(talk, name)
        write(talk, producer, TV1, name, b"x")
        talk.quiet(delete(name))
        talk.until(list_offsets(name), lambda r: r.topics[0].partitions[0].error_code == 3)
        talk.topic(name)
        look(talk, "reborn", name)
        for sequence in (1, 0):
            ask = produce(name, producer.batch(b"y", sequence=sequence), transactional_id=name)
            talk.ask(f"sequence {sequence}", ask, TV1.produce)
        finish(talk, producer, TV1, commit=True)
        look(talk, "in the end", name)

    twins.compare(script)


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_one_transactional_request_writes_to_many_partitions(twins: Twins, version: int) -> None:
    """Added or not, known or unknown, in order or not: each partition has its own result."""

    def script(talk: Talk) -> None:
        topic = f"many-{version}"
        topic_id = talk.topic(topic, 5)
        other_id = talk.topic(f"{topic}-other")
        producer = start(talk, topic)
        talk.ask("two are added", add(producer, topic, 0, 1), 3)

        def data(index: int, sequence: int) -> PartitionProduceData:
            return PartitionProduceData(
                index=index, records=producer.batch(b"x", sequence=sequence)
            )

        def send(step: str, *partitions: PartitionProduceData) -> None:
            topics = [
                TopicProduceData(name=topic, topic_id=topic_id, partition_data=list(partitions)),
                TopicProduceData(
                    name=f"{topic}-other", topic_id=other_id, partition_data=[data(0, 0)]
                ),
            ]
            talk.ask(step, produce_all(topics, topic), version)
            look_at_id(talk, step, topic)

        send("first", data(0, 0), data(1, 5), data(2, 0), data(9, 0))
        send("second", data(0, 1), data(1, 6), data(2, 1), data(3, 0))
        send("with a gap", data(0, 7), data(3, 1), data(4, 3))
        finish(talk, producer, TV1, commit=True)
        for index in range(5):
            look(talk, "in the end", topic, index=index)

    twins.compare(script)
