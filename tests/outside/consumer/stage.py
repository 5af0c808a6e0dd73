"""A topic, a database with a table of what was applied, and consumers between them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, Self

import psycopg
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost.outside import PostgresConsumer
from fencepost.outside.consumer.consumer import Batch
from tests.outside.postgres import ROOT
from tools.processes import ServerProcess

DEADLINE_SECONDS: Final = 30.0
GROUP: Final = "ledger"
APPLIED: Final = "CREATE TABLE applied (id serial, part int, pos bigint, value text, who text)"
QUIET: Final = {"log_level": 2}
"""Without lines on the screen for each broker that is gone."""


def apply(batch: Batch, who: str = "") -> None:
    """Inserts each record of the batch, in a transaction of the batch."""
    with batch.transaction() as cursor:
        insert(batch, cursor, who)


def insert(batch: Batch, cursor: psycopg.Cursor[Any], who: str = "") -> None:
    cursor.executemany(
        "INSERT INTO applied (part, pos, value, who) VALUES (%s, %s, %s, %s)",
        [(r.partition(), r.offset(), r.value().decode(), who) for r in batch],
    )


class Reached(Exception):  # noqa: N818 - not an error.
    """Raised at a step, to stop there."""


def stop_at(consumer: PostgresConsumer, step: str) -> None:
    """Iterates until a step is reached."""

    def stop(reached: str) -> None:
        if reached == step:
            raise Reached

    consumer.on_step = stop
    try:
        next(consumer)
    except Reached:
        consumer.on_step = lambda _: None
    else:
        raise AssertionError(f"{step!r} was not reached")


class Stage:
    """One topic and one database; the consumers that it makes are closed with it."""

    def __init__(
        self,
        servers: str,
        dsn: str,
        topic: str,
        partitions: int = 1,
        *,
        session_ms: int = 1_000,
        group: str = GROUP,
    ) -> None:
        self.servers, self.dsn, self.topic, self.group = servers, dsn, topic, group
        self.config: dict[str, Any] = {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": 200,
            **QUIET,
        }
        quiet = {"bootstrap.servers": servers, **QUIET}
        self.admin, self.producer = AdminClient(quiet), Producer(quiet)
        self._open = ExitStack()
        self.create_topic(partitions)
        with psycopg.connect(dsn) as connection:
            connection.execute(APPLIED)
        PostgresConsumer.create_table(dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def create_topic(self, partitions: int = 1) -> None:
        made = self.admin.create_topics([NewTopic(self.topic, partitions, 1)])
        made[self.topic].result(DEADLINE_SECONDS)

    def delete_topic(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(DEADLINE_SECONDS)

    def topic_id(self) -> str:
        found = self.admin.describe_topics(TopicCollection([self.topic]))
        return str(found[self.topic].result(DEADLINE_SECONDS).topic_id)

    def send(self, *values: str, partition: int = 0) -> None:
        for value in values:
            self.producer.produce(self.topic, value.encode(), partition=partition)
        assert self.producer.flush(DEADLINE_SECONDS) == 0

    def consumer(self, **more: Any) -> PostgresConsumer:
        """Its iteration ends half a minute after the last record."""
        settings: dict[str, Any] = {"idle_seconds": DEADLINE_SECONDS, **more}
        settings["config"] = {**self.config, **settings.get("config", {})}
        made = PostgresConsumer(
            self.dsn, [self.topic], self.group, bootstrap_servers=self.servers, **settings
        )
        return self._open.enter_context(made)

    def worker(self, *, step: str = "", then: str = "", **config: object) -> ServerProcess:
        """A process that applies until it is stopped, and kills or suspends itself at a step."""
        task = {
            "dsn": self.dsn,
            "servers": self.servers,
            "topic": self.topic,
            "group": self.group,
            "config": {**self.config, **config},
            "step": step,
            "then": then,
        }
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "tests.outside.consumer.worker", json.dumps(task)]
        process = ServerProcess(command, environment=paths, folder=ROOT)
        self._open.callback(process.kill)
        return process

    def query(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(text.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def applied(self, partition: int = 0) -> list[str]:
        """The values of a partition in the order in which they were applied."""
        rows = self.query("SELECT value FROM applied WHERE part = %s ORDER BY id", [partition])
        return [value for (value,) in rows]

    def position(self, partition: int = 0) -> int:
        [(offset,)] = self.query(
            "SELECT next_offset FROM fencepost_offsets WHERE partition = %s", [partition]
        )
        assert isinstance(offset, int)
        return offset

    def reported(self) -> int:
        """The offset that the group has committed to Kafka for partition 0."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        asked = ConsumerGroupTopicPartitions(self.group, [TopicPartition(self.topic, 0)])
        found = self.admin.list_consumer_group_offsets([asked])[self.group].result(DEADLINE_SECONDS)
        return int(found.topic_partitions[0].offset)
