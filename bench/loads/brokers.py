"""One broker process beside two: transactions, megabytes, and what a remote marker costs.

Both run at the same time, and each round measures one after the other. On two cores the generator
shares a core with the brokers, so two brokers cannot be twice as fast as one here: the question is
what it costs to be two.

A marker is remote if the partition is led by another broker than the one that coordinates the
transaction. Its cost is the difference between two runs with two brokers. In one, all partitions of
a producer are led by its coordinator, in the other none is. The latency is that of EndTxn with one
producer, so that nothing queues; the processor time is that of both brokers with 16 producers, and
includes the verification of the first write, which is remote as well then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.client import RECORD_BYTES, Server
from bench.clusters import Cluster, running
from bench.generate import Figures, generate_once
from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.transactions import Shape, commit_many
from bench.sides import Broker, Side

BROKERS: Final = 2
PRODUCERS: Final = (16, 64)
PROTOCOLS: Final = {"tv2": "TV2", "tv1": "TV1"}
SECONDS: Final = 3.0
QUICK_SECONDS: Final = 1.0
LARGE: Final = {"producers": 16, "records": 1000, "requests": 4}
LARGE_BYTES: Final = 1_000_000_000
QUICK_LARGE_BYTES: Final = 300_000_000
LIBRDKAFKA: Final = Shape(16, 150, 40, 1)
WANTED_TRANSACTIONS: Final = 0.9
WANTED_BYTES: Final = 1.0


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    with (
        side.start(folder / "one") as one,
        running(side, folder / "two", BROKERS) as two,
    ):
        yield lambda number: _round(one, two, scale, number)


def _round(one: Broker, two: Cluster, scale: Scale, number: int) -> Values:
    values: dict[str, float] = {}
    # Which of the two begins changes from round to round.
    servers: list[tuple[str, Server]] = [("one", one), ("two", two)]
    for who, server in servers if number % 2 == 0 else reversed(servers):
        for mode in PROTOCOLS:
            for producers in PRODUCERS:
                figures = _small(server, mode, producers, scale)
                name = f"{mode} {producers}"
                values[f"{name} {who}"] = figures["transactions_per_second"]
                values[f"{name} cpu {who}"] = figures["broker_us"]
        values[f"large {who}"] = _large(server, scale)
        values[f"librdkafka {who}"] = _librdkafka(server, scale, number)
    names = [f"{mode} {producers}" for mode in PROTOCOLS for producers in PRODUCERS]
    for name in (*names, "large", "librdkafka"):
        values[f"{name} ratio"] = values[f"{name} two"] / values[f"{name} one"]
    return {**values, **_markers(two, scale)}


def _small(server: Server, mode: str, producers: int, scale: Scale, **more: str) -> Figures:
    return generate_once(
        server,
        mode,
        producers=producers,
        size=RECORD_BYTES,
        seconds=QUICK_SECONDS if scale.quick else SECONDS,
        warmup_seconds=0.3,
        **more,
    )


def _large(server: Server, scale: Scale) -> float:
    """Megabytes per second, in transactions of 4 MB."""
    room = scale.of(LARGE_BYTES, QUICK_LARGE_BYTES)
    figures = generate_once(
        server, "tv2", size=RECORD_BYTES, seconds=10, warmup_seconds=0.3, max_bytes=room, **LARGE
    )
    return figures["megabytes_per_second"]


def _librdkafka(server: Server, scale: Scale, number: int) -> float:
    """Transactions per second of librdkafka, in TV1, the only protocol that it has."""
    shape, topic = LIBRDKAFKA, f"librdkafka-{number}"
    count = scale.of(shape.transactions, shape.quick_transactions)
    client.create_topic(server, topic)
    names = [f"librdkafka-{which}" for which in range(shape.producers)]
    producers = [client.producer(server, transactional_id=name) for name in names]
    with ThreadPoolExecutor(shape.producers) as pool:
        list(pool.map(lambda each: each.init_transactions(), producers))
        started = time.perf_counter()
        list(pool.map(lambda each: commit_many(each, topic, count, shape), producers))
        seconds = time.perf_counter() - started
    client.delete_topic(server, topic)
    return count * shape.producers / seconds


def _markers(two: Cluster, scale: Scale) -> Values:
    """The difference between local and remote partitions, by latency and by processor time."""
    commit_us: dict[str, float] = {}
    cpu_us: dict[str, float] = {}
    for placement in ("local", "remote"):
        alone = _small(two, "tv2", 1, scale, placement=placement)
        commit_us[placement] = alone["commit_p50_ms"] * 1000
        many = _small(two, "tv2", PRODUCERS[0], scale, placement=placement)
        cpu_us[placement] = many["broker_us"]
    more_us = commit_us["remote"] - commit_us["local"]
    return {
        "commit local": commit_us["local"],
        "commit remote": commit_us["remote"],
        "marker": more_us,
        "marker share": more_us / commit_us["remote"],
        "marker cpu": cpu_us["remote"] - cpu_us["local"],
    }


def _measures() -> Iterator[Measure]:
    for mode, title in PROTOCOLS.items():
        for producers in PRODUCERS:
            yield from _beside(
                f"{mode} {producers}",
                f"{producers} x {title}",
                "transactions/s",
                WANTED_TRANSACTIONS,
            )
            for who in ("one", "two"):
                name = f"{mode} {producers} cpu {who}"
                unit = f"{producers} x {title}, {who}: µs of broker CPU each"
                yield Measure(name, unit, "less")
    yield from _beside("large", "transactions of 4 MB", "MB/s", WANTED_BYTES)
    yield from _beside("librdkafka", "librdkafka, 16 x TV1", "transactions/s", None)
    yield Measure("commit local", "EndTxn p50, partition of the coordinator: µs", "less")
    yield Measure("commit remote", "EndTxn p50, partition of another broker: µs", "less")
    yield Measure("marker", "a remote marker: µs of latency", "less")
    yield Measure("marker share", "a remote marker: share of EndTxn", "less")
    yield Measure("marker cpu", "a remote partition: µs of broker CPU", "less")


def _beside(name: str, what: str, unit: str, wanted: float | None) -> Iterator[Measure]:
    yield Measure(f"{name} ratio", f"{what}: two brokers, x one", "more", limit=wanted)
    for who, title in (("one", "one broker"), ("two", "two brokers")):
        yield Measure(f"{name} {who}", f"{what}, {title}: {unit}", "more")


LOAD: Final = Load(
    "brokers",
    "one broker process beside two, on the same cores as the client",
    tuple(_measures()),
    _session,
    rounds=4,
    quick_rounds=1,
    warmup_seconds=5,
    quick_warmup_seconds=0,
    only_ours=True,
)
