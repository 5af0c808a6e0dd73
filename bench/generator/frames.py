"""Requests as bytes that are sent many times, with the positions of their changing fields.

The wire room builds a request with values that occur nowhere else; where these are found, the real
values are written later.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, reduce
from operator import xor
from typing import Any, Final

from crc32c import crc32c

from fencepost.records.batch import CRC_START
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import encode_request
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData

CLIENT_ID: Final = "bench"
TIMEOUT_MS: Final = 30_000
CORRELATION_AT: Final = 8
"""The position after the size, the API key and the version."""

# Placeholders for unknown values; no part of another field looks like them.
_SOME_PARTITION: Final = 0x5AFE0000
_SOME_PRODUCER_ID: Final = 0x5AFE5AFE5AFE5AFE
_SOME_EPOCH: Final = 0x5A5E
_CRC_AT: Final = 17
_PRODUCER_AT: Final = 43
_PRODUCER_BYTES: Final = 14
TABLE_WORTH_BYTES: Final = 32 * 1024
"""From this size on, updating the checksum is cheaper than computing it again."""

_pack_int32 = struct.Struct(">i").pack_into
_pack_crc = struct.Struct(">I").pack_into
_pack_producer = struct.Struct(">qhi").pack_into
_pack_identity = struct.Struct(">qh").pack_into


def _bytes_of(api: ApiKey, version: int, form: Any) -> bytearray:
    return bytearray(b"".join(encode_request(api, version, 0, CLIENT_ID, form)))


def _place(data: bytearray, wanted: bytes, start: int = 0) -> int:
    """The position of the first occurrence of these bytes."""
    found = data.find(wanted, start)
    assert found >= 0, f"{wanted[:16].hex()} is not in the request"
    return found


def _some(spread: int) -> list[int]:
    """Placeholders for partitions."""
    return [_SOME_PARTITION + number for number in range(spread)]


def _identity_place(data: bytearray) -> int:
    return _place(data, struct.pack(">qh", _SOME_PRODUCER_ID, _SOME_EPOCH))


@lru_cache(maxsize=1)
def _crc_tables(batch: bytes) -> tuple[int, list[list[int]]]:
    """The checksum of a batch, with a table of changes for each byte of the producer's fields.

    All producers of a run send the same batch, so they share the tables.
    """
    data = bytearray(batch)
    checked = memoryview(data)[CRC_START:]
    base = crc32c(checked)
    tables = []
    for place in range(_PRODUCER_AT, _PRODUCER_AT + _PRODUCER_BYTES):
        bits = []
        for bit in range(8):
            data[place] = batch[place] ^ (1 << bit)
            bits.append(crc32c(checked) ^ base)
        data[place] = batch[place]
        tables.append([_together(bits, value ^ batch[place]) for value in range(256)])
    return base, tables


def _checksum(original: bytes, batch: memoryview) -> Callable[[], int]:
    """Computes the checksum of a batch in which only the producer's fields change."""
    if len(batch) < TABLE_WORTH_BYTES:
        checked = batch[CRC_START:]
        return lambda: crc32c(checked)
    changing = batch[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER_BYTES]
    base, tables = _crc_tables(original)

    def compute() -> int:
        crc = base
        for table, value in zip(tables, changing, strict=True):
            crc ^= table[value]
        return crc

    return compute


def _together(bits: list[int], flipped: int) -> int:
    """The change of a checksum when bits of one byte are flipped: a CRC is linear."""
    return reduce(xor, (part for bit, part in enumerate(bits) if flipped >> bit & 1), 0)


class ProduceFrame:
    """A Produce request with one batch for each of some consecutive partitions."""

    __slots__ = ("_batches", "_checksum", "_partitions", "data")

    def __init__(
        self,
        topic: str,
        batch: bytes,
        *,
        version: int,
        acks: int,
        transactional_id: str | None = None,
        spread: int = 1,
    ) -> None:
        parts = [PartitionProduceData(index=one, records=batch) for one in _some(spread)]
        form = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=topic, partition_data=parts)],
        )
        self.data = _bytes_of(ApiKey.PRODUCE, version, form)
        self._partitions, self._batches = self._places(batch, spread)
        self._checksum = _checksum(batch, self._batches[0])

    def _places(self, batch: bytes, spread: int) -> tuple[tuple[int, ...], tuple[memoryview, ...]]:
        """Finds partition indexes and batches in turn, as a batch may hold any bytes."""
        view = memoryview(self.data)
        partitions: list[int] = []
        batches: list[memoryview] = []
        end = 0
        for number in _some(spread):
            partitions.append(_place(self.data, number.to_bytes(4, "big"), end))
            start = _place(self.data, batch, partitions[-1])
            end = start + len(batch)
            batches.append(view[start:end])
        return tuple(partitions), tuple(batches)

    def address(self, first: int, of: int) -> None:
        """Sets the partitions: `first` and those after it, modulo `of`."""
        for place in self._partitions:
            _pack_int32(self.data, place, first)
            first = (first + 1) % of

    def seal(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """Gives the batches the next sequences of their producer."""
        for batch in self._batches:
            _pack_producer(batch, _PRODUCER_AT, producer_id, producer_epoch, sequence)
        # They are all equal.
        crc = self._checksum()
        for batch in self._batches:
            _pack_crc(batch, _CRC_AT, crc)


class AddPartitionsFrame:
    """An AddPartitionsToTxn request of the older protocol."""

    __slots__ = ("_identity", "_partitions", "data")
    VERSION: Final = 3

    def __init__(self, topic: str, transactional_id: str, spread: int = 1) -> None:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=_some(spread))]
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=_SOME_PRODUCER_ID,
            producer_epoch=_SOME_EPOCH,
            topics=topics,
        )
        form = AddPartitionsToTxnRequest(transactions=[transaction])
        self.data = _bytes_of(ApiKey.ADD_PARTITIONS_TO_TXN, self.VERSION, form)
        self._identity = _identity_place(self.data)
        self._partitions = tuple(
            _place(self.data, number.to_bytes(4, "big")) for number in _some(spread)
        )

    def prepare(
        self, producer_id: int, producer_epoch: int, first: int, of_partitions: int
    ) -> None:
        _pack_identity(self.data, self._identity, producer_id, producer_epoch)
        for number, place in enumerate(self._partitions):
            _pack_int32(self.data, place, (first + number) % of_partitions)


class EndFrame:
    """An EndTxn request that commits."""

    __slots__ = ("_identity", "data")

    def __init__(self, transactional_id: str, version: int) -> None:
        form = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=_SOME_PRODUCER_ID,
            producer_epoch=_SOME_EPOCH,
            committed=True,
        )
        self.data = _bytes_of(ApiKey.END_TXN, version, form)
        self._identity = _identity_place(self.data)

    def prepare(self, producer_id: int, producer_epoch: int) -> None:
        _pack_identity(self.data, self._identity, producer_id, producer_epoch)


def init_producer_id(transactional_id: str | None, version: int, timeout_ms: int) -> bytearray:
    """An InitProducerId request: sent rarely, without changing fields."""
    form = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    )
    return _bytes_of(ApiKey.INIT_PRODUCER_ID, version, form)
