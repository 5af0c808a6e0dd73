"""Topics that are deleted, missing or created again while the source reads them.

The broker is real and embedded. `Engine` acts as Spark: it calls the reader in the order of Spark's
engine, and keeps the checkpoint as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")
pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost import Broker
from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.client import calls
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.records.opened import Record
from fencepost.spark.failures import DataLost
from fencepost.spark.source.batch_reader import BatchReader
from fencepost.spark.source.options import read_source_options
from fencepost.spark.source.stream_reader import StreamReader

LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's metadata is never stale here, so a second request would only cost time."""
    monkeypatch.setattr(calls, "UNKNOWN_TOPIC_PATIENCE_MS", 20)


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with connect(broker.bootstrap_servers) as client:
        yield client
        client.delete_topics(list(client.metadata().topics))


def create(cluster: Cluster, *topics: str) -> None:
    cluster.create_topics([NewTopic(topic, 1, 1) for topic in topics])


def write(cluster: Cluster, topic: str, *values: str, partition: int = 0) -> None:
    identity = cluster.init_producer_id(None)
    place = TopicPartition(topic, partition)
    with cluster.writer(identity) as writer:
        writer.write_records(place, [Record(value=v.encode()) for v in values])
        writer.flush()


def delete(cluster: Cluster, *topics: str) -> None:
    cluster.delete_topics(topics)


class Engine:
    """One query: its checkpoint, and the reader of the current run."""

    def __init__(self, broker: Broker, topics: str = "a,b", how: str = "subscribe") -> None:
        self._options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            how: topics,
            "startingOffsets": "earliest",
            "fetchOffset.retryIntervalMs": "1",
            "columns": "value",
        }
        self._how = how
        self.offsets: list[str] = []
        self.rows: list[str] = []
        self.reader: StreamReader | None = None

    def name(self, topics: str) -> None:
        """Subscribes to other topics from the next restart on."""
        self._options[self._how] = topics

    def restart(self, **options: str) -> None:
        self.reader = StreamReader(read_source_options(self._options | options, streaming=True))

    def plan(self) -> bool:
        """Writes the offsets of the next batch to the checkpoint; False if there is nothing new."""
        assert self.reader is not None
        known = json.loads(self.offsets[-1]) if self.offsets else self.reader.initialOffset()
        end = json.dumps(self.reader.latestOffset(known, self.reader.getDefaultReadLimit()))
        if self.offsets and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def run_planned(self, between: Callable[[], None] = lambda: None) -> list[str]:
        """The rows of the last batch in the checkpoint; `between` runs after planning."""
        assert self.reader is not None
        start = (
            json.loads(self.offsets[-2]) if len(self.offsets) > 1 else self.reader.initialOffset()
        )
        tasks = self.reader.partitions(start, json.loads(self.offsets[-1]))
        between()
        found = [
            value.as_py().decode()
            for task in tasks
            for batch in self.reader.read(task)
            for value in batch.column("value")
        ]
        self.rows += found
        return found

    def batch(self) -> list[str]:
        """One trigger."""
        return self.run_planned() if self.plan() else []


@pytest.fixture
def engine(broker: Broker, cluster: Cluster) -> Engine:
    create(cluster, "a", "b")
    write(cluster, "a", "a1", "a2")
    write(cluster, "b", "b1")
    return Engine(broker)


def began(engine: Engine, **options: str) -> Engine:
    engine.restart(**options)
    assert sorted(engine.batch()) == ["a1", "a2", "b1"]
    return engine


def test_a_query_continues_if_one_of_two_topics_is_deleted(
    engine: Engine, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    began(engine, **LENIENT)
    delete(cluster, "b")
    write(cluster, "a", "a3")
    assert engine.batch() == ["a3"]
    assert "b-0 no longer exists" in caplog.text
    assert "going on, because failOnDataLoss is false" in caplog.text
    caplog.clear()
    write(cluster, "a", "a4")
    assert engine.batch() == ["a4"]
    assert engine.batch() == []
    assert caplog.text == ""


def test_a_topic_missing_at_the_start_is_left_out_until_it_appears(
    broker: Broker, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    create(cluster, "a")
    write(cluster, "a", "a1")
    engine = Engine(broker)
    engine.restart()
    with pytest.raises(ConfigError, match="topic 'b' does not exist"):
        engine.batch()
    engine.restart(**LENIENT)
    assert engine.batch() == ["a1"]
    assert "topic 'b' does not exist; going on without it" in caplog.text
    create(cluster, "b")
    write(cluster, "b", "b1")
    assert engine.batch() == ["b1"]


def test_if_no_topic_exists_the_query_fails(broker: Broker, cluster: Cluster) -> None:
    engine = Engine(broker)
    engine.restart(**LENIENT)
    with pytest.raises(ConfigError, match=r"none of the topics exists at .*: a, b"):
        engine.batch()


def test_if_its_only_topic_is_deleted_the_query_waits_for_it(
    broker: Broker, cluster: Cluster
) -> None:
    create(cluster, "a")
    write(cluster, "a", "a1")
    engine = Engine(broker, "a")
    engine.restart(**LENIENT)
    assert engine.batch() == ["a1"]
    delete(cluster, "a")
    assert engine.batch() == []
    engine.restart(**LENIENT)
    assert engine.batch() == []
    create(cluster, "a")
    write(cluster, "a", "new")
    assert engine.batch() == ["new"]


@pytest.mark.parametrize("old_records", [1, 3], ids=["shorter", "longer"])
@pytest.mark.parametrize("is_seen_missing", [True, False])
def test_a_recreated_topic_is_read_from_its_first_record(
    broker: Broker, cluster: Cluster, old_records: int, is_seen_missing: bool
) -> None:
    """Even if it has grown past the end of the old one, which offsets alone do not show."""
    create(cluster, "a", "b")
    write(cluster, "b", *[f"b{n}" for n in range(old_records)])
    engine = Engine(broker)
    engine.restart(**LENIENT)
    assert len(engine.batch()) == old_records
    delete(cluster, "b")
    if is_seen_missing:
        assert engine.batch() == []
    create(cluster, "b")
    write(cluster, "b", "new1", "new2")
    strict = engine.offsets.copy()
    engine.restart()
    with pytest.raises(DataLost, match="deleted and created again: b"):
        engine.batch()
    assert engine.offsets == strict
    engine.restart(**LENIENT)
    assert engine.batch() == ["new1", "new2"]
    write(cluster, "b", "new3")
    engine.restart()
    assert engine.batch() == ["new3"]


def test_a_topic_briefly_unknown_to_a_broker_is_not_read_again(
    engine: Engine, cluster: Cluster
) -> None:
    """Missing in one answer, back in the next with the same id: nothing is lost or read twice."""
    began(engine, **LENIENT)
    view = cluster.metadata(["b"]).topics["b"]
    ids = {name: text for name, text in json.loads(engine.offsets[-1]).items() if "@id:b:" in name}
    assert len(ids) == 1
    (key,) = ids
    gone: dict[str, Any] = {f"@gone{key.removeprefix('@id')}:0=1": {}}
    with_a = {name: text for name, text in json.loads(engine.offsets[-1]).items() if name != key}
    with_a.pop("@start")
    with_a.pop("b")
    engine.offsets.append(json.dumps(gone | with_a))
    write(cluster, "b", "b2")
    assert len(view.partitions) == 1
    assert engine.batch() == ["b2"]


def test_a_topic_may_be_deleted_between_planning_and_reading(
    engine: Engine, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    began(engine, **LENIENT)
    write(cluster, "a", "a3")
    write(cluster, "b", "b2")
    assert engine.plan()
    assert engine.run_planned(between=lambda: delete(cluster, "b")) == ["a3"]
    assert "going on, because failOnDataLoss is false" in caplog.text
    write(cluster, "a", "a4")
    assert engine.batch() == ["a4"]


def recreate_longer(cluster: Cluster) -> None:
    delete(cluster, "b")
    create(cluster, "b")
    write(cluster, "b", *[f"new{n}" for n in range(5)])


@pytest.mark.parametrize("moment", ["before planning again", "before reading"])
def test_records_of_a_recreated_topic_are_never_read_in_place_of_the_planned_ones(
    engine: Engine, cluster: Cluster, moment: str
) -> None:
    """The offsets that were planned exist in the new topic too."""
    began(engine, **LENIENT)
    write(cluster, "b", "b2")
    assert engine.plan()
    if moment == "before planning again":
        recreate_longer(cluster)
        engine.restart()
        with pytest.raises(DataLost, match="b-0"):
            engine.run_planned()
        engine.restart(**LENIENT)
        assert engine.run_planned() == []
    else:
        assert engine.run_planned(between=lambda: recreate_longer(cluster)) == []
    assert engine.batch() == [f"new{n}" for n in range(5)]
    assert engine.batch() == []


def test_the_first_batch_can_be_planned_again_after_its_topic_is_recreated(
    engine: Engine, cluster: Cluster
) -> None:
    engine.restart(**LENIENT)
    assert engine.plan()
    recreate_longer(cluster)
    engine.restart(**LENIENT)
    assert sorted(engine.run_planned()) == ["a1", "a2"]
    assert engine.batch() == [f"new{n}" for n in range(5)]


def test_a_topic_may_be_deleted_between_metadata_and_list_offsets(
    engine: Engine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.spark.source.positions import Positions

    began(engine, **LENIENT)
    latest = Positions.latest
    deleted: list[str] = []

    def delete_first(self: Positions, partitions: Any) -> Any:
        if not deleted:
            deleted.append("b")
            delete(cluster, "b")
        return latest(self, partitions)

    monkeypatch.setattr(Positions, "latest", delete_first)
    write(cluster, "a", "a3")
    assert engine.batch() == ["a3"]


@pytest.mark.parametrize(
    ("how", "topics"), [("assign", '{"a":[0],"b":[0,1]}'), ("subscribePattern", "^[ab]$")]
)
def test_topics_may_be_deleted_and_recreated_with_assign_and_subscribe_pattern(
    broker: Broker, cluster: Cluster, how: str, topics: str
) -> None:
    cluster.create_topics([NewTopic("a", 1, 1), NewTopic("b", 2, 1)])
    write(cluster, "b", "b1", "b2")
    engine = Engine(broker, topics, how)
    engine.restart(**LENIENT)
    assert engine.batch() == ["b1", "b2"]
    # Created again with fewer partitions at once.
    delete(cluster, "b")
    create(cluster, "b")
    write(cluster, "b", "new1", "new2", "new3")
    assert engine.batch() == ["new1", "new2", "new3"]
    # Deleted, noticed as missing, and created again.
    delete(cluster, "b")
    write(cluster, "a", "a1")
    assert engine.batch() == ["a1"]
    create(cluster, "b")
    write(cluster, "b", "newer")
    engine.restart(**LENIENT)
    assert engine.batch() == ["newer"]
    assert engine.batch() == []


NAMED = [
    ("subscribe", "a,b", "a"),
    ("subscribePattern", "^[ab]$", "^a$"),
    ("assign", '{"a":[0],"b":[0]}', '{"a":[0]}'),
]


@pytest.mark.parametrize(("how", "both", "one"), NAMED)
@pytest.mark.parametrize("what", ["deleted", "not named"])
def test_with_fail_on_data_loss_the_checkpoint_is_kept_for_every_kind_of_subscription(
    broker: Broker, engine: Engine, cluster: Cluster, how: str, both: str, one: str, what: str
) -> None:
    engine = began(Engine(broker, both, how))
    if what == "deleted":
        delete(cluster, "b")
    else:
        engine.name(one)
    write(cluster, "a", "a3")
    before = list(engine.offsets)
    for _ in range(2):
        engine.restart()
        with pytest.raises(DataLost, match="no longer exists"):
            engine.batch()
    assert engine.offsets == before
    engine.restart(**LENIENT)
    assert engine.batch() == ["a3"]


@pytest.mark.parametrize(("how", "both", "one"), NAMED)
def test_a_topic_that_is_subscribed_again_continues_where_it_was_left(
    broker: Broker, engine: Engine, cluster: Cluster, how: str, both: str, one: str
) -> None:
    """Or one that a broker briefly did not know: to a pattern the two look alike."""
    engine = began(Engine(broker, both, how))
    engine.name(one)
    engine.restart(**LENIENT)
    write(cluster, "a", "a3")
    assert engine.batch() == ["a3"]
    write(cluster, "b", "b2")
    assert engine.batch() == []
    engine.name(both)
    engine.restart()
    assert engine.batch() == ["b2"]
    assert engine.batch() == []


def test_a_partition_that_is_assigned_again_continues_where_it_was_left(
    broker: Broker, cluster: Cluster
) -> None:
    cluster.create_topics([NewTopic("a", 2, 1)])
    write(cluster, "a", "a1")
    write(cluster, "a", "z1", partition=1)
    engine = Engine(broker, '{"a":[0,1]}', "assign")
    engine.restart()
    assert sorted(engine.batch()) == ["a1", "z1"]
    engine.name('{"a":[0]}')
    engine.restart(**LENIENT)
    write(cluster, "a", "a2")
    write(cluster, "a", "z2", partition=1)
    assert engine.batch() == ["a2"]
    engine.name('{"a":[0,1]}')
    engine.restart()
    assert engine.batch() == ["z2"]


def test_available_now_continues_without_a_topic_that_is_recreated_during_the_run(
    engine: Engine, cluster: Cluster
) -> None:
    """Its end was fixed when the run began, in the topic that is gone."""
    engine.restart(maxOffsetsPerTrigger="2", **LENIENT)
    assert engine.reader is not None
    engine.reader.prepareForTriggerAvailableNow()
    first = engine.batch()
    assert len(first) == 2
    recreate_longer(cluster)
    rest = engine.batch()
    assert engine.batch() == []
    assert {*first, *rest} <= {"a1", "a2", "b1"}
    engine.restart(**LENIENT)
    assert engine.batch() == [f"new{n}" for n in range(5)]
    assert len(engine.rows) == len(set(engine.rows)), "a record was read twice"


def batch_values(
    broker: Broker, given: dict[str, str], between: Callable[[], None] = lambda: None
) -> list[str]:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "a,b"} | given
    reader = BatchReader(read_source_options(options, streaming=False))
    tasks = reader.partitions()
    between()
    return sorted(
        value.as_py().decode()
        for task in tasks
        for batch in reader.read(task)
        for value in batch.column("value")
    )


def test_a_batch_reads_the_remaining_topics(
    broker: Broker, engine: Engine, cluster: Cluster
) -> None:
    assert batch_values(broker, LENIENT, lambda: recreate_longer(cluster)) == ["a1", "a2"]
    with pytest.raises(DataLost, match="b-0"):
        batch_values(broker, {}, lambda: recreate_longer(cluster))
    delete(cluster, "b")
    with pytest.raises(ConfigError, match="topic 'b' does not exist"):
        batch_values(broker, {})
    assert batch_values(broker, LENIENT) == ["a1", "a2"]


def test_a_batch_does_not_wait_for_an_end_that_does_not_exist(
    broker: Broker, engine: Engine
) -> None:
    end = {"endingOffsets": '{"a":{"0":2},"b":{"0":2}}'}
    with pytest.raises(ConfigError, match="endingOffsets of b-0 is 2, and the partition ends at 1"):
        batch_values(broker, end)
    assert batch_values(broker, end | LENIENT) == ["a1", "a2", "b1"]
