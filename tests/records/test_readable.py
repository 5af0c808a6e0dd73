"""Records of internal topics in readable form: whatever the bytes, a row and no exception."""

from __future__ import annotations

import json
import struct

from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.ids import TopicPartition
from fencepost.records import group_log, metadata_log, transaction_log
from fencepost.records.readable import DECODED_TOPICS, readable_record

STATE, OFFSETS, METADATA = "__transaction_state", "__consumer_offsets", "__cluster_metadata"


@given(
    topic=st.sampled_from(sorted(DECODED_TOPICS)),
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=80),
)
def test_any_bytes_become_a_row_for_json(
    topic: str, key: bytes | None, value: bytes | None
) -> None:
    row = readable_record(topic, key, value)
    assert json.loads(json.dumps(row)) == row, "JSON changes what the row says"
    assert isinstance(row["type"], str)
    assert row["type"], "a row says what it is"
    # What cannot be decoded says why, and nothing else does.
    assert (row["type"] == "unreadable") == bool(row.get("problem"))


@given(name=st.text(max_size=30), damage=st.integers(0, 60), byte=st.integers(0, 255))
def test_a_damaged_transaction_record_becomes_a_row_too(name: str, damage: int, byte: int) -> None:
    metadata = transaction_log.new_metadata(7, 60_000, 1_000)
    value = bytearray(transaction_log.encode_value(metadata))
    value[damage % len(value)] = byte
    assert readable_record(STATE, transaction_log.encode_key(name), bytes(value))


def test_a_transaction_and_its_tombstone() -> None:
    key = transaction_log.encode_key("refunds")
    value = transaction_log.encode_value(transaction_log.new_metadata(7, 60_000, 1_000))
    row = readable_record(STATE, key, value)
    assert (row["transactional_id"], row["state"], row["producer_id"]) == ("refunds", "Empty", 7)
    assert readable_record(STATE, key, None)["is_tombstone"]


def test_versions_and_types_of_a_later_kafka_are_named() -> None:
    key = transaction_log.encode_key("refunds")
    later = readable_record(STATE, key, struct.pack(">h", 5) + b"...")
    assert later["type"] == "unreadable"
    assert "version 5" in later["problem"]
    assert later["transactional_id"] == "refunds"
    other = readable_record(STATE, struct.pack(">h", 3) + b"...", b"..")
    assert "record type 3" in other["problem"]
    group = readable_record(OFFSETS, struct.pack(">h", 9) + b"...", b"..")
    assert "newer protocol" in group["problem"]


def test_offsets_and_groups_and_their_tombstones() -> None:
    key = group_log.OffsetKey("night", TopicPartition("orders", 3))
    value = group_log.OffsetValue(42, -1, "half way", 1_000)
    for content, expected in ((value, ("committed_offset", 42)), (None, ("is_tombstone", True))):
        encoded = group_log.encode_record(group_log.OffsetRecord(key, content))
        row = readable_record(OFFSETS, *encoded)
        assert (row["group"], row["partition"]) == ("night", "orders-3")
        assert row[expected[0]] == expected[1]
    group = group_log.GroupRecord(
        group_log.GroupKey("night"), group_log.GroupValue("consumer", 4, "range", None, 1_000)
    )
    assert readable_record(OFFSETS, *group_log.encode_record(group))["generation"] == 4


def test_metadata_records_have_their_names_and_ids_as_text() -> None:
    record = metadata_log.TopicRecord(name="orders", topic_id=bytes(range(16)))
    row = readable_record(METADATA, None, metadata_log.encode_record(record))
    assert (row["type"], row["name"]) == ("TopicRecord", "orders")
    assert row["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
