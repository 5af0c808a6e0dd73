"""The small files of a log as rows: indexes, producer snapshots, checkpoints.

Kafka preallocates the indexes of an active segment, so zeros after the last entry are none. Wrong
content raises ValueError, for an index after the rows of its whole entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fencepost.base.ids import topic_id_text
from fencepost.records import text_files
from fencepost.records.index import (
    ABORTED_TXN_BYTES,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    decode_aborted_txns,
    decode_offset_index,
    decode_time_index,
)
from fencepost.records.segment_walk import is_zero
from fencepost.records.snapshot import decode_snapshot

Row = dict[str, Any]
Reader = Callable[[int, memoryview], Iterator[Row]]
"""Takes the base offset in the file's name, and its content."""


def _whole_entries(data: memoryview, entry_bytes: int) -> tuple[bytes, str | None]:
    """The bytes of whole entries before preallocated zeros, and what is wrong with the end."""
    whole = len(data) // entry_bytes * entry_bytes
    problem = None
    if whole != len(data):
        problem = f"{len(data) - whole} bytes are left after {whole // entry_bytes} entries"
    # A running Kafka preallocates: the zeros after the last entry are none.
    end = whole
    while end >= 2 * entry_bytes and is_zero(data[end - entry_bytes : end]):
        end -= entry_bytes
    return bytes(data[:end]), problem


def _with_problem(rows: Iterator[Row], problem: str | None) -> Iterator[Row]:
    yield from rows
    if problem:
        raise ValueError(problem)


def _offset_index(base_offset: int, data: memoryview) -> Iterator[Row]:
    entries, problem = _whole_entries(data, OFFSET_ENTRY_BYTES)
    offsets, positions = decode_offset_index(entries)
    rows = (
        {"kind": "index entry", "offset": base_offset + offset, "position": position}
        for offset, position in zip(offsets, positions, strict=True)
    )
    return _with_problem(rows, problem)


def _time_index(base_offset: int, data: memoryview) -> Iterator[Row]:
    entries, problem = _whole_entries(data, TIME_ENTRY_BYTES)
    times, offsets = decode_time_index(entries)
    rows = (
        {"kind": "time index entry", "offset": base_offset + offset, "at_ms": at_ms}
        for at_ms, offset in zip(times, offsets, strict=True)
    )
    return _with_problem(rows, problem)


def _txn_index(_: int, data: memoryview) -> Iterator[Row]:
    whole = len(data) // ABORTED_TXN_BYTES * ABORTED_TXN_BYTES
    problem = f"{len(data) - whole} bytes are left over" if whole != len(data) else None
    rows = (
        {"kind": "aborted transaction", **entry._asdict()}
        for entry in decode_aborted_txns(bytes(data[:whole]))
    )
    return _with_problem(rows, problem)


def _snapshot(_: int, data: memoryview) -> Iterator[Row]:
    for entry in decode_snapshot(bytes(data)):
        row = entry._asdict()
        row["last_at_ms"] = row.pop("timestamp_ms")
        yield {"kind": "producer", **row}


def _epochs(_: int, data: memoryview) -> Iterator[Row]:
    for entry in text_files.decode_epochs(bytes(data)):
        yield {"kind": "leader epoch", "epoch": entry.epoch, "start_offset": entry.start_offset}


def _offsets(_: int, data: memoryview) -> Iterator[Row]:
    for partition, offset in text_files.decode_offsets(bytes(data)).items():
        yield {"kind": "checkpoint", "partition": str(partition), "offset": offset}


def _partition_metadata(_: int, data: memoryview) -> Iterator[Row]:
    topic_id = text_files.decode_partition_metadata(bytes(data))
    yield {"kind": "partition metadata", "topic_id": topic_id_text(topic_id)}


def _properties(_: int, data: memoryview) -> Iterator[Row]:
    yield {"kind": "properties", **text_files.decode_properties(bytes(data))}


READERS: Final[Mapping[str, Reader]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    ".snapshot": _snapshot,
}
TEXT_FILES: Final[Mapping[str, Reader]] = {
    "leader-epoch-checkpoint": _epochs,
    "recovery-point-offset-checkpoint": _offsets,
    "replication-offset-checkpoint": _offsets,
    "log-start-offset-checkpoint": _offsets,
    "cleaner-offset-checkpoint": _offsets,
    "partition.metadata": _partition_metadata,
    "meta.properties": _properties,
}
