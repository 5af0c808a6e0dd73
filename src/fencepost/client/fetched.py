"""What a fetch brought, and which of it a reader of committed data may see.

A broker sends whole batches: also those of aborted transactions, also markers, and for the first
batch also records before the offset that was asked for. With read_committed it adds the aborted
transactions that reach into the answer, each as (producer id, first offset). The rule of
`visible_batches` is Kafka's own:

- control batches are never shown;
- from the first offset of an aborted transaction on, its producer's transactional batches are
  hidden, until the abort marker of that producer; after that its next transaction begins anew.

Nothing is remembered from one fetch to the next: every answer lists what it needs. Batches stay
sealed; only markers are opened here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fencepost.base.errors import ErrorCode
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencepost.base.ids import TopicPartition
    from fencepost.base.seams import Buffer


class AbortedTransaction(NamedTuple):
    """A producer whose transactional batches from this offset on do not count."""

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """The answer about one partition."""

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
        """Where to go on.

        It may move although nothing was visible: markers and aborted records have offsets.
        """
        return self.batches[-1].next_offset if self.batches else self.fetch_offset

    def visible_batches(self) -> Iterator[SealedBatch]:
        """Data batches that a reader of this isolation may see; CRCs are checked."""
        return visible_batches(self.batches, self.aborted)

    def records(self) -> Iterator[Record]:
        """Visible records from the offset that was asked for."""
        for batch in self.visible_batches():
            for record in open_batch(batch):
                if record.offset >= self.fetch_offset:
                    yield record


def visible_batches(
    batches: Sequence[SealedBatch], aborted: Sequence[AbortedTransaction]
) -> Iterator[SealedBatch]:
    """The batches that are data and not of an aborted transaction."""
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
    """The batches of an answer.

    The last one may be cut off where the size limit fell: it comes again later.
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
        # Brokers send at least one whole batch whatever the limit says (KIP-74).
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE, "a fetch brought a part of a batch and nothing else"
        )
    return batches
