"""The names of the files in a partition's folder."""

from __future__ import annotations

from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"
SEGMENT_SUFFIXES: Final = (INDEX, TIME_INDEX, TXN_INDEX, LOG)
"""The log is last: a swap renames it last, and a deletion, in reverse order, removes it first."""
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"


def file_name(offset: int, suffix: str) -> str:
    """Kafka's file name for an offset: twenty digits and a suffix."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset in a file name; None if it has none."""
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def offsets_with(names: list[str], suffix: str) -> list[int]:
    """The offsets of all files with a suffix, ascending."""
    found = [offset_of(name) for name in names if name.endswith(suffix)]
    return sorted([offset for offset in found if offset is not None])
