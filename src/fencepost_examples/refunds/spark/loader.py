"""Loads the topics into Parquet, as a warehouse would: committed rows only, each once.

    python -m fencepost_examples.refunds.spark.loader --bootstrap-servers localhost:9092 --into
    /tmp/warehouse

Theory of operation. A table is a folder, and a load is a folder in it with the rows of a range of
offsets and its end:

    refund-audit/load=000001/part-....parquet
    refund-audit/load=000001/_offsets.json      where this load ended, per partition

The next load begins where the last one ended. A load is written under a name that readers skip, and
renamed when it is complete. So a killed loader leaves either the whole load or nothing that counts,
and the next one reads the same range again. Two loaders of one table cannot both finish the same
load: its name exists already.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.spark.offsets import PartitionOffsets, from_layout, to_layout
from fencepost_examples.refunds.spark.session import make_session
from fencepost_examples.refunds.spark.settlements import AT_LEAST_ONCE, EXACTLY_ONCE, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OFFSETS_FILE: Final = "_offsets.json"
UNFINISHED: Final = "_unfinished"
"""Spark and most other readers skip names that begin with an underscore."""


class Table:
    """The loads of one topic."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def loads(self) -> list[Path]:
        """Returns the finished loads, oldest first."""
        return sorted(self.folder.glob("load=*"))

    def end(self) -> PartitionOffsets:
        """Returns where the last load ended; empty if there was none."""
        loads = self.loads()
        return from_layout(json.loads((loads[-1] / OFFSETS_FILE).read_text())) if loads else {}

    def add(self, rows: DataFrame, end: PartitionOffsets) -> Path:
        """Writes and finishes a load."""
        unfinished = self.folder / UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        finished = self.folder / f"load={len(self.loads()) + 1:06}"
        rows.write.parquet(str(unfinished))
        (unfinished / OFFSETS_FILE).write_text(json.dumps(to_layout(end)))
        # Atomic: before it nothing counts, after it everything does.
        return unfinished.rename(finished)


def committed_end(cluster: Cluster, topic: str) -> PartitionOffsets:
    """Returns where the committed rows of a topic end now."""
    count = len(cluster.metadata([topic]).topics[topic].partitions)
    places = [TopicPartition(topic, index) for index in range(count)]
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST), isolation="read_committed")
    return {place: listed.offset for place, listed in ends.items()}


def read_range(
    spark: SparkSession, bootstrap: str, schema: str, start: PartitionOffsets, end: PartitionOffsets
) -> DataFrame:
    """Returns the rows of one topic as typed columns, with partition and offset."""
    rows = (
        spark.read.format("fencepost")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("assign", json.dumps(_assignment(end)))
        .option("startingOffsets", json.dumps(to_layout(dict.fromkeys(end, EARLIEST) | start)))
        .option("endingOffsets", json.dumps(to_layout(end)))
        .load()
    )
    parsed = f"from_json(cast(value AS string), '{schema}') AS r"
    return rows.selectExpr(parsed, "partition", "offset").select("r.*", "partition", "offset")


def _assignment(places: PartitionOffsets) -> dict[str, list[int]]:
    return {topic: list(map(int, partitions)) for topic, partitions in to_layout(places).items()}


def load_topic(spark: SparkSession, bootstrap: str, folder: Path, topic: str, schema: str) -> int:
    """Loads new records of one topic. Returns how many offsets the load spans."""
    table = Table(folder / topic)
    start = table.end()
    with connect(bootstrap) as cluster:
        end = committed_end(cluster, topic)
    if any(end.get(place, -1) < offset for place, offset in start.items()):
        raise FencepostError(
            f"{topic} ends before the last load of {table.folder}: it was deleted and created "
            "again. Load it into an empty folder"
        )
    if start != end:
        table.add(read_range(spark, bootstrap, schema, start, end), end)
    return sum(end.values()) - sum(start.values())


def load(spark: SparkSession, bootstrap: str, folder: Path, topics: Topics) -> dict[str, int]:
    """Loads new records of every topic. Returns how many offsets each load spans."""
    return {
        topic: load_topic(spark, bootstrap, folder, topic, schema)
        for topic, schema in topics.schemas.items()
    }


def parser() -> argparse.ArgumentParser:
    """Returns the parser of this program's options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--bootstrap-servers", required=True)
    made.add_argument("--into", required=True, type=Path, help="the folder of the tables")
    made.add_argument("--prefix", default="", help="the prefix of all topic names")
    made.add_argument("--writing", default=EXACTLY_ONCE, choices=(EXACTLY_ONCE, AT_LEAST_ONCE))
    return made


def main() -> None:
    """Runs the loader."""
    options = parser().parse_args()
    spark = make_session("refunds loader")
    topics = Topics.of(options.writing, options.prefix)
    for topic, span in load(spark, options.bootstrap_servers, options.into, topics).items():
        print(f"{topic}: {span} offsets" if span else f"{topic}: nothing new")
    spark.stop()


if __name__ == "__main__":
    main()
