"""Resident memory after 2 GB over ten connections: half produced, half consumed.

The ten clients are threads of one Python process, so their requests of about 1 MB overlap little,
and a broker that serves one after the other can reuse memory. Clients whose requests all arrive at
once would cost one request more per connection.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Broker, Side

CONNECTIONS: Final = 10
RECORDS_EACH: Final = 100_000
QUICK_RECORDS_EACH: Final = 20_000


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    each = scale.of(RECORDS_EACH, QUICK_RECORDS_EACH)
    value = os.urandom(client.RECORD_BYTES)

    def run(number: int) -> Values:
        data = folder / str(number)
        with side.start(data) as broker:
            at_start = broker.process.resident_bytes()
            for connection in range(CONNECTIONS):
                client.create_topic(broker, f"memory-{connection}", 1)
            _all_at_once(lambda which: _write(broker, which, value, each))
            _all_at_once(lambda which: _read(broker, which, each))
            values = {
                "resident": broker.process.resident_bytes() / 1e6,
                "peak": broker.process.peak_resident_bytes() / 1e6,
                "at start": at_start / 1e6,
            }
        shutil.rmtree(data)
        return values

    yield run


def _all_at_once(one: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(one, range(CONNECTIONS)))


def _write(broker: Broker, which: int, value: bytes, count: int) -> None:
    # Small queues: ten clients in one process must not hold the two gigabytes themselves.
    producer = client.producer(broker, acks="1", queue_buffering_max_kbytes=16_384)
    client.send(producer, f"memory-{which}", value, count)


def _read(broker: Broker, which: int, count: int) -> None:
    reader = client.consumer(broker, queued_max_messages_kbytes=16_384)
    client.read(reader, f"memory-{which}", count, 1)
    reader.close()


LOAD: Final = Load(
    "memory",
    "memory after 2 GB through ten connections",
    (
        Measure("resident", "MB resident", "less", limit=100.0),
        Measure("peak", "MB resident at most", "less"),
        Measure("at start", "MB resident at start", "less"),
    ),
    _session,
    rounds=2,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    quick_note="0.4 GB",
)
