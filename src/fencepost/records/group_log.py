"""Keys and values of `__consumer_offsets`, byte for byte Kafka's.

    key    int16 record type
             0, 1   an offset: group STRING, topic STRING, partition int32 (0 is an old 1)
             2      a group: group STRING
             others groups of the newer protocols, which readers skip
    value  int16 version, then

    of an offset                              of a group
      offset            int64                   protocol type   STRING, "" for none
      leader epoch      int32 (v3+)             generation      int32
      metadata          STRING                  protocol        nullable STRING
      commit time       int64                   leader          nullable STRING
      expiry time       int64 (v1 alone)        state time      int64 (v2+)
      tag 0 (v4)        topic id uuid           members         array of: member id STRING,
                                                  instance id nullable STRING (v3+), client id
                                                  STRING, client host STRING, rebalance timeout
                                                  int32 (v1+), session timeout int32, subscription
                                                  BYTES, assignment BYTES

Version 4 of both is flexible. Like Apache Kafka 4.3 we write an offset as version 4, or as version
1 if an old client requested a retention time, and a group as version 3. A null value is a
tombstone.

A transactional offset is the same record in a transactional batch; a marker in the same partition
commits or aborts it. Ours has the topic id, which Kafka omits there: an offset must not pass to a
later topic of the same name. Commits are frequent, so the value of an offset is written by hand,
and read by hand in the version that we write. The declared form reads all versions, and tests
compare the two.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from fencepost.base.failures import WireError
from fencepost.base.ids import NO_TIMESTAMP, ZERO_TOPIC_ID, TopicPartition
from fencepost.wire.compile import decode, encode
from fencepost.wire.schema import field, message
from fencepost.wire.schema import struct as wire_struct
from fencepost.wire.writing import varint

NO_LEADER_EPOCH: Final = -1


class OffsetKey(NamedTuple):
    """The group and the partition of an offset."""

    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """The group that a record describes."""

    group_id: str


class OffsetValue(NamedTuple):
    """A committed offset; `expire_timestamp_ms` is -1 without a retention from the client."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: bytes = ZERO_TOPIC_ID


class MemberValue(NamedTuple):
    """A member of a group at the start of a generation."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A generation of a group with its members and their assignments."""

    protocol_type: str | None
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...] = ()


class OffsetRecord(NamedTuple):
    """An offset, or its tombstone (None)."""

    key: OffsetKey
    value: OffsetValue | None


class GroupRecord(NamedTuple):
    """A group, or its tombstone (None)."""

    key: GroupKey
    value: GroupValue | None


LogRecord = OffsetRecord | GroupRecord


@message(versions="0-1")
class OffsetCommitKey:
    """The key of an offset, after its record type, which is also its version."""

    group: str = field("string")
    topic: str = field("string")
    partition: int = field("int32")


@message(versions="2")
class GroupMetadataKey:
    """The key of a group, after its record type, which is also its version."""

    group: str = field("string")


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    """The value of an offset, after its version."""

    offset: int = field("int64")
    leader_epoch: int = field("int32", versions="3+", default=NO_LEADER_EPOCH)
    metadata: str = field("string")
    commit_timestamp: int = field("int64")
    expire_timestamp: int = field("int64", versions="1", default=NO_TIMESTAMP)
    topic_id: bytes = field("uuid", versions="4+", tag=0)


@wire_struct
class MemberMetadata:
    """One member in the value of a group."""

    member_id: str = field("string")
    group_instance_id: str | None = field("string", versions="3+", nullable="3+", default=None)
    client_id: str = field("string")
    client_host: str = field("string")
    rebalance_timeout: int = field("int32", versions="1+", default=-1)
    session_timeout: int = field("int32")
    subscription: bytes = field("bytes")
    assignment: bytes = field("bytes")


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    """The value of a group, after its version."""

    protocol_type: str = field("string")
    generation: int = field("int32")
    protocol: str | None = field("string", nullable="0+", default=None)
    leader: str | None = field("string", nullable="0+", default=None)
    current_state_timestamp: int = field("int64", versions="2+", default=NO_TIMESTAMP)
    members: list[MemberMetadata] = field("[]MemberMetadata")


_OFFSET_TYPE: Final = 1
_GROUP_TYPE: Final = 2
_NEWEST_VERSION: Final = 4
_GROUP_VERSION: Final = 3
_EXPIRING_VERSION: Final = 1


_REMEMBERED_KEYS: Final = 50_000
"""Every commit repeats a key, and a load reads millions of commits."""

# -- writing --------------------------------------------------------------------------------------


def encode_record(record: LogRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record as bytes."""
    if isinstance(record, OffsetRecord):
        value = record.value
        return encode_offset_key(record.key), None if value is None else encode_offset(value)
    group = record.value
    return encode_group_key(record.key), None if group is None else encode_group(group)


def encode_offset_key(key: OffsetKey) -> bytes:
    """The key of an offset."""
    topic, index = key.partition
    group, name = key.group_id.encode(), topic.encode()
    head = struct.pack(">hh", _OFFSET_TYPE, len(group))
    return b"".join((head, group, len(name).to_bytes(2, "big"), name, index.to_bytes(4, "big")))


def encode_group_key(key: GroupKey) -> bytes:
    """The key of a group."""
    group = key.group_id.encode()
    return struct.pack(">hh", _GROUP_TYPE, len(group)) + group


_OFFSET_HEAD: Final = struct.Struct(">hqi")
_TIME: Final = struct.Struct(">q")
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"  # one tag, number 0, 16 bytes
_READ_HEAD: Final = struct.Struct(">hqiB")
"""Version, offset, leader epoch, and the length of the metadata if that takes one byte."""
_LEAST_BYTES: Final = _READ_HEAD.size + _TIME.size + 1


def encode_offset(value: OffsetValue) -> bytes:
    """The value of an offset, in the version that Kafka writes."""
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return _encode_expiring_offset(value)
    metadata = value.metadata.encode()
    topic_id = value.topic_id
    return b"".join(
        (
            _OFFSET_HEAD.pack(_NEWEST_VERSION, value.offset, value.leader_epoch),
            varint(len(metadata) + 1),
            metadata,
            _TIME.pack(value.commit_timestamp_ms),
            b"\0" if topic_id == ZERO_TOPIC_ID else _TOPIC_ID_TAG + topic_id,
        )
    )


def _encode_expiring_offset(value: OffsetValue) -> bytes:
    form = OffsetCommitValue(
        offset=value.offset,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=value.expire_timestamp_ms,
    )
    return _EXPIRING_VERSION.to_bytes(2, "big") + encode(form, _EXPIRING_VERSION)


def encode_group(value: GroupValue) -> bytes:
    """The value of a group."""
    form = GroupMetadataValue(
        protocol_type=value.protocol_type or "",
        generation=value.generation_id,
        protocol=value.protocol_name,
        leader=value.leader,
        current_state_timestamp=value.state_timestamp_ms,
        members=[_member_form(member) for member in value.members],
    )
    return _GROUP_VERSION.to_bytes(2, "big") + encode(form, _GROUP_VERSION)


def _member_form(member: MemberValue) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.subscription,
        assignment=member.assignment,
    )


# -- reading --------------------------------------------------------------------------------------


def decode_record(key: bytes, value: bytes | None) -> LogRecord | None:
    """Decodes a record; None for an unknown type or version, WireError for other bytes."""
    found = _decode_key(key)
    if isinstance(found, OffsetKey):
        return _decode_offset_record(found, value)
    return None if found is None else _decode_group_record(found, value)


@lru_cache(maxsize=_REMEMBERED_KEYS)
def _decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    kind, body = _split(key, "key")
    if kind in (0, _OFFSET_TYPE):
        form = decode(OffsetCommitKey, kind, body)
        return OffsetKey(form.group, TopicPartition(form.topic, form.partition))
    return GroupKey(decode(GroupMetadataKey, kind, body).group) if kind == _GROUP_TYPE else None


def _split(data: bytes, name: str) -> tuple[int, bytes]:
    if len(data) < 2:
        raise WireError(f"a {name} of {len(data)} bytes cannot name its version")
    return int.from_bytes(data[:2], "big", signed=True), data[2:]


def _decode_newest_offset(value: bytes) -> OffsetValue | None:
    """The value as `encode_offset` writes it; None for any other, which may be right too."""
    if len(value) < _LEAST_BYTES:
        return None
    version, offset, leader_epoch, length = _READ_HEAD.unpack_from(value)
    end = _READ_HEAD.size + length - 1
    if version != _NEWEST_VERSION or not 0 < length < 128:
        return None
    tail = value[end + _TIME.size :]
    topic_id: bytes = ZERO_TOPIC_ID
    if tail != b"\0":
        if len(tail) != len(_TOPIC_ID_TAG) + 16 or not tail.startswith(_TOPIC_ID_TAG):
            return None
        topic_id = tail[len(_TOPIC_ID_TAG) :]
    try:
        metadata = value[_READ_HEAD.size : end].decode() if length > 1 else ""
    except UnicodeDecodeError:
        return None
    time_ms = _TIME.unpack_from(value, end)[0]
    return OffsetValue(offset, leader_epoch, metadata, time_ms, NO_TIMESTAMP, topic_id)


def _decode_offset_record(key: OffsetKey, value: bytes | None) -> OffsetRecord | None:
    if value is None:
        return OffsetRecord(key, None)
    newest = _decode_newest_offset(value)
    if newest is not None:
        return OffsetRecord(key, newest)
    version, body = _split(value, "value")
    if not 0 <= version <= _NEWEST_VERSION:
        return None
    read = decode(OffsetCommitValue, version, body)
    offset = OffsetValue(
        read.offset,
        read.leader_epoch,
        read.metadata,
        read.commit_timestamp,
        read.expire_timestamp,
        bytes(read.topic_id),
    )
    return OffsetRecord(key, offset)


def _decode_group_record(key: GroupKey, value: bytes | None) -> GroupRecord | None:
    if value is None:
        return GroupRecord(key, None)
    version, body = _split(value, "value")
    if not 0 <= version <= _NEWEST_VERSION:
        return None
    read = decode(GroupMetadataValue, version, body)
    group = GroupValue(
        read.protocol_type or None,
        read.generation,
        read.protocol,
        read.leader,
        read.current_state_timestamp,
        tuple(_member_value(member) for member in read.members),
    )
    return GroupRecord(key, group)


def _member_value(form: MemberMetadata) -> MemberValue:
    # Version 0 had one timeout for both.
    rebalance_timeout = form.rebalance_timeout
    return MemberValue(
        form.member_id,
        form.group_instance_id,
        form.client_id,
        form.client_host,
        form.session_timeout if rebalance_timeout == -1 else rebalance_timeout,
        form.session_timeout,
        bytes(form.subscription),
        bytes(form.assignment),
    )
