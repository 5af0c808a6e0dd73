"""One copier: reads partitions of `source`, writes every record to `copies`, in transactions.

    python -m tests.cluster.chaos.copier --client aiokafka --servers HOST:PORT,... --seed 7
        --name aiokafka --partitions 2,3

It reacts to errors as the documentation of its client demands: an abortable one ends in an abort
and a return to the committed offsets, every other one in a new producer. About every sixth
transaction is aborted on purpose, at the last moment. SIGTERM ends it after a transaction.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fencepost_examples.refunds.processor.ports import (
    AbortableError,
    Kafka,
    KafkaFailure,
    Message,
    RetriableError,
)
from fencepost_examples.refunds.processor.processor import next_offsets

log = logging.getLogger(__name__)

T = TypeVar("T")

SOURCE: Final = "source"
COPIES: Final = "copies"
CLIENTS: Final = ("confluent", "kafka-python", "aiokafka", "fencepost")
TRANSACTION_TIMEOUT_MS: Final = 12_000
CALL_SECONDS: Final = 10.0
MAX_ATTEMPTS: Final = 6
PAUSE_SECONDS: Final = 0.1
DOOMED_SHARE: Final = 1 / 6


class Copy(NamedTuple):
    """The value of a record of `copies`."""

    partition: int
    offset: int
    """Where the record stands in `source`."""
    copier: str
    is_doomed: bool
    """Whether its transaction was to be aborted from the start."""
    value: str

    def encode(self) -> bytes:
        fate = "doomed" if self.is_doomed else "kept"
        return f"{self.partition} {self.offset} {self.copier} {fate} {self.value}".encode()


def decode_copy(value: bytes) -> Copy:
    """Reads the value of a record of `copies`."""
    partition, offset, copier, fate, rest = value.decode().split(" ", 4)
    return Copy(int(partition), int(offset), copier, fate == "doomed", rest)


def group_of(name: str) -> str:
    """The consumer group of a copier; its transactional id is the same."""
    return f"copier-{name}"


class Copier:
    """One instance: a producer and a consumer, until one of them cannot go on."""

    def __init__(self, kafka: Kafka, name: str, randomness: random.Random) -> None:
        self._kafka = kafka
        self._name = name
        self._random = randomness

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Copies until it is to stop; KafkaFailure if a new instance is needed."""
        retried(self._kafka.init_transactions)
        retried(self._kafka.rewind)
        while not is_stopping():
            messages = retried(self._kafka.poll)
            if messages:
                self._copy(messages)

    def _copy(self, messages: Sequence[Message]) -> None:
        is_doomed = self._random.random() < DOOMED_SHARE
        kafka = self._kafka
        try:
            kafka.begin()
            for message in messages:
                self._send(message, is_doomed)
            retried(lambda: kafka.send_offsets(next_offsets(messages)))
            if not is_doomed:
                retried(kafka.commit)
                return
        except AbortableError as problem:
            log.warning("aborting: %s", problem)
        retried(kafka.abort)
        retried(kafka.rewind)

    def _send(self, message: Message, is_doomed: bool) -> None:
        assert message.value is not None
        value = message.value.decode()
        copy = Copy(message.partition, message.offset, self._name, is_doomed, value)
        key = value.partition("/")[0].encode()
        retried(lambda: self._kafka.send(COPIES, key, copy.encode()))


def retried(call: Callable[[], T]) -> T:
    """Repeats a call after a transient error, a few times."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return call()
        except RetriableError as problem:
            log.warning("trying again: %s", problem)
            time.sleep(PAUSE_SECONDS)
    return call()


def adapter(client: str, servers: str, name: str, partitions: Sequence[int]) -> Kafka:
    """Makes the adapter of a client library."""
    source = [(SOURCE, index) for index in partitions]
    settings: dict[str, Any] = {
        "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
        "transactional_id": group_of(name),
        "group": group_of(name),
        "source": source,
        "timeout_seconds": CALL_SECONDS,
    }
    match client:
        case "confluent":
            from tests.cluster.chaos.checked_confluent import CheckedConfluent

            settings["reconnect_backoff_max_ms"] = 1_000
            return CheckedConfluent(servers, **settings)
        case "kafka-python":
            from fencepost_examples.refunds.processor.with_kafka_python import KafkaPython

            return KafkaPython(servers, **settings)
        case "aiokafka":
            from tests.cluster.chaos.checked_aiokafka import CheckedAioKafka

            return CheckedAioKafka(servers, **settings)
        case _:
            from tests.cluster.chaos.own_client import OwnClient

            return OwnClient(servers, **settings)


def main(arguments: Sequence[str]) -> int:
    """Runs one copier."""
    parser = argparse.ArgumentParser(prog="copier")
    parser.add_argument("--client", required=True, choices=CLIENTS)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--partitions", required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    partitions = [int(each) for each in options.partitions.split(",")]
    logging.basicConfig(
        level=logging.WARNING, format=f"%(asctime)s {options.name} %(name)s: %(message)s"
    )
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    randomness = random.Random(f"{options.seed} {options.name}")
    while not stopping:
        kafka: Kafka | None = None
        try:
            kafka = adapter(options.client, options.servers, options.name, partitions)
            Copier(kafka, options.name, randomness).run(lambda: bool(stopping))
        except Exception as problem:  # noqa: BLE001 - libraries raise anything; it is logged.
            kind = "" if isinstance(problem, KafkaFailure) else " (not from the adapter)"
            log.warning("a new producer after %s%s: %s", type(problem).__name__, kind, problem)
            time.sleep(PAUSE_SECONDS)
        finally:
            if kafka is not None:
                _close(kafka)
    return 0


def _close(kafka: Kafka) -> None:
    try:
        kafka.close()
    except Exception as problem:  # noqa: BLE001 - it may be broken; a new one follows.
        log.warning("close failed with %s: %s", type(problem).__name__, problem)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
