"""The counters of a run and its figures."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(slots=True)
class Tally:
    """Counters that all producers of a run share."""

    requests: int = 0
    records: int = 0
    value_bytes: int = 0
    transactions: int = 0
    retries: int = 0
    """Requests that were retried because the previous transaction was still being completed."""
    request_seconds: array[float] = field(default_factory=lambda: array("d"))
    """Latency of each Produce request (or of another request that the mode repeats), with
    retries."""
    commit_seconds: array[float] = field(default_factory=lambda: array("d"))
    """Latency of each EndTxn, with retries."""
    transaction_seconds: array[float] = field(default_factory=lambda: array("d"))
    """From the first request of a transaction to the reply of its EndTxn."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of a run."""

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
    """The share of one processor that the generator used: near 1 it was the bottleneck."""
    generator_us_per_request: float
    broker_cpu: float
    """The processors that all brokers together used; 0 if unknown."""
    broker_us: float
    """Processor microseconds of the broker per transaction, or per request without transactions.
    Other work on the machine changes it far less than the elapsed time."""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Elapsed(NamedTuple):
    """Wall-clock seconds, and processor seconds of the generator and of the brokers."""

    wall: float
    cpu: float
    broker_cpu: float


class Stopwatch:
    """The difference to an earlier reading."""

    __slots__ = ("_broker_pids", "_start")

    def __init__(self, broker_pids: Collection[int] = ()) -> None:
        self._broker_pids = broker_pids
        self._start = self._read()

    def elapsed(self) -> Elapsed:
        return Elapsed(*(now - then for now, then in zip(self._read(), self._start, strict=True)))

    def _read(self) -> Elapsed:
        brokers = sum(map(processor_seconds, self._broker_pids))
        return Elapsed(time.perf_counter(), time.process_time(), brokers)


def processor_seconds(pid: int) -> float:
    """Processor seconds of a process so far; 0 if the system does not report them."""
    status = Path(f"/proc/{pid}/stat")
    if not status.exists():
        return 0.0
    # After the name, which may contain anything: state is the third field, user and system time the
    # 14th and 15th.
    fields = status.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(tally: Tally, elapsed: Elapsed) -> Figures:
    """The figures of a run with this duration and cost."""
    wall, cpu, broker_cpu = elapsed
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
        broker_cpu=broker_cpu / wall,
        broker_us=broker_cpu / max(tally.transactions or tally.requests, 1) * 1e6,
    )


def _quantile(seconds: array[float], share: float) -> float:
    """Milliseconds; 0 without samples."""
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000
