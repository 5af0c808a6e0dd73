"""Old logs with batches whose records cannot be read: the scrub and `fencepost check` find them.

Method: a broker that does not check records (`record.validation.enable`) has accepted them, as
every fencepost did before there was a check.
"""

from __future__ import annotations

from typing import Final

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.broker.storage.directory_check import DirectoryCheck, Finding
from fencepost.broker.storage.repair import Repair
from fencepost.broker.storage.scrub import START_DELAY_MS
from fencepost.log.segment.record_check import LISTED
from fencepost.records.compression import CODECS, Codec
from tests.broker.conftest import Complaints
from tests.broker.damage.test_damaged_directory import flip
from tests.broker.node_stage import FOLDER, Stage
from tests.broker.requests import (
    NOW_MS,
    batch_of,
    create_topic,
    fetch,
    produce,
    read_topic,
    records_in,
)
from tests.records.malformed import LYING, ODD, batch, damaged_streams, odd_streams, record
from tests.records.test_compression import READ_BY_US
from tests.transactions.protocol import TV2
from tests.transactions.wire import WireProducer, consume

UNCHECKED: Final = {"record.validation.enable": "false"}
SEGMENT: Final = f"{FOLDER}/t-0/{0:020d}.log"
BROKEN: Final = batch(record(off_by=1) + record(1), 2, timestamp_ms=NOW_MS)


def old_log(*unreadable: bytearray, ending: str = "stop") -> Stage:
    """A stopped broker with a readable batch before and after each unreadable one."""
    stage = Stage(durability="os", settings=UNCHECKED).start()
    create_topic(stage, "t", settings={"max.message.bytes": str(8 << 20)})
    assert produce(stage, "t", batch_of(b"first")).error_code == 0
    for each in unreadable:
        assert produce(stage, "t", bytearray(each)).error_code == 0
        assert produce(stage, "t", batch_of(b"between", codec=Codec.ZSTD)).error_code == 0
    getattr(stage, ending)()
    return stage


def findings(stage: Stage) -> list[Finding]:
    return list(DirectoryCheck(stage.disk, FOLDER, lambda _: None).run())


def scrubbed(stage: Stage) -> Stage:
    again = stage.again()
    again.advance(START_DELAY_MS + 60_000)
    return again


def about(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if word in line]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_check_names_every_unreadable_batch_and_says_what_to_do(codec: int) -> None:
    kinds = [
        batch(payload, count, codec=codec, timestamp_ms=NOW_MS)
        for payload, count in list(LYING.values())[:LISTED]
        if count * 7 <= len(payload)  # Even without the check, the header must be possible.
    ]
    stage = old_log(*kinds)
    found = findings(stage)
    assert len(found) == len(kinds)
    assert all(each.is_damage for each in found)
    offset = 1
    for each, raw in zip(found, kinds, strict=True):
        count = int.from_bytes(raw[57:61], "big")
        assert each.file == f"t-0/{0:020d}.log"
        assert f"offsets {offset} to {offset + count - 1} have records that" in each.problem
        assert "fencepost repair" in each.advice
        assert "served as they are" in each.advice
        offset += count + 1


def test_check_names_batches_that_their_codec_cannot_read() -> None:
    streams = {name: stream for name, stream in damaged_streams().items() if "middle" not in name}
    some = list(streams.values())[:LISTED]
    stage = old_log(
        *(batch(b"", 2, codec=codec, packed=packed, timestamp_ms=NOW_MS) for codec, packed in some)
    )
    assert len(findings(stage)) == len(some)


def test_check_counts_the_unreadable_batches_after_the_first_ones() -> None:
    found = findings(old_log(*[BROKEN] * (LISTED + 3)))
    assert len(found) == LISTED + 1
    assert "has 3 more batches with unreadable records" in found[-1].problem


def test_header_names_that_are_not_utf8_are_not_reported() -> None:
    payload, count = ODD["a header name that is not UTF-8"]
    assert findings(old_log(batch(payload, count, timestamp_ms=NOW_MS))) == []


def test_streams_that_are_only_refused_of_producers_are_sound_in_a_log() -> None:
    """A repair would empty them otherwise, although they were acknowledged."""
    streams = [odd_streams()[name] for name in sorted(READ_BY_US)]
    packed = [batch(b"", 2, codec=each[0], packed=each[1], timestamp_ms=NOW_MS) for each in streams]
    stage = old_log(*packed)
    assert findings(stage) == []
    again = stage.again()
    assert read_topic(again, "t") == [b"first", *[b"value", b"value", b"between"] * len(packed)]
    again.stop()


def test_a_log_that_was_compacted_is_sound() -> None:
    stage = Stage(durability="os").start()
    settings = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "1000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    create_topic(stage, "t", settings=settings)
    for number in range(80):
        values = [b"%d" % number] * 3
        assert produce(stage, "t", batch_of(*values, key=b"k%d" % (number % 3))).error_code == 0
    stage.advance(120_000)
    stage.stop()
    assert findings(stage) == []


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_the_scrub_reports_an_unreadable_batch_once_and_serves_it_as_it_is(
    ending: str, complaints: Complaints
) -> None:
    again = scrubbed(old_log(BROKEN, ending=ending))
    (line,) = about(complaints(), "t-0/")
    for part in (
        SEGMENT,
        "offsets 1 to 2",
        "record 0 claims 15 bytes, but has 14",
        "offset 3 ",
        "fencepost repair",
    ):
        assert part in line
    (summary,) = about(complaints(), "scrub:")
    assert "0 damaged, 0 unreadable, 1 with unreadable records" in summary
    got = fetch(again, "t", 1)
    assert got.error_code == 0
    assert bytes(got.records)[16:].startswith(bytes(BROKEN[16:]))
    again.loop.call_soon(again.node.scrub._begin)
    again.advance(60_000)
    assert len(about(complaints(), "t-0/")) == 1
    assert len(about(complaints(), "scrub:")) == 2
    again.stop()


def test_the_scrub_reports_damage_and_unreadable_records_of_one_segment(
    complaints: Complaints,
) -> None:
    stage = old_log(BROKEN)
    whole = stage.disk.read_file(SEGMENT)
    flip(stage, SEGMENT, len(whole) - 3)
    again = scrubbed(stage)
    assert len(about(complaints(), "CORRUPT_MESSAGE")) == 1
    assert len(about(complaints(), "cannot be read")) == 1
    again.stop()


def test_repair_replaces_unreadable_batches_and_readers_get_past_them() -> None:
    stage = old_log(BROKEN, BROKEN)
    before = stage.disk.read_file(SEGMENT)
    done = Repair(stage.disk, FOLDER, TopicPartition("t", 0)).run()
    assert [(each.first_offset, each.end_offset, each.is_lost) for each in done] == [
        (1, 3, True),
        (4, 6, True),
    ]
    assert stage.disk.read_file(f"{SEGMENT}.damaged") == before
    assert findings(stage) == []
    assert Repair(stage.disk, FOLDER, TopicPartition("t", 0)).run() == []
    again = stage.again()
    assert read_topic(again, "t") == [b"first", b"between", b"between"]
    assert produce(again, "t", batch_of(b"next")).base_offset == 7
    again.stop()


def test_repair_replaces_unreadable_batches_beside_damage() -> None:
    stage = old_log(BROKEN, BROKEN)
    whole = stage.disk.read_file(SEGMENT)
    flip(stage, SEGMENT, 3)  # The base offset of the first batch, which repair can restore.
    flip(stage, SEGMENT, len(whole) - 3)
    assert len(findings(stage)) == 4
    Repair(stage.disk, FOLDER, TopicPartition("t", 0)).run()
    assert findings(stage) == []
    again = stage.again()
    assert read_topic(again, "t") == [b"first", b"between"]
    again.stop()


def test_an_unreadable_batch_of_a_transaction_can_be_repaired() -> None:
    stage = Stage(durability="os", settings=UNCHECKED).start()
    create_topic(stage, "t")
    producer = WireProducer(stage, "id", TV2).initialise()
    producer.send("t", b"first")
    bad = batch(
        record(off_by=1),
        1,
        timestamp_ms=NOW_MS,
        base_sequence=1,
        transactional=True,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
    assert produce(stage, "t", bad, transactional_id="id").error_code == 0
    producer.sequences["t", 0] += 1
    producer.send("t", b"last")
    producer.commit()
    stage.stop()
    Repair(stage.disk, FOLDER, TopicPartition("t", 0)).run()
    again = stage.again()
    assert consume(again, "t").values == [b"first", b"last"]
    later = WireProducer(again, "id", TV2).initialise()
    later.send("t", b"later")
    later.commit()
    assert consume(again, "t").values[-1] == b"later"
    again.stop()


def test_a_broker_with_an_old_log_accepts_and_serves_everything_else() -> None:
    again = old_log(BROKEN).again()
    assert produce(again, "t", batch_of(b"next")).error_code == 0
    (read,) = records_in(fetch(again, "t", 4).records)
    assert read.value == b"next"
    again.stop()
