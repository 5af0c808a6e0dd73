"""Groups, their offsets and their members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.groups import CommittedOffset
from fencepost.records.opened import Record

TIMES_MS = 1_000


def write(cluster: Cluster, topic: str, partition: int, count: int) -> None:
    records = [Record(timestamp_ms=n * TIMES_MS, value=b"v") for n in range(count)]
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        writer.write_records(TopicPartition(topic, partition), records)
        writer.flush()


def commit_offset(cluster: Cluster, group: str, partition: int, offset: int) -> None:
    place = TopicPartition(group, partition)
    cluster.offset_commit(group, {place: CommittedOffset(offset)})


@contextmanager
def consumer(servers: str, group: str) -> Iterator[confluent_kafka.Consumer]:
    """A member of the group that has got its partitions of the topic of the same name."""
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "client.id": "shop",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        member.subscribe([group])
        while not member.assignment():
            member.poll(0.05)
        yield member
    finally:
        member.close()
