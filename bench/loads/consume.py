"""One librdkafka consumer reads what was written before, records of 1 KB."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side

RECORDS: Final = 400_000
QUICK_RECORDS: Final = 100_000


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    count = scale.of(RECORDS, QUICK_RECORDS)
    with side.start(folder) as broker:
        client.create_topic(broker, "consume")
        writer = client.producer(broker, acks="1")
        client.send(writer, "consume", os.urandom(client.RECORD_BYTES), count)

        def run(_: int) -> Values:
            reader = client.consumer(broker)
            # Connected and informed before the clock runs: that is what the start load measures.
            reader.list_topics("consume", timeout=client.PATIENCE_SECONDS)
            started = time.perf_counter()
            client.read(reader, "consume", count)
            seconds = time.perf_counter() - started
            reader.close()
            return {
                "records": count / seconds,
                "bytes": count * client.RECORD_BYTES / seconds / 1e6,
            }

        yield run


LOAD: Final = Load(
    "consume",
    "consume 1 KB",
    (Measure("records", "records/s", "more", ratio=1.0), Measure("bytes", "MB/s", "more")),
    _session,
)
