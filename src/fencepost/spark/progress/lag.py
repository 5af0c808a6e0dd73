"""How far a query is behind its topics, from the offsets that Spark reports with each batch.

Spark reports for each source where the batch ended (`endOffset`) and where the source ended
(`latestOffset`), as JSON. Both Spark's own Kafka source and ours find the latter with the query's
isolation level: for a reader of committed data it is the last stable offset, so an open transaction
is not lag: no such reader can pass it yet.

Two numbers follow from it:

- Offsets behind, per partition, and their minimum, maximum and average: the metrics that Spark's
  own source reports, under the same names. Partitions that the batch did not know count from 0, as
  there.
- Records behind, an estimate. Offsets also count transaction markers and aborted records, which no
  query ever reads: a topic of transactions with one record each has two offsets for each record.
  So the offsets are scaled with the share of records among those that the query has read lately.
  Before it has read any, all of them count.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from fencepost.spark.offsets import START, PartitionOffsets, parse_offsets

BATCHES_JUDGED: Final = 20
"""From how many batches the share of records is taken."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source of a query, at the end of its last batch."""

    description: str
    rows: int
    """The rows of the last batch."""
    behind: Mapping[str, int] | None = None
    """Offsets behind the end, by `topic-partition`; None if the source does not report them."""
    records_behind: int | None = None
    """An estimate, without transaction markers and aborted records."""

    @property
    def offsets_behind(self) -> int | None:
        """All partitions together."""
        return None if self.behind is None else sum(self.behind.values())

    @property
    def metrics(self) -> Mapping[str, str]:
        """As Spark's own Kafka source reports them; empty if they are not known."""
        if not self.behind:
            return {}
        found = self.behind.values()
        return {
            "minOffsetsBehindLatest": str(min(found)),
            "maxOffsetsBehindLatest": str(max(found)),
            "avgOffsetsBehindLatest": str(sum(found) / len(found)),
        }


class SourceLag:
    """Follows one source of a query from batch to batch."""

    def __init__(self) -> None:
        self._read: deque[tuple[int, int]] = deque(maxlen=BATCHES_JUDGED)
        """Rows and offsets of the last batches."""

    def status(self, source: Mapping[str, Any]) -> SourceStatus:
        """The source after a batch, from Spark's progress."""
        description, rows = str(source.get("description", "")), int(source.get("numInputRows") or 0)
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is None:
            return SourceStatus(description, rows)
        start = _offsets(source.get("startOffset")) or _start_in(source.get("endOffset"))
        if start is not None:
            span = sum(max(0, offset - start.get(place, 0)) for place, offset in end.items())
            self._read.append((rows, span))
        if not latest:
            return SourceStatus(description, rows)
        behind = {
            str(place): max(0, offset - end.get(place, 0)) for place, offset in latest.items()
        }
        estimate = round(sum(behind.values()) * self._share_of_records())
        return SourceStatus(description, rows, MappingProxyType(behind), estimate)

    def _share_of_records(self) -> float:
        rows = sum(rows for rows, _ in self._read)
        offsets = sum(offsets for _, offsets in self._read)
        # More rows than offsets: the plan reads the source several times.
        return min(1.0, rows / offsets) if offsets else 1.0


def _offsets(given: Any) -> PartitionOffsets | None:
    """Offsets of a Kafka source, as text or parsed; None for those of another source."""
    try:
        layout = json.loads(given) if isinstance(given, str) else given
        return parse_offsets(layout).offsets
    except (ValueError, TypeError, AttributeError):
        return None


def _start_in(end: Any) -> PartitionOffsets | None:
    """The start of a query's first batch, which our source stores with its end."""
    layout = json.loads(end) if isinstance(end, str) else end
    return _offsets(layout.get(START))
