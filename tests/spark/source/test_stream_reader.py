"""What the source plans, with fakes for Spark and the broker."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")
pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import DataLost
from fencepost.spark.offsets import PartitionOffsets
from fencepost.spark.source import batch_reader, open_transaction_watch
from fencepost.spark.source import stream_reader as stream
from fencepost.spark.source.open_transaction_watch import (
    PATIENCE_SECONDS,
    REPEAT_SECONDS,
    OpenTransactionWatch,
)
from fencepost.spark.source.options import read_source_options
from fencepost.spark.source.positions import Subscribed
from fencepost.spark.source.ranges import OffsetRange
from fencepost.spark.source.stream_reader import StreamReader

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
EVERYTHING = ReadAllAvailable()


class PlanningCluster:
    """A cluster of one topic, and a clock."""

    def __init__(self) -> None:
        self.ends: PartitionOffsets = {A0: 100, A1: 50}
        self.begins: PartitionOffsets = {}
        self.topic_ids: dict[str, bytes] = {}
        self.answers: list[PartitionOffsets] = []
        self.seconds = 1000.0
        self.slept: list[float] = []

    # The part of Positions that a stream uses.

    def ask_existing(
        self, ask: Callable[[Subscribed], PartitionOffsets], *known: object
    ) -> tuple[Subscribed, PartitionOffsets]:
        found = Subscribed(sorted(self.ends), self.topic_ids)
        return found, ask(found)

    def latest(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        return self.answers.pop(0) if self.answers else dict(self.ends)

    def earliest(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        return {tp: self.begins.get(tp, 0) for tp in partitions}

    def starting(self, found: Subscribed) -> PartitionOffsets:
        return dict(self.ends)

    def high_watermarks(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        return {tp: self.ends[tp] for tp in partitions}

    # The part of `time` that it uses.

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> PlanningCluster:
    found = PlanningCluster()
    monkeypatch.setattr(stream, "Positions", lambda options: found)
    monkeypatch.setattr(open_transaction_watch, "Positions", lambda options: found)
    monkeypatch.setattr(stream, "time", found)
    return found


def reader(**given: str) -> StreamReader:
    common = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"}
    return StreamReader(read_source_options(common | given, streaming=True))


def ranges(found: Any) -> list[OffsetRange]:
    return [wanted for partition in found for wanted in partition.ranges]


def through_json(offsets: Mapping[str, Any]) -> dict[str, Any]:
    """Offsets as they come back from a checkpoint."""
    again: dict[str, Any] = json.loads(json.dumps(offsets))
    return again


def test_records_that_retention_has_deleted_are_reported_when_a_batch_is_planned(
    world: PlanningCluster,
) -> None:
    start, end = {"a": {"0": 100, "1": 50}}, {"a": {"0": 110, "1": 50}}
    # Nothing is read of the other partition, so nothing is lost in it.
    world.begins = {A0: 101, A1: 60}
    with pytest.raises(DataLost, match="a-0 is to be read from offset 100, and its log begins at"):
        reader().partitions(start, end)
    expected = [OffsetRange(A0, 100, 110)]
    assert ranges(reader(failOnDataLoss="false").partitions(start, end)) == expected
    world.begins = {A0: 100}
    assert ranges(reader().partitions(start, end)) == expected


def test_the_first_batch_is_planned_again_from_its_original_start(world: PlanningCluster) -> None:
    first = reader()
    start = first.initialOffset()
    world.ends = {A0: 110, A1: 50}
    end = through_json(first.latestOffset(through_json(start), EVERYTHING))
    assert ranges(first.partitions(start, end)) == [OffsetRange(A0, 100, 110)]
    world.ends = {A0: 500, A1: 500}
    second = reader()
    assert ranges(second.partitions(through_json(second.initialOffset()), end)) == [
        OffsetRange(A0, 100, 110)
    ]


def test_the_second_batch_follows_the_first_in_sparks_own_layout(world: PlanningCluster) -> None:
    source = reader()
    start = through_json(source.initialOffset())
    first = through_json(source.latestOffset(start, EVERYTHING))
    world.ends = {A0: 120, A1: 50}
    second = source.latestOffset(first, EVERYTHING)
    assert second == {"a": {"0": 120, "1": 50}}
    assert ranges(source.partitions(first, through_json(second))) == [OffsetRange(A0, 100, 120)]
    assert source.reportLatestOffset() == {"a": {"0": 120, "1": 50}}


def test_an_unchanged_end_is_returned_as_the_same_text(world: PlanningCluster) -> None:
    known = through_json({"@start": {"a": {"0": 1}}, "a": {"1": 50, "0": 100}})
    assert json.dumps(reader().latestOffset(known, EVERYTHING)) == json.dumps(known)


def test_learning_topic_ids_does_not_trigger_a_batch(world: PlanningCluster) -> None:
    """A checkpoint of Spark's own source, or of a fencepost that kept no ids."""
    known = through_json({"a": {"1": 50, "0": 100}})
    world.topic_ids = {"a": b"first".ljust(16)}
    source = reader()
    assert json.dumps(source.latestOffset(known, EVERYTHING)) == json.dumps(known)
    world.ends = {A0: 101, A1: 50}
    end = through_json(source.latestOffset(known, EVERYTHING))
    assert end == {"@id:a:Zmlyc3QgICAgICAgICAgIA": {}, "a": {"0": 101, "1": 50}}
    assert ranges(source.partitions(known, end)) == [
        OffsetRange(A0, 100, 101, world.topic_ids["a"])
    ]


def test_a_recreated_topic_is_data_loss_even_if_it_is_longer_than_the_old_one(
    world: PlanningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    world.topic_ids = {"a": b"first".ljust(16)}
    start = through_json(reader().initialOffset())
    world.ends = {A0: 110, A1: 60}
    end = through_json(reader().latestOffset(start, EVERYTHING))
    world.topic_ids, world.begins = {"a": b"second".ljust(16)}, {A0: 5}
    with pytest.raises(DataLost, match="deleted and created again: a"):
        reader().latestOffset(end, EVERYTHING)
    lenient = reader(failOnDataLoss="false", maxOffsetsPerTrigger="80")
    later = through_json(lenient.latestOffset(end, lenient.getDefaultReadLimit()))
    planned = lenient.partitions(end, later)
    assert ranges(planned) == [
        OffsetRange(A0, 5, 55, world.topic_ids["a"]),
        OffsetRange(A1, 0, 29, world.topic_ids["a"]),
    ]
    assert "deleted and created again: a; going on" in caplog.text
    # What a lenient query has planned is data loss for a strict one.
    with pytest.raises(DataLost, match="deleted and created again: a"):
        reader().partitions(end, later)


def test_the_same_end_offset_in_a_recreated_topic_is_a_new_batch(world: PlanningCluster) -> None:
    world.topic_ids = {"a": b"first".ljust(16)}
    known = through_json(reader().latestOffset(through_json(reader().initialOffset()), EVERYTHING))
    world.topic_ids = {"a": b"second".ljust(16)}
    source = reader(failOnDataLoss="false")
    end = through_json(source.latestOffset(known, EVERYTHING))
    assert [wanted.start for wanted in ranges(source.partitions(known, end))] == [0, 0]


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"a":{"0":-1,"1":0}}'},
        {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_a_first_batch_begun_by_another_source_is_refused_if_its_start_is_unknown(
    world: PlanningCluster, given: dict[str, str]
) -> None:
    source = reader(**given)
    with pytest.raises(DataLost, match="sources/0/0"):
        source.partitions(source.initialOffset(), {"a": {"0": 110, "1": 60}})


@pytest.mark.parametrize("word", ["earliest", '{"a":{"0":100,"1":50}}'])
def test_a_first_batch_begun_by_another_source_is_read_if_its_start_is_certain(
    world: PlanningCluster, word: str
) -> None:
    source = reader(startingOffsets=word)
    planned = source.partitions(source.initialOffset(), {"a": {"0": 110, "1": 50}})
    assert ranges(planned) == [OffsetRange(A0, 100, 110)]


def test_available_now_ends_at_the_end_found_on_start_but_not_before_its_start_offset(
    world: PlanningCluster,
) -> None:
    """Spark prepares before it requests the start: that end could be before a start at "latest"."""
    source = reader()
    source.prepareForTriggerAvailableNow()
    world.ends = {A0: 105, A1: 50}
    start = through_json(source.initialOffset())
    world.ends = {A0: 107, A1: 50}
    first = through_json(source.latestOffset(start, EVERYTHING))
    assert ranges(source.partitions(start, first)) == [OffsetRange(A0, 105, 107)]
    world.ends = {A0: 999, A1: 999}
    assert source.latestOffset(first, EVERYTHING) == first


@pytest.mark.parametrize("is_available_now", [True, False])
def test_missing_partitions_are_data_loss(
    world: PlanningCluster, caplog: pytest.LogCaptureFixture, is_available_now: bool
) -> None:
    known = {"a": {"0": 100, "1": 50, "2": 7}}
    for fails in ("true", "false"):
        source = reader(failOnDataLoss=fails)
        if is_available_now:
            source.prepareForTriggerAvailableNow()
        lost = r"a-2 no longer exists.*failOnDataLoss"
        if fails == "true":
            with pytest.raises(DataLost, match=lost):
                source.latestOffset(known, EVERYTHING)
            with pytest.raises(DataLost, match=lost):
                source.partitions(known, {"a": {"0": 100, "1": 50}})
        else:
            end = through_json(source.latestOffset(known, EVERYTHING))
            assert ranges(source.partitions(known, end)) == []
    assert re.search(lost, caplog.text)


def test_an_end_before_the_read_position_is_data_loss_unless_a_retry_corrects_it(
    world: PlanningCluster,
) -> None:
    known = {"a": {"0": 100, "1": 50}}
    source = reader(**{"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "70"})
    world.answers = [{A0: 90, A1: 50}]
    assert source.latestOffset(known, EVERYTHING) == known
    assert world.slept == [0.07]
    world.answers = [{A1: 50}]
    assert source.latestOffset(known, EVERYTHING) == known
    world.ends = {A0: 3, A1: 50}
    lost = "a-0 was read up to 100 and ends at 3"
    with pytest.raises(DataLost, match=lost):
        # Before Spark writes it to the checkpoint: the broker may find its records again.
        source.latestOffset(known, EVERYTHING)
    lenient = reader(failOnDataLoss="false")
    end = through_json(lenient.latestOffset(known, EVERYTHING))
    with pytest.raises(DataLost, match=lost):
        source.partitions(known, end)
    assert ranges(lenient.partitions(known, end)) == []


def test_the_error_for_a_start_beyond_the_end_does_not_claim_it_was_read(
    world: PlanningCluster,
) -> None:
    source = reader(startingOffsets='{"a":{"0":100,"1":50}}', **{"fetchOffset.numRetries": "1"})
    start = through_json(source.initialOffset())
    world.ends = {A0: 3, A1: 50}
    lost = "a-0 is to be read from 100 and ends at 3"
    with pytest.raises(DataLost, match=lost):
        source.latestOffset(start, EVERYTHING)
    with pytest.raises(DataLost, match=lost):
        source.partitions(start, {"@start": start, "a": {"0": 3, "1": 50}})


def test_a_new_partition_is_read_from_its_first_offset_which_must_be_0(
    world: PlanningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    known, end = {"a": {"0": 100}}, {"a": {"0": 100, "1": 50}}
    assert ranges(reader().partitions(known, end)) == [OffsetRange(A1, 0, 50)]
    world.begins[A1] = 9
    with pytest.raises(DataLost, match="a-1 is new and begins at 9 already"):
        reader().partitions(known, end)
    assert ranges(reader(failOnDataLoss="false").partitions(known, end)) == [OffsetRange(A1, 9, 50)]
    assert "a-1 is new" in caplog.text


def test_a_limit_counts_only_the_remaining_records_of_a_new_partition(
    world: PlanningCluster,
) -> None:
    world.ends, world.begins = {A0: 100, A1: 1000}, {A1: 980}
    source = reader(maxOffsetsPerTrigger="10", failOnDataLoss="false")
    limit = source.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert source.latestOffset({"a": {"0": 80}}, limit) == {"a": {"0": 85, "1": 985}}
    # Trigger.Once means everything.
    assert source.latestOffset({"a": {"0": 80}}, EVERYTHING) == {"a": {"0": 100, "1": 1000}}
    assert source.reportLatestOffset() == {"a": {"0": 100, "1": 1000}}


def grown(source: StreamReader, known: dict[str, Any]) -> bool:
    limit: ReadLimit = source.getDefaultReadLimit()
    return source.latestOffset(known, limit) != known


@pytest.mark.parametrize("more", [{}, {"maxOffsetsPerTrigger": "20"}])
def test_a_batch_waits_for_min_offsets_but_no_longer_than_the_delay(
    world: PlanningCluster, more: dict[str, str]
) -> None:
    source = reader(minOffsetsPerTrigger="20", maxTriggerDelay="30s", **more)
    assert isinstance(source.getDefaultReadLimit(), ReadMaxRows if more else ReadMinRows)
    known = {"a": {"0": 100, "1": 45}}
    assert grown(source, known), "the first batch does not wait, as in Spark"
    world.seconds += 29
    assert not grown(source, known)
    # Three partitions with seven offsets each: a limit of 20 gives only 18, which are still enough.
    world.ends = {A0: 107, A1: 52, TopicPartition("a", 2): 7}
    assert grown(source, known)
    world.ends = {A0: 100, A1: 46}
    world.seconds += 29
    assert not grown(source, known)
    world.seconds += 1
    assert grown(source, known)


def test_available_now_reads_the_rest_even_below_min_offsets(world: PlanningCluster) -> None:
    source = reader(minOffsetsPerTrigger="20", maxOffsetsPerTrigger="30")
    source.prepareForTriggerAvailableNow()
    known = {"a": {"0": 90, "1": 50}}
    assert grown(source, {"a": {"0": 70, "1": 50}})
    assert grown(source, known)


# Stalled partitions.


class FakeWatch:
    """An `OpenTransactionWatch` with a fake clock and a fake explanation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **given: str) -> None:
        options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"} | given
        self.seconds = 0.0
        self.watch = OpenTransactionWatch(
            read_source_options(options, streaming=True), lambda: self.seconds
        )
        self.asked: list[PartitionOffsets] = []
        self.answer: str | None = "a transaction blocks it"
        monkeypatch.setattr(open_transaction_watch, "explain", self._explain)

    def _explain(self, positions: object, end: PartitionOffsets) -> str | None:
        self.asked.append(dict(end))
        return self.answer

    def look(self, seconds: float, a0: int, a1: int, **more: bool) -> str | None:
        self.seconds += seconds
        return self.watch.check({A0: a0, A1: a1}, **more)


def test_a_stalled_partition_is_noticed_while_others_advance(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stalled = FakeWatch(monkeypatch)
    assert stalled.look(0, 5, 1) is None
    assert stalled.look(PATIENCE_SECONDS - 1, 5, 2) is None
    assert stalled.look(1, 5, 3) == "a transaction blocks it"
    assert stalled.asked == [{A0: 5}]
    assert "a transaction blocks it" in caplog.text


def test_the_same_warning_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = FakeWatch(monkeypatch)
    stalled.look(0, 5, 1)
    assert stalled.look(PATIENCE_SECONDS, 5, 1) is not None
    assert stalled.look(PATIENCE_SECONDS, 5, 1) is None
    assert stalled.look(REPEAT_SECONDS, 5, 1) is not None


def test_an_idle_topic_is_checked_at_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stalled = FakeWatch(monkeypatch)
    stalled.answer = None
    for _ in range(40):
        assert stalled.look(1, 5, 1) is None
    assert len(stalled.asked) == 3
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_only_check_of_a_run_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = FakeWatch(monkeypatch)
    assert stalled.look(0, 5, 1, is_only_check=True) == "a transaction blocks it"
    assert stalled.asked == [{A0: 5, A1: 1}]


def test_a_read_uncommitted_query_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = FakeWatch(monkeypatch, **{"kafka.isolation.level": "read_uncommitted"})
    stalled.look(0, 5, 1)
    assert stalled.look(PATIENCE_SECONDS, 5, 1) is None
    assert stalled.asked == []


def tasks(found: Any) -> list[list[OffsetRange]]:
    return [list(partition.ranges) for partition in found]


def test_partitions_are_packed_into_the_slots_unless_the_user_says_otherwise(
    world: PlanningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a2 = TopicPartition("a", 2)
    world.ends = {A0: 100, A1: 50, a2: 60}
    start = {"a": {"0": 0, "1": 0, "2": 0}}
    end = {"a": {"0": 100, "1": 50, "2": 60}}
    whole = [OffsetRange(A0, 0, 100), OffsetRange(A1, 0, 50), OffsetRange(a2, 0, 60)]
    assert tasks(reader().partitions(start, end)) == [[part] for part in whole]
    monkeypatch.setattr(batch_reader, "announced_slots", lambda: 2)
    assert tasks(reader().partitions(start, end)) == [whole[:1], whole[1:]]
    assert tasks(reader(maxTasks="1").partitions(start, end)) == [whole]
    assert len(reader(minPartitions="5").partitions(start, end)) == 5
    assert len(reader(maxRecordsPerPartition="50").partitions(start, end)) == 5


def test_the_stream_reader_needs_no_private_module_of_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream_reader = "fencepost.spark.source.stream_reader"
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "some"}
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource_internal", None)
    monkeypatch.delitem(sys.modules, stream_reader, raising=False)
    reader = importlib.import_module(stream_reader).StreamReader(
        read_source_options(options, streaming=True)
    )
    assert reader.reportLatestOffset() is None
    assert reader.__class__ is type(reader)
