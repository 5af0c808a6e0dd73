"""How far the queries are, from their checkpoints: also while the broker is away and the driver dead."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fencepost.examples.refunds.spark.audit import last_batch_of
from fencepost.spark.offsets import parse_sources


def count_decided(checkpoint: Path) -> int:
    """How many settlements are in batches that a query has finished."""
    batch = last_batch_of(checkpoint)
    if batch < 0:
        return 0
    with contextlib.suppress(OSError, ValueError):
        # The first line is the version of the format, the second Spark's own; then one line per
        # source.
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
        return sum((parse_sources(lines) or {}).values())
    return 0
