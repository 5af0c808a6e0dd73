"""Goal: `format("fencepost")` is `format("kafka")` under another name.

Method: the same options to Spark's own source and to ours, in one session, on one Apache Kafka.
Schema and rows must be equal, batches of a stream must end at the same offsets, and options that
one refuses the other refuses. Last, each continues the other's checkpoint. Both read committed data
here, because that is the one default that differs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.options import KNOWN, OTHER_LOGINS
from fencepost.records.opened import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.compat.conftest import Side

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]

START_MS = 1_700_000_000_000
THEIRS, OURS = "kafka", "fencepost"
FOREVER = {"retention.ms": "-1"}
"""The records are some years old, and Kafka would delete them by default."""

SETTLED, STAMPED = "likeness-settled", "likeness-stamped"

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def cluster(apache_kafka: Side) -> Iterator[Cluster]:
    with connect(apache_kafka.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="module")
def topics(cluster: Cluster, apache_kafka: Side) -> str:
    """Two topics with every kind of row; the first has three partitions, the last one empty."""
    cluster.create_topics(
        [
            NewTopic(SETTLED, 3, configs=FOREVER),
            NewTopic(STAMPED, 1, configs={"message.timestamp.type": "LogAppendTime"}),
        ]
    )
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        with connect(apache_kafka.bootstrap_servers, {"compression.type": codec}) as writing:
            write(writing, SETTLED, number % 2, range(number * 20, number * 20 + 20))
            write(writing, SETTLED, 0, range(500, 505), commit=False)
    write(cluster, STAMPED, 0, range(10))
    return SETTLED


def write(
    cluster: Cluster, topic: str, partition: int, numbers: range, *, commit: bool = True
) -> None:
    """Records of every shape, one transaction; each is a second later than the one before."""
    identity = cluster.init_producer_id(f"likeness-{topic}-{partition}")
    with cluster.writer(identity) as writer:
        writer.write_records(TopicPartition(topic, partition), [record(n) for n in numbers])
        writer.flush()
    cluster.end_txn(identity, commit=commit)


def record(number: int) -> Record:
    headers = (("one", b"1"), ("one", b"again"), ("none", None), ("", b""))[: number % 5]
    key = (None, b"", b"k%d" % number)[number % 3]
    value = (b"v%d" % number, b"", b"x" * 3000, None)[number % 4]
    return Record(timestamp_ms=START_MS + number * 1000, key=key, value=value, headers=headers)


@dataclass(frozen=True, slots=True)
class Both:
    """The two sources with the same options."""

    spark: SparkSession
    bootstrap_servers: str

    def options(self, given: dict[str, str]) -> dict[str, str]:
        common = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
        }
        return common | given

    def read(self, name: str, given: dict[str, str]) -> DataFrame:
        return self.spark.read.format(name).options(**self.options(given)).load()

    def stream(self, name: str, given: dict[str, str]) -> DataFrame:
        return self.spark.readStream.format(name).options(**self.options(given)).load()


@pytest.fixture(scope="module")
def both(connector_spark: SparkSession, apache_kafka: Side, topics: str) -> Both:
    return Both(connector_spark, apache_kafka.bootstrap_servers)


def rows_of(df: DataFrame) -> list[Row]:
    rows = df.orderBy("topic", "partition", "offset").collect()
    return [tuple(_plain(value) for value in row) for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [(header.key, header.value) for header in value]
    return bytes(value) if isinstance(value, bytearray) else value


def offsets(*values: int, topic: str = SETTLED) -> str:
    return json.dumps({topic: {str(index): value for index, value in enumerate(values)}})


READINGS: dict[str, dict[str, str]] = {
    "one topic": {"subscribe": SETTLED},
    "two topics": {"subscribe": f" {SETTLED} , {STAMPED},"},
    "a pattern of the whole name": {"subscribePattern": "likeness-.*"},
    "a pattern of a part of the name": {"subscribePattern": "ness-set"},
    "a pattern of nothing": {"subscribePattern": "no-such-topic"},
    "a pattern of everything": {"subscribePattern": "(likeness|__consumer|__transaction).*"},
    "one partition": {"assign": json.dumps({SETTLED: [1]})},
    "a partition that does not exist": {"assign": json.dumps({SETTLED: [1, 77]})},
    "headers": {"subscribe": SETTLED, "includeHeaders": "true"},
    "offsets": {
        "subscribe": SETTLED,
        "startingOffsets": offsets(5, -2, 0),
        "endingOffsets": offsets(30, 7, -1),
    },
    "an end in the middle of a transaction that was aborted": {
        "assign": json.dumps({SETTLED: [0]}),
        "endingOffsets": offsets(24),
    },
    "a start at a marker": {
        "assign": json.dumps({SETTLED: [0]}),
        "startingOffsets": offsets(20),
    },
    "words": {"subscribe": SETTLED, "startingOffsets": "earliest", "endingOffsets": "latest"},
    "words in capitals": {
        "SUBSCRIBE": SETTLED,
        "startingoffsets": "EARLIEST",
        "INCLUDEHEADERS": "TRUE",
    },
    "times per partition": {
        "assign": json.dumps({SETTLED: [0, 1]}),
        "startingOffsetsByTimestamp": offsets(START_MS + 5_000, START_MS + 25_500),
        "endingOffsetsByTimestamp": offsets(START_MS + 45_000, START_MS + 900_000),
    },
    "one time for all": {
        "assign": json.dumps({SETTLED: [0, 1]}),
        "startingTimestamp": str(START_MS + 10_500),
        "endingTimestamp": str(START_MS + 61_000),
    },
    "a time wins over offsets": {
        "assign": json.dumps({SETTLED: [0, 1]}),
        "startingTimestamp": str(START_MS + 30_000),
        "startingOffsets": offsets(1, 1),
    },
    "a time that no record has": {
        "subscribe": SETTLED,
        "startingTimestamp": str(START_MS + 9_000_000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "offsets beyond the end": {
        "assign": json.dumps({SETTLED: [0]}),
        "startingOffsets": offsets(9_000),
        "endingOffsets": offsets(9_100),
        "failOnDataLoss": "false",
    },
    "limits that are for streams": {
        "subscribe": SETTLED,
        "maxOffsetsPerTrigger": "3",
        "minOffsetsPerTrigger": "1",
        "maxTriggerDelay": "1m",
    },
    "settings of a consumer": {
        "subscribe": SETTLED,
        "kafka.fetch.max.bytes": "1000",
        "kafka.max.partition.fetch.bytes": "500",
        "kafka.client.id": "me",
        "groupIdPrefix": "likeness",
        "kafkaConsumer.pollTimeoutMs": "60000",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "5",
    },
}


@pytest.mark.parametrize("given", READINGS.values(), ids=READINGS.keys())
def test_both_sources_read_the_same_rows(both: Both, given: dict[str, str]) -> None:
    theirs, ours = both.read(THEIRS, given), both.read(OURS, given)
    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)


def test_the_compared_rows_are_the_committed_ones(both: Both) -> None:
    rows = rows_of(both.read(OURS, {"subscribe": SETTLED, "includeHeaders": "true"}))
    assert sorted(row[5].timestamp() for row in rows) == [
        START_MS / 1000 + number for number in range(100)
    ]
    assert {row[6] for row in rows} == {0}
    assert {row[6] for row in rows_of(both.read(OURS, {"subscribe": STAMPED}))} == {1}


def test_isolation_is_the_only_default_that_differs(both: Both) -> None:
    def read(name: str, **given: str) -> list[Row]:
        servers = {"kafka.bootstrap.servers": both.bootstrap_servers, "subscribe": SETTLED}
        return rows_of(both.spark.read.format(name).options(**servers | given).load())

    assert len(read(THEIRS)) == 125
    assert len(read(OURS)) == 100
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    assert read(OURS, **uncommitted) == read(THEIRS, **uncommitted)


@pytest.mark.parametrize(
    "split",
    [
        {"minPartitions": "7"},
        {"minPartitions": "40"},
        {"maxRecordsPerPartition": "9"},
        {"maxRecordsPerPartition": "30", "minPartitions": "11"},
    ],
    ids=str,
)
def test_both_sources_plan_the_same_tasks(both: Both, split: dict[str, str]) -> None:
    # Spark's source computes sizes from these numbers before it knows the offsets, so words would
    # not be split by size.
    given = {
        "subscribe": f"{SETTLED},{STAMPED}",
        "startingOffsets": json.dumps({SETTLED: {"0": 0, "1": 0, "2": 0}, STAMPED: {"0": 0}}),
        "endingOffsets": json.dumps({SETTLED: {"0": 93, "1": 42, "2": 0}, STAMPED: {"0": 11}}),
    } | split
    found = []
    for name in (THEIRS, OURS):
        tasks = both.read(name, given).rdd.mapPartitions(_first_and_last).collect()
        found.append(sorted(tasks))
    assert found[0] == found[1]
    assert len(found[0]) >= 7


def _first_and_last(rows: Iterable[Any]) -> Iterator[tuple[str, int, int, int]]:
    seen = [(row.topic, row.partition, row.offset) for row in rows]
    if seen:
        yield (*seen[0], seen[-1][2])


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "no topics": ({}, "one of subscribe, subscribePattern and assign"),
    "two kinds of subscription": ({"subscribe": "a", "assign": '{"a":[0]}'}, "one of subscribe"),
    "empty subscribe": ({"subscribe": " , "}, "subscribe must name"),
    "empty pattern": ({"subscribePattern": " "}, "subscribePattern must not be empty"),
    "broken pattern": ({"subscribePattern": "(a"}, "not a regular expression"),
    "assign that is no JSON": ({"assign": SETTLED}, "assign is not JSON"),
    "assign of another shape": ({"assign": f'{{"{SETTLED}": 0}}'}, "assign must look like"),
    "an unknown topic": ({"subscribe": "likeness-nowhere"}, "likeness-nowhere"),
    "minPartitions of nothing": ({"subscribe": SETTLED, "minPartitions": "0"}, "minPartitions"),
    "minPartitions in words": ({"subscribe": SETTLED, "minPartitions": "many"}, "whole number"),
    "maxRecordsPerPartition below one": (
        {"subscribe": SETTLED, "maxRecordsPerPartition": "-1"},
        "maxRecordsPerPartition",
    ),
    "more at least than at most": (
        {"subscribe": SETTLED, "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
        "must not exceed",
    ),
    "failOnDataLoss": ({"subscribe": SETTLED, "failOnDataLoss": "maybe"}, "true or false"),
    "includeHeaders": ({"subscribe": SETTLED, "includeHeaders": "some"}, "true or false"),
    "startingOffsets of another word": (
        {"subscribe": SETTLED, "startingOffsets": "first"},
        "startingOffsets must be",
    ),
    "startingOffsets of another shape": (
        {"subscribe": SETTLED, "startingOffsets": f'{{"{SETTLED}": 3}}'},
        "startingOffsets",
    ),
    "a partition that is not named": (
        {"subscribe": SETTLED, "startingOffsets": offsets(1, 1)},
        f"says nothing about {SETTLED}-2",
    ),
    "a partition too many": (
        {"subscribe": SETTLED, "startingOffsets": offsets(1, 1, 0, 0)},
        f"{SETTLED}-3, which is not among",
    ),
    "times that do not name all": (
        {"subscribe": SETTLED, "startingOffsetsByTimestamp": offsets(START_MS)},
        f"startingOffsetsByTimestamp says nothing about {SETTLED}-1",
    ),
    "a time in words": ({"subscribe": SETTLED, "startingTimestamp": "now"}, "whole number"),
    "a time that no record has": (
        {"subscribe": SETTLED, "startingTimestamp": str(START_MS + 9_000_000)},
        "startingOffsetsByTimestampStrategy",
    ),
    "a strategy of another word": (
        {
            "subscribe": SETTLED,
            "startingTimestamp": str(START_MS),
            "startingOffsetsByTimestampStrategy": "earliest",
        },
        "must be error or latest",
    ),
    "kafka.auto.offset.reset": (
        {"subscribe": SETTLED, "kafka.auto.offset.reset": "latest"},
        "use startingOffsets",
    ),
    "kafka.key.deserializer": ({"subscribe": SETTLED, "kafka.key.deserializer": "x"}, "cast"),
    "kafka.value.deserializer": ({"subscribe": SETTLED, "kafka.value.deserializer": "x"}, "cast"),
    "kafka.enable.auto.commit": (
        {"subscribe": SETTLED, "kafka.enable.auto.commit": "true"},
        "checkpoint",
    ),
    "kafka.interceptor.classes": (
        {"subscribe": SETTLED, "kafka.interceptor.classes": "x"},
        "interceptors",
    ),
    "an isolation level that is none": (
        {"subscribe": SETTLED, "kafka.isolation.level": "serializable"},
        "isolation.level must be one of",
    ),
}

REFUSED_IN_BATCHES: dict[str, tuple[dict[str, str], str]] = {
    "a start at the end": (
        {"subscribe": SETTLED, "startingOffsets": "latest"},
        "startingOffsets cannot be latest",
    ),
    "a start at the end of one partition": (
        {"subscribe": SETTLED, "startingOffsets": offsets(0, -1, 0)},
        "startingOffsets cannot be latest",
    ),
    "an end at the beginning": (
        {"subscribe": SETTLED, "endingOffsets": "earliest"},
        "endingOffsets must be latest or JSON",
    ),
    "an end at the beginning of one partition": (
        {"subscribe": SETTLED, "endingOffsets": offsets(5, -2, 5)},
        "endingOffsets cannot be earliest",
    ),
    "an end before the start": (
        {
            "subscribe": SETTLED,
            "startingOffsets": offsets(5, 5, 0),
            "endingOffsets": offsets(9, 4, 0),
        },
        "after its endingOffsets 4",
    ),
    "ends of other partitions": (
        {
            "assign": json.dumps({SETTLED: [0]}),
            "startingOffsets": offsets(5),
            "endingOffsets": offsets(9, 4),
        },
        "in only one of startingOffsets and endingOffsets",
    ),
    "an end by time before the start": (
        {
            "assign": json.dumps({SETTLED: [0]}),
            "startingOffsets": offsets(50),
            "endingTimestamp": str(START_MS),
        },
        "correct the starting or the ending",
    ),
    "offsets that are not there": (
        {
            "assign": json.dumps({SETTLED: [0]}),
            "startingOffsets": offsets(9_000),
            "endingOffsets": offsets(9_100),
        },
        "failOnDataLoss",
    ),
}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [*REFUSED.values(), *REFUSED_IN_BATCHES.values()],
    ids=[*REFUSED, *REFUSED_IN_BATCHES],
)
def test_both_sources_refuse_invalid_options(
    both: Both, given: dict[str, str], sentence: str
) -> None:
    # Spark's source retries three times, a second apart.
    patience = {} if "fetchOffset.numRetries" in given else {"fetchOffset.numRetries": "1"}
    with pytest.raises(Exception):  # noqa: B017  (any error of Spark's source)
        both.read(THEIRS, given | patience).collect()
    with pytest.raises(Exception, match=sentence):
        both.read(OURS, given | patience).collect()


def test_both_sources_require_bootstrap_servers(both: Both) -> None:
    for name, sentence in ((THEIRS, "must be specified"), (OURS, "is needed: the brokers to ask")):
        with pytest.raises(Exception, match=f"(?s)kafka.bootstrap.servers.*{sentence}"):
            both.spark.read.format(name).option("subscribe", SETTLED).load().collect()


def test_both_sources_refuse_a_user_defined_schema(both: Both) -> None:
    for name, sentence in ((THEIRS, "SCHEMA_MISMATCH"), (OURS, "has a fixed schema")):
        reader = both.spark.read.format(name).options(**both.options({"subscribe": SETTLED}))
        with pytest.raises(Exception, match=sentence):
            reader.schema("value string").load().collect()


def test_every_consumer_setting_is_recognised(both: Both) -> None:
    known = KNOWN | {name.removeprefix("kafka.") for name in REFUSED}
    strange = {
        name
        for name in consumer_settings(both.spark)
        if name not in known and not name.startswith((*OTHER_LOGINS, "internal."))
    }
    assert strange == set()


def consumer_settings(spark: Any) -> set[str]:
    """The names of Kafka's own consumer settings, from the connector's jars."""
    java = spark._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    consumer = loader.loadClass("org.apache.kafka.clients.consumer.ConsumerConfig")
    nothing = spark.sparkContext._gateway.new_array(java.java.lang.Object, 0)
    no_types = spark.sparkContext._gateway.new_array(java.java.lang.Class, 0)
    return set(consumer.getMethod("configNames", no_types).invoke(None, nothing))


class SourceQuery:
    """A query over a source that records the rows of every batch, and may fail in one of them."""

    def __init__(self, both: Both, checkpoint: Path) -> None:
        self.both = both
        self.checkpoint = checkpoint
        self.batches: dict[int, list[Row]] = {}

    @property
    def rows(self) -> list[Row]:
        return sorted(row for batch in self.batches.values() for row in batch)

    def run(self, name: str, given: dict[str, str], *, fail_in: int | None = None) -> str | None:
        """Reads everything available now; returns the reason if it failed."""

        def note(df: DataFrame, batch_id: int) -> None:
            if batch_id == fail_in:
                raise RuntimeError("made to fail")
            found = rows_of(df.select("topic", "partition", "offset", "value"))
            assert self.batches.setdefault(batch_id, found) == found, "a repeated batch has changed"

        query = (
            self.both.stream(name, given)
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        with contextlib.suppress(Exception):
            query.awaitTermination(120)
        failure = query.exception()
        query.stop()
        return None if failure is None else str(failure)


STREAMS: dict[str, dict[str, str]] = {
    "everything": {"startingOffsets": "earliest"},
    "few at a time": {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "17"},
    "fewer than there are partitions": {
        "startingOffsets": offsets(90, 30, 0),
        "maxOffsetsPerTrigger": "1",
    },
    "from a time": {"startingTimestamp": str(START_MS + 50_000), "minPartitions": "5"},
    "from the end": {"startingOffsets": "latest"},
    "a limit that is reached": {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "5",
        "maxOffsetsPerTrigger": "60",
        "maxTriggerDelay": "100",
    },
}
STREAMS["from a time"]["startingOffsetsByTimestampStrategy"] = "latest"


@pytest.mark.parametrize("given", STREAMS.values(), ids=STREAMS.keys())
def test_both_streams_have_the_same_batches(
    both: Both, tmp_path: Path, given: dict[str, str]
) -> None:
    theirs, ours = SourceQuery(both, tmp_path / "theirs"), SourceQuery(both, tmp_path / "ours")
    assert theirs.run(THEIRS, {"subscribe": SETTLED} | given) is None
    assert ours.run(OURS, {"subscribe": SETTLED} | given) is None
    assert ours.batches == theirs.batches


@pytest.mark.parametrize(("given", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_both_streams_refuse_invalid_options(
    both: Both, tmp_path: Path, given: dict[str, str], sentence: str
) -> None:
    patience = {"fetchOffset.numRetries": "1"}
    for name, words in ((THEIRS, ""), (OURS, sentence)):
        try:
            failure = SourceQuery(both, tmp_path / name).run(name, given | patience)
        # Some options are refused before the query starts.
        except Exception as problem:  # noqa: BLE001
            failure = str(problem)
        assert failure is not None, f"{name} accepted it"
        assert words in failure


@pytest.mark.parametrize("option", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_both_streams_refuse_ending_offsets(both: Both, tmp_path: Path, option: str) -> None:
    for name, sentence in ((THEIRS, "not valid in streaming queries"), (OURS, "has no end")):
        given = {"subscribe": SETTLED, option: offsets(9, 9, 9)}
        with pytest.raises(Exception, match=sentence):
            raise RuntimeError(SourceQuery(both, tmp_path / name).run(name, given))


# One checkpoint, two sources.


@pytest.fixture
def growing(cluster: Cluster, topic: str) -> Callable[[range], str]:
    """A topic of two partitions, and a way to write more to it."""
    cluster.create_topics([NewTopic(topic, 2, configs=FOREVER)])

    def grow(numbers: range) -> str:
        write(cluster, topic, 0, numbers)
        write(cluster, topic, 1, numbers)
        return topic

    return grow


def expected(both: Both, topic: str) -> list[Row]:
    df = both.read(THEIRS, {"subscribe": topic})
    return sorted(rows_of(df.select("topic", "partition", "offset", "value")))


@pytest.mark.parametrize(("first", "second"), [(THEIRS, OURS), (OURS, THEIRS)])
def test_each_source_continues_the_others_checkpoint_and_back(
    both: Both, tmp_path: Path, growing: Callable[[range], str], first: str, second: str
) -> None:
    topic = growing(range(40))
    query = SourceQuery(both, tmp_path)
    given = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    for turn, name in enumerate((first, second, first, second)):
        before = set(query.batches)
        assert query.run(name, given) is None
        assert query.batches.keys() > before
        assert query.rows == expected(both, topic)
        growing(range(100 + turn * 40, 110 + turn * 40))


@pytest.mark.parametrize(("first", "second"), [(THEIRS, OURS), (OURS, THEIRS)])
def test_a_batch_begun_by_one_source_is_the_same_batch_for_the_other(
    both: Both, tmp_path: Path, growing: Callable[[range], str], first: str, second: str
) -> None:
    topic = growing(range(30))
    query = SourceQuery(both, tmp_path)
    given = {"subscribe": topic, "startingOffsets": "earliest"}
    assert query.run(first, given) is None
    growing(range(40, 50))
    assert query.run(first, given) is None
    growing(range(50, 60))
    failed = max(query.batches) + 1
    assert "made to fail" in (query.run(first, given, fail_in=failed) or "")
    growing(range(60, 70))
    assert query.run(second, given) is None
    assert {row[3] for row in query.batches[failed]} == {record(n).value for n in range(50, 60)}
    assert query.rows == expected(both, topic)


def test_a_first_batch_begun_by_sparks_source_is_read_from_its_start_or_not_at_all(
    both: Both, tmp_path: Path, growing: Callable[[range], str]
) -> None:
    topic = growing(range(10))
    latest = {"subscribe": topic, "startingOffsets": "latest"}
    query = SourceQuery(both, tmp_path)
    # Spark's source stores its start in a file that Python sources cannot read, and then there is
    # more to read.
    assert "made to fail" in (query.run(THEIRS, latest, fail_in=0) or "")
    noted = (tmp_path / "sources" / "0" / "0").read_text().splitlines()[-1]
    assert "begun by Spark's own kafka source" in (query.run(OURS, latest) or "")
    assert query.run(OURS, latest | {"startingOffsets": noted}) is None
    growing(range(20, 30))
    assert query.run(OURS, latest) is None
    assert len(query.rows) == 20
