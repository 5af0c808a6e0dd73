"""librdkafka as the loads use it: the same settings on every side."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters import Cluster
from bench.sides import Broker

Server = Broker | Cluster

RECORD_BYTES: Final = 1024
PATIENCE_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.01
PARTITIONS: Final = 4
# Brokers restart often here: reconnect at once, and log nothing.
_IMPATIENT: Final = {
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "log_level": 0,
}


def producer(broker: Server, **settings: Any) -> Producer:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    common = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5}
    roomy = {"queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 1_048_576}
    return Producer({**_IMPATIENT, **common, **roomy, **dotted})


def consumer(broker: Server, **settings: Any) -> Consumer:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    common = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        # A full queue makes it pause fetching for a second, so the faster broker would look slower.
        "fetch.queue.backoff.ms": 1,
    }
    return Consumer({**_IMPATIENT, **common, **dotted})


def create_topic(broker: Server, name: str, partitions: int = PARTITIONS, **config: str) -> None:
    """Creates a topic whose files are removed as soon as it is deleted."""
    settings = {"file.delete.delay.ms": "0"} | {k.replace("_", "."): v for k, v in config.items()}
    topic = NewTopic(name, partitions, config=settings)
    # The client must live until the reply arrives.
    asker = admin(broker)
    asker.create_topics([topic])[name].result(PATIENCE_SECONDS)
    # Apache Kafka answers before the partitions have a leader: wait until each can be used.
    end_offsets(broker, name, partitions)


def delete_topic(broker: Server, name: str) -> None:
    """Deletes a topic and waits until its files, and so their memory, are free."""
    asker = admin(broker)
    asker.delete_topics([name])[name].result(PATIENCE_SECONDS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(broker.data.glob(f"{name}-*")):
        assert time.monotonic() < deadline, f"the files of {name} are still there"
        time.sleep(LOOK_SECONDS)


def admin(broker: Server) -> AdminClient:
    return AdminClient({**_IMPATIENT, "bootstrap.servers": broker.bootstrap_servers})


class Watch:
    """Times a call, and measures the load of the calling thread and of all threads.

    If the thread of a client is always busy, the client was measured and not the broker.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.thread_time(), time.process_time()
        self.seconds = self.thread = self.process = 0.0

    def stop(self) -> None:
        wall, thread, process = self._began
        self.seconds = time.perf_counter() - wall
        self.thread = (time.thread_time() - thread) / self.seconds
        self.process = (time.process_time() - process) / self.seconds


def send(client: Producer, topic: str, value: bytes, count: int) -> None:
    """Produces `count` records and returns when all are acknowledged."""
    failures: list[str] = []

    def report(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    produce, poll = client.produce, client.poll
    for number in range(count):
        while True:
            try:
                produce(topic, value, on_delivery=report if number % 1000 == 0 else None)
                break
            except BufferError:
                poll(0.01)
        if number % 10_000 == 0:
            poll(0)
    left = client.flush(PATIENCE_SECONDS)
    assert left == 0, f"{left} records were never acknowledged"
    assert not failures, failures[0]


def read(client: Consumer, topic: str, count: int, partitions: int = PARTITIONS) -> None:
    """Consumes `count` records from the beginning of the topic."""
    client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    deadline = time.monotonic() + PATIENCE_SECONDS
    got = 0
    while got < count:
        got += sum(message.error() is None for message in client.consume(10_000, 1.0))
        assert time.monotonic() < deadline, f"only {got} of {count} records came"
    client.unassign()


def end_offsets(broker: Server, topic: str, partitions: int = PARTITIONS) -> int:
    """The records of a topic, retried until the broker answers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    asker = consumer(broker)
    try:
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                places = [TopicPartition(topic, number) for number in range(partitions)]
                return sum(
                    asker.get_watermark_offsets(p, timeout=1.0, cached=False)[1] for p in places
                )
    finally:
        asker.close()
    raise AssertionError(f"no broker answers at {broker.bootstrap_servers}")
