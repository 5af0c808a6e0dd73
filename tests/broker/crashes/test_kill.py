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
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import split_batches
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, fetch, produce, read_topic, records_in
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
            },
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


@pytest.mark.parametrize(("durability", "rounds"), [("os", 4), ("fsync", 2)])
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
            target = written + rng.randint(100, 3_000)
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


def test_a_torn_tail_is_truncated_and_the_next_record_gets_its_offset(tmp_path: Path) -> None:
    first = FencepostProcess(tmp_path)
    with RawClient(first.bootstrap_servers) as client:
        create_topic(client, "torn")
        for number in range(5):
            produce(client, "torn", batch_of(b"%d" % number))
    first.kill()
    log = tmp_path / "torn-0" / "00000000000000000000.log"
    whole = log.stat().st_size
    with log.open("ab") as file:
        file.write(bytes(batch_of(b"half", base_offset=5))[:40])
    with FencepostProcess(tmp_path) as second, RawClient(second.bootstrap_servers) as client:
        assert log.stat().st_size == whole
        assert produce(client, "torn", batch_of(b"5")).base_offset == 5
        assert read_topic(client, "torn") == [b"%d" % number for number in range(6)]


def test_a_damaged_batch_is_an_error_for_readers_and_nothing_after_it_is_lost(
    tmp_path: Path,
) -> None:
    first = FencepostProcess(tmp_path)
    with RawClient(first.bootstrap_servers) as client:
        create_topic(client, "rotten")
        for number in range(5):
            produce(client, "rotten", batch_of(b"%d" % number))
        size = len(split_batches(fetch(client, "rotten").records)[0].data)
    first.kill()
    log = tmp_path / "rotten-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[3 * size + 65] ^= 0xFF
    log.write_bytes(content)
    with FencepostProcess(tmp_path) as second, RawClient(second.bootstrap_servers) as client:
        before = fetch(client, "rotten")
        assert [record.value for record in records_in(before.records)] == [b"0", b"1", b"2"]
        assert fetch(client, "rotten", 3).error_code == ErrorCode.CORRUPT_MESSAGE
        assert produce(client, "rotten", batch_of(b"again")).base_offset == 5
        behind = fetch(client, "rotten", 4)
        assert [record.value for record in records_in(behind.records)] == [b"4", b"again"]
    assert log.read_bytes()[: len(content)] == content


def test_producer_state_survives_a_kill(tmp_path: Path) -> None:
    numbered: dict[str, Any] = {"producer_id": 50, "epoch": 0}
    first = FencepostProcess(tmp_path)
    with RawClient(first.bootstrap_servers) as client:
        create_topic(client, "numbered")
        for sequence in range(3):
            produce(client, "numbered", batch_of(b"%d" % sequence, sequence=sequence, **numbered))
    first.kill()
    with FencepostProcess(tmp_path) as second, RawClient(second.bootstrap_servers) as client:
        repeated = produce(client, "numbered", batch_of(b"2", sequence=2, **numbered))
        assert (repeated.error_code, repeated.base_offset) == (0, 2)
        following = produce(client, "numbered", batch_of(b"3", sequence=3, **numbered))
        assert (following.error_code, following.base_offset) == (0, 3)
        assert read_topic(client, "numbered") == [b"0", b"1", b"2", b"3"]
