"""Goal: a small batch is read where it is planned, with the same rows that a task would read.

Method: the same ranges through `Prefetcher` and through `read_ranges`. In Spark, a source whose
tasks fail shows that none is needed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")
pytest.importorskip("pyarrow", reason="the spark extra is not installed")

import pyarrow as pa
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.failures import RetriesExhausted
from fencepost.client.reading import LATEST
from fencepost.records.opened import Record
from fencepost.spark.data_source import FencepostSource
from fencepost.spark.source import prefetch
from fencepost.spark.source.options import read_source_options
from fencepost.spark.source.prefetch import MAX_OFFSETS, Prefetcher
from fencepost.spark.source.range_reader import read_ranges
from fencepost.spark.source.ranges import OffsetRange
from fencepost.spark.source.stream_reader import StreamReader
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = on_spark()


def write(
    cluster: Cluster, partition: TopicPartition, records: list[Record], *, commit: bool = True
) -> None:
    identity = cluster.init_producer_id(f"{partition}")
    with cluster.writer(identity) as writer:
        writer.write_records(partition, records)
        writer.flush()
    cluster.end_txn(identity, commit=commit)


def valued(*values: str) -> list[Record]:
    return [Record(key=b"k", value=value.encode(), headers=(("h", b"1"),)) for value in values]


class Topic:
    """A topic with two partitions, and readers of it."""

    def __init__(self, cluster: Cluster, bootstrap: str, name: str) -> None:
        self.cluster, self.bootstrap, self.name = cluster, bootstrap, name
        self.partitions = [TopicPartition(name, n) for n in range(2)]
        self.topic_id = cluster.metadata([name]).topics[name].topic_id

    def options(self, **given: str) -> dict[str, str]:
        common = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name}
        return {**common, "includeHeaders": "true", "startingOffsets": "earliest"} | given

    def prefetcher(self, **given: str) -> Prefetcher:
        return Prefetcher(read_source_options(self.options(**given), streaming=True))

    def ranges(self) -> list[OffsetRange]:
        ends = self.cluster.list_offsets(dict.fromkeys(self.partitions, LATEST))
        return [
            OffsetRange(place, 0, end.offset, self.topic_id)
            for place, end in ends.items()
            if end.offset
        ]

    def read_in_tasks(self, ranges: list[OffsetRange]) -> list[dict[str, Any]]:
        options = read_source_options(self.options(), streaming=True)
        return rows_of(read_ranges(options, ranges))


@pytest.fixture
def topic(cluster: Cluster, bootstrap: str, new_topic: Callable[..., str]) -> Topic:
    return Topic(cluster, bootstrap, new_topic(2))


def rows_of(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_rows_are_those_that_a_task_reads(topic: Topic) -> None:
    first, second = topic.partitions
    write(topic.cluster, first, valued("a", "b", "c"))
    write(topic.cluster, first, valued("never"), commit=False)
    write(topic.cluster, second, [Record(key=None, value=None), *valued("d")])
    write(topic.cluster, first, valued("e", "f"))
    found = topic.prefetcher().read(topic.ranges())
    assert found is not None
    rows = rows_of(found)
    assert rows == topic.read_in_tasks(topic.ranges())
    assert [row["value"] for row in rows] == [b"a", b"b", b"c", b"e", b"f", None, b"d"]


def test_a_range_that_begins_and_ends_inside_a_batch_is_read_exactly(topic: Topic) -> None:
    write(topic.cluster, topic.partitions[0], valued(*"abcdef"))
    inner = [OffsetRange(topic.partitions[0], 2, 4, topic.topic_id)]
    found = topic.prefetcher().read(inner)
    assert found is not None
    assert [row["value"] for row in rows_of(found)] == [b"c", b"d"]


def test_offsets_without_a_visible_record_are_a_batch_without_rows(topic: Topic) -> None:
    write(topic.cluster, topic.partitions[0], valued("never"), commit=False)
    assert topic.prefetcher().read(topic.ranges()) == []


def test_after_a_batch_that_one_fetch_cannot_hold_only_smaller_ones_are_tried_for_a_while(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        write(topic.cluster, topic.partitions[0], valued("x" * 400, "y" * 400))
    monkeypatch.setattr(prefetch, "MAX_BYTES", 1_000)
    prefetcher = topic.prefetcher()
    [whole] = topic.ranges()
    small = replace(whole, end=2)
    assert prefetcher.read([whole]) is None
    monkeypatch.setattr(prefetch, "MAX_BYTES", 1_000_000)
    assert prefetcher.read([whole]) is None
    # If a smaller one fits, a large one is tried at once.
    assert prefetcher.read([small]) is not None
    assert prefetcher.read([whole]) is not None


@pytest.mark.parametrize("offsets", [1, 8])
def test_a_failure_does_not_switch_prefetching_off_for_good(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, offsets: int
) -> None:
    write(topic.cluster, topic.partitions[0], valued(*"abcdefgh"))
    wanted = [OffsetRange(topic.partitions[0], 0, offsets, topic.topic_id)]
    prefetcher = topic.prefetcher()
    with monkeypatch.context() as failing:
        failing.setattr(Prefetcher, "_fetch", lambda *_: None)
        assert prefetcher.read(wanted) is None
    tried = [prefetcher.read(wanted) is not None for _ in range(10)]
    assert any(tried)
    assert all(tried[tried.index(True) :])


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_options_that_ask_for_more_tasks_get_them(topic: Topic, option: str) -> None:
    write(topic.cluster, topic.partitions[0], valued("a"))
    assert topic.prefetcher(**{option: "5"}).read(topic.ranges()) is None


def test_many_offsets_and_none_are_left_to_tasks(topic: Topic) -> None:
    prefetcher = topic.prefetcher()
    assert prefetcher.read([]) is None
    assert prefetcher.read([OffsetRange(topic.partitions[0], 0, MAX_OFFSETS + 1)]) is None


def test_what_a_task_would_report_is_left_to_a_task(topic: Topic) -> None:
    write(topic.cluster, topic.partitions[0], valued("a"))
    [good] = topic.ranges()
    lost = replace(good, start=90, end=99)
    recreated = replace(good, topic_id=bytes(15) + b"\x01")
    unknown_id = OffsetRange(topic.partitions[1], 0, 1)
    for wrong in ([lost], [recreated], [good, unknown_id]):
        assert topic.prefetcher().read(wrong) is None


def test_brokers_that_do_not_answer_are_not_asked_again_by_tasks(topic: Topic) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = "{}:{}".format(*closed.getsockname())
    nobody = {"kafka.bootstrap.servers": address, "kafka.default.api.timeout.ms": "300"}
    with pytest.raises(RetriesExhausted):
        topic.prefetcher(**nobody).read([OffsetRange(topic.partitions[0], 0, 1)])


def looks_simple(reader: object) -> bool:
    """What Spark asks."""
    return isinstance(reader, _SimpleStreamReaderWrapper)


def test_a_reader_looks_like_sparks_simple_one_only_while_it_has_rows(topic: Topic) -> None:
    write(topic.cluster, topic.partitions[0], valued("a"))
    reader = StreamReader(read_source_options(topic.options(), streaming=True))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert not looks_simple(reader)
    [partition] = reader.partitions(start, end)
    assert looks_simple(reader)
    assert [row["value"] for row in rows_of(reader.getCache(start, end))] == [b"a"]
    assert not looks_simple(reader)
    assert [row["value"] for row in rows_of(reader.read(partition))] == [b"a"]


# In Spark.


class ReaderWithoutTasks(StreamReader):
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        raise AssertionError("a task reads")


class SourceWithoutTasks(FencepostSource):
    @classmethod
    def name(cls) -> str:
        return "fencepost_without_tasks"

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        return ReaderWithoutTasks(super().streamReader(schema)._options)


def run(
    rows: DataFrame, folder: Path, process: Callable[[DataFrame, int], None]
) -> list[dict[str, Any]]:
    """Runs the query to its end; returns Spark's progress."""
    writer = rows.writeStream.foreachBatch(process)
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))
    ended = query.trigger(availableNow=True).start()
    ended.awaitTermination()
    return [dict(one) for one in ended.recentProgress]


def test_a_small_batch_runs_no_task_in_python_and_spark_counts_its_rows(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    spark.dataSource.register(SourceWithoutTasks)
    first, second = topic.partitions
    write(topic.cluster, first, [Record(key=None, value=None), *valued("a", "b")])
    write(topic.cluster, second, valued("c"))
    reading = spark.readStream.format("fencepost_without_tasks").options(**topic.options())
    seen: list[Any] = []

    def collect(df: DataFrame, _: int) -> None:
        seen.extend(row.asDict(recursive=True) for row in df.collect())

    progress = run(reading.load(), tmp_path, collect)
    assert [one["numInputRows"] for one in progress if one["numInputRows"]] == [4]
    batch = spark.read.format("fencepost").options(**topic.options()).load().collect()
    expected = [row.asDict(recursive=True) for row in batch]
    assert sorted(seen, key=str) == sorted(expected, key=str)
    assert len(seen) == 4
