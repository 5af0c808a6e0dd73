"""More partitions for a topic; the sizes of its replicas, and the offsets of its partitions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fencepost.base.ids import TopicPartition
from fencepost.client.calls import (
    Attempt,
    Controller,
    Core,
    call_all_brokers,
    call_one,
    error_code,
    group_by_topic,
    only,
    refresh_metadata,
)
from fencepost.client.reading import EARLIEST, LATEST, list_offsets
from fencepost.client.steps import Steps
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from fencepost.wire.forms.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest


def create_partitions(core: Core, topic: str, count: int) -> Steps[None]:
    """Grows a topic to `count` partitions; returns when each of them has a leader."""
    attempt = Attempt(core, ApiKey.CREATE_PARTITIONS, f"topic {topic!r}")
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
        timeout_ms=core.options.request_timeout_ms,
    )
    yield from call_one(
        core, Controller(), ApiKey.CREATE_PARTITIONS, request, only("results"), attempt=attempt
    )
    while True:
        form = yield from refresh_metadata(core, [topic], attempt)
        led = [p for found in form.topics for p in found.partitions if p.leader_id >= 0]
        if len(led) >= count:
            return
        attempt.last = f"{len(led)} of {count} partitions have a leader"
        yield from attempt.pause()


def replica_sizes(
    core: Core, partitions: Collection[TopicPartition]
) -> Steps[dict[tuple[int, TopicPartition], int]]:
    """Returns the bytes of each replica on the disk, by broker id and partition.

    A log that is being moved to another directory of its broker counts once.
    """
    request = DescribeLogDirsRequest(
        topics=[
            DescribableLogDirTopic(topic=topic, partitions=indexes)
            for topic, indexes in group_by_topic(partitions).items()
        ]
    )
    replies = yield from call_all_brokers(core, ApiKey.DESCRIBE_LOG_DIRS, request, error_code)
    return {
        (node_id, TopicPartition(topic.name, p.partition_index)): p.partition_size
        for node_id, form in replies.items()
        for directory in form.results
        for topic in directory.topics
        for p in topic.partitions
        if not p.is_future_key
    }


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The range of a partition's log."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int

    def end(self, isolation: str) -> int:
        """Returns the end of what a reader with this isolation level can see."""
        return self.last_stable_offset if isolation == "read_committed" else self.high_watermark


def partition_offsets(
    core: Core, partitions: Collection[TopicPartition]
) -> Steps[dict[TopicPartition, PartitionOffsets]]:
    """Returns the offsets of partitions that have a leader."""
    first = yield from list_offsets(core, dict.fromkeys(partitions, EARLIEST))
    latest = dict.fromkeys(partitions, LATEST)
    # In this order: both only grow, so the last stable offset is never above the high watermark.
    stable = yield from list_offsets(core, latest, isolation="read_committed")
    high = yield from list_offsets(core, latest, isolation="read_uncommitted")
    return {
        each: PartitionOffsets(first[each].offset, stable[each].offset, high[each].offset)
        for each in partitions
    }
