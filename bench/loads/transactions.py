"""Transactions of librdkafka: rate, and latency of a commit.

One producer per thread, each with its own transactional id. librdkafka uses the older protocol
(transaction version 1) with every broker. The client is a large part of the measurement: with many
producers it is the bottleneck.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench import client
from bench.generate import shared_broker
from bench.generator.tally import processor_seconds
from bench.load import Load, Measure, Round, Scale, Session, Values
from bench.sides import Side

TOPIC: Final = "transactions"


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of producers, of transactions, and of records per transaction."""

    producers: int
    transactions: int
    quick_transactions: int
    records: int


def _session(shape: Shape) -> Session:
    @contextmanager
    def session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
        transactions = scale.of(shape.transactions, shape.quick_transactions)
        with shared_broker(side, scale) as broker:

            def run(number: int) -> Values:
                client.create_topic(broker, f"{TOPIC}-{number}")
                names = [f"{TOPIC}-{which}" for which in range(shape.producers)]
                producers = [client.producer(broker, transactional_id=name) for name in names]
                with ThreadPoolExecutor(shape.producers) as pool:
                    list(pool.map(lambda one: one.init_transactions(), producers))
                    spent = processor_seconds(broker.process.pid)
                    started = time.perf_counter()
                    timed = pool.map(
                        lambda one: commit_many(one, f"{TOPIC}-{number}", transactions, shape),
                        producers,
                    )
                    commits = [ms for many in timed for ms in many]
                    seconds = time.perf_counter() - started
                    spent = processor_seconds(broker.process.pid) - spent
                client.delete_topic(broker, f"{TOPIC}-{number}")
                return {**values_of(commits, seconds, shape), "cpu": spent / len(commits) * 1e6}

            yield run

    return session


def commit_many(producer: Producer, topic: str, count: int, shape: Shape) -> list[float]:
    """Commits that many transactions; returns the milliseconds of each commit."""
    value = os.urandom(client.RECORD_BYTES)
    commits = []
    for _ in range(count):
        producer.begin_transaction()
        for _ in range(shape.records):
            producer.produce(topic, value)
        started = time.perf_counter()
        producer.commit_transaction()
        commits.append((time.perf_counter() - started) * 1000)
    return commits


def values_of(commits: list[float], seconds: float, shape: Shape) -> Values:
    """Rates, and quantiles of the milliseconds of a commit."""
    cuts = statistics.quantiles(commits, n=100)
    return {
        "transactions": len(commits) / seconds,
        "records": len(commits) * shape.records / seconds,
        "p50": cuts[49],
        "p99": cuts[98],
    }


def _load(
    shape: Shape, title: str, name: str, wanted: dict[str, float], *, in_quick: bool = True
) -> Load:
    measures = (
        Measure("transactions", "transactions/s", "more", ratio=wanted.get("transactions")),
        Measure("records", "records/s", "more", ratio=wanted.get("records")),
        Measure("p50", "ms per commit, median", "less"),
        Measure("p99", "ms per commit, p99", "less", ratio=wanted.get("p99")),
        Measure("cpu", "µs of broker CPU per transaction", "less"),
    )
    return Load(
        name,
        title,
        measures,
        _session(shape),
        quick_rounds=2,
        rounds=4,
        warmup_seconds=3,
        quick_warmup_seconds=1,
        on_kfake=True,
        in_quick=in_quick,
    )


LOADS: Final = (
    _load(
        Shape(1, 1000, 300, 1),
        "librdkafka: 1 record per transaction, 1 producer",
        "transactions-1",
        {"transactions": 3.0, "p99": 0.2},
    ),
    _load(
        Shape(16, 200, 50, 1),
        "librdkafka: 1 record per transaction, 16 producers",
        "transactions-16",
        {"transactions": 2.0, "p99": 0.25},
    ),
    _load(
        Shape(1, 500, 150, 10),
        "librdkafka: 10 records per transaction",
        "transactions-of-10",
        {},
        in_quick=False,
    ),
    _load(
        Shape(1, 150, 40, 1000),
        "librdkafka: 1,000 records per transaction",
        "transactions-of-1000",
        {"records": 1.4},
    ),
)
