"""Where reading begins and ends, with a fake cluster."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.failures import DataLost
from fencepost.spark.source import positions
from fencepost.spark.source.options import read_source_options
from fencepost.spark.source.positions import Positions

A0, A1, B0 = TopicPartition("refunds", 0), TopicPartition("refunds", 1), TopicPartition("audit", 0)


class ThreeTopicCluster:
    """Three topics, one of them internal."""

    topics = {"refunds": 2, "audit": 1, "__consumer_offsets": 1}  # noqa: RUF012

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.groups: list[str] = []
        self.created: list[str] = []

    def metadata(self, names: Collection[str] | None = None, **how: Any) -> Any:
        def view(name: str) -> Any:
            indexes = [SimpleNamespace(index=i) for i in range(self.topics[name])]
            return SimpleNamespace(
                name=name, is_internal=name[0] == "_", partitions=indexes, topic_id=ZERO_TOPIC_ID
            )

        found = self.topics.keys() if names is None else self.topics.keys() & set(names)
        assert how.get("missing_ok") or found == set(names or found)
        return SimpleNamespace(topics={n: view(n) for n in found})

    def create_topics(self, topics: Collection[Any], *, exist_ok: bool) -> None:
        assert exist_ok
        self.created += [topic.name for topic in topics]
        self.topics = self.topics | {topic.name: topic.partitions for topic in topics}

    def list_offsets(
        self, times: Mapping[TopicPartition, int], isolation: str | None = None
    ) -> Any:
        """Offsets 10 to 20 at times 1010 to 1020, then an open transaction up to 25."""
        fixed = {-2: 10, -1: 25 if isolation == "read_uncommitted" else 20}

        def at(time: int) -> int:
            found = max(time - 1000, 10)
            return fixed[time] if time < 0 else (found if found < 20 else -1)

        return {tp: SimpleNamespace(offset=at(time)) for tp, time in times.items()}

    def offset_fetch(self, group: str, partitions: Collection[TopicPartition]) -> Any:
        self.groups.append(group)
        return {tp: self.committed[tp] for tp in partitions if tp in self.committed}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ThreeTopicCluster:
    found = ThreeTopicCluster()
    monkeypatch.setattr(positions, "cluster_of", lambda options: found)
    return found


def asking(*, streaming: bool = True, **given: Any) -> Positions:
    common = {"kafka.bootstrap.servers": "localhost:9092"}
    if not {"assign", "subscribe", "subscribePattern"} & given.keys():
        common["subscribe"] = "refunds"
    named = {name.replace("_", "."): value for name, value in given.items()}
    return Positions(read_source_options(common | named, streaming=streaming))


def start_of(asked: Positions) -> dict[TopicPartition, int]:
    return asked.starting(asked.subscribed())


def end_of(asked: Positions) -> dict[TopicPartition, int]:
    return asked.ending(asked.subscribed())


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("refunds|audit", [B0, A0, A1]), ("fund", [A0, A1]), (".*", [B0, A0, A1]), ("^fund", [])],
)
def test_a_pattern_matches_part_of_a_name_and_never_an_internal_topic(
    cluster: ThreeTopicCluster, pattern: str, found: list[TopicPartition]
) -> None:
    assert asking(subscribePattern=pattern).subscribed().partitions == found


def test_an_assigned_partition_that_does_not_exist_logs_a_warning(
    cluster: ThreeTopicCluster, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asking(assign='{"refunds":[1,7]}', startingOffsets="earliest")
    assert asked.subscribed().partitions == [A1]
    assert start_of(asked) == {A1: 10}
    assert "assign names refunds-7, which does not exist" in caplog.text


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"startingOffsets": "earliest"}, {A0: 10, A1: 10}),
        ({"startingOffsets": "latest"}, {A0: 20, A1: 20}),
        ({"startingOffsets": '{"refunds":{"0":-2,"1":13}}'}, {A0: 10, A1: 13}),
        ({"startingOffsets": '{"refunds":{"0":-1,"1":13}}'}, {A0: 20, A1: 13}),
        ({"startingTimestamp": "1015"}, {A0: 15, A1: 15}),
        ({"startingOffsetsByTimestamp": '{"refunds":{"0":1011,"1":3}}'}, {A0: 11, A1: 10}),
        (
            {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"},
            {A0: 20, A1: 20},
        ),
    ],
    ids=str,
)
def test_a_stream_begins_where_the_options_say(
    cluster: ThreeTopicCluster, given: dict[str, Any], start: dict[TopicPartition, int]
) -> None:
    assert start_of(asking(**given)) == start


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({}, {A0: 20, A1: 20}),
        ({"endingOffsets": '{"refunds":{"0":-1,"1":13}}'}, {A0: 20, A1: 13}),
        ({"endingTimestamp": "1012"}, {A0: 12, A1: 12}),
        # No record is that new, so everything is read.
        ({"endingTimestamp": "9999"}, {A0: 20, A1: 20}),
        ({"endingOffsetsByTimestamp": '{"refunds":{"0":1011,"1":9999}}'}, {A0: 11, A1: 20}),
    ],
    ids=str,
)
def test_a_batch_ends_where_the_options_say(
    cluster: ThreeTopicCluster, given: dict[str, Any], end: dict[TopicPartition, int]
) -> None:
    assert end_of(asking(streaming=False, **given)) == end


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (21, "endingOffsets of refunds-1 is 21, and an open transaction hides .* from offset 20"),
        (26, "endingOffsets of refunds-1 is 26, and the partition ends at 25"),
    ],
)
def test_an_end_beyond_the_readable_records_is_refused_or_lowered(
    cluster: ThreeTopicCluster, caplog: pytest.LogCaptureFixture, end: int, why: str
) -> None:
    given: dict[str, Any] = {
        "streaming": False,
        "endingOffsets": f'{{"refunds":{{"0":-1,"1":{end}}}}}',
    }
    with pytest.raises(ConfigError, match=f"{why}.*failOnDataLoss"):
        end_of(asking(**given))
    assert end_of(asking(failOnDataLoss="false", **given)) == {A0: 20, A1: 20}
    assert re.search(why, caplog.text)


def test_a_missing_topic_is_refused_or_left_out(
    cluster: ThreeTopicCluster, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"subscribe": "refunds,nowhere", "startingOffsets": "earliest"}
    with pytest.raises(
        ConfigError,
        match=r"topic 'nowhere' does not exist at localhost:9092: create it.*createTopics=N.*",
    ):
        asking(**given).subscribed()
    assert start_of(asking(failOnDataLoss="false", **given)) == {A0: 10, A1: 10}
    assert "topic 'nowhere' does not exist; going on without it" in caplog.text
    with pytest.raises(ConfigError, match=r"none of the topics exists .*: nowhere, nowhere-else"):
        asking(subscribe="nowhere,nowhere-else", failOnDataLoss="false").subscribed()


def test_a_topic_that_was_never_read_is_created_if_the_user_has_asked_for_it(
    cluster: ThreeTopicCluster, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"subscribe": "refunds,fresh", "createTopics": "3"}
    found = asking(**given).subscribed()
    assert [tp for tp in found.partitions if tp.topic == "fresh"] == [
        TopicPartition("fresh", index) for index in range(3)
    ]
    assert cluster.created == ["fresh"]
    assert "topic 'fresh' did not exist: createTopics has created it with 3" in caplog.text
    asking(**given).subscribed()
    assert cluster.created == ["fresh"]
    # A topic that was read before has lost its records: that is reported, not repaired.
    cluster.topics = {"refunds": 2}
    with pytest.raises(DataLost, match="'fresh' no longer exists"):
        asking(**given).subscribed(known=["refunds", "fresh"])
    assert cluster.created == ["fresh"]


def test_topics_of_a_pattern_cannot_be_created() -> None:
    with pytest.raises(ConfigError, match="a pattern does not name the topics to create"):
        asking(subscribePattern="re.*", createTopics="3")
    with pytest.raises(ConfigError, match="createTopics"):
        asking(subscribe="refunds", createTopics="0")


def test_offsets_may_name_a_topic_that_is_left_out(cluster: ThreeTopicCluster) -> None:
    bounds = '{"refunds":{"0":11,"1":12},"nowhere":{"0":3}}'
    given: dict[str, Any] = {"subscribe": "refunds,nowhere", "failOnDataLoss": "false"}
    assert start_of(asking(startingOffsets=bounds, **given)) == {A0: 11, A1: 12}
    assert end_of(asking(streaming=False, endingOffsets=bounds, **given)) == {A0: 11, A1: 12}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            {"startingOffsets": '{"refunds":{"0":1}}'},
            "startingOffsets says nothing about refunds-1",
        ),
        ({"startingOffsets": '{"refunds":{"0":1,"1":1,"2":1}}'}, "startingOffsets names refunds-2"),
        (
            {"startingOffsetsByTimestamp": '{"refunds":{"0":1}}'},
            "startingOffsetsByTimestamp says nothing about refunds-1",
        ),
        ({"startingTimestamp": "5000"}, "no record of refunds-0 is as new as 5000"),
        ({"startingOffsets": "committed"}, "needs kafka.group.id"),
    ],
)
def test_an_incomplete_start_is_refused(
    cluster: ThreeTopicCluster, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        start_of(asking(**given))


def test_committed_starts_at_the_groups_offsets_or_at_the_beginning_without_one(
    cluster: ThreeTopicCluster,
) -> None:
    cluster.committed[A1] = CommittedOffset(17)
    asked = asking(startingOffsets="committed", kafka_group_id="fencepost-refunds")
    assert start_of(asked) == {A0: 10, A1: 17}
    assert cluster.groups == ["fencepost-refunds"]


def test_a_pattern_does_not_match_the_ledger(cluster: ThreeTopicCluster) -> None:
    """A query that reads its own ledger never ends."""
    cluster.topics = cluster.topics | {"fencepost-ledger": 1}
    found = asking(subscribePattern=".*").subscribed().partitions
    assert {tp.topic for tp in found} == {"refunds", "audit"}
