"""From write to visible: latency of read_committed, by the length of the transaction.

A producer writes one record, keeps the transaction open for a while, and commits; a consumer waits
for the record. A record is not visible before its transaction ends, so the load measures the time
beyond that: commit, markers, and the waiting fetch. librdkafka at both ends.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import client
from bench.generate import shared_broker
from bench.load import Load, Measure, Plot, Round, Scale, Values
from bench.sides import Broker, Side

LENGTHS_MS: Final = (0, 10, 100, 1000)
TIMES: Final = {0: 60, 10: 40, 100: 15, 1000: 4}
QUICK_TIMES: Final = {0: 30, 10: 20, 100: 5, 1000: 1}
SKIPPED: Final = 3
TOPIC: Final = "visible"


@contextmanager
def _session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
    with shared_broker(side, scale) as broker:
        yield lambda _: _round(broker, QUICK_TIMES if scale.quick else TIMES)


def _round(broker: Broker, times: dict[int, int]) -> Values:
    client.create_topic(broker, TOPIC, 1)
    reader = client.consumer(broker, isolation_level="read_committed", fetch_wait_max_ms=500)
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    writer = client.producer(broker, transactional_id=TOPIC, linger_ms=0)
    writer.init_transactions()
    for _ in range(SKIPPED):
        _one(writer, reader, 0)
    values: dict[str, float] = {}
    for length in LENGTHS_MS:
        seconds = [_one(writer, reader, length / 1000) for _ in range(times[length])]
        visible = statistics.median(seconds) * 1000
        values[f"visible {length}"] = visible
        values[f"beyond {length}"] = visible - length
    reader.close()
    client.delete_topic(broker, TOPIC)
    return values


def _one(writer: Producer, reader: Consumer, open_seconds: float) -> float:
    """Seconds from the write until the consumer receives the record."""
    writer.begin_transaction()
    written = time.perf_counter()
    writer.produce(TOPIC, b"x" * client.RECORD_BYTES)
    writer.flush()
    left = open_seconds - (time.perf_counter() - written)
    if left > 0:
        time.sleep(left)
    writer.commit_transaction()
    message = reader.poll(client.PATIENCE_SECONDS)
    assert message is not None and message.error() is None, "the record never came"  # noqa: PT018
    return time.perf_counter() - written


LOAD: Final = Load(
    "visible",
    "from write to visible under read_committed, librdkafka",
    tuple(
        Measure(f"beyond {length}", f"ms beyond a transaction of {length} ms", "less")
        for length in LENGTHS_MS
    ),
    _session,
    rounds=3,
    quick_rounds=2,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    plots=(
        Plot(
            "visible",
            "From write to visible, beyond the transaction's own length",
            "ms that the transaction is open",
            "ms",
            tuple((float(length), f"beyond {length}") for length in LENGTHS_MS),
        ),
    ),
)
