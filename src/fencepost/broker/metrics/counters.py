"""What the services count while they work: plain integers, whether metrics are served or not.

An increment costs nanoseconds (docs/decisions/0017), so nothing here asks whether somebody looks.
The collector (`collector.py`) reads the fields when it is scraped. Counters only rise, and start at
zero with the process.

Requests are the exception: to time and count each of them costs about a microsecond, so the
dispatcher has `RequestCounters` only if metrics are served.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum
from typing import Final

Bounds = tuple[float, ...]
"""Declared as this: mypyc would make a struct of a tuple with a known length."""

COMMIT_BOUNDS: Final[Bounds] = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
)
"""Seconds: from the fastest commit to transaction.max.timeout.ms, 15 minutes."""

REQUEST_BOUNDS: Final[Bounds] = (
    0.0001,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
    30.0,
)
"""Seconds. Most requests take less than a millisecond; a long poll may take its fetch.max.wait."""

VERIFICATION_BOUNDS: Final[Bounds] = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Seconds. The coordinator is on the same broker, or on another one of this machine."""


class Histogram:
    """How many values were at most each bound; the last bucket has no bound."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.buckets: list[int] = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Adds one value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.buckets)


class Cause(IntEnum):
    """Why a transaction was ended or a producer fenced."""

    CLIENT = 0
    """EndTxn of the producer, or of another tool than ours that speaks in its name."""
    NEWER_INSTANCE = 1
    """InitProducerId without an identity: a new instance of the application, or the fence of an
    administrator with another tool than ours. Both send the same request."""
    TIMEOUT = 2
    """transaction.timeout.ms."""
    RESTART = 3
    """transaction.recovery.ongoing=abort: the coordinator was restarted or has moved."""
    RECOVERED = 4
    """A load found it prepared, and finished it. Why it was ended is not in the log."""
    ADMINISTRATOR = 5
    """`fencepost txn abort`, `commit` or `fence`."""


class TransactionCounters:
    """What became of transactions and their producers on this broker."""

    __slots__ = (
        "aborted",
        "commit_seconds",
        "committed",
        "committed_by_administrator",
        "fenced",
        "lifetime_seconds",
        "markers_by_request",
        "started",
        "unverified",
        "verification_seconds",
    )

    def __init__(self) -> None:
        self.started = 0
        self.committed = 0
        self.committed_by_administrator = 0
        """Of these, the ones that `fencepost txn commit` has committed."""
        self.aborted: list[int] = [0] * len(Cause)
        """By cause."""
        self.fenced: list[int] = [0] * len(Cause)
        """Producers whose epoch was raised by somebody else, by cause."""
        self.commit_seconds = Histogram(COMMIT_BOUNDS)
        """From the decision to commit to the Complete record."""
        self.lifetime_seconds = Histogram(COMMIT_BOUNDS)
        """From the first partition to the Complete record, of commits and aborts."""
        self.verification_seconds = Histogram(VERIFICATION_BOUNDS)
        """From a first write to the coordinator's answer."""
        self.unverified = 0
        """First writes that the coordinator refused."""
        self.markers_by_request = 0
        """Markers that an administrator wrote with WriteTxnMarkers."""


class LoadTimes:
    """How long loads of coordinator logs have taken, in seconds."""

    __slots__ = ("count", "longest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Adds one load."""
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
