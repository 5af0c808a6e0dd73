"""One record per transaction with more and more producers: cost and rate of commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.client import RECORD_BYTES
from bench.generate import generate_once, shared_broker
from bench.load import Load, Measure, Plot, Round, Scale, Values
from bench.sides import Broker, Side

PRODUCERS: Final = (1, 4, 16, 64)
PROTOCOLS: Final = {"tv2": "TV2", "tv1": "TV1"}
SECONDS: Final = 1.5
QUICK_SECONDS: Final = 0.7
WANTED: Final = {("tv2", 64): 3.0}
"""The goal for transactions per second as a multiple of Apache Kafka's."""


@contextmanager
def _session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    with shared_broker(side, scale) as broker:
        yield lambda _: _round(broker, scale)


def _round(broker: Broker, scale: Scale) -> Values:
    values: dict[str, float] = {}
    seconds = QUICK_SECONDS if scale.quick else SECONDS
    for mode in PROTOCOLS:
        if scale.quick and mode != "tv2":
            continue
        for producers in PRODUCERS:
            figures = generate_once(
                broker,
                mode,
                producers=producers,
                size=RECORD_BYTES,
                seconds=seconds,
                warmup_seconds=0.3,
            )
            name = f"{mode} {producers}"
            values[f"{name} transactions"] = figures["transactions_per_second"]
            values[f"{name} p50"] = figures["transaction_p50_ms"]
            values[f"{name} p99"] = figures["transaction_p99_ms"]
            values[f"{name} commit p99"] = figures["commit_p99_ms"]
            values[f"{name} cpu"] = figures["broker_us"]
            values[f"{name} generator"] = figures["generator_cpu"]
            values[f"{name} broker"] = figures["broker_cpu"]
            # Per commit, so that runs of different lengths compare.
            values[f"{name} retries"] = figures["retries"] / max(figures["transactions"], 1)
    return values


def _measures() -> Iterator[Measure]:
    for mode, title in PROTOCOLS.items():
        for producers in PRODUCERS:
            name, who = f"{mode} {producers}", f"{producers} x {title}"
            wanted = WANTED.get((mode, producers))
            yield Measure(f"{name} transactions", f"{who}: transactions/s", "more", ratio=wanted)
            yield Measure(f"{name} p50", f"{who}: ms p50, begin to committed", "less")
            yield Measure(f"{name} p99", f"{who}: ms p99, begin to committed", "less")
            yield Measure(f"{name} cpu", f"{who}: µs of broker CPU each", "less")
    yield Measure("tv2 64 commit p99", "64 x TV2: ms p99, EndTxn alone", "less")
    yield Measure("tv1 64 retries", "64 x TV1: retries per transaction", "less")
    yield Measure("tv2 64 broker", "64 x TV2: processors of the broker", "less")
    yield Measure("tv2 64 generator", "64 x TV2: processors of the generator", "less")


def _plot(name: str, title: str, y_label: str, measure: str) -> Plot:
    points = tuple((float(producers), f"tv2 {producers} {measure}") for producers in PRODUCERS)
    return Plot(name, title, "producers", y_label, points)


LOAD: Final = Load(
    "small",
    "1 record per transaction",
    tuple(_measures()),
    _session,
    rounds=4,
    quick_rounds=2,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    compares_builds=True,
    on_kfake=True,
    plots=(
        _plot(
            "small-transactions", "1 record per transaction (TV2)", "transactions/s", "transactions"
        ),
        _plot("small-p99", "Begin to committed (TV2)", "ms, p99", "p99"),
    ),
)
