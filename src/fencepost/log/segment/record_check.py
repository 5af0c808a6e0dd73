"""Finds intact batches whose records cannot be read.

The broker refuses such a batch (`partition/opening.py`); but a log may be older than that check, or
may have been written without it. Its readers never get past it, and their error does not say where
it is. It is not damage: its bytes pass their CRC, and a less strict reader may read some of its
records. So it is served as it is, and reported: by the scrub of a running broker, and by
`fencepost check`. `fencepost repair` replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from fencepost.log.segment.damage import Damage, run_at
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch
from fencepost.records.compression import decompress
from fencepost.records.scan import RecordScan

RECORDS_PER_STEP: Final = 1000
LISTED: Final = 20
"""Batches that a report about one segment names; it counts the others."""


class Unreadable(NamedTuple):
    """A batch whose records cannot be read: its place and its offsets, and why."""

    place: Damage
    reason: str

    def __str__(self) -> str:
        return (
            f"offsets {self.place.first_offset} to {self.place.end_offset - 1} have records that "
            f"cannot be read: {self.reason}"
        )


class RecordCheck:
    """Checks the records of the batches of one segment."""

    def __init__(self, rest: Callable[[], None] | None = None) -> None:
        """`rest` is called now and then, so that a thread can let others work."""
        self._rest = rest
        self._found: list[Unreadable] = []

    def look(self, batch: SealedBatch, position: int) -> None:
        """Checks a batch that has passed its CRC."""
        try:
            self._scan(batch)
        except BatchError as problem:
            end = position + batch.size_bytes
            place = Damage(position, end, batch.base_offset, batch.next_offset)
            self._found.append(Unreadable(place, str(problem)))

    def _scan(self, batch: SealedBatch) -> None:
        if batch.record_count == 0:  # Left by compaction; a reader looks no further.
            return
        payload = decompress(batch.codec, memoryview(batch.data)[HEADER_BYTES:])
        # Most readers accept names that are not UTF-8, which Kafka has never checked.
        scan = RecordScan(batch, payload, strict_names=False)
        while not scan.step(RECORDS_PER_STEP):
            if self._rest is not None:
                self._rest()

    def found(self, damage: Sequence[Damage]) -> list[Unreadable]:
        """The unreadable batches, without those that have turned out to be damaged."""
        return [each for each in self._found if run_at(damage, each.place.position) is None]
