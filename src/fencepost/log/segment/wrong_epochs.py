"""Leader epochs of batches that a flipped bit has changed.

The CRC of a batch does not cover its leader epoch. But the file of leader epochs says in which
epoch each offset was written, and epochs never decrease within a log. So a batch that contradicts
the file, while another batch of that epoch agrees with it, has a damaged field. Its records are
intact, and it is served, with the right epoch: a consumer keeps the epoch of its last batch, and
when it asks later where that epoch ends (OffsetForLeaderEpoch), a wrong one makes it believe that
the log was truncated. Apache Kafka serves such a batch as it is.

If no batch agrees with the file, the file may be the damaged one, and nothing is corrected.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from fencepost.base.seams import Buffer
from fencepost.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES
from fencepost.records.text_files import EpochEntry

EpochRun = tuple[int, int]
"""The leader epoch of some batches in a row, and the first offset; `UNKNOWN` where none follow."""

UNKNOWN: Final = -1

_PLACE: Final = struct.Struct(">qi")
"""Base offset and length of a batch; the leader epoch follows."""
_EPOCH: Final = struct.Struct(">i")


class WrongEpoch(NamedTuple):
    """Batches with a leader epoch that they were not written in."""

    first_offset: int
    end_offset: int
    found: int
    right: int

    def __str__(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.end_offset - 1} have leader epoch {self.found}, "
            f"but were written in {self.right}"
        )


def find_wrong(
    runs: Sequence[EpochRun], end_offset: int, known: Sequence[EpochEntry]
) -> list[WrongEpoch]:
    """Compares the epochs of batches, which end at `end_offset`, with the entries of the file."""
    wrong: list[WrongEpoch] = []
    confirmed: set[int] = set()
    starts = [entry.start_offset for entry in known]
    for (epoch, first), (_, end) in pairwise([*runs, (UNKNOWN, end_offset)]):
        entry = bisect_right(starts, first) - 1
        begin = first
        while begin < end and epoch != UNKNOWN:
            until = min(end, starts[entry + 1]) if entry + 1 < len(starts) else end
            if entry >= 0 and known[entry].epoch == epoch:
                confirmed.add(epoch)
            elif entry >= 0:
                wrong.append(WrongEpoch(begin, until, epoch, known[entry].epoch))
            begin, entry = until, entry + 1
    return [each for each in wrong if each.right in confirmed]


def rising(runs: Sequence[EpochRun], end_offset: int) -> list[EpochRun]:
    """Where each epoch begins, by the runs that do not contradict each other.

    Of all choices of runs whose epochs do not decrease: the one with the most offsets, and of
    several such choices the one with the fewest epochs.
    """
    ends: list[_Choice] = []  # Those that later runs may continue; epochs and offsets grow.
    for (epoch, first), (_, end) in pairwise([*runs, (UNKNOWN, end_offset)]):
        if epoch < 0:
            continue
        place = bisect_right(ends, epoch, key=lambda choice: choice.epoch)
        choice = _Choice(epoch, first, end - first, ends[place - 1] if place else None)
        while place < len(ends) and ends[place].value < choice.value:
            del ends[place]
        ends.insert(place, choice)
    found: list[EpochRun] = []
    last = ends[-1] if ends else None
    while last is not None:
        if found and found[-1][0] == last.epoch:
            found.pop()
        found.append((last.epoch, last.first_offset))
        last = last.before
    return found[::-1]


class _Choice:
    """The best choice of runs that ends with one run."""

    __slots__ = ("before", "epoch", "first_offset", "value")

    def __init__(self, epoch: int, first_offset: int, offsets: int, before: _Choice | None) -> None:
        self.epoch = epoch
        self.first_offset = first_offset
        self.before = before
        self.value = (offsets, -1)
        """The number of offsets, and the number of epochs as a negative number."""
        if before is not None:
            is_new = before.epoch != epoch
            self.value = (before.value[0] + offsets, before.value[1] - is_new)


def right_epoch(wrong: Sequence[WrongEpoch], base_offset: int, epoch: int) -> int:
    """The epoch that a batch was written in."""
    for each in wrong:
        if each.first_offset <= base_offset < each.end_offset:
            return each.right
    return epoch


def with_right_epochs(batches: Buffer, wrong: Sequence[WrongEpoch]) -> Buffer:
    """A copy of whole batches, with the right leader epochs."""
    data = bytearray(batches)
    position = 0
    while position + HEADER_BYTES <= len(data):
        base_offset, length = _PLACE.unpack_from(data, position)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            break  # Bytes that a crash has torn.
        (epoch,) = _EPOCH.unpack_from(data, position + _PLACE.size)
        right = right_epoch(wrong, base_offset, epoch)
        _EPOCH.pack_into(data, position + _PLACE.size, right)
        position += length + LOG_OVERHEAD_BYTES
    return bytes(data)
