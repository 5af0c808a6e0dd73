"""Reads a range of a partition with the fate of each batch.

Below the last stable offset a read_committed fetch decides at once: it lists the aborted
transactions, and everything else is committed. From there on markers decide: batches wait for
theirs, in order and within bounds (`records/fates.py`). So a range of any size streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fencepost.forensics.logs.partition_reading import (
    Budget,
    Progress,
    Range,
    no_progress,
    read_range,
)
from fencepost.records.fates import BatchFate, Known, TransactionFollower, fates_when_decided
from fencepost.records.index import AbortedTxn

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.records.batch import SealedBatch


def read_fates(
    cluster: Cluster,
    wanted: Range,
    log_start: int,
    stable_offset: int,
    log_end: int,
    budget: Budget,
    progress: Progress = no_progress,
) -> Iterator[BatchFate]:
    """Yields the batches of a range in order, each when its fate is decided."""
    begins_with_log = wanted.start <= log_start
    known = Known(open_at_start={} if begins_with_log else None, reaches_log_end=False)
    follower = TransactionFollower(known)
    batches = _batches(cluster, wanted, stable_offset, log_end, follower, budget, progress)
    return fates_when_decided(batches, follower=follower)


def _batches(
    cluster: Cluster,
    wanted: Range,
    stable_offset: int,
    log_end: int,
    follower: TransactionFollower,
    budget: Budget,
    progress: Progress,
) -> Iterator[SealedBatch]:
    stable_end = min(stable_offset, wanted.end)
    if wanted.start < stable_end:
        stable = Range(wanted.partition, wanted.start, stable_end)
        for fetched in read_range(
            cluster, stable, budget, isolation="read_committed", progress=progress
        ):
            aborted = [
                AbortedTxn(each.producer_id, each.first_offset, -1, -1) for each in fetched.aborted
            ]
            follower.learn(aborted, fetched.last_stable_offset)
            yield from _within(fetched.batches, wanted)
        wanted.reached = stable.reached
        if not stable.is_whole or stable.reached >= wanted.end:
            return
    rest = Range(wanted.partition, max(wanted.start, stable_end, wanted.reached), wanted.end)
    for fetched in read_range(cluster, rest, budget, progress=progress):
        yield from _within(fetched.batches, wanted)
    wanted.reached = rest.reached
    if rest.is_whole and wanted.end >= log_end:
        follower.reach_log_end()


def _within(batches: Iterable[SealedBatch], wanted: Range) -> Iterator[SealedBatch]:
    """The batches before the end: a fetch may reach beyond it."""
    for batch in batches:
        if batch.base_offset >= wanted.end:
            return
        yield batch
