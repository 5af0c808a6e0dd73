"""One librdkafka producer, records of 1 KB, at full speed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from bench import client
from bench.even import touch
from bench.generate import shared_broker
from bench.load import Load, Measure, Round, Scale, Session, Values
from bench.sides import Side

RECORDS: Final = 400_000
QUICK_RECORDS: Final = 100_000
MEASURES: Final = (
    Measure("records", "records/s", "more", ratio=1.3),
    Measure("bytes", "MB/s", "more"),
    Measure("thread", "processors of the thread that produces", "less"),
    Measure("client", "processors of the client", "less"),
)


@contextmanager
def _session(side: Side, scale: Scale, settings: dict[str, str]) -> Iterator[Round]:
    count = scale.of(RECORDS, QUICK_RECORDS)
    value = os.urandom(client.RECORD_BYTES)
    with shared_broker(side, scale) as broker:

        def run(number: int) -> Values:
            topic = f"produce-{number}"
            client.create_topic(broker, topic)
            producer = client.producer(broker, **settings)
            # The first record pays for the connection and, if there is one, the producer id.
            client.send(producer, topic, value, 1)
            touch(count * client.RECORD_BYTES)
            watch = client.Watch()
            client.send(producer, topic, value, count)
            watch.stop()
            assert client.end_offsets(broker, topic) == count + 1, "records are missing"
            client.delete_topic(broker, topic)
            return {
                "records": count / watch.seconds,
                "bytes": count * client.RECORD_BYTES / watch.seconds / 1e6,
                "thread": watch.thread,
                "client": watch.process,
            }

        yield run


def _acks_1(side: Side, scale: Scale, _: Path) -> AbstractContextManager[Round]:
    return _session(side, scale, {"acks": "1"})


def _idempotent(side: Side, scale: Scale, _: Path) -> AbstractContextManager[Round]:
    return _session(side, scale, {"acks": "all", "enable_idempotence": "true"})


def _load(name: str, title: str, session: Session) -> Load:
    return Load(
        name,
        f"librdkafka: produce 1 KB, {title}",
        MEASURES,
        session,
        quick_rounds=2,
        warmup_seconds=4,
        quick_warmup_seconds=1,
        on_kfake=True,
    )


LOADS: Final = (
    _load("produce-acks-1", "acks=1", _acks_1),
    _load("produce-idempotent", "idempotent, acks=all", _idempotent),
)
