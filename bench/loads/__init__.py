"""The loads, in the order in which they run and are reported.

A chapter is a section of docs/performance-details.md. Loads of Spark are in separate modules, which
import nothing heavy before they run. Without Spark or its connector they fail with a message, and
the others run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.load import Load
from bench.loads import (
    audit,
    brokers,
    consume,
    exactly_once,
    failover,
    growth,
    idle,
    java,
    kit,
    memory,
    metrics,
    outbox,
    partitions,
    pipeline,
    produce,
    recovery,
    restart,
    secure,
    small,
    spark_dynamic,
    spark_format,
    spark_latency,
    spark_postgres,
    spark_sink,
    spark_source,
    spark_views,
    stalls,
    start,
    tap,
    transactions,
    visible,
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """Loads that answer one question."""

    name: str
    title: str
    loads: tuple[Load, ...]


CHAPTERS: Final = (
    Chapter("commits", "Small transactions", (small.LOAD,)),
    Chapter("cost", "What exactly-once costs", exactly_once.LOADS),
    Chapter(
        "clients",
        "With client libraries",
        (*produce.LOADS, *transactions.LOADS, secure.LOAD, *java.LOADS, tap.LOAD),
    ),
    Chapter("reading", "Reading", (consume.LOAD, visible.LOAD)),
    Chapter("outside", "Out of PostgreSQL, and into it", (outbox.LOAD, spark_postgres.LOAD)),
    Chapter("pipeline", "Consume, transform, produce", (pipeline.LOAD,)),
    Chapter(
        "life", "Start, memory, restart", (start.LOAD, memory.LOAD, restart.LOAD, partitions.LOAD)
    ),
    Chapter("kit", "Suites of tests", (kit.LOAD,)),
    Chapter("stalls", "While the broker does something large", (stalls.LOAD,)),
    Chapter("metrics", "Metrics", (metrics.LOAD,)),
    Chapter("recovery", "Recovery", recovery.LOADS),
    Chapter("several", "Several brokers", (failover.LOAD, brokers.LOAD, idle.LOAD)),
    Chapter("growth", "Growth", growth.LOADS),
    Chapter(
        "spark",
        "Spark",
        (
            *spark_sink.LOADS,
            spark_format.LOAD,
            spark_dynamic.LOAD,
            *spark_source.LOADS,
            *spark_latency.LOADS,
            spark_views.LOAD,
            audit.LOAD,
        ),
    ),
)
LOADS: Final[tuple[Load, ...]] = tuple(load for chapter in CHAPTERS for load in chapter.loads)
