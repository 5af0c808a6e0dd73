"""What a start has recovered: one line for the log, and figures for metrics.

After a crash people ask whether anything is lost. A partition whose log was cut gets a line of its
own: nothing that is cut was ever acknowledged in durability `fsync`, or by a process that was only
killed. After a power loss there may be thousands of them, so the lines are limited.
"""

from __future__ import annotations

import logging
from typing import Final

from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

MAX_LINES: Final = 20
"""Partitions with a cut that get a line of their own in one start."""


class RecoveryReport:
    """What this process has scanned and cut since its start."""

    def __init__(self) -> None:
        self.partitions = 0
        """Partitions that were opened."""
        self.scanned_partitions = 0
        self.scanned_bytes = 0
        self.cut_partitions = 0
        self.cut_bytes = 0
        self.seconds = 0.0
        """How long the start took to open all partitions."""

    def opened(self, partition: Partition) -> None:
        """Notes a partition that was opened."""
        self.partitions += 1
        recovered = partition.log.recovered
        if recovered is None:
            return
        self.scanned_partitions += recovered.scanned_bytes > 0
        self.scanned_bytes += recovered.scanned_bytes
        if not recovered.cut_bytes:
            return
        self.cut_partitions += 1
        self.cut_bytes += recovered.cut_bytes
        if self.cut_partitions <= MAX_LINES:
            removed = recovered.removed_segments
            log.warning(
                "%s: a crash left a torn tail after offset %d; %d bytes were cut off%s",
                partition.name,
                partition.log_end_offset - 1,
                recovered.cut_bytes,
                f", {removed} segments among them" if removed else "",
                extra={"partition": str(partition.name), "cut_bytes": recovered.cut_bytes},
            )

    def log_start(self, seconds: float, *, after_crash: bool, open_transactions: int) -> None:
        """Writes the summary of a start after a crash."""
        self.seconds = seconds
        if not after_crash:
            return
        more = self.cut_partitions - MAX_LINES
        log.info(
            "recovered after a crash in %.3f s; partitions: %d, scanned: %d (%d bytes), cut: %d "
            "(%d bytes)%s, open transactions: %d",
            seconds,
            self.partitions,
            self.scanned_partitions,
            self.scanned_bytes,
            self.cut_partitions,
            self.cut_bytes,
            f", {more} of them without a line of their own" if more > 0 else "",
            open_transactions,
            extra={
                "event": "recovered",
                "recovery_ms": round(seconds * 1000),
                "partitions": self.partitions,
                "scanned_bytes": self.scanned_bytes,
                "cut_bytes": self.cut_bytes,
                "cut_partitions": self.cut_partitions,
                "open_transactions": open_transactions,
            },
        )
