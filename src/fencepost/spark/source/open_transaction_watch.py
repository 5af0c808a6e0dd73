"""Warns when an open transaction stops a query of committed data, and says whose it is.

A reader of committed data sees nothing behind the first open transaction of a partition. Spark
shows a query without input, and no reason. So when the end of a partition has not moved for a
while, we check whether records wait behind it, and look up the oldest open transaction of the
partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import ActiveProducer
from fencepost.client.blocking import Cluster
from fencepost.spark.offsets import PartitionOffsets
from fencepost.spark.source.options import SourceOptions
from fencepost.spark.source.positions import Positions

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 10.0
"""Transactions of a healthy producer are shorter than this."""

REPEAT_SECONDS: Final = 60.0
"""A warning is not repeated sooner."""


class OpenTransactionWatch:
    """Watches the end offsets that a reader finds."""

    def __init__(
        self, options: SourceOptions, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._seconds = seconds
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._silent_until = 0.0

    def check(self, end: PartitionOffsets, *, is_only_check: bool = False) -> str | None:
        """Warns about ends that have not moved for a while, and returns the warning.

        Called with every new end. A run that checks only once and finds nothing to read is warned
        immediately.
        """
        if self._options.client.isolation_level != "read_committed":
            return None
        now = self._seconds()
        self._since = {tp: self._seen(tp, offset, now) for tp, offset in end.items()}
        waited = {tp: now - since for tp, (_, since) in self._since.items()}
        still = {tp: end[tp] for tp in end if is_only_check or waited[tp] >= PATIENCE_SECONDS}
        if not still or (now < self._silent_until and not is_only_check):
            return None
        sentence = self._explain(still)
        self._silent_until = now + (PATIENCE_SECONDS if sentence is None else REPEAT_SECONDS)
        if sentence is not None:
            log.warning("%s", sentence)
        return sentence

    def _seen(self, tp: TopicPartition, offset: int, now: float) -> tuple[int, float]:
        """The end, and since when it has not moved."""
        known = self._since.get(tp)
        return known if known is not None and known[0] == offset else (offset, now)

    def _explain(self, end: PartitionOffsets) -> str | None:
        try:
            return explain(Positions(self._options), end)
        except FencepostError as problem:
            log.debug("cannot find out why the query does not advance: %s", problem)
            return None


def explain(positions: Positions, end: Mapping[TopicPartition, int]) -> str | None:
    """Describes the oldest open transaction that hides records; None if none does."""
    highest = positions.high_watermarks(list(end))
    stable = positions.latest(list(end))
    # In this order, records that became stable in between do not count as hidden.
    hidden = {
        tp: highest[tp] - offset
        for tp, offset in end.items()
        if stable[tp] == offset and highest[tp] > offset
    }
    if not hidden:
        return None
    place = max(hidden, key=lambda tp: hidden[tp])
    producers = positions.cluster.describe_producers([place])[place]
    pinning = [p for p in producers if p.current_txn_start_offset >= 0]
    if not pinning:
        return f"{place}: what follows offset {end[place]} is not stable yet"
    oldest = min(pinning, key=lambda p: p.current_txn_start_offset)
    waiting = "1 offset waits" if hidden[place] == 1 else f"{hidden[place]} offsets wait"
    return (
        f"{place}: {waiting} behind an open transaction of {_who(positions.cluster, oldest)}, "
        f"open since offset {oldest.current_txn_start_offset}: it must commit, abort or time out "
        "before the query can go on"
    )


def _who(cluster: Cluster, producer: ActiveProducer) -> str:
    """The producer, with its transactional id and timeout if a coordinator has them."""
    number = f"producer {producer.producer_id} (epoch {producer.producer_epoch})"
    names = [
        t.transactional_id for t in cluster.list_transactions(producer_ids=[producer.producer_id])
    ]
    if not names:
        return number
    view = cluster.describe_transactions(names[:1])[names[0]]
    limit = "" if view is None else f" with a timeout of {view.timeout_ms / 1000:g} s"
    return f"transactional id {names[0]!r}, {number}{limit}"
