"""From the start of the process to the first acknowledged record, on an empty folder.

Apache Kafka's folder is formatted before the clock starts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.load import Load, Measure, Round, Scale, Values
from bench.sides import Side

READY_SECONDS: Final = 60.0


@contextmanager
def _session(side: Side, _: Scale, folder: Path) -> Iterator[Round]:
    def run(number: int) -> Values:
        data = folder / str(number)
        with side.start(data, wait=False) as broker:
            host, _, port = broker.bootstrap_servers.rpartition(":")
            broker.process.wait_for_port(host, int(port), READY_SECONDS)
            listening = broker.process.seconds_since_start()
            client.send(client.producer(broker, acks="1"), "first", b"x", 1)
            served = broker.process.seconds_since_start()
            memory = broker.process.resident_bytes() / 1e6
        shutil.rmtree(data)
        return {"listening": listening, "served": served, "memory": memory}

    yield run


LOAD: Final = Load(
    "start",
    "start on an empty folder",
    (
        Measure("served", "s to the first acknowledged record", "less", ratio=0.25, limit=0.5),
        Measure("listening", "s until it accepts connections", "less"),
        Measure("memory", "MB resident then", "less"),
    ),
    _session,
    rounds=4,
    quick_rounds=2,
    warmup_seconds=1,
    quick_warmup_seconds=1,
)
