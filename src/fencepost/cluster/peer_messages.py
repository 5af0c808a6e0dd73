"""What brokers send each other, as bytes: the bodies of messages on their links.

    VERIFY   request  int64 producer id, int16 epoch, int8 add, string transactional id, partitions
    MARKER   request  int64 producer id, int16 epoch, int8 commit, int32 coordinator epoch,
                      int8 transaction version, partitions
    REPLY             int32 number of the request, int16 error for each partition

    request           int64 offset of the metadata log that the sender has applied, int32 number
    partitions        to the end of the message: int32 index, string topic
    string            int32 length, UTF-8

These are Kafka's AddPartitionsToTxn and WriteTxnMarkers for one transaction. A transaction takes
two of them with their replies for each remote leader, so what they cost counts: Kafka's layout of
the two takes five times as long to write and read. Both ends of a link are the same release.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.peers.others import FirstWrite
from fencepost.broker.transactions.markers import EndMarker

if TYPE_CHECKING:
    from collections.abc import Sequence

VERIFY: Final = 1
MARKER: Final = 2
REPLY: Final = 3

_REQUEST: Final = struct.Struct(">qi")
_VERIFY: Final = struct.Struct(">qiqh?i")
_MARKER: Final = struct.Struct(">qiqh?ib")
_PARTITION: Final = struct.Struct(">ii")
_NUMBER: Final = struct.Struct(">i")
_NUMBER_AND_ERROR: Final = struct.Struct(">ih")
_ERROR: Final = struct.Struct(">h")
_CODES: Final[dict[int, ErrorCode]] = {int(code): code for code in ErrorCode}


def encode_verify(offset: int, number: int, write: FirstWrite) -> bytes:
    """The body of VERIFY."""
    name = write.transactional_id.encode()
    head = _VERIFY.pack(
        offset, number, write.producer_id, write.producer_epoch, write.add, len(name)
    )
    return _with_partitions(head + name, write.names)


def encode_marker(
    offset: int, number: int, marker: EndMarker, names: Sequence[TopicPartition]
) -> bytes:
    """The body of MARKER."""
    head = _MARKER.pack(
        offset,
        number,
        marker.producer_id,
        marker.producer_epoch,
        marker.commit,
        marker.coordinator_epoch,
        marker.transaction_version,
    )
    return _with_partitions(head, names)


def encode_reply(number: int, errors: Sequence[ErrorCode]) -> bytes:
    """The body of REPLY."""
    if len(errors) == 1:  # Nearly always.
        return _NUMBER_AND_ERROR.pack(number, errors[0])
    return struct.pack(f">i{len(errors)}h", number, *errors)


def decode_request(body: bytes) -> tuple[int, int]:
    """The offset and the number of a request."""
    offset, number = _REQUEST.unpack_from(body)
    return offset, number


def decode_verify(body: bytes) -> FirstWrite:
    """The rest of VERIFY."""
    _, _, producer_id, epoch, add, size = _VERIFY.unpack_from(body)
    end = _VERIFY.size + size
    name = body[_VERIFY.size : end].decode()
    return FirstWrite(_partitions(body, end), name, producer_id, epoch, add)


def decode_marker(body: bytes) -> tuple[EndMarker, list[TopicPartition]]:
    """The rest of MARKER."""
    _, _, producer_id, epoch, commit, coordinator_epoch, version = _MARKER.unpack_from(body)
    marker = EndMarker(producer_id, epoch, commit, coordinator_epoch, version)
    return marker, _partitions(body, _MARKER.size)


def decode_reply(body: bytes) -> tuple[int, list[ErrorCode]]:
    """The number of the request, and its errors."""
    if len(body) == _NUMBER_AND_ERROR.size:
        number, error = _NUMBER_AND_ERROR.unpack(body)
        return number, [_CODES[error]]
    (number,) = _NUMBER.unpack_from(body)
    return number, [_CODES[code] for (code,) in _ERROR.iter_unpack(body[_NUMBER.size :])]


def _with_partitions(head: bytes, names: Sequence[TopicPartition]) -> bytes:
    parts = [head]
    for topic, index in names:
        name = topic.encode()
        parts.append(_PARTITION.pack(index, len(name)))
        parts.append(name)
    return b"".join(parts)


def _partitions(body: bytes, position: int) -> list[TopicPartition]:
    names = []
    while position < len(body):
        index, size = _PARTITION.unpack_from(body, position)
        position += _PARTITION.size + size
        names.append(TopicPartition(body[position - size : position].decode(), index))
    return names
