"""kill -9 during appends: acknowledged records are kept, once and in order; producers continue.

Method: real producers write without pause to a real broker process, which is killed after a random
number of acknowledged records, each time with requests in flight. It restarts on the same port and
data; before each restart the tails of its logs are torn. The seed is printed with a failure.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, read_topic
from tools.fencepost_process import FencepostProcess

PARTITIONS = 3
FLUSH_SECONDS = 50


class Writer:
    """One idempotent producer that counts upwards in every partition."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.sent: defaultdict[int, int] = defaultdict(int)
        self.acknowledged: defaultdict[int, list[int]] = defaultdict(list)
        self.failures: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 60_000,
                "queue.buffering.max.messages": 3_000,
                "batch.num.messages": 100,
                "log_level": 0,
            }
        )

    def write_some(self, topic: str) -> None:
        """Sends one record to every partition, and handles delivery reports."""
        for partition in range(PARTITIONS):
            number = self.sent[partition]
            value = f"{self.name}:{number}".encode()
            with suppress(BufferError):  # The queue is full while the broker is down.
                self._producer.produce(
                    topic, value, partition=partition, on_delivery=self._delivered(number)
                )
                self.sent[partition] += 1
        self._producer.poll(0)

    def _delivered(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(error)
            else:
                partition = message.partition()
                assert partition is not None
                self.acknowledged[partition].append(number)

        return note

    @property
    def acknowledged_count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def finish(self) -> None:
        assert self._producer.flush(FLUSH_SECONDS) == 0
        assert self.failures == []


def tear(folder: Path, rng: random.Random) -> None:
    """Appends what a crash may leave in the last segment: bytes that were never acknowledged."""
    log = max(folder.glob("*.log"))
    half_a_batch = bytes(batch_of(b"never finished", base_offset=1 << 40))[:-5]
    rubbish = (rng.randbytes(rng.randint(1, 200)), bytes(100), half_a_batch, b"")
    with log.open("ab") as file:
        file.write(rng.choice(rubbish))
    for suffix in (".index", ".timeindex"):
        with log.with_suffix(suffix).open("ab") as file:
            file.write(rng.randbytes(rng.randint(0, 40)))


@pytest.mark.parametrize(("durability", "rounds"), [("os", 2), ("fsync", 1)])
def test_every_acknowledged_record_survives_kills_once_and_in_order(
    tmp_path: Path, durability: str, rounds: int
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    options = ["--durability", durability, "--config", "log.segment.bytes=1048576"]
    broker = FencepostProcess(tmp_path, options=options)
    address = broker.bootstrap_servers
    with RawClient(address) as client:
        create_topic(client, "counted", PARTITIONS)
    writers = [Writer(f"w{number}", address) for number in range(3)]
    try:
        for _ in range(rounds):
            written = sum(writer.acknowledged_count for writer in writers)
            target = written + rng.randint(100, 1_000)
            while sum(writer.acknowledged_count for writer in writers) < target:
                for writer in writers:
                    writer.write_some("counted")
            broker.kill()
            for partition in range(PARTITIONS):
                tear(tmp_path / f"counted-{partition}", rng)
            broker = FencepostProcess(tmp_path, listen=address, options=options)
        for writer in writers:
            writer.finish()
        with RawClient(address) as client:
            for partition in range(PARTITIONS):
                check_partition(client, partition, writers)
    finally:
        assert broker.stop() == 0


def check_partition(client: RawClient, partition: int, writers: list[Writer]) -> None:
    """Every record was delivered, so each writer's numbers have no gap and no duplicate."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for value in read_topic(client, "counted", partition):
        assert value is not None
        name, _, number = value.decode().partition(":")
        found[name].append(int(number))
    for writer in writers:
        assert found[writer.name] == list(range(writer.sent[partition]))
        assert writer.acknowledged[partition] == found[writer.name]
