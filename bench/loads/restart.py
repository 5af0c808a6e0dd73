"""Restart with a log of 1 GB, after kill -9 right after the last write and after a clean stop.

Do not read the ratio after kill -9 as the speed of log recovery. Apache Kafka took 12 s here with
ten records in its log and with a gigabyte alike: the delay does not depend on the log. This load is
meant to show our own limit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side

RECORDS: Final = 1_000_000
QUICK_RECORDS: Final = 200_000
STOP_SECONDS: Final = 120.0


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    count = scale.of(RECORDS, QUICK_RECORDS)
    value = os.urandom(client.RECORD_BYTES)

    def run(number: int) -> Values:
        data = folder / str(number)
        with side.start(data) as broker:
            client.create_topic(broker, "restart")
            client.send(client.producer(broker, acks="1"), "restart", value, count)
            broker.kill()
        killed = _back_in_service(side, data, count)
        stopped = _back_in_service(side, data, count)
        shutil.rmtree(data)
        return {"killed": killed, "stopped": stopped}

    yield run


def _back_in_service(side: Side, data: Path, count: int) -> float:
    """Seconds from the process start to the correct end of the log; then a clean stop."""
    with side.start(data, wait=False) as broker:
        assert client.end_offsets(broker, "restart") == count, "acknowledged records are missing"
        seconds = broker.process.seconds_since_start()
        broker.stop(STOP_SECONDS)
    return seconds


LOAD: Final = Load(
    "restart",
    "restart with a log of 1 GB",
    (
        Measure("stopped", "s after a clean stop", "less", limit=1.0),
        Measure("killed", "s after kill -9", "less", limit=3.0),
    ),
    _session,
    rounds=2,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    quick_note="0.2 GB",
    quick_only_ours=True,
)
