"""Reads log files without a broker: fencepost's and Apache Kafka's, which have the same formats.

    .log (.log.deleted, .cleaned, .swap), .checkpoint   batches, and the records in them
    .index, .timeindex, .txnindex                       entries
    .snapshot                                           producers
    leader-epoch-checkpoint, *-offset-checkpoint, partition.metadata, meta.properties

Every file becomes rows; a damaged one yields the rows before the damage and then one of the kind
`damage`. Segments are mapped, not read, so a gigabyte needs no memory.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.forensics.logs.file_rows import READERS, TEXT_FILES, Row
from fencepost.forensics.logs.record_rows import batch_row, marker_fields, record_rows
from fencepost.records.batch import BatchError, SealedBatch
from fencepost.records.fates import (
    WHOLE_LOG,
    BatchFate,
    Known,
    Transaction,
    TransactionFollower,
    fates,
)
from fencepost.records.readable import DECODED_TOPICS
from fencepost.records.segment_walk import TornSegmentError, walk_segment

DAMAGE: Final = "damage"
SEGMENTS: Final = (".log", ".checkpoint")
_LEFTOVERS: Final = (".deleted", ".cleaned", ".swap")
_FOLDER: Final = re.compile(
    r"(?P<topic>.+)-(?P<partition>\d+)(\.[0-9a-f]{32}-(delete|future|stray))?"
)
_TRANSACTION_KEYS = Mapping[tuple[int, int], Transaction]


class UnknownFileError(FencepostError):
    """A file that is none of a log's."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log, by its name."""

    path: Path
    suffix: str
    """`.log` and so on, or the whole name of a text file."""
    base_offset: int
    topic: str
    """Of the folder; empty if it is not named as a partition's."""


def log_file(path: Path) -> LogFile | None:
    """Recognises a file by its name; None if it is none of a log's."""
    name = path.name
    for leftover in _LEFTOVERS:
        name = name.removesuffix(leftover)
    folder = _FOLDER.fullmatch(path.absolute().parent.name)
    topic = folder["topic"] if folder else ""
    if name in TEXT_FILES:
        return LogFile(path, name, 0, topic)
    stem, dot, suffix = name.partition(".")
    digits = stem.partition("-")[0]  # A KRaft snapshot is named offset-epoch.checkpoint.
    if dot and len(digits) == 20 and digits.isdigit() and f".{suffix}" in (*SEGMENTS, *READERS):
        return LogFile(path, f".{suffix}", int(digits), topic)
    return None


def find_files(paths: Sequence[Path]) -> list[LogFile]:
    """The log files that paths name; those of a folder in order, its subfolders too."""
    found: list[LogFile] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.is_file())
            known = [file for each in inside if (file := log_file(each)) is not None]
            if not known:
                raise UnknownFileError(f"{path} has no log files.")
            found += known
        elif not path.exists():
            raise UnknownFileError(f"{path} does not exist.")
        elif (file := log_file(path)) is not None:
            found.append(file)
        else:
            raise UnknownFileError(
                f"{path} is not a log file: its name should be 20 digits with .log, .index, "
                ".timeindex, .txnindex or .snapshot, or that of a checkpoint."
            )
    return found


def dump_files(
    files: Sequence[LogFile], options: DumpOptions
) -> Iterator[tuple[LogFile, Iterator[Row]]]:
    """Yields each file with its rows. The fates of batches follow from the files given."""
    for _, group in groupby(files, key=lambda file: file.path.parent):
        inside = list(group)
        # Files of a compaction or deletion that is not finished are no part of the log.
        log = [file for file in inside if file.path.suffix == ".log"]
        of_log = scan_files(log), new_follower(log)
        for file in inside:
            if file in log or file.suffix not in SEGMENTS:
                yield file, dump_file(file, *of_log, options)
            else:
                yield file, dump_file(file, scan_files([file]), new_follower([file]), options)


def dump_file(
    file: LogFile,
    transactions: _TRANSACTION_KEYS,
    follower: TransactionFollower,
    options: DumpOptions,
) -> Iterator[Row]:
    """The rows of one file; the last one tells of damage.

    `transactions` and `follower` belong to the partition; see `scan_files` and `new_follower`.
    """
    try:
        with _mapped(file.path) as data:
            if file.suffix in SEGMENTS:
                yield from _segment_rows(file, data, transactions, follower, options)
            else:
                reader = TEXT_FILES.get(file.suffix) or READERS[file.suffix]
                yield from reader(file.base_offset, data)
    except TornSegmentError as torn:
        yield {"kind": DAMAGE, "position": torn.position, "problem": torn.reason}
    except OSError as problem:
        reason = f"it cannot be read: {problem.strerror}"
        yield {"kind": DAMAGE, "position": None, "problem": reason}
    except (ValueError, FencepostError) as problem:
        yield {"kind": DAMAGE, "position": None, "problem": str(problem)}


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to show of a segment."""

    records: bool | None = None
    """Records; None: those of internal topics only."""
    values: bool = False
    batches: bool = True
    """Batches, also where records are shown."""


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as opened:
        if path.stat().st_size == 0:  # An empty file cannot be mapped.
            yield memoryview(b"")
            return
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(mapped)
        try:
            yield view
        finally:
            # A batch that is still referenced keeps the mapping until it is collected.
            with suppress(BufferError):
                view.release()
                mapped.close()


# -- segments -------------------------------------------------------------------------------------


def scan_files(files: Sequence[LogFile]) -> dict[tuple[int, int], Transaction]:
    """The first pass over the segments of one partition, in order: what became of transactions."""
    follower = new_follower(files)
    found: dict[tuple[int, int], Transaction] = {}
    for file in files:
        try:
            with _mapped(file.path) as data:
                for _, batch in walk_segment(data):
                    transaction = follower.follow(batch)
                    if transaction is not None and not batch.is_control:
                        found.setdefault(transaction.key, transaction)
        except (TornSegmentError, BatchError, OSError):
            return found  # The second pass reports it.
    return found


def new_follower(files: Sequence[LogFile]) -> TransactionFollower:
    """A follower for the segments of one partition: a log from its start has no earlier part."""
    starts_log = bool(files) and files[0].base_offset == 0
    return TransactionFollower(WHOLE_LOG if starts_log else Known())


def _segment_rows(
    file: LogFile,
    data: memoryview,
    transactions: _TRANSACTION_KEYS,
    follower: TransactionFollower,
    options: DumpOptions,
) -> Iterator[Row]:
    is_decoded = file.topic in DECODED_TOPICS or file.suffix == ".checkpoint"
    topic = file.topic if file.suffix == ".log" else "__cluster_metadata"
    with_records = is_decoded if options.records is None else options.records
    positions: dict[int, int] = {}

    def batches() -> Iterator[SealedBatch]:
        for position, batch in walk_segment(data):
            positions[batch.base_offset] = position
            yield batch

    for judged in fates(batches(), transactions, follower=follower):
        batch = judged.batch
        position = positions.pop(batch.base_offset)
        if not batch.is_sound:
            raise TornSegmentError(
                position, f"the CRC of the batch at offset {batch.base_offset} is wrong"
            )
        if options.batches or not with_records:
            row = {"kind": "batch", **batch_row(batch, position), **_fate_fields(judged)}
            yield row | (marker_fields(judged) if batch.is_control else {})
        if with_records:
            for record in record_rows(judged, topic, with_values=options.values):
                yield {"kind": "record", **record}


def _fate_fields(judged: BatchFate) -> Row:
    transaction = judged.transaction
    return {
        "fate": judged.fate.value,
        "transaction": transaction.first_offset if transaction is not None else None,
    }
