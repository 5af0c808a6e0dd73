"""ListOffsets and Fetch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.client.calls import Core, Outcome, call_leaders, group_by_topic
from fencepost.client.failures import refusal
from fencepost.client.fetched import AbortedTransaction, FetchedPartition, whole_batches
from fencepost.client.reactions import reaction
from fencepost.client.steps import Reply, Steps
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
"""Special timestamps of `list_offsets`. A timestamp of 0 or more finds the first record that is not
older."""

ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}
_CONSUMER: Final = -1
_BY_ID: Final = 13
"""The first version of Fetch that names topics by their ids (KIP-516)."""


class ListedOffset(NamedTuple):
    """An offset and its record's timestamp. The offset is -1 if no record is new enough."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def list_offsets(
    core: Core, times: Mapping[TopicPartition, int], *, isolation: str | None = None
) -> Steps[dict[TopicPartition, ListedOffset]]:
    """Returns an offset per partition. With read_committed, LATEST is the last stable offset."""
    level = ISOLATION[isolation or core.options.isolation_level]

    def build(wanted: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        return offsets_request(wanted, level, core.options.request_timeout_ms)

    return (yield from call_leaders(core, ApiKey.LIST_OFFSETS, times, build, read_offsets))


def offsets_request(
    times: Mapping[TopicPartition, int], isolation_level: int, timeout_ms: int = 0
) -> ListOffsetsRequest:
    """Returns the request for the offsets of these times."""
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation_level,
        timeout_ms=timeout_ms,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=i, timestamp=times[TopicPartition(topic, i)]
                    )
                    for i in indexes
                ],
            )
            for topic, indexes in group_by_topic(times).items()
        ],
    )


def read_offsets(reply: Reply) -> Iterable[Outcome[ListedOffset]]:
    """Reads the reply of one leader."""
    for topic in reply.form.topics:
        for p in topic.partitions:
            value = ListedOffset(p.offset, p.timestamp, p.leader_epoch)
            yield Outcome(TopicPartition(topic.name, p.partition_index), p.error_code, value)


def fetch(
    core: Core,
    offsets: Mapping[TopicPartition, int],
    *,
    isolation: str | None = None,
    max_wait_ms: int | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    partition_max_bytes: int | None = None,
    topic_ids: Mapping[str, bytes] | None = None,
) -> Steps[dict[TopicPartition, FetchedPartition]]:
    """Fetches from these offsets. Partitions of leaders that did not answer are missing.

    A partition without new records is in the result too. With `topic_ids`, one for each topic, a
    new topic of the same name is not read but raises UnknownTopicOrPartition. Brokers before Kafka
    3.1 ignore ids.
    """
    options = core.options
    level = ISOLATION[isolation or options.isolation_level]
    wait_ms = options.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms
    per_partition = partition_max_bytes or options.max_partition_fetch_bytes

    def build(wanted: Mapping[TopicPartition, int]) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=options.fetch_min_bytes if min_bytes is None else min_bytes,
            max_bytes=max_bytes or options.fetch_max_bytes,
            isolation_level=level,
            topics=fetch_topics(wanted, per_partition, topic_ids or {}),
        )

    def read(reply: Reply) -> Iterable[Outcome[FetchedPartition]]:
        names = {topic_id: name for name, topic_id in (topic_ids or {}).items()}
        return _fetched(reply.form, offsets, names if reply.version >= _BY_ID else {})

    found = yield from call_leaders(
        core,
        ApiKey.FETCH,
        offsets,
        build,
        read,
        extra_ms=wait_ms,
        partial=True,
        at_most=_BY_ID if topic_ids else _BY_ID - 1,
    )
    return found


def fetch_topics(
    wanted: Mapping[TopicPartition, int], max_bytes: int, topic_ids: Mapping[str, bytes]
) -> list[FetchTopic]:
    """Returns the part of a Fetch request that names partitions and offsets."""
    return [
        FetchTopic(
            topic=topic,
            topic_id=topic_ids.get(topic, ZERO_TOPIC_ID),
            partitions=[
                FetchPartition(
                    partition=index,
                    fetch_offset=wanted[TopicPartition(topic, index)],
                    partition_max_bytes=max_bytes,
                )
                for index in indexes
            ],
        )
        for topic, indexes in group_by_topic(wanted).items()
    ]


def _fetched(
    form: FetchResponse, offsets: Mapping[TopicPartition, int], names: Mapping[bytes, str]
) -> Iterable[Outcome[FetchedPartition]]:
    if form.error_code and not reaction(ApiKey.FETCH, form.error_code).is_retriable:
        raise refusal("Fetch", form.error_code)
    for topic in form.responses:
        for data in topic.partitions:
            name = names.get(topic.topic_id, topic.topic)
            partition = TopicPartition(name, data.partition_index)
            if partition in offsets:
                value = _fetched_partition(partition, offsets[partition], data)
                yield Outcome(partition, data.error_code, value, _range_of(value, data.error_code))


def _range_of(fetched: FetchedPartition, code: int) -> str | None:
    """Describes an offset that is out of range. Kafka does not always return the log start."""
    if code != ErrorCode.OFFSET_OUT_OF_RANGE:
        return None
    wanted = f"the requested offset is {fetched.fetch_offset}"
    if fetched.log_start_offset < 0:
        return wanted
    return f"{wanted}, and the log starts at {fetched.log_start_offset}"


def _fetched_partition(
    partition: TopicPartition, fetch_offset: int, data: PartitionData
) -> FetchedPartition:
    assert not isinstance(data.records, (list, tuple)), "readers give one buffer"
    aborted = [
        AbortedTransaction(a.first_offset, a.producer_id) for a in data.aborted_transactions or ()
    ]
    return FetchedPartition(
        partition=partition,
        fetch_offset=fetch_offset,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        batches=whole_batches(None if data.error_code else data.records),  # type: ignore[arg-type]
        aborted=sorted(aborted),
    )
