"""Kafka's text files."""

from __future__ import annotations

import pytest

from fencepost.base.ids import TopicPartition, parse_topic_id
from fencepost.records.text_files import (
    EpochEntry,
    decode_epochs,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
    encode_epochs,
    encode_offsets,
    encode_partition_metadata,
    encode_properties,
)

TOPIC_ID = parse_topic_id("vTlkRYHVTDevWZk2VTZMQA")


def test_epochs_are_lines_of_epoch_and_offset() -> None:
    entries = [EpochEntry(0, 0), EpochEntry(3, 170)]
    assert encode_epochs(entries) == b"0\n2\n0 0\n3 170\n"
    assert decode_epochs(b"0\n2\n0 0\n3 170\n") == entries


def test_offsets_are_lines_of_topic_partition_and_offset() -> None:
    offsets = {TopicPartition("b.c_d-e", 0): 7, TopicPartition("a", 12): 2**40}
    data = encode_offsets(offsets)
    assert data == b"0\n2\na 12 1099511627776\nb.c_d-e 0 7\n"
    assert decode_offsets(data) == offsets


@pytest.mark.parametrize("data", [b"", b"0\n", b"0\n0\n"])
def test_a_missing_checkpoint_is_empty(data: bytes) -> None:
    assert decode_epochs(data) == []
    assert decode_offsets(data) == {}


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"0\n1\n1 2 3 4\n", b"\xff\n0\n", b"a\nb\n"]
)
def test_a_damaged_checkpoint_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_epochs(data)
    with pytest.raises(ValueError):
        decode_offsets(data)


def test_partition_metadata_is_written_as_kafka_writes_it() -> None:
    data = b"version: 0\ntopic_id: vTlkRYHVTDevWZk2VTZMQA"
    assert encode_partition_metadata(TOPIC_ID) == data
    assert decode_partition_metadata(data) == TOPIC_ID


@pytest.mark.parametrize("data", [b"", b"version: 1\ntopic_id: x", b"version: 0", b"nonsense"])
def test_damaged_partition_metadata_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_partition_metadata(data)


def test_properties_read_back_and_comments_are_skipped() -> None:
    properties = {"version": "1", "cluster.id": "abc", "node.id": "1"}
    assert decode_properties(b"#Mon Jan 1\n\n" + encode_properties(properties)) == properties
    with pytest.raises(ValueError):
        decode_properties(b"no equals sign\n")
