"""Goal: other clients read what Spark's columns become on the wire, and vice versa.

Method: random records, a real broker, confluent-kafka and kafka-python as the other clients; all
codecs; the compiled path and the plain one. FENCEPOST_TEST_BOOTSTRAP may name another broker.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the spark extra is not installed")
pytest.importorskip("numba", reason="the spark extra is not installed")

import confluent_kafka  # noqa: E402
import kafka  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fencepost.base.ids import TopicPartition  # noqa: E402
from fencepost.client.admin import NewTopic  # noqa: E402
from fencepost.client.blocking import Cluster  # noqa: E402
from fencepost.records.builder import build_batch  # noqa: E402
from fencepost.records.compression import Codec  # noqa: E402
from fencepost.records.opened import Record  # noqa: E402
from fencepost.spark import compiled as fast  # noqa: E402
from fencepost.spark.source import range_reader as reading  # noqa: E402
from fencepost.spark.source.columns import COLUMNS, plain_columns  # noqa: E402
from fencepost.spark.source.compiled_columns import decoded_columns  # noqa: E402
from fencepost.spark.source.ranges import OffsetRange  # noqa: E402
from fencepost.spark.ways.delivery import stamp_producer  # noqa: E402
from fencepost.spark.ways.packing.by_record import PackingPlan  # noqa: E402
from tests.spark.ways.packed import columnwise, plainly  # noqa: E402

ALL = tuple(COLUMNS)
CODECS = [codec.name.lower() for codec in Codec]
SECONDS = 30

FIELD = st.none() | st.binary(max_size=200)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
# Brokers refuse times ahead of their clock.
TIMES = st.integers(1, 1_700_000_000_000)
# Repeated names, empty ones, null and empty values.
HEADERS = st.lists(st.tuples(NAMES | st.just("h"), FIELD), max_size=4)


@dataclass(frozen=True, slots=True)
class Lane:
    """A partition that only one test uses."""

    cluster: Cluster
    bootstrap_servers: str
    place: TopicPartition

    def end(self) -> int:
        (found,) = self.cluster.list_offsets({self.place: -1}).values()
        return found.offset

    def rows(self, start: int, end: int) -> list[dict[str, Any]]:
        """What the source reads at these offsets, on both paths, which must agree."""
        batches = []
        position = start
        while position < end:
            fetched = self.cluster.fetch({self.place: position})[self.place]
            batches += list(fetched.visible_batches())
            position = fetched.next_offset
        found = decoded_columns(self.place, batches, ALL, start, end)
        compiled: list[dict[str, Any]] = [row for rows in found for row in rows.to_pylist()]
        plain = [plain_columns(self.place, batch, ALL, start, end) for batch in batches]
        assert compiled == [row for rows in plain if rows is not None for row in rows.to_pylist()]
        return compiled


@pytest.fixture(scope="module")
def lane(cluster: Cluster, bootstrap: str) -> Lane:
    topic = f"columns-{os.getpid()}"
    # Timestamps are from any year, and a broker deletes records older than a week.
    cluster.create_topics([NewTopic(topic, 1, 1, configs={"retention.ms": "-1"})])
    return Lane(cluster, bootstrap, TopicPartition(topic, 0))


# They write, we read.


@settings(max_examples=12)
@given(st.lists(st.tuples(FIELD, FIELD, TIMES, HEADERS), min_size=1, max_size=20))
@pytest.mark.parametrize("codec", CODECS)
def test_records_written_by_confluent_kafka_are_read(
    lane: Lane, codec: str, sent: list[Any]
) -> None:
    start = lane.end()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": lane.bootstrap_servers, "compression.type": codec, "linger.ms": 2}
    )
    for key, value, time_ms, headers in sent:
        producer.produce(
            lane.place.topic, value, key, partition=0, timestamp=time_ms, headers=headers
        )
    assert producer.flush(SECONDS) == 0
    assert fields_of(lane.rows(start, lane.end())) == [
        (key, value, time_ms, headers or None) for key, value, time_ms, headers in sent
    ]


# kafka-python accepts no null as the value of a header, and no record without key and value.
BYTES_HEADERS = st.lists(st.tuples(NAMES | st.just("h"), st.binary(max_size=40)), max_size=4)
SENDABLE = st.tuples(FIELD, FIELD, TIMES, BYTES_HEADERS).filter(
    lambda sent: sent[:2] != (None, None)
)


@settings(max_examples=6)
@given(st.lists(SENDABLE, min_size=1, max_size=20))
@pytest.mark.parametrize("codec", CODECS)
def test_records_written_by_kafka_python_are_read(lane: Lane, codec: str, sent: list[Any]) -> None:
    start = lane.end()
    producer = kafka.KafkaProducer(
        bootstrap_servers=lane.bootstrap_servers,
        compression_type=None if codec == "none" else codec,
    )
    for key, value, time_ms, headers in sent:
        producer.send(
            lane.place.topic, value, key, headers=headers, partition=0, timestamp_ms=time_ms
        )
    producer.flush(SECONDS)
    producer.close()
    assert fields_of(lane.rows(start, lane.end())) == [
        (key, value, time_ms, headers or None) for key, value, time_ms, headers in sent
    ]


def fields_of(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            row["key"],
            row["value"],
            round(row["timestamp"].timestamp() * 1000),
            None if row["headers"] is None else [(h["key"], h["value"]) for h in row["headers"]],
        )
        for row in rows
    ]


# We write, they read.


def write(lane: Lane, codec: str, sent: list[Any], *, is_compiled: bool) -> int:
    """Writes rows with one of the two packers, as one transaction; returns the first offset."""
    headers = [
        None if h is None else [{"key": name, "value": value} for name, value in h]
        for _, _, h in sent
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array([key for key, _, _ in sent], pa.binary()),
        "value": pa.array([value for _, value, _ in sent], pa.binary()),
    }
    if not is_compiled:
        columns["headers"] = pa.array(headers, kind)
    plan = PackingPlan(
        batch_id=0,
        slots=1,
        topic=lane.place.topic,
        partition_counts={lane.place.topic: 1},
        codec=Codec[codec.upper()],
        batch_bytes=500,
        max_record_bytes=100_000,
        options=lane.cluster.options,
    )
    pack = columnwise if is_compiled else plainly
    start = lane.end()
    identity = lane.cluster.init_producer_id(f"columns-{lane.place.topic}")
    with lane.cluster.writer(identity) as writer:
        for packed in pack(plan, pa.RecordBatch.from_pydict(columns)):
            data = bytearray(packed.data)
            stamp_producer(data, identity, writer.next_sequence(packed.place))
            writer.write(packed.place, data)
        writer.flush()
    lane.cluster.end_txn(identity, commit=True)
    return start


class ConfluentReader:
    """confluent-kafka, kept open: a seek is cheaper than a new consumer."""

    def __init__(self, lane: Lane) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": lane.bootstrap_servers,
                "group.id": "columns",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._topic = lane.place.topic

    def read(self, start: int, count: int) -> list[tuple[Any, ...]]:
        self._consumer.assign([confluent_kafka.TopicPartition(self._topic, 0, start)])
        messages: list[Any] = []
        while len(messages) < count:
            found = self._consumer.consume(count - len(messages), SECONDS)
            assert found, f"only {len(messages)} of {count} came"
            messages += found
        assert all(message.error() is None for message in messages)
        return [(m.key(), m.value(), m.headers()) for m in messages]

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonReader:
    """kafka-python, likewise."""

    def __init__(self, lane: Lane) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=lane.bootstrap_servers,
            group_id=None,
            isolation_level="read_committed",
            consumer_timeout_ms=SECONDS * 1000,
        )
        self._place = kafka.TopicPartition(lane.place.topic, 0)
        self._consumer.assign([self._place])

    def read(self, start: int, count: int) -> list[tuple[Any, ...]]:
        self._consumer.seek(self._place, start)
        found = []
        for message in self._consumer:
            found.append((message.key, message.value, list(message.headers) or None))
            if len(found) == count:
                break
        return found

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="module", params=[ConfluentReader, KafkaPythonReader])
def reader(request: pytest.FixtureRequest, lane: Lane) -> Iterator[Any]:
    found = request.param(lane)
    yield found
    found.close()


@settings(max_examples=10)
@given(
    st.lists(st.tuples(FIELD, FIELD, st.none() | HEADERS), min_size=1, max_size=20), st.booleans()
)
@pytest.mark.parametrize("codec", CODECS)
def test_records_written_by_the_sink_are_read_by_other_clients_and_by_the_source(
    lane: Lane, reader: Any, codec: str, sent: list[Any], is_compiled: bool
) -> None:
    start = write(lane, codec, sent, is_compiled=is_compiled)
    # The compiled path is for rows without headers.
    expected = [(k, v, None if is_compiled or not h else list(h)) for k, v, h in sent]
    assert reader.read(start, len(sent)) == expected
    rows = lane.rows(start, start + len(sent))
    assert [(key, value, headers) for key, value, _, headers in fields_of(rows)] == expected


# Two paths, one result.


def batches_of(count: int, each: int = 10) -> list[Any]:
    from fencepost.records.batch import read_header

    made: Sequence[bytearray] = [
        build_batch(
            [Record(key=b"%d" % n, value=b"v" * n, headers=(("h", b"1"),)) for n in range(each)],
            timestamp_ms=batch,
            base_offset=batch * each,
        )
        for batch in range(count)
    ]
    return [read_header(data) for data in made]


@pytest.mark.parametrize("columns", [ALL, ("value",), ("offset", "headers"), ("timestamp",)])
@pytest.mark.parametrize("bounds", [(0, 200), (13, 187), (200, 300)])
def test_small_and_large_batches_give_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], bounds: tuple[int, int]
) -> None:
    """The number of rows chooses the path; here the limits are changed instead."""
    start, end = bounds
    wanted = OffsetRange(TopicPartition("t", 0), start, end)
    found = {}
    for way, least in (("compiled", 1), ("plain", 10**9)):
        monkeypatch.setattr(fast, "WARM_ROWS", least)
        made = reading.arrow_batches(wanted, columns, batches_of(20), start)
        found[way] = [row for batch in made for row in batch.to_pylist()]
    assert found["plain"] == found["compiled"]
    assert len(found["plain"]) == max(0, min(end, 200) - start)


def test_importing_the_package_does_not_load_numba() -> None:
    said = (
        "import sys, fencepost.spark.ways.direct, fencepost.spark.doors.foreach_batch, "
        "fencepost.spark.data_source\n"
        "print([name for name in sys.modules if name in ('numba', 'fencepost.records.columns')])"
    )
    command = [sys.executable, "-c", said]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_without_numba_every_range_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numba" else known(name)
    )
    # As in a worker that has never loaded it.
    monkeypatch.delitem(sys.modules, "fencepost.records.columns")
    assert fast.compiled_columns(10**9) is None
    wanted = OffsetRange(TopicPartition("t", 0), 0, 30_000)
    rows = sum(b.num_rows for b in reading.arrow_batches(wanted, ALL, batches_of(3_000), 0))
    assert rows == 30_000
    assert "fencepost.records.columns" not in sys.modules


def test_a_worker_loads_the_compiled_path_only_for_large_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fast.compiled_columns(fast.WARM_ROWS) is sys.modules["fencepost.records.columns"]
    assert fast.compiled_columns(fast.WARM_ROWS - 1) is None
    monkeypatch.delitem(sys.modules, "fencepost.records.columns")
    assert fast.compiled_columns(fast.COLD_ROWS - 1) is None


def test_a_large_range_takes_the_compiled_path_even_if_fetched_in_small_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "fencepost.records.columns")
    small = OffsetRange(TopicPartition("t", 0), 0, fast.COLD_ROWS - 1)
    list(reading.arrow_batches(small, ALL, batches_of(100), 0))
    assert "fencepost.records.columns" not in sys.modules
    large = OffsetRange(TopicPartition("t", 0), 0, fast.COLD_ROWS)
    list(reading.arrow_batches(large, ALL, batches_of(100), 0))
    assert "fencepost.records.columns" in sys.modules
