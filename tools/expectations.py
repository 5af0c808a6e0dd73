"""The tables of docs/performance.md: what a user can expect.

The figures come from the tables that `make bench` writes into docs/performance-details.md, so the
two pages never differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tools.cost_table import PAGE, day_of, figures_of


class Expectation(NamedTuple):
    """What a user does, and the place of the figure for it."""

    words: str
    load: str
    measure: str


_ONE: Final = "Librdkafka: 1 record per transaction, 1 producer"
_SIXTEEN: Final = "Librdkafka: 1 record per transaction, 16 producers"
_READ: Final = "Consume 1 KB, written in transactions of 1,000"
_SINK: Final = "Spark sink beside Spark's own"
_SOURCE: Final = "Spark source beside Spark's own, read_committed"

CLIENTS: Final = (
    Expectation(
        "librdkafka, idempotent, acks=all: records/s",
        "Librdkafka: produce 1 KB, idempotent, acks=all",
        "records/s",
    ),
    Expectation("librdkafka, 1 record per transaction: transactions/s", _ONE, "transactions/s"),
    Expectation(
        "librdkafka, 1 record per transaction: ms per commit", _ONE, "ms per commit, median"
    ),
    Expectation(
        "librdkafka, 1 record per transaction: ms per commit, p99", _ONE, "ms per commit, p99"
    ),
    Expectation("16 such producers: transactions/s", _SIXTEEN, "transactions/s"),
    Expectation("16 such producers: ms per commit, p99", _SIXTEEN, "ms per commit, p99"),
    Expectation(
        "librdkafka, 1,000 records per transaction: records/s",
        "Librdkafka: 1,000 records per transaction",
        "records/s",
    ),
    Expectation(
        "Java (TV2), 1 record per transaction: transactions/s",
        "Java: 1 record per transaction, 1 producer",
        "transactions/s",
    ),
    Expectation(
        "Java, idempotent, acks=all: records/s",
        "Java: produce 1 KB, idempotent, acks=all",
        "records/s",
    ),
    Expectation(
        "librdkafka, consuming with read_committed: records/s",
        _READ,
        "librdkafka, read_committed: records/s",
    ),
)
SPARK: Final = (
    Expectation("sink, rows of 100 B: rows/s", f"{_SINK}, 5 M x 100 B", "records/s"),
    Expectation("sink, rows of 1 KB: rows/s", f"{_SINK}, 1 M x 1 KB", "records/s"),
    Expectation("sink, rows of 10 KB: rows/s", f"{_SINK}, 100 K x 10 KB", "records/s"),
    Expectation("source, rows of 1 KB: rows/s", f"{_SOURCE}, 1 M x 1 KB", "records/s"),
    Expectation(
        "a micro-batch of 10 rows: ms from trigger to commit",
        "Spark micro-batch of 10 rows beside Spark's own sink",
        "ms, trigger to commit",
    ),
    Expectation(
        "ms from writing a record to reading it behind Spark",
        "From write to visible through Spark, beside its own connector",
        "ms, median",
    ),
)
START: Final = (
    Expectation(
        "s from the start to the first acknowledged record",
        "Start on an empty folder",
        "s to the first acknowledged record",
    ),
    Expectation("MB of memory then", "Start on an empty folder", "MB resident then"),
    Expectation("MB after 2 GB", "Memory after 2 GB through ten connections", "MB resident"),
    Expectation(
        "s to start again after kill -9, 1 GB of log",
        "Restart with a log of 1 GB",
        "s after kill -9",
    ),
)


def expectations(rows: tuple[Expectation, ...], other: str) -> Iterator[str]:
    """The rows; a figure that the page no longer has is an error."""
    text = PAGE.read_text(encoding="utf-8")
    yield f"| | fencepost | {other} | ratio | measured |"
    yield "|---|---:|---:|---:|---|"
    for row in rows:
        ratio, ours, theirs = figures_of(text, row.load, row.measure)
        day = day_of(text, row.load)
        yield f"| {row.words} | {ours} | {theirs} | {ratio.strip('*')} | {day} |"
