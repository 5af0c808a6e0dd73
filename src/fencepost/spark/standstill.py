"""Why a query of committed data stands still: somebody's transaction is open, and we say whose.

A reader of committed data sees nothing behind the first open transaction of a partition, however much is written
there. Spark shows a query without input, and nothing more. So when a partition has records that are not to be seen
and its end has not moved for a while, we ask the partition for its oldest open transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.spark.offsets import PartitionOffsets
from fencepost.spark.positions import Positions
from fencepost.spark.source_options import SourceOptions

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 10.0
"""Transactions of a healthy producer are shorter than this."""


class Standstill:
    """Watches the ends that a reader finds."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._since: float | None = None

    def look(self, known: Mapping[TopicPartition, int], end: PartitionOffsets) -> str | None:
        """Called with every new end; warns when nothing has moved for a while, and returns what it said."""
        if end != known or self._options.client.isolation_level != "read_committed":
            self._since = None
            return None
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < PATIENCE_SECONDS:
            return None
        self._since = now
        sentence = self._explain(end)
        if sentence is not None:
            log.warning("%s", sentence)
        return sentence

    def _explain(self, end: PartitionOffsets) -> str | None:
        try:
            return explain(Positions(self._options), end)
        except FencepostError as problem:
            log.debug("why the query stands still could not be found out: %s", problem)
            return None


def explain(positions: Positions, end: PartitionOffsets) -> str | None:
    """A sentence about the oldest open transaction that hides records; None when nothing is hidden."""
    highest = positions.high_watermarks(list(end))
    hidden = {tp: highest[tp] - offset for tp, offset in end.items() if highest[tp] > offset}
    if not hidden:
        return None
    place = max(hidden, key=lambda tp: hidden[tp])
    producers = positions.cluster.describe_producers([place])[place]
    pinning = [p for p in producers if p.current_txn_start_offset >= 0]
    if not pinning:
        return f"{place}: {hidden[place]} offsets are not stable yet"
    oldest = min(pinning, key=lambda p: p.current_txn_start_offset)
    names = positions.cluster.list_transactions(producer_ids=[oldest.producer_id])
    who = f"transactional id {names[0].transactional_id!r}, " if names else ""
    return (
        f"{place}: {hidden[place]} offsets wait behind an open transaction of {who}producer {oldest.producer_id} "
        f"(epoch {oldest.producer_epoch}), open since offset {oldest.current_txn_start_offset}: it must commit, abort or "
        "time out before the query can go on"
    )
