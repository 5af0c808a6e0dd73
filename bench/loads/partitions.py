"""Many partitions: time to create, stop and start them, and memory for each.

Each partition has been written once, so that all of them have files. A partition without records
costs less.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.stalls import Talk, batch_of
from bench.sides import Side

TOPICS: Final = 200
QUICK_TOPICS: Final = 20
PARTITIONS_PER_TOPIC: Final = 100
TOPICS_PER_REQUEST: Final = 20
STOP_SECONDS: Final = 300.0


@contextmanager
def _session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    names = [f"many-{number:03d}" for number in range(scale.of(TOPICS, QUICK_TOPICS))]
    batch = batch_of(1, 100)

    def run(number: int) -> Values:
        data = folder / str(number)
        values: dict[str, float] = {}
        with side.start(data) as broker, Talk(broker) as talk:
            before = broker.process.resident_bytes()
            values["create"] = _seconds(lambda: _create(talk, names))
            values["write"] = _seconds(lambda: _write(talk, names, batch))
            grown = broker.process.resident_bytes() - before
            values["memory"] = grown / 1e3 / (len(names) * PARTITIONS_PER_TOPIC)
            values["stop"] = _seconds(lambda: broker.stop(STOP_SECONDS))
        values["start"] = _back_in_service(side, data, names[-1], batch, kill=True)
        values["killed"] = _back_in_service(side, data, names[-1], batch, kill=False)
        with side.start(data) as broker, Talk(broker) as talk:
            values["delete"] = _seconds(lambda: _delete(talk, names))
            broker.kill()
        shutil.rmtree(data)
        return values

    yield run


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _create(talk: Talk, names: list[str]) -> None:
    for start in range(0, len(names), TOPICS_PER_REQUEST):
        talk.create(*names[start : start + TOPICS_PER_REQUEST], partitions=PARTITIONS_PER_TOPIC)


def _write(talk: Talk, names: list[str], batch: bytes) -> None:
    for name in names:
        talk.produce(name, batch, PARTITIONS_PER_TOPIC)


def _delete(talk: Talk, names: list[str]) -> None:
    for name in names:
        talk.delete(name)


def _back_in_service(side: Side, data: Path, topic: str, batch: bytes, *, kill: bool) -> float:
    """Seconds from the process start until all partitions of the last topic accept a record."""
    with side.start(data) as broker, Talk(broker) as talk:
        talk.produce(topic, batch, PARTITIONS_PER_TOPIC)
        seconds = broker.process.seconds_since_start()
        if kill:
            broker.kill()
    return seconds


LOAD: Final = Load(
    "partitions",
    "20,000 partitions with a record each",
    (
        Measure("create", "s to create them", "less", limit=10.0),
        Measure("write", "s to write the first record to each", "less"),
        Measure("stop", "s to stop cleanly", "less", limit=5.0),
        Measure("start", "s to start after that", "less", limit=3.0),
        Measure("killed", "s to start after kill -9", "less", limit=6.0),
        Measure("delete", "s to delete them", "less"),
        Measure("memory", "KB resident for each", "less"),
    ),
    _session,
    rounds=2,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    only_ours=True,
    compares_builds=True,
    quick_note="2,000",
)
