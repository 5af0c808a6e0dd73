"""A full disk: requests get KAFKA_STORAGE_ERROR; with free space everything continues.

Method: the disk in memory is left with a number of free bytes, for many numbers, so that a write
fails at its beginning, in its middle and at its end.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.crashes.test_power_loss import commit_offset, committed_offset, when_coordinated
from tests.broker.node_stage import Stage
from tests.broker.requests import (
    batch_of,
    create_topic,
    create_topics,
    fetch,
    produce,
    read_topic,
)

PRODUCER: dict[str, Any] = {"producer_id": 70, "epoch": 0}


def numbered(number: int) -> Any:
    return batch_of(b"value-%d" % number, sequence=number, **PRODUCER)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("ending", ["none", "stop", "kill", "lose_power"])
def test_a_batch_that_does_not_fit_is_refused_and_accepted_later(
    durability: str, ending: str
) -> None:
    size = len(numbered(0))
    for free_bytes in range(0, size, 13):
        with Stage(durability=durability) as stage:
            create_topic(stage, "full")
            for number in range(3):
                assert produce(stage, "full", numbered(number)).base_offset == number
            stage.disk.fill(free_bytes)
            for _ in range(2):
                refused = produce(stage, "full", numbered(3))
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert refused.base_offset == -1
            assert read_topic(stage, "full") == [b"value-%d" % n for n in range(3)]
            after = ended(stage, ending)
            assert produce(after, "full", numbered(3)).base_offset == 3
            assert produce(after, "full", numbered(4)).base_offset == 4
            assert read_topic(after, "full") == [b"value-%d" % n for n in range(5)]
            if after is not stage:
                after.stop()


def ended(stage: Stage, ending: str) -> Stage:
    """Space is freed, possibly after the broker has stopped or died."""
    if ending == "none":
        stage.disk.empty()
        return stage
    if ending == "stop":
        stage.stop()
    elif ending == "kill":
        stage.kill()
    elif stage.node.config.durability == "fsync":
        stage.lose_power()
    else:
        stage.kill()
    stage.disk.empty()
    return stage.again()


def test_other_partitions_and_readers_are_served_while_one_batch_does_not_fit() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "full", 2)
        produce(stage, "full", batch_of(b"small"), index=1)
        stage.disk.fill(500)
        large = produce(stage, "full", batch_of(b"x" * 1_000), index=0)
        assert large.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(stage, "full", batch_of(b"small"), index=1).base_offset == 1
        assert read_topic(stage, "full", 1) == [b"small", b"small"]
        assert fetch(stage, "full", index=0).high_watermark == 0


def test_a_segment_that_cannot_be_sealed_is_continued_when_there_is_space() -> None:
    settings = {"internal.segment.bytes": "300"}
    for free_bytes in (0, 5, 20, 80, 150):
        with Stage(durability="os") as stage:
            create_topic(stage, "rolling", settings=settings)
            expected: list[bytes] = []
            for number in range(12):
                if number == 4:
                    stage.disk.fill(free_bytes)
                if number == 8:
                    stage.disk.empty()
                outcome = produce(stage, "rolling", batch_of(b"%d" % number))
                if outcome.error_code == ErrorCode.NONE:
                    assert outcome.base_offset == len(expected)
                    expected.append(b"%d" % number)
                else:
                    assert outcome.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    assert 4 <= number < 8
            assert len(expected) >= 8
            assert read_topic(stage, "rolling") == expected
            again = stage.kill().again()
            assert read_topic(again, "rolling") == expected
            again.stop()


# -- metadata --------------------------------------------------------------------------------------


def topic_names(stage: Stage) -> set[str | None]:
    reply = stage.call(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    return {topic.name for topic in reply.topics if not topic.is_internal}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_topic_that_does_not_fit_is_not_created(durability: str) -> None:
    for free_bytes in range(0, 200, 20):
        with Stage(durability=durability) as stage:
            create_topic(stage, "there")
            stage.disk.fill(free_bytes)
            (made,) = create_topics(stage, "not-yet")
            was_made = made.error_code == ErrorCode.NONE
            assert was_made or made.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert topic_names(stage) == ({"there", "not-yet"} if was_made else {"there"})
            stage.disk.empty()
            if not was_made:
                create_topic(stage, "not-yet")
            stage.advance(60_000)  # A partition that could not be opened is retried.
            assert produce(stage, "not-yet", batch_of(b"value")).base_offset == 0
            again = stage.kill().again()
            assert topic_names(again) == {"there", "not-yet"}
            assert read_topic(again, "not-yet") == [b"value"]
            again.stop()


def test_deletions_and_changes_that_cannot_be_written_have_no_effect() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "kept")
        produce(stage, "kept", batch_of(b"value"))
        stage.disk.fill()
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="kept")])
        reply = stage.call(ApiKey.DELETE_TOPICS, 6, deletion)
        assert reply.responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        change = AlterConfigsResource(
            resource_type=2,
            resource_name="kept",
            configs=[AlterableConfig(name="retention.ms", config_operation=0, value="1000")],
        )
        request = IncrementalAlterConfigsRequest(resources=[change])
        reply = stage.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert reply.responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        partition = stage.node.partitions.get("kept", 0)
        assert partition is not None
        assert partition.log.config.retention_ms != 1_000
        assert read_topic(stage, "kept") == [b"value"]
        stage.disk.empty()
        again = stage.kill().again()
        assert read_topic(again, "kept") == [b"value"]
        again.stop()


def test_a_broker_does_not_start_on_a_full_disk() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "kept")
    produce(stage, "kept", batch_of(b"value"))
    stage.stop()
    stage.disk.fill()
    with pytest.raises(StorageError):
        stage.again()
    stage.disk.empty()
    again = stage.again()
    assert read_topic(again, "kept") == [b"value"]
    again.stop()


# -- coordinators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_an_offset_that_does_not_fit_is_not_committed(durability: str) -> None:
    for free_bytes in range(0, 100, 20):
        with Stage(durability=durability) as stage:
            create_topic(stage, "first")
            commit_offset(stage, 1)
            stage.disk.fill(free_bytes)
            with pytest.raises(AssertionError, match="no coordinator"):
                commit_offset(stage, 2)
            assert committed_offset(stage) == 1
            stage.disk.empty()
            commit_offset(stage, 3)
            assert committed_offset(stage) == 3
            again = stage.kill().again()
            assert committed_offset(again) == 3
            again.stop()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_transactional_id_that_does_not_fit_gets_no_producer_id(durability: str) -> None:
    request = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
    for free_bytes in range(0, 100, 20):
        with Stage(durability=durability) as stage:

            def ask(stage: Stage = stage) -> tuple[int, Any]:
                reply = stage.call(ApiKey.INIT_PRODUCER_ID, 4, request)
                return reply.error_code, reply

            first = when_coordinated(stage, 1, ask)
            stage.disk.fill(free_bytes)
            with pytest.raises(AssertionError, match="no coordinator"):
                when_coordinated(stage, 1, ask)
            stage.disk.empty()
            second = when_coordinated(stage, 1, ask)
            assert second.producer_id == first.producer_id
            assert second.producer_epoch == first.producer_epoch + 1
            stage.kill()


def test_an_internal_topic_that_cannot_be_created_is_created_later() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "first")
        stage.disk.fill()
        with pytest.raises(AssertionError, match="no coordinator"):
            commit_offset(stage, 1)
        stage.disk.empty()
        stage.advance(60_000)
        commit_offset(stage, 1)
        assert committed_offset(stage) == 1


def test_housekeeping_on_a_full_disk_harms_nothing() -> None:
    settings = {
        "log.retention.check.interval.ms": "1000",
        "log.cleaner.backoff.ms": "1000",
        "log.flush.offset.checkpoint.interval.ms": "1000",
    }
    with Stage(durability="os", settings=settings) as stage:
        compacted = {"cleanup.policy": "compact", "internal.segment.bytes": "200"}
        create_topic(stage, "compacted", settings=compacted)
        for number in range(10):
            produce(stage, "compacted", batch_of(b"%d" % number, key=b"same"))
        stage.disk.fill(50)
        stage.advance(60_000)
        stage.disk.empty()
        stage.advance(60_000)
        assert read_topic(stage, "compacted")[-1] == b"9"
        assert produce(stage, "compacted", batch_of(b"10", key=b"same")).base_offset == 10
