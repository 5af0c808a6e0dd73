"""The checks of Kafka's DumpLogSegments, for folders that were closed cleanly."""

from __future__ import annotations

from fencepost.base.seams import Disk
from fencepost.log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name, offsets_with
from fencepost.log.segment.segment import SMALL_LOG_BYTES
from fencepost.records.batch import SealedBatch, seal_check, split_batches
from fencepost.records.index import decode_aborted_txns, decode_offset_index, decode_time_index
from fencepost.records.opened import open_batch


def audit(disk: Disk, folder: str) -> list[SealedBatch]:
    """Fails where the tool reports an error; returns all batches of the folder."""
    names = disk.list_dir(folder)
    bases = offsets_with(names, LOG)
    last_bytes = len(disk.read_file(f"{folder}/{file_name(bases[-1], LOG)}"))
    may_lack = last_bytes == 0 or (len(bases) == 1 and last_bytes <= SMALL_LOG_BYTES)
    sealed = bases[:-1] if may_lack else bases
    for suffix in (INDEX, TIME_INDEX):
        indexed = offsets_with(names, suffix)
        assert [base for base in indexed if base in sealed] == sealed, (
            f"every segment has its {suffix}"
        )
    assert set(offsets_with(names, TXN_INDEX)) <= set(bases)
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    batches: list[SealedBatch] = []
    for base in bases:
        found = audit_segment(disk, f"{folder}/{file_name(base, '')}", base)
        if batches and found:
            assert found[0].base_offset > batches[-1].last_offset, "segments do not overlap"
        batches += found
    return batches


def audit_segment(disk: Disk, path: str, base: int) -> list[SealedBatch]:
    batches = split_batches(disk.read_file(path + LOG))
    if not batches:
        return []
    next_offset = base
    for batch in batches:
        seal_check(batch)
        assert batch.base_offset >= next_offset
        next_offset = batch.next_offset
    if disk.exists(path + INDEX):
        _audit_offsets(disk.read_file(path + INDEX), base, batches)
        _audit_times(disk.read_file(path + TIME_INDEX), base, batches)
    if disk.exists(path + TXN_INDEX):
        for txn in decode_aborted_txns(disk.read_file(path + TXN_INDEX)):
            assert base <= txn.last_offset < next_offset, "the marker is in this segment"
    return batches


def _audit_offsets(data: bytes, base: int, batches: list[SealedBatch]) -> None:
    position = 0
    places: dict[int, int] = {}
    for batch in batches:
        places[position] = batch.last_offset
        position += batch.size_bytes
    previous = -1
    for offset, place in zip(*decode_offset_index(data), strict=True):
        assert places.get(place) == offset + base, "an entry points to its batch"
        assert offset > previous
        previous = offset


def _audit_times(data: bytes, base: int, batches: list[SealedBatch]) -> None:
    entries = list(zip(*decode_time_index(data), strict=True))
    by_last_offset = {batch.last_offset: batch for batch in batches}
    previous = -1
    for timestamp, offset in entries:
        batch = by_last_offset[offset + base]
        assert max(record.timestamp_ms for record in open_batch(batch)) == timestamp
        assert timestamp > previous
        previous = timestamp
        older = [b.max_timestamp for b in batches if b.last_offset <= offset + base]
        assert max(older) == timestamp, "nothing before the entry is newer"
    newest = max((b.max_timestamp for b in batches if b.record_count), default=-1)
    assert newest == (entries[-1][0] if entries else -1), "the last entry has the newest time"
