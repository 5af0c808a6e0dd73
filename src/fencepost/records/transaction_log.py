"""Keys and values of `__transaction_state`, byte for byte Kafka's.

    key    int16 0, transactional id STRING
    value  int16 version, then
           producer id      int64
           producer epoch   int16
           timeout in ms    int32
           status           int8     0 Empty 1 Ongoing 2 PrepareCommit 3 PrepareAbort
                                     4 CompleteCommit 5 CompleteAbort
           partitions       nullable array of (topic, array of int32): null when Empty
           last update      int64
           start            int64    -1 when Empty
           tags (v1)        0 previous producer id, 1 next producer id, 2 the client's TV,
                            10000 last producer epoch (ours), 10001 administrator (ours)

Version 0 has plain lengths and no tags, version 1 is flexible (KIP-915). A null value is a
tombstone: the id has expired. A tag is written only if it differs from its default, in the order of
the numbers.

Kafka forgets the last producer epoch when a coordinator moves: a producer that lost the reply to
InitProducerId is then fenced without need. We keep the epoch in a tag that Kafka's readers skip.
Another one says which administrator ended a transaction or fenced a producer with `fencepost txn`:
nothing else in these records tells an operator's request from the producer's own.

Every transition of every transaction writes one value, so it is written by hand (`encode_value`).
The declared form reads it, and tests compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fencepost.base.failures import WireError
from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from fencepost.wire.compile import decode
from fencepost.wire.schema import field, message
from fencepost.wire.schema import struct as wire_struct

Partitions = Mapping[str, tuple[int, ...]]
"""The partitions of a transaction: per topic its indexes, ascending. Never changed in place."""

NO_PARTITIONS: Final[Partitions] = {}
"""The empty mapping that all transactions without partitions share: most of 100,000 ids."""

STATE_NAMES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""The names in Kafka's tools, by status byte."""

_EMPTY: Final = 0
_LAST_WRITTEN_STATUS: Final = 5
"""Dead and PrepareEpochFence never reach the log."""

LAST_PRODUCER_EPOCH_TAG: Final = 10_000
ADMINISTRATOR_TAG: Final = 10_001


@dataclass(slots=True, init=False)
class TransactionMetadata:
    """The state of a transactional id: one record of the log, never changed in place."""

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    state: int
    partitions: Partitions
    start_ms: int
    last_update_ms: int
    client_transaction_version: int
    administrator: str
    """Who ended it, or fenced its producer, with `fencepost txn`; empty for any other request."""

    def __init__(
        self,
        producer_id: int,
        previous_producer_id: int,
        next_producer_id: int,
        producer_epoch: int,
        last_producer_epoch: int,
        timeout_ms: int,
        state: int,
        partitions: Partitions,
        start_ms: int,
        last_update_ms: int,
        client_transaction_version: int,
        administrator: str = "",
    ) -> None:
        self.producer_id = producer_id
        self.previous_producer_id = previous_producer_id
        self.next_producer_id = next_producer_id
        self.producer_epoch = producer_epoch
        self.last_producer_epoch = last_producer_epoch
        self.timeout_ms = timeout_ms
        self.state = state
        self.partitions = partitions
        self.start_ms = start_ms
        self.last_update_ms = last_update_ms
        self.client_transaction_version = client_transaction_version
        self.administrator = administrator


@message(versions="0", flexible="none")
class TransactionLogKey:
    """The key, after its int16 record type (0)."""

    transactional_id: str = field("string")


@wire_struct
class PartitionsSchema:
    """The partitions of one topic."""

    topic: str = field("string")
    partition_ids: list[int] = field("[]int32")


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    """The value, after its int16 version."""

    producer_id: int = field("int64")
    producer_epoch: int = field("int16")
    transaction_timeout_ms: int = field("int32")
    transaction_status: int = field("int8")
    transaction_partitions: list[PartitionsSchema] | None = field(
        "[]PartitionsSchema", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field("int64")
    transaction_start_timestamp_ms: int = field("int64")
    previous_producer_id: int = field("int64", versions="1+", tag=0, default=NO_PRODUCER_ID)
    next_producer_id: int = field("int64", versions="1+", tag=1, default=NO_PRODUCER_ID)
    client_transaction_version: int = field("int16", versions="1+", tag=2, default=0)
    last_producer_epoch: int = field(
        "int16", versions="1+", tag=LAST_PRODUCER_EPOCH_TAG, default=NO_PRODUCER_EPOCH
    )
    administrator: str = field("string", versions="1+", tag=ADMINISTRATOR_TAG, default="")


_KEY_HEAD: Final = struct.Struct(">hh")

# -- keys -----------------------------------------------------------------------------------------


def encode_key(transactional_id: str) -> bytes:
    """The key of a transactional id."""
    name = transactional_id.encode()
    return _KEY_HEAD.pack(0, len(name)) + name


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for the record type of a later Kafka."""
    if len(key) < 2:
        raise WireError(f"a key of {len(key)} bytes cannot name its record type")
    if key[:2] != b"\0\0":
        return None
    return decode(TransactionLogKey, 0, key[2:]).transactional_id


# -- values ---------------------------------------------------------------------------------------

_HEAD: Final = struct.Struct(">hqhib")
_ONE_INDEX: Final = struct.Struct(">iB")
_TIMES: Final = struct.Struct(">qq")
_TIMES_AND_PREVIOUS: Final = struct.Struct(">qqBHq")
_NEXT_TAG: Final = struct.Struct(">Hq")
_VERSION_TAG: Final = struct.Struct(">Hh")
_LAST_EPOCH_TAG: Final = struct.Struct(">HBh")

_PREVIOUS_TAG_HEAD: Final = 0x0008  # tag 0, 8 bytes
_NEXT_TAG_HEAD: Final = 0x0108  # tag 1, 8 bytes
_VERSION_TAG_HEAD: Final = 0x0202  # tag 2, 2 bytes
_LAST_EPOCH_TAG_HEAD: Final = 0x904E  # tag 10000 as an unsigned varint; its size follows
_ADMINISTRATOR_TAG_HEAD: Final = b"\x91\x4e"  # tag 10001


def encode_value(metadata: TransactionMetadata) -> bytes:
    """Encodes version 1, which Kafka writes from transaction.version 1 on."""
    state = metadata.state
    partitions = metadata.partitions
    assert state != _EMPTY or not partitions, "an empty transaction has no partitions"
    assert state <= _LAST_WRITTEN_STATUS, f"state {state} is never written"
    parts = [
        _HEAD.pack(
            1,
            metadata.producer_id,
            metadata.producer_epoch,
            metadata.timeout_ms,
            state,
        )
    ]
    if partitions:
        _write_partitions(parts, partitions)
    else:
        parts.append(b"\0" if state == _EMPTY else b"\1")
    _write_times_and_tags(parts, metadata)
    return b"".join(parts)


def _write_partitions(parts: list[bytes], partitions: Partitions) -> None:
    parts.append(_unsigned_varint(len(partitions) + 1))
    for topic, indexes in partitions.items():
        name = topic.encode()
        count = len(indexes)
        parts.append(_unsigned_varint(len(name) + 1))
        parts.append(name)
        parts.append(_unsigned_varint(count + 1))
        if count == 1:
            parts.append(_ONE_INDEX.pack(indexes[0], 0))
        else:
            parts.append(struct.pack(f">{count}iB", *indexes, 0))


def _write_times_and_tags(parts: list[bytes], metadata: TransactionMetadata) -> None:
    """Most records have a previous producer id, so the usual case is one pack."""
    previous = metadata.previous_producer_id
    following = metadata.next_producer_id
    version = metadata.client_transaction_version
    last_epoch = metadata.last_producer_epoch
    administrator = metadata.administrator
    count = (
        (previous != NO_PRODUCER_ID)
        + (following != NO_PRODUCER_ID)
        + (version != 0)
        + (last_epoch != NO_PRODUCER_EPOCH)
        + (administrator != "")
    )
    update_ms, start_ms = metadata.last_update_ms, metadata.start_ms
    if previous != NO_PRODUCER_ID:
        parts.append(
            _TIMES_AND_PREVIOUS.pack(update_ms, start_ms, count, _PREVIOUS_TAG_HEAD, previous)
        )
    else:
        parts.append(_TIMES.pack(update_ms, start_ms))
        parts.append(_unsigned_varint(count))
    if following != NO_PRODUCER_ID:
        parts.append(_NEXT_TAG.pack(_NEXT_TAG_HEAD, following))
    if version:
        parts.append(_VERSION_TAG.pack(_VERSION_TAG_HEAD, version))
    if last_epoch != NO_PRODUCER_EPOCH:
        parts.append(_LAST_EPOCH_TAG.pack(_LAST_EPOCH_TAG_HEAD, 2, last_epoch))
    if administrator:
        name = administrator.encode()
        length = _unsigned_varint(len(name) + 1)
        parts += [
            _ADMINISTRATOR_TAG_HEAD,
            _unsigned_varint(len(length) + len(name)),
            length,
            name,
        ]


_SMALL_VARINTS: Final = tuple(bytes((value,)) for value in range(128))


def _unsigned_varint(value: int) -> bytes:
    if value < 128:
        return _SMALL_VARINTS[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_value(value: bytes) -> TransactionMetadata | None:
    """Decodes a value; None for a later version, WireError for other bytes."""
    if len(value) < 2:
        raise WireError(f"a value of {len(value)} bytes cannot name its version")
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in (0, 1):
        return None
    form = decode(TransactionLogValue, version, value[2:])
    if not 0 <= form.transaction_status <= _LAST_WRITTEN_STATUS:
        raise WireError(f"a transaction cannot be in state {form.transaction_status}")
    producer_id = form.producer_id
    previous = form.previous_producer_id
    start_ms = form.transaction_start_timestamp_ms
    last_update_ms = form.transaction_last_update_timestamp_ms
    return TransactionMetadata(
        producer_id,
        # Equal numbers share one object: that saves memory with 100,000 ids.
        producer_id if previous == producer_id else previous,
        form.next_producer_id,
        form.producer_epoch,
        form.last_producer_epoch,
        form.transaction_timeout_ms,
        form.transaction_status,
        _partitions_of(form),
        last_update_ms if start_ms == last_update_ms else start_ms,
        last_update_ms,
        form.client_transaction_version,
        form.administrator,
    )


def _partitions_of(form: TransactionLogValue) -> Partitions:
    if not form.transaction_partitions:
        return NO_PARTITIONS
    merged: dict[str, tuple[int, ...]] = {}
    for entry in form.transaction_partitions:
        known = merged.get(entry.topic, ())
        merged[entry.topic] = tuple(sorted({*known, *entry.partition_ids}))
    return merged


def new_metadata(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """A new id: epoch -1, which the first InitProducerId raises to 0."""
    return TransactionMetadata(
        producer_id=producer_id,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=_EMPTY,
        partitions=NO_PARTITIONS,
        start_ms=NO_TIMESTAMP,
        last_update_ms=now_ms,
        client_transaction_version=0,
    )
