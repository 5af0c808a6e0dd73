"""The progress of a query from its checkpoint, readable while broker and driver are down."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fencepost.spark.offsets import parse_sources
from fencepost_examples.refunds.spark.audit import last_batch_of


def count_decided(checkpoint: Path) -> int:
    """Returns how many settlements are in finished batches of a query."""
    batch = last_batch_of(checkpoint)
    if batch < 0:
        return 0
    with contextlib.suppress(OSError, ValueError):
        # The first line is the format version, the second is Spark's metadata; then one line per
        # source.
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
        return sum((parse_sources(lines) or {}).values())
    return 0
