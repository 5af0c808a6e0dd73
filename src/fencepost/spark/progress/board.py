"""The queries of a session: one record each, changed by Spark's events and the sinks' receipts.

A query keeps its id over restarts (it is in the checkpoint), a run is one start of it. Events of an
earlier run that arrive late change nothing. Receipts are in this process only: a query whose sink
runs elsewhere (Spark Connect) or is not ours shows neither commits nor retries.

Spark delivers its events on its own thread while other threads take snapshots, so there is a lock.
At most `QUERIES_KEPT` queries are kept: those that ended first are dropped first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from fencepost.spark.ledger.rule import Verdict
from fencepost.spark.progress.lag import SourceLag, SourceStatus
from fencepost.spark.transaction.receipts import receipts_of

QUERIES_KEPT: Final = 256
BATCHES_TIMED: Final = 10
"""Over how many batches the rate is measured."""


class QueryState(StrEnum):
    """Where a query is in its life."""

    RUNNING = "running"
    IDLE = "idle"
    """It waits for data."""
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether this run has ended."""
        return self in (QueryState.STOPPED, QueryState.FAILED)


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """What a query does. All counts are those of the current run, or of the last one."""

    query_id: str
    run_id: str
    name: str
    """The name of the query, or the start of its id."""
    state: QueryState = QueryState.RUNNING
    runs: int = 1
    """How many runs of the query were seen."""
    batch_id: int | None = None
    """The last finished batch."""
    rows: int = 0
    """Rows read in this run."""
    rows_per_second: float | None = None
    """Rows read in the last batches, by the time from the first one's start to the last one's end:
    waiting counts."""
    batch_ms: int | None = None
    """How long the last batch took."""
    sources: tuple[SourceStatus, ...] = ()
    commit_ms: int | None = None
    """How long the last commit took; None without a transaction."""
    committed_batch_id: int | None = None
    """The last batch that is in the ledger, written or drained by a sink in this process."""
    retries: int = 0
    """Attempts to write a batch that failed and were repeated."""
    drained: int = 0
    """Batches that were committed already, and were not written again."""
    error: str | None = None
    """Why the query failed, in one sentence."""
    updated_ms: int = 0
    """When this changed last, in milliseconds since 1970."""

    @property
    def offsets_behind(self) -> int | None:
        """Offsets behind the ends of all topics; None if no source reports them."""
        return _sum(source.offsets_behind for source in self.sources)

    @property
    def records_behind(self) -> int | None:
        """The same in records, without markers and aborted records: an estimate."""
        return _sum(source.records_behind for source in self.sources)


def _sum(found: Any) -> int | None:
    known = [number for number in found if number is not None]
    return sum(known) if known else None


@dataclass(slots=True)
class _Record:
    """What is kept of a query beyond its status."""

    status: QueryStatus
    lags: dict[int, SourceLag] = field(default_factory=dict)
    batches: deque[tuple[float, float, int]] = field(
        default_factory=lambda: deque(maxlen=BATCHES_TIMED)
    )
    """Start, end and rows of the last batches."""
    counted: int = 0
    """The number of the last receipt that was counted."""


class Board:
    """All queries that were seen, in the order of their first events."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._lock = threading.Lock()

    def snapshot(self) -> tuple[QueryStatus, ...]:
        """The queries as they are now."""
        with self._lock:
            return tuple(record.status for record in self._records.values())

    def start(self, query_id: str, run_id: str, name: str | None) -> QueryStatus:
        """A run has started, or was found running."""
        with self._lock:
            record = self._records.get(query_id)
            runs = 1
            if record is not None:
                if record.status.run_id == run_id:
                    return record.status
                runs = record.status.runs + 1
            status = QueryStatus(query_id, run_id, name or query_id[:8], runs=runs)
            status = replace(status, updated_ms=_now_ms())
            self._records[query_id] = _Record(status)
            self._forget_old()
            return status

    def progress(self, progress: Mapping[str, Any]) -> QueryStatus | None:
        """A batch has ended."""
        query_id, run_id = str(progress["id"]), str(progress["runId"])
        with self._lock:
            known = query_id in self._records
        if not known:
            self.start(query_id, run_id, progress.get("name"))
        with self._lock:
            record = self._record_of(query_id, run_id)
            if record is None:
                return None
            _apply_progress(record, progress)
            _apply_receipts(record)
            return record.status

    def idle(self, query_id: str, run_id: str) -> QueryStatus | None:
        """A query waits for data."""
        return self._change(query_id, run_id, state=QueryState.IDLE)

    def end(self, query_id: str, run_id: str, error: str | None) -> QueryStatus | None:
        """A run has ended; `error` says why if it failed."""
        state = QueryState.STOPPED if error is None else QueryState.FAILED
        return self._change(query_id, run_id, state=state, error=error)

    def _change(self, query_id: str, run_id: str, **changes: Any) -> QueryStatus | None:
        with self._lock:
            record = self._record_of(query_id, run_id)
            if record is None or record.status.state.is_over:
                return None
            record.status = replace(record.status, **changes, updated_ms=_now_ms())
            _apply_receipts(record)
            return record.status

    def _record_of(self, query_id: str, run_id: str) -> _Record | None:
        """None for an earlier run of the query."""
        record = self._records.get(query_id)
        return record if record is not None and record.status.run_id == run_id else None

    def _forget_old(self) -> None:
        over = [each for each, record in self._records.items() if record.status.state.is_over]
        for query_id in over[: max(0, len(self._records) - QUERIES_KEPT)]:
            del self._records[query_id]


def _apply_progress(record: _Record, progress: Mapping[str, Any]) -> None:
    if progress["batchId"] == record.status.batch_id:
        return  # Found when we started to listen, and then received.
    sources = tuple(
        record.lags.setdefault(index, SourceLag()).status(source)
        for index, source in enumerate(progress["sources"])
    )
    rows, batch_ms = int(progress.get("numInputRows") or 0), int(progress["batchDuration"])
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    record.batches.append((began, began + batch_ms / 1_000, rows))
    state = record.status.state
    record.status = replace(
        record.status,
        state=state if state.is_over else QueryState.RUNNING,
        name=progress.get("name") or record.status.name,
        batch_id=int(progress["batchId"]),
        rows=record.status.rows + rows,
        rows_per_second=_rate(record.batches),
        batch_ms=batch_ms,
        sources=sources,
        updated_ms=_now_ms(),
    )


def _rate(batches: deque[tuple[float, float, int]]) -> float | None:
    seconds = batches[-1][1] - batches[0][0]
    return sum(rows for _, _, rows in batches) / seconds if seconds > 0 else None


def _apply_receipts(record: _Record) -> None:
    status = record.status
    for number, receipt in receipts_of(status.query_id, record.counted):
        record.counted = number
        if receipt.run_id != status.run_id:
            continue
        known = receipt.commit_ms is not None
        status = replace(
            status,
            retries=status.retries + receipt.retries,
            drained=status.drained + (receipt.verdict is Verdict.DRAIN),
            commit_ms=receipt.commit_ms if known else status.commit_ms,
            committed_batch_id=receipt.batch_id,
        )
    record.status = status


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
