"""What `fencepost tap` costs: processor time per gigabyte, and milliseconds per small transaction.

The processor time is that of the tap's process while librdkafka produces and consumes through it.
Small transactions run directly and through the tap in turns, with librdkafka and with our client;
the difference of the medians is what the tap adds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Producer

from bench import client
from bench.generate import shared_broker
from bench.generator.tally import processor_seconds
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Broker, Side
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import connect
from fencepost.records.opened import Record
from tools.tap_process import TapProcess

MEGABYTES: Final = 1000
QUICK_MEGABYTES: Final = 200
TRANSACTIONS: Final = 200
QUICK_TRANSACTIONS: Final = 60
IN_TURN: Final = 20
"""Transactions before the other way gets its turn."""
SECONDS_PER_GIGABYTE: Final = 1.0
TOPIC: Final = "tapped"

Commit = Callable[[], None]


class _Through:
    """A broker, reached by another address."""

    def __init__(self, broker: Broker, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.process = broker.process
        self.data = broker.data
        self.stop = broker.stop
        self.kill = broker.kill

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops nothing: the caller owns the broker."""


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        shared_broker(side, scale) as broker,
        TapProcess(broker.bootstrap_servers, folder / "trace.jsonl") as tap,
    ):
        through = _Through(broker, tap.bootstrap_servers)

        def run(number: int) -> Values:
            client.create_topic(broker, TOPIC)
            try:
                values = _gigabytes(through, tap, scale.of(MEGABYTES, QUICK_MEGABYTES))
                count = scale.of(TRANSACTIONS, QUICK_TRANSACTIONS)
                for name, prepare in (("librdkafka", _with_librdkafka), ("ours", _with_ours)):
                    values |= _small(name, prepare, broker, through, count, number)
            finally:
                client.delete_topic(broker, TOPIC)
            return values

        yield run


def _gigabytes(through: Any, tap: TapProcess, megabytes: int) -> dict[str, float]:
    value = os.urandom(client.RECORD_BYTES)
    count = megabytes * 1_000_000 // len(value)
    gigabytes = count * len(value) / 1e9
    writer = client.producer(through, batch_size=1_000_000, batch_num_messages=100_000)
    began = processor_seconds(tap.process.pid)
    client.send(writer, TOPIC, value, count)
    written = processor_seconds(tap.process.pid)
    reader = client.consumer(through)
    client.read(reader, TOPIC, count)
    reader.close()
    read = processor_seconds(tap.process.pid)
    return {"produce": (written - began) / gigabytes, "fetch": (read - written) / gigabytes}


def _small(
    name: str,
    prepare: Callable[[str, str], Commit],
    broker: Broker,
    through: Any,
    count: int,
    number: int,
) -> dict[str, float]:
    ways = {
        "direct": prepare(broker.bootstrap_servers, f"{name}-direct-{number}"),
        "tapped": prepare(through.bootstrap_servers, f"{name}-tapped-{number}"),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for commit in ways.values():
        commit()  # Connections and compiled readers cost once.
    for turn in range(2 * count // IN_TURN):
        for way in list(ways) if turn % 2 else list(reversed(ways)):
            for _ in range(IN_TURN // 2):
                began = time.perf_counter()
                ways[way]()
                times[way].append((time.perf_counter() - began) * 1000)
    direct, tapped = (statistics.median(times[way]) for way in ("direct", "tapped"))
    return {f"{name} direct": direct, f"{name} tapped": tapped, f"{name} added": tapped - direct}


def _with_librdkafka(servers: str, name: str) -> Commit:
    settings = {"bootstrap.servers": servers, "transactional.id": name}
    writer = Producer({**settings, "linger.ms": 0, "log_level": 0})
    writer.init_transactions(client.PATIENCE_SECONDS)

    def commit() -> None:
        writer.begin_transaction()
        writer.produce(TOPIC, b"x" * client.RECORD_BYTES, partition=0)
        writer.commit_transaction(client.PATIENCE_SECONDS)

    return commit


def _with_ours(servers: str, name: str) -> Commit:
    cluster = connect(servers)
    identity = cluster.init_producer_id(name)
    writer = cluster.writer(identity)
    record = [Record(value=b"x" * client.RECORD_BYTES)]

    def commit() -> None:
        nonlocal identity, writer
        writer.write_records(TopicPartition(TOPIC, 0), record)
        writer.flush()
        identity = cluster.end_txn(writer.identity, commit=True)
        writer = cluster.writer(identity)

    return commit


LOAD: Final = Load(
    "tap",
    "Through fencepost tap",
    (
        Measure(
            "produce", "s of processor per GB, librdkafka produces", "less",
            limit=SECONDS_PER_GIGABYTE,
        ),
        Measure(
            "fetch", "s of processor per GB, librdkafka consumes", "less",
            limit=SECONDS_PER_GIGABYTE,
        ),
        Measure("librdkafka direct", "ms p50, librdkafka, 1 record, without it", "less"),
        Measure("librdkafka tapped", "ms p50, librdkafka, 1 record, through it", "less"),
        Measure("librdkafka added", "ms that it adds, librdkafka", "less"),
        Measure("ours direct", "ms p50, our client, 1 record, without it", "less"),
        Measure("ours tapped", "ms p50, our client, 1 record, through it", "less"),
        Measure("ours added", "ms that it adds, our client", "less"),
    ),
    _session,
    rounds=5,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    only_ours=True,
    in_quick=False,
)  # fmt: skip
