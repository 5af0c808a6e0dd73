"""What a run counts, and the figures that come of it."""

from __future__ import annotations

import os
import time
from array import array
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
    broker_cpu: float
    """The processors that the broker used; 0 where that is not known."""
    broker_us: float
    """The microseconds of a processor that the broker used for one transaction, or for one request
    where there are none. Others on the machine change it far less than the time."""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Elapsed(NamedTuple):
    """Seconds on the clock, and of a processor: the generator's own, and the broker's."""

    wall: float
    cpu: float
    broker_cpu: float


class Stopwatch:
    """What has elapsed since a moment."""

    __slots__ = ("_broker_pid", "_start")

    def __init__(self, broker_pid: int = 0) -> None:
        self._broker_pid = broker_pid
        self._start = self._read()

    def elapsed(self) -> Elapsed:
        return Elapsed(*(now - then for now, then in zip(self._read(), self._start, strict=True)))

    def _read(self) -> Elapsed:
        return Elapsed(
            time.perf_counter(), time.process_time(), processor_seconds(self._broker_pid)
        )


def processor_seconds(pid: int) -> float:
    """What the threads of a process have used so far; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/stat")
    if not status.exists():
        return 0.0
    # Behind the name, which may hold anything: state is the third field, user and system time the
    # 14th and 15th.
    fields = status.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(tally: Tally, elapsed: Elapsed) -> Figures:
    """The figures of a run that took so long and cost so much."""
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
    """In milliseconds; 0 where nothing was timed."""
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000
