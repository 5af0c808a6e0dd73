from __future__ import annotations

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.spark.offsets import from_layout, parse_sources, parse_starts, to_layout
from fencepost.spark.ranges import OffsetRange, limit_offsets, split_ranges
from fencepost.spark.settings import read_settings
from fencepost.spark.source_options import read_source_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a,b"}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"subscribePattern": "a.*"}, "one of subscribe"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "first"}, "startingOffsets must be"),
        ({"startingOffsets": '{"a": 1}'}, "startingOffsets"),
        ({"endingOffsets": "latest"}, "endingOffsets cannot be set for a stream"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be at least 1"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "must not exceed"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"columns": "value,valeu"}, "columns has 'valeu'"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "cast the column"),
        ({"kafka.enable.auto.commit": "true"}, "checkpoint"),
        ({"kafka.isolation.levle": "read_committed"}, "did you mean isolation.level"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_do(extra: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_source_options(BASE | extra, streaming=True)


def test_a_source_needs_brokers() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers"):
        read_source_options({"subscribe": "a"}, streaming=True)


def test_option_names_may_be_spelled_in_any_case() -> None:
    options = read_source_options(
        BASE | {"STARTINGOFFSETS": "Earliest", "includeheaders": "TRUE"}, streaming=True
    )
    assert options.starting.word == "earliest"
    assert options.columns[-1] == "headers"


def test_defaults_are_those_of_sparks_source_except_isolation() -> None:
    options = read_source_options(BASE, streaming=True)
    assert options.starting.word == "latest"
    assert read_source_options(BASE, streaming=False).starting.word == "earliest"
    assert options.fail_on_data_loss
    assert options.client.isolation_level == "read_committed"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compression.type": "lz4"}, r"write kafka\.compression\.type"),
        ({"kafka.acks": "1"}, "kafka.acks cannot be set"),
        ({"kafka.transactional.id": "x"}, "transactional_id"),
        ({"kafka.batch.size": "many"}, r"kafka\.batch\.size must be"),
        ({"kafka.compression.type": "brotli"}, "compression.type must be one of"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_settings("localhost:9092", options)


def test_offsets_are_written_in_order_and_read_back() -> None:
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 3, TopicPartition("a", 2): 2}
    layout = to_layout(offsets)
    assert list(layout) == ["a", "b"]
    assert list(layout["a"]) == ["2", "10"]
    assert from_layout(layout) == offsets


def test_offsets_of_other_sources_are_not_taken_for_topics() -> None:
    assert parse_sources(['{"a":{"0":5}}', '{"b":{"0":7}}']) == {A0: 5, B0: 7}
    assert parse_sources(['{"offset":200,"timestamp":1000}']) is None
    assert parse_sources(["3"]) is None
    assert parse_sources(['{"a":{"0":5}}', '{"a":{"0":6}}']) is None
    assert parse_starts(['{"@start":{"a":{"0":5}},"a":{"0":9}}']) == {A0: 5}
    assert parse_starts(['{"a":{"0":9}}']) is None


def test_a_limit_is_shared_out_by_how_much_each_partition_has() -> None:
    start, end = {A0: 0, A1: 0, B0: 0}, {A0: 900, A1: 100, B0: 0}
    assert limit_offsets(start, end, 100) == {A0: 90, A1: 10, B0: 0}
    assert limit_offsets(start, end, 5000) == end
    assert limit_offsets(start, end, 1) == {A0: 1, A1: 1, B0: 0}


def test_ranges_are_split_without_a_hole() -> None:
    parts = split_ranges(
        [OffsetRange(A0, 5, 105), OffsetRange(A1, 3, 3)], max_records=30, min_partitions=None
    )
    assert [part.size for part in parts] == [25, 25, 25, 25]
    more = split_ranges(
        [OffsetRange(A0, 0, 10), OffsetRange(A1, 0, 90)], max_records=None, min_partitions=10
    )
    assert len(more) == 10
    assert more[0] == OffsetRange(A0, 0, 10)
    assert more[-1].end == 90
