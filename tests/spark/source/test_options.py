from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.spark.offsets import (
    SourceOffsets,
    from_layout,
    parse_offsets,
    parse_sources,
    parse_starts,
    to_layout,
)
from fencepost.spark.settings import read_settings
from fencepost.spark.source.options import read_source_options
from fencepost.spark.source.ranges import OffsetRange, limit_offsets, pack_ranges, split_ranges

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a,b"}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"subscribePattern": "a.*"}, "one of subscribe"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "first"}, "startingOffsets must be"),
        ({"startingOffsets": '{"a": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets of a-0 is -3; .*-2 for earliest"),
        ({"startingOffsets": '{"a":{"0":-4}}'}, "startingOffsets of a-0 is -4; it must be"),
        ({"startingOffsets": f'{{"a":{{"0":{2**63}}}}}'}, "startingOffsets of a-0 is 92233"),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":-1}}'},
            "startingOffsetsByTimestamp of a-0 is -1; it must be a time",
        ),
        ({"startingTimestamp": "-3"}, "startingTimestamp must be at least 0"),
        ({"startingTimestamp": str(2**63)}, "startingTimestamp must be at most"),
        ({"endingOffsets": "latest"}, "endingOffsets cannot be set for a stream"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be at least 1"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "must not exceed"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"columns": "value,valeu"}, "columns has 'valeu'"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "cast the column"),
        ({"kafka.enable.auto.commit": "true"}, "checkpoint"),
        ({"kafka.value.deserializer": "x"}, "cast the column"),
        ({"kafka.interceptor.classes": "x"}, "no interceptors"),
        ({"kafka.isolation.levle": "read_committed"}, "did you mean isolation.level"),
        ({"endingTimestamp": "1"}, "endingTimestamp cannot be set for a stream"),
        ({"endingOffsetsByTimestamp": "{}"}, "cannot be set for a stream"),
        ({"startingTimestamp": "soon"}, "startingTimestamp must be a whole number"),
        ({"startingOffsetsByTimestamp": "[1]"}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "must be error or latest"),
        ({"minPartitions": "0"}, "minPartitions must be at least 1"),
        ({"maxRecordsPerPartition": "x"}, "maxRecordsPerPartition must be a whole number"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger must be at least 1"),
        ({"includeHeaders": "1"}, "includeHeaders must be true or false"),
        ({"columns": " , "}, "columns must name at least one column"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, "kafkaConsumer.pollTimeoutMs must be at least 1"),
        ({"subscribe": " , "}, "subscribe must name at least one topic"),
    ],
)
def test_a_wrong_option_is_named_with_a_correction(extra: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_source_options(BASE | extra, streaming=True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "and none was"),
        ({"assign": "a"}, "assign is not JSON"),
        ({"assign": "[0]"}, "assign must look like"),
        ({"assign": "{}"}, "assign must name at least one partition"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribePattern": " "}, "must not be empty"),
    ],
)
def test_an_invalid_topic_selection_is_refused_with_the_reason(
    given: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        read_source_options({"kafka.bootstrap.servers": "localhost:9092"} | given, streaming=True)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets must be latest or JSON"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets cannot be earliest"),
        (
            {"startingOffsets": '{"a":{"0":9}}', "endingOffsets": '{"a":{"0":8}}'},
            "startingOffsets of a-0 is 9, after its endingOffsets 8",
        ),
        (
            {"startingOffsets": '{"a":{"0":9}}', "endingOffsets": '{"a":{"1":9}}'},
            "a-0 is in only one of startingOffsets and endingOffsets",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a":{"0":9}}',
                "endingOffsetsByTimestamp": '{"a":{"0":8}}',
            },
            "startingOffsetsByTimestamp of a-0 is 9",
        ),
    ],
)
def test_an_invalid_range_is_refused_in_a_batch(extra: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_source_options(BASE | extra, streaming=False)


def test_an_invalid_end_offset_is_refused() -> None:
    for name, number in [("endingOffsets", -3), ("endingOffsetsByTimestamp", -1)]:
        with pytest.raises(ConfigError, match=f"{name} of a-0 is {number}; it must be"):
            read_source_options(BASE | {name: f'{{"a":{{"0":{number}}}}}'}, streaming=False)


def test_trigger_limits_have_no_effect_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "1m"}
    read_source_options(BASE | limits, streaming=False)
    assert all(f"{name} is without effect in spark.read" in caplog.text for name in limits)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15m", 900_000),
        ("2min", 120_000),
        ("7", 7),
        ("90s", 90_000),
        ("1h", 3_600_000),
        ("5ms", 5),
        ("2d", 172_800_000),
        ("3000us", 3),
    ],
)
def test_a_delay_uses_sparks_time_format(text: str, milliseconds: int) -> None:
    options = read_source_options(BASE | {"maxTriggerDelay": text}, streaming=True)
    assert options.max_delay_ms == milliseconds


def test_one_timestamp_overrides_timestamps_per_partition_which_override_offsets() -> None:
    given = BASE | {"startingOffsets": "earliest"}
    assert read_source_options(given, streaming=True).starting.word == "earliest"
    given |= {"startingOffsetsByTimestamp": '{"a":{"0":5}}'}
    assert read_source_options(given, streaming=True).starting.timestamps == {A0: 5}
    given |= {"startingTimestamp": "7"}
    assert read_source_options(given, streaming=True).starting.timestamp_ms == 7


def test_every_other_option_is_read() -> None:
    given = {
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": "9",
        "minOffsetsPerTrigger": "4",
        "minPartitions": "3",
        "maxRecordsPerPartition": "2",
        "startingOffsetsByTimestampStrategy": "Latest",
        "kafkaConsumer.pollTimeoutMs": "11",
        "fetchOffset.numRetries": "12",
        "fetchOffset.retryIntervalMs": "13",
        "groupIdPrefix": "any",
        "kafka.group.id": "g",
        "kafka.isolation.level": "read_uncommitted",
        "kafka.max.partition.fetch.bytes": "14",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "hush",
        "columns": "Offset, value",
    }
    found = read_source_options(BASE | given, streaming=True)
    assert (found.topics, found.fail_on_data_loss) == (("a", "b"), False)
    assert (found.max_offsets, found.min_offsets) == (9, 4)
    assert (found.min_partitions, found.max_records_per_partition) == (3, 2)
    assert found.latest_if_no_time_matches
    assert (found.poll_timeout_ms, found.retries, found.retry_pause_ms) == (11, 12, 13)
    assert (found.group, found.client.isolation_level) == ("g", "read_uncommitted")
    assert found.client.max_partition_fetch_bytes == 14
    assert found.client.security_protocol == "SASL_SSL"
    assert found.columns == ("value", "offset")
    assert "hush" not in repr(found)


def test_an_unsupported_sasl_mechanism_is_refused() -> None:
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "GSSAPI",
    }
    with pytest.raises(ConfigError, match=r"sasl\.mechanism must be one of PLAIN"):
        read_source_options(BASE | given, streaming=True)


def test_headers_are_added_to_the_chosen_columns() -> None:
    given = BASE | {"columns": "value", "includeHeaders": "true"}
    assert read_source_options(given, streaming=True).columns == ("value", "headers")
    assert read_source_options(BASE | {"columns": "headers"}, streaming=True).columns == (
        "headers",
    )


def test_a_source_needs_brokers() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers"):
        read_source_options({"subscribe": "a"}, streaming=True)


def test_option_names_may_be_spelled_in_any_case() -> None:
    options = read_source_options(
        BASE | {"STARTINGOFFSETS": "Earliest", "includeheaders": "TRUE"}, streaming=True
    )
    assert options.starting.word == "earliest"
    assert options.columns[-1] == "headers"


def test_defaults_match_sparks_source_except_isolation() -> None:
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


def test_the_default_batch_size_does_not_exceed_the_request_size() -> None:
    assert read_settings("localhost:9092", {}).batch_bytes == 1_000_000
    small = {"kafka.max.request.size": "200000"}
    assert read_settings("localhost:9092", small).batch_bytes == 200_000


def test_offsets_are_written_in_order_and_can_be_read_back() -> None:
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 3, TopicPartition("a", 2): 2}
    layout = to_layout(offsets)
    assert list(layout) == ["a", "b"]
    assert list(layout["a"]) == ["2", "10"]
    assert from_layout(layout) == offsets


IDS = {"a": b"\xff" * 16, "b": b"b" * 16}


@pytest.mark.parametrize(
    "offsets",
    [
        SourceOffsets({A0: 5, B0: 7}),
        SourceOffsets({A0: 5, B0: 7}, IDS),
        SourceOffsets({B0: 7}, IDS, {A0: 5, TopicPartition("a", 10): 2**62}),
        SourceOffsets({}, {}, {A0: 5}),
    ],
    ids=str,
)
def test_topic_ids_can_be_read_back_and_look_like_topics_without_partitions(
    offsets: SourceOffsets,
) -> None:
    layout = json.loads(json.dumps(offsets.layout()))
    assert parse_offsets(layout) == offsets
    assert from_layout(layout) == offsets.offsets
    # How Spark's own source reads it: a map of maps of numbers, flattened.
    assert {
        (topic, int(index)): int(offset)
        for topic, partitions in layout.items()
        for index, offset in partitions.items()
    } == offsets.offsets


def test_offsets_of_other_sources_are_not_parsed_as_topics() -> None:
    assert parse_sources(['{"a":{"0":5}}', '{"b":{"0":7}}']) == {A0: 5, B0: 7}
    assert parse_sources(['{"offset":200,"timestamp":1000}']) is None
    assert parse_sources(["3"]) is None
    assert parse_sources(['{"a":{"0":5}}', '{"a":{"0":6}}']) is None
    assert parse_starts(['{"@start":{"a":{"0":5}},"a":{"0":9}}']) == {A0: 5}
    assert parse_starts(['{"a":{"0":9}}']) is None


def test_a_limit_is_divided_in_proportion_to_each_partitions_backlog() -> None:
    start, end = {A0: 0, A1: 0, B0: 0}, {A0: 900, A1: 100, B0: 0}
    assert limit_offsets(start, end, 100) == {A0: 90, A1: 10, B0: 0}
    assert limit_offsets(start, end, 5000) == end
    assert limit_offsets(start, end, 1) == {A0: 1, A1: 1, B0: 0}


def test_ranges_are_split_without_gaps() -> None:
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


def test_small_ranges_stay_whole_and_large_ones_share_the_remaining_tasks() -> None:
    ranges = [OffsetRange(A0, 0, 1), OffsetRange(A1, 0, 1), OffsetRange(B0, 0, 98)]
    parts = split_ranges(ranges, max_records=None, min_partitions=12)
    assert parts[:2] == ranges[:2]
    assert len(parts) == 12


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), max_size=6),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 50),
)
def test_tasks_cover_every_offset_once(
    sizes: list[tuple[int, int]], max_records: int | None, min_partitions: int | None
) -> None:
    max_records = None if max_records is None else max(max_records, 50_000)
    ranges = [
        OffsetRange(TopicPartition("t", index), start, start + size)
        for index, (start, size) in enumerate(sizes)
    ]
    parts = split_ranges(ranges, max_records=max_records, min_partitions=min_partitions)
    for whole in ranges:
        mine = [part for part in parts if part.partition == whole.partition]
        assert all(part.size > 0 for part in mine)
        assert all(part.size <= (max_records or part.size) for part in mine)
        ends = [whole.start, *(part.end for part in mine)]
        assert [part.start for part in mine] == ends[:-1]
        assert ends[-1] == whole.end


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 12))
def test_packed_tasks_have_every_range_once_and_about_the_same_size(
    sizes: list[int], tasks: int
) -> None:
    parts = [OffsetRange(TopicPartition("t", n), 5, 5 + size) for n, size in enumerate(sizes)]
    packed = pack_ranges(parts, tasks)
    assert len(packed) == min(tasks, len(parts))
    assert sorted((part for task in packed for part in task), key=lambda p: p.partition) == parts
    totals = [sum(part.size for part in task) for task in packed]
    if totals:
        assert max(totals) - min(totals) <= max(sizes)


def test_a_task_reads_the_pieces_of_a_partition_in_order() -> None:
    parts = [OffsetRange(A0, 50, 90), OffsetRange(B0, 0, 5), OffsetRange(A0, 0, 50)]
    assert pack_ranges(parts, 1) == [(parts[2], parts[0], parts[1])]


def test_more_partitions_than_max_tasks_allows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"minPartitions \(9\) must not exceed maxTasks \(8\)"):
        read_source_options(
            {
                "kafka.bootstrap.servers": "localhost:9092",
                "subscribe": "a",
                "maxTasks": "8",
                "minPartitions": "9",
            },
            streaming=True,
        )


@given(
    st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 10**6), min_size=1),
    st.integers(1, 10**6),
)
def test_a_limit_starves_no_partition_and_does_not_exceed_the_backlog(
    sizes: dict[TopicPartition, int], limit: int
) -> None:
    start = dict.fromkeys(sizes, 7)
    end = {tp: 7 + size for tp, size in sizes.items()}
    limited = limit_offsets(start, end, limit)
    taken = {tp: limited[tp] - 7 for tp in sizes}
    assert all(min(1, sizes[tp]) <= taken[tp] <= sizes[tp] for tp in sizes)
    assert sum(taken.values()) <= limit + len(sizes)
    assert limited == end or sum(taken.values()) >= min(limit, sum(sizes.values())) - len(sizes)
