"""An audit of a gigabyte: half of it input, half output, every record matched, on two cores.

librdkafka has written both topics in transactions, one in ten of them aborted. Values are JSON of 1
KB. A round compares the topics in a running session: by the records' keys, by a field of the JSON
values, and with 100 bytes per record by keys.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.spark_source import ABORTED, PER_TRANSACTION
from bench.sides import Broker, Side
from bench.spark import PARTITIONS, stage

VALUE_BYTES: Final = 1_000
SMALL_BYTES: Final = 100
RECORDS: Final = 500_000
QUICK_RECORDS: Final = 100_000
LEAST_MEGABYTES_PER_SECOND: Final = 200.0


def fill(broker: Broker, topic: str, value_bytes: int, count: int) -> None:
    """Writes records with keys from 0 on in transactions, and some aborted ones."""
    client.create_topic(broker, topic, PARTITIONS)
    writer = client.producer(broker, transactional_id=topic)
    writer.init_transactions(client.PATIENCE_SECONDS)
    padding = "x" * (value_bytes - len(json.dumps({"id": 1_000_000, "text": ""})))
    number = start = 0
    while start < count:
        number += 1
        writer.begin_transaction()
        end = min(start + PER_TRANSACTION, count)
        for n in range(start, end):
            value = f'{{"id": {1_000_000 + n}, "text": "{padding}"}}'
            writer.produce(topic, value.encode(), str(n).encode())
        # Otherwise librdkafka drops what it has not sent before it aborts.
        writer.flush(client.PATIENCE_SECONDS)
        if number % ABORTED == 0:
            writer.abort_transaction(client.PATIENCE_SECONDS)
            continue
        writer.commit_transaction(client.PATIENCE_SECONDS)
        start = end


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    from fencepost.spark import audit

    count = scale.of(RECORDS, QUICK_RECORDS)
    with side.start(folder / "data") as broker:
        for name, size, records in (
            ("large", VALUE_BYTES, count),
            ("small", SMALL_BYTES, count * 4),
        ):
            fill(broker, f"{name}-in", size, records)
            fill(broker, f"{name}-out", size, records)
        spark = stage().session

        def speed(name: str, size: int, records: int, key: str) -> float:
            began = time.perf_counter()
            found = audit(
                spark,
                broker.bootstrap_servers,
                input=f"{name}-in",
                output=f"{name}-out",
                key=key,
                until_ms=int(time.time() * 1000),
            )
            seconds = time.perf_counter() - began
            assert found.is_exactly_once, str(found)
            assert found.judged == records, str(found)
            return 2 * records * size / 1e6 / seconds

        def run(_: int) -> Values:
            return {
                "key": speed("large", VALUE_BYTES, count, "key"),
                "json": speed("large", VALUE_BYTES, count, "value:id"),
                "small": speed("small", SMALL_BYTES, count * 4, "key"),
            }

        yield run


LOAD: Final = Load(
    "audit",
    "An audit of a gigabyte: half input, half output",
    (
        Measure("key", "MB/s, 1 KB, by key", "more", limit=LEAST_MEGABYTES_PER_SECOND),
        Measure("json", "MB/s, 1 KB, by a field of JSON", "more"),
        Measure("small", "MB/s, 100 B, by key", "more"),
    ),
    _session,
    rounds=5,
    quick_rounds=3,
    warmup_seconds=1,
    quick_warmup_seconds=1,
    room_bytes=RECORDS * VALUE_BYTES * 4,
    quick_note="200 MB",
    only_ours=True,
)
