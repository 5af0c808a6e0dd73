"""Creates the topics of the pipeline and writes settlements to the first one.

    python -m fencepost_examples.refunds.spark.fill --bootstrap-servers localhost:9092 --settlements
    1000

Settlements are the same on every run. An existing topic is an error, because its records would
count too.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from fencepost_examples.refunds.spark.settlements import Topics, generate

PARTITIONS: Final = 2
"""Partitions of every topic: one per executor."""

RECORDS_PER_BATCH: Final = 1_000


def create_topics(cluster: Cluster, topics: Collection[Topics]) -> None:
    """Creates the topics of these pipelines; FencepostError if one exists."""
    names = sorted({name for group in topics for name in group.schemas})
    existing = sorted(cluster.metadata().topics.keys() & set(names))
    if existing:
        raise FencepostError(
            f"the topic {existing[0]!r} exists already: delete it, or use other names with --prefix"
        )
    cluster.create_topics([NewTopic(name, PARTITIONS) for name in names])


def write_settlements(cluster: Cluster, topic: str, count: int) -> None:
    """Writes settlements to the first topic."""
    lanes: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    for number, settlement in enumerate(generate(count)):
        key = settlement.refund_id.encode()
        lanes[number % PARTITIONS].append(Record(key=key, value=settlement.as_json()))
    with cluster.writer(cluster.init_producer_id(None)) as writer:
        for index, lane in enumerate(lanes):
            for start in range(0, len(lane), RECORDS_PER_BATCH):
                part = lane[start : start + RECORDS_PER_BATCH]
                writer.write_records(TopicPartition(topic, index), part)
        writer.flush()


def parser() -> argparse.ArgumentParser:
    """Returns the parser of this program's options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--bootstrap-servers", required=True)
    made.add_argument("--settlements", type=int, default=1_000, help="how many (default: 1000)")
    made.add_argument("--prefix", default="", help="the prefix of all topic names")
    return made


def main() -> None:
    """Creates and fills the topics."""
    options = parser().parse_args()
    topics = Topics.of(prefix=options.prefix)
    with connect(options.bootstrap_servers) as cluster:
        create_topics(cluster, [topics])
        write_settlements(cluster, topics.settlements, options.settlements)
    print(f"{topics.settlements}: {options.settlements} settlements")


if __name__ == "__main__":
    main()
