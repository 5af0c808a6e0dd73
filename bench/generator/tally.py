"""What a run counts, and the figures that come of it."""

from __future__ import annotations

import time
from array import array
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Tally:
    """Counters that all producers of a run share."""

    requests: int = 0
    records: int = 0
    value_bytes: int = 0
    transactions: int = 0
    retries: int = 0
    """Requests that were sent again because the transaction before was still being completed."""
    request_seconds: array[float] = field(default_factory=lambda: array("d"))
    """Of each Produce request (or whatever else the mode repeats), retries included."""
    commit_seconds: array[float] = field(default_factory=lambda: array("d"))
    """Of each EndTxn, retries included."""
    transaction_seconds: array[float] = field(default_factory=lambda: array("d"))
    """From the first request of a transaction to the answer of its EndTxn."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run has shown."""

    seconds: float
    requests: int
    records: int
    transactions: int
    retries: int
    records_per_second: float
    megabytes_per_second: float
    transactions_per_second: float
    requests_per_second: float
    request_p50_ms: float
    request_p99_ms: float
    commit_p50_ms: float
    commit_p99_ms: float
    transaction_p50_ms: float
    transaction_p99_ms: float
    generator_cpu: float
    """The share of one processor that the generator itself used: near 1 it was the limit."""
    generator_us_per_request: float
    all_requests: int = 0
    """Also those before and after the time that counts."""
    all_transactions: int = 0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Stopwatch:
    """Wall time and processor time since a moment."""

    __slots__ = ("_cpu", "_wall")

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def figures(tally: Tally, wall: float, cpu: float) -> Figures:
    """The figures of a run that took so long and cost the generator so much."""
    return Figures(
        seconds=wall,
        requests=tally.requests,
        records=tally.records,
        transactions=tally.transactions,
        retries=tally.retries,
        records_per_second=tally.records / wall,
        megabytes_per_second=tally.value_bytes / wall / 1e6,
        transactions_per_second=tally.transactions / wall,
        requests_per_second=tally.requests / wall,
        request_p50_ms=_quantile(tally.request_seconds, 0.50),
        request_p99_ms=_quantile(tally.request_seconds, 0.99),
        commit_p50_ms=_quantile(tally.commit_seconds, 0.50),
        commit_p99_ms=_quantile(tally.commit_seconds, 0.99),
        transaction_p50_ms=_quantile(tally.transaction_seconds, 0.50),
        transaction_p99_ms=_quantile(tally.transaction_seconds, 0.99),
        generator_cpu=cpu / wall,
        generator_us_per_request=cpu / max(tally.requests, 1) * 1e6,
    )


def _quantile(seconds: array[float], share: float) -> float:
    """In milliseconds; 0 where nothing was timed."""
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000
