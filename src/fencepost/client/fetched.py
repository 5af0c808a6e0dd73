"""Fetched batches, and which of them a read_committed consumer may see.

A broker sends whole batches, including those of aborted transactions and markers; the first batch
may have records before the requested offset. With read_committed the reply also lists the aborted
transactions that overlap it, each as (producer id, first offset). `visible_batches` follows Kafka's
rule:

- it skips control batches;
- it skips a producer's transactional batches from the first offset of an aborted transaction up to
  that producer's abort marker.

No state is kept between fetches: every reply lists what it needs. Batches stay sealed; only markers
are opened here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.base.seams import Buffer
from fencepost.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchError,
    SealedBatch,
    read_header,
    seal_check,
)
from fencepost.records.control import read_marker
from fencepost.records.opened import Record, open_batch


class AbortedTransaction(NamedTuple):
    """An aborted transaction of a producer, and its first offset."""

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """The reply for one partition."""

    partition: TopicPartition
    fetch_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    batches: Sequence[SealedBatch]
    """All batches as the broker sent them, markers and aborted ones too."""
    aborted: Sequence[AbortedTransaction]
    """Sorted by first offset; empty with read_uncommitted."""

    @property
    def next_offset(self) -> int:
        """The offset of the next fetch.

        It can advance without a visible record: markers and aborted records have offsets.
        """
        return self.batches[-1].next_offset if self.batches else self.fetch_offset

    def visible_batches(self) -> Iterator[SealedBatch]:
        """Yields the data batches visible at this isolation level. Checks their CRCs."""
        return visible_batches(self.batches, self.aborted)

    def records(self) -> Iterator[Record]:
        """Yields the visible records from the requested offset on."""
        for batch in self.visible_batches():
            for record in open_batch(batch):
                if record.offset >= self.fetch_offset:
                    yield record


def visible_batches(
    batches: Sequence[SealedBatch], aborted: Sequence[AbortedTransaction]
) -> Iterator[SealedBatch]:
    """Yields data batches that belong to no aborted transaction."""
    coming = sorted(aborted, reverse=True)
    hidden: set[int] = set()
    for batch in batches:
        seal_check(batch)
        while coming and coming[-1].first_offset <= batch.last_offset:
            hidden.add(coming.pop().producer_id)
        if batch.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.commit:
                hidden.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in hidden):
            yield batch


def whole_batches(data: Buffer | None) -> list[SealedBatch]:
    """Returns the whole batches of a reply.

    The size limit may cut off the last one; a later fetch returns it again.
    """
    batches: list[SealedBatch] = []
    if data is None:
        return batches
    position = 0
    while len(data) - position >= HEADER_BYTES:
        batch = read_header(data, position)
        if len(batch.data) != batch.size_bytes:
            break
        batches.append(batch)
        position += batch.size_bytes
    if not batches and len(data) > LOG_OVERHEAD_BYTES:
        # Brokers send at least one whole batch, whatever the limit (KIP-74).
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a fetch returned only a part of a batch")
    return batches
