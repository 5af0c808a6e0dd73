"""Kafka's checkpoint of the metadata log: `<end offset>-<epoch>.checkpoint`, a file of batches.

    a control batch with a SnapshotHeaderRecord (type 3: the time of the last record)
    batches of metadata records with the whole state before the end offset
    a control batch with a SnapshotFooterRecord (type 4)

Offsets count from 0 within the file. The load continues with the log at the end offset.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.seams import Buffer
from fencepost.records.batch import BatchError, SealedBatch, seal_check, split_batches
from fencepost.records.builder import build_pairs
from fencepost.records.metadata_log import MetadataRecord, decode_record, encode_record
from fencepost.records.opened import open_batch

Pair = tuple[bytes | None, bytes | None]

_KEY: Final = struct.Struct(">hh")
_HEADER_KEY: Final = _KEY.pack(0, 3)
_FOOTER_KEY: Final = _KEY.pack(0, 4)
_NO_TAGS: Final = 0

RECORDS_PER_BATCH: Final = 1000
_NAME: Final = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")


def checkpoint_name(end_offset: int, epoch: int) -> str:
    """The name of the checkpoint of the state before `end_offset`."""
    return f"{end_offset:020d}-{epoch:010d}.checkpoint"


def checkpoint_offset(name: str) -> int | None:
    """The end offset in a file name; None if it is not a checkpoint."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def encode_checkpoint(records: Iterable[MetadataRecord], *, timestamp_ms: int, epoch: int) -> bytes:
    """The content of the file."""
    values: list[Pair] = [(None, encode_record(record)) for record in records]
    header = (_HEADER_KEY, struct.pack(">hqB", 0, timestamp_ms, _NO_TAGS))
    footer = (_FOOTER_KEY, struct.pack(">hB", 0, _NO_TAGS))

    def seal(pairs: list[Pair], base_offset: int, *, control: bool) -> Buffer:
        batch = build_pairs(
            pairs,
            timestamp_ms=timestamp_ms,
            base_offset=base_offset,
            leader_epoch=epoch,
            control=control,
        )
        return batch.data

    parts = [seal([header], 0, control=True)]
    parts += [
        seal(values[start : start + RECORDS_PER_BATCH], 1 + start, control=False)
        for start in range(0, len(values), RECORDS_PER_BATCH)
    ]
    parts.append(seal([footer], 1 + len(values), control=True))
    return b"".join(parts)


def decode_checkpoint(data: bytes) -> Iterator[MetadataRecord]:
    """The records of a file; BatchError or WireError if it is damaged or incomplete."""
    batches = split_batches(data)
    for batch in batches:
        seal_check(batch)
    if len(batches) < 2 or _control_key(batches[0]) != _HEADER_KEY:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a checkpoint begins with its header")
    if _control_key(batches[-1]) != _FOOTER_KEY:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a checkpoint ends with its footer")
    for batch in batches[1:-1]:
        for record in open_batch(batch):
            yield decode_record(bytes(record.value or b""))


def _control_key(batch: SealedBatch) -> bytes | None:
    return open_batch(batch)[0].key if batch.is_control else None
