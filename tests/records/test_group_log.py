"""The bytes of `__consumer_offsets`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import WireError
from fencepost.base.ids import TopicPartition
from fencepost.records.group_log import (
    GroupKey,
    GroupMetadataValue,
    GroupRecord,
    GroupValue,
    LogRecord,
    MemberMetadata,
    MemberValue,
    OffsetCommitValue,
    OffsetKey,
    OffsetRecord,
    OffsetValue,
    _decode_newest_offset,
    decode_record,
    encode_group,
    encode_offset,
    encode_record,
)
from fencepost.wire.compile import decode, encode

KEY = OffsetKey("g", TopicPartition("t", 0))
TIME_MS = 1_700_000_000_000

text = st.text(max_size=20)
int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(-1, 2**63 - 1)
data = st.binary(max_size=20)

offsets = st.builds(
    OffsetValue,
    offset=int64,
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=200),
    commit_timestamp_ms=int64,
    expire_timestamp_ms=st.just(-1),
    topic_id=st.binary(min_size=16, max_size=16),
)
members = st.builds(
    MemberValue,
    member_id=text,
    group_instance_id=st.none() | text,
    client_id=text,
    client_host=text,
    rebalance_timeout_ms=int32,
    session_timeout_ms=int32,
    subscription=data,
    assignment=data,
)
groups = st.builds(
    GroupValue,
    protocol_type=st.none() | st.text(min_size=1, max_size=20),
    generation_id=int32,
    protocol_name=st.none() | text,
    leader=st.none() | text,
    state_timestamp_ms=int64,
    members=st.lists(members, max_size=3).map(tuple),
)
offset_keys = st.builds(
    OffsetKey, group_id=text, partition=st.builds(TopicPartition, topic=text, partition=int32)
)
records = st.builds(OffsetRecord, offset_keys, st.none() | offsets) | st.builds(
    GroupRecord, st.builds(GroupKey, text), st.none() | groups
)


@given(records)
def test_a_record_reads_back(record: LogRecord) -> None:
    key, value = encode_record(record)
    assert decode_record(key, value) == record


@given(offsets)
def test_the_hand_written_writer_agrees_with_the_declared_form(value: OffsetValue) -> None:
    form = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        topic_id=value.topic_id,
    )
    assert encode_offset(value) == b"\0\4" + encode(form, 4)


@given(offsets, st.data())
def test_the_hand_written_reader_agrees_with_the_declared_form(
    value: OffsetValue, data: st.DataObject
) -> None:
    """Also on changed bytes: it reads them alike, or leaves them to the declared form."""
    changed = bytearray(encode_offset(value))
    for _ in range(data.draw(st.integers(0, 2))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 1, 9, 20]))
    read = _decode_newest_offset(bytes(changed[: len(changed) - cut]))
    if read is not None:
        form = decode(OffsetCommitValue, 4, bytes(changed[2 : len(changed) - cut]))
        assert read == OffsetValue(
            form.offset,
            form.leader_epoch,
            form.metadata,
            form.commit_timestamp,
            form.expire_timestamp,
            bytes(form.topic_id),
        )


def test_an_offset_has_kafkas_bytes() -> None:
    key, value = encode_record(OffsetRecord(KEY, OffsetValue(110, 15, "m", TIME_MS)))
    assert key == bytes.fromhex("0001 000167 000174 00000000")
    assert value == bytes.fromhex("0004 000000000000006e 0000000f 026d 0000018bcfe56800 00")


def test_an_older_version_3_is_read() -> None:
    key, _ = encode_record(OffsetRecord(KEY, None))
    value = bytes.fromhex("0003 000000000000006e 0000000f 00016d 0000018bcfe56800")
    assert decode_record(key, value) == OffsetRecord(KEY, OffsetValue(110, 15, "m", TIME_MS))


def test_an_offset_with_its_own_retention_is_written_as_version_1() -> None:
    offset = OffsetValue(110, -1, "m", TIME_MS, TIME_MS + 5)
    key, value = encode_record(OffsetRecord(KEY, offset))
    assert value is not None
    assert value[:2] == b"\0\1"
    assert decode_record(key, value) == OffsetRecord(KEY, offset)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_groups_of_every_version_are_read(version: int) -> None:
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=7,
        session_timeout=5,
        subscription=b"s",
        assignment=b"a",
    )
    form = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        current_state_timestamp=TIME_MS,
        members=[member],
    )
    key, _ = encode_record(GroupRecord(GroupKey("g"), None))
    record = decode_record(key, version.to_bytes(2, "big") + encode(form, version))
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert record.value.generation_id == 3
    # Version 0 had one timeout for both; version 2 added the time.
    assert record.value.members[0].rebalance_timeout_ms == (5 if version == 0 else 7)
    assert record.value.state_timestamp_ms == (TIME_MS if version >= 2 else -1)


def test_a_group_is_written_as_version_3() -> None:
    value = encode_group(GroupValue(None, 0, None, None, 5))
    assert value == bytes.fromhex("0003 0000 00000000 ffff ffff 0000000000000005 00000000")


def test_an_old_key_of_type_0_is_also_an_offset() -> None:
    key, value = encode_record(OffsetRecord(KEY, OffsetValue(110, 15, "m", TIME_MS)))
    assert decode_record(b"\0\0" + key[2:], value) == decode_record(key, value)


@pytest.mark.parametrize("kind", [3, 8, 16, 23, -1])
def test_groups_of_other_protocols_are_skipped(kind: int) -> None:
    assert decode_record(kind.to_bytes(2, "big", signed=True) + b"\0\1g", b"\0\0") is None


def test_values_of_a_later_version_are_skipped() -> None:
    for record in (OffsetRecord(KEY, None), GroupRecord(GroupKey("g"), None)):
        key, _ = encode_record(record)
        assert decode_record(key, b"\0\x05anything") is None


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1", b"\0\1\0\5ab", b"\0\2\0\5ab"])
def test_bytes_that_are_not_a_key_are_refused(key: bytes) -> None:
    with pytest.raises(WireError):
        decode_record(key, None)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_random_bytes_are_a_record_or_a_wire_error(key: bytes, value: bytes) -> None:
    try:
        decode_record(b"\0" + key, value)
    except WireError:
        return
