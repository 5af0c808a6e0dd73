"""Kafka's Java client: its performance tool for plain records, our program for TV2 transactions."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import client
from bench.generate import shared_broker
from bench.load import Load, Measure, Round, Scale, Session, Values
from bench.sides import Broker, Side
from tools.apache_kafka import ROOT, fetch_libs

PROGRAM: Final = ROOT / "bench" / "java" / "Commits.java"
PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
SAID: Final = re.compile(r"records sent, ([\d.]+) records/sec .*, (\d+) ms 50th, .* (\d+) ms 99th")
TOPIC: Final = "java"
RECORDS: Final = 500_000
QUICK_RECORDS: Final = 150_000
SECONDS: Final = 4
QUICK_SECONDS: Final = 2
WARMUP_SECONDS: Final = 3
QUICK_WARMUP_SECONDS: Final = 2
PATIENCE_SECONDS: Final = 300.0


def _run_java(*arguments: str) -> str:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command = ["java", "-Xmx512m", quiet, "-cp", f"{fetch_libs()}/*", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.strip() or done.stdout.strip()
    return done.stdout


def _produce(acks: str) -> Session:
    @contextmanager
    def session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
        with shared_broker(side, scale) as broker:
            yield lambda _: _produce_round(broker, acks, scale.of(RECORDS, QUICK_RECORDS))

    return session


def _produce_round(broker: Broker, acks: str, count: int) -> Values:
    client.create_topic(broker, TOPIC)
    said = _run_java(
        PERFORMANCE,
        *("--topic", TOPIC, "--num-records", str(count), "--throughput", "-1"),
        *(
            "--record-size",
            str(client.RECORD_BYTES),
            "--bootstrap-server",
            broker.bootstrap_servers,
        ),
        *("--command-property", f"acks={acks}", "linger.ms=5", "batch.size=131072"),
    )
    client.delete_topic(broker, TOPIC)
    found = SAID.findall(said)
    assert found, f"{PERFORMANCE} said: {said}"
    records, p50, p99 = map(float, found[-1])
    return {"records": records, "p50": p50, "p99": p99}


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of producers, and of records per transaction."""

    producers: int
    records: int


def _commits(shape: Shape) -> Session:
    @contextmanager
    def session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
        with shared_broker(side, scale) as broker:
            yield lambda _: _commit_round(broker, shape, scale)

    return session


def _commit_round(broker: Broker, shape: Shape, scale: Scale) -> Values:
    client.create_topic(broker, TOPIC)
    numbers = (shape.producers, shape.records, client.RECORD_BYTES)
    warmup = scale.of(WARMUP_SECONDS, QUICK_WARMUP_SECONDS)
    times = (warmup, scale.of(SECONDS, QUICK_SECONDS))
    said = _run_java(
        str(PROGRAM), broker.bootstrap_servers, TOPIC, *map(str, numbers), *map(str, times)
    )
    client.delete_topic(broker, TOPIC)
    seconds, *commits = (float(line) for line in said.splitlines())
    cuts = statistics.quantiles(commits, n=100)
    rate = len(commits) / seconds * 1000
    return {
        "transactions": rate,
        "records": rate * shape.records,
        "p50": cuts[49],
        "p99": cuts[98],
    }


def _load(name: str, title: str, what: str, session: Session, *, in_quick: bool = False) -> Load:
    first = (Measure("transactions", "transactions/s", "more"),) if what == "commit" else ()
    measures = (
        *first,
        Measure("records", "records/s", "more"),
        Measure("p50", f"ms per {what}, median", "less"),
        Measure("p99", f"ms per {what}, p99", "less"),
    )
    return Load(
        name,
        f"Java: {title}",
        measures,
        session,
        rounds=2,
        quick_rounds=1,
        warmup_seconds=0,
        quick_warmup_seconds=0,
        in_quick=in_quick,
    )


LOADS: Final = (
    _load("java-acks-1", "produce 1 KB, acks=1", "record", _produce("1")),
    _load("java-idempotent", "produce 1 KB, idempotent, acks=all", "record", _produce("all")),
    _load(
        "java-transactions-1",
        "1 record per transaction, 1 producer",
        "commit",
        _commits(Shape(1, 1)),
        in_quick=True,
    ),
    _load(
        "java-transactions-16",
        "1 record per transaction, 16 producers",
        "commit",
        _commits(Shape(16, 1)),
    ),
    _load(
        "java-transactions-of-1000",
        "1,000 records per transaction, 1 producer",
        "commit",
        _commits(Shape(1, 1000)),
    ),
)
