"""One-line helpers for requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import split_batches
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record, open_batch
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.fetch import FetchPartition, FetchRequest, FetchTopic
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.base.seams import Buffer


class Client(Protocol):
    """Sends a request and waits for its reply."""

    def call(self, api: ApiKey, version: int, form: Any) -> Any: ...


PRODUCE_VERSION = 11
FETCH_VERSION = 12
NOW_MS = 1_700_000_000_000


def batch_of(
    *values: bytes,
    key: bytes | None = None,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp_ms: int = NOW_MS,
    **more: Any,
) -> bytearray:
    """One batch of the values, as a producer sends it."""
    return build_batch(
        [Record(0, timestamp_ms, key, value, ()) for value in values or (b"value",)],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **more,
    )


def produce_request(
    topic: str | bytes,
    records: Buffer | None,
    *,
    index: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One batch for one partition; the topic by its name, or by its id from v13 on."""
    data = [PartitionProduceData(index=index, records=records)]
    named = (
        TopicProduceData(topic_id=topic, partition_data=data)
        if isinstance(topic, bytes)
        else TopicProduceData(name=topic, partition_data=data)
    )
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=30_000, topic_data=[named]
    )


def produce(client: Client, topic: str, records: Buffer | None, **more: Any) -> Any:
    """Produces one batch; returns the reply of its partition."""
    reply = client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, records, **more))
    return reply.responses[0].partition_responses[0]


def fetch_request(
    topic: str | bytes,
    offset: int = 0,
    *,
    index: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    isolation_level: int = 0,
    leader_epoch: int = -1,
    **more: Any,
) -> FetchRequest:
    """One partition from an offset on; the topic by its name, or by its id from v13 on."""
    asked = FetchPartition(
        partition=index,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
    )
    named = (
        FetchTopic(topic_id=topic, partitions=[asked])
        if isinstance(topic, bytes)
        else FetchTopic(topic=topic, partitions=[asked])
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[named],
        **more,
    )


def fetch(client: Client, topic: str, offset: int = 0, **more: Any) -> Any:
    """Fetches one partition; returns its part of the reply."""
    reply = client.call(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, offset, **more))
    assert reply.error_code == ErrorCode.NONE, reply
    return reply.responses[0].partitions[0]


def records_in(data: Buffer | None) -> list[Record]:
    """The records of a fetched field, markers left out."""
    batches = split_batches(data or b"")
    return [record for batch in batches if not batch.is_control for record in open_batch(batch)]


def read_topic(client: Client, topic: str, index: int = 0) -> list[bytes | None]:
    """Every value of a partition from its beginning to its end."""
    values: list[bytes | None] = []
    offset = fetch(client, topic, 0, index=index).log_start_offset
    while True:
        got = fetch(client, topic, offset, index=index)
        assert got.error_code == ErrorCode.NONE, got
        batches = split_batches(got.records or b"")
        if not batches:
            return values
        values += [record.value for record in records_in(got.records) if record.offset >= offset]
        offset = batches[-1].next_offset


def create_topic(
    client: Client, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> bytes:
    """Creates a new topic; returns its id."""
    (made,) = create_topics(client, name, partitions=partitions, settings=settings)
    assert made.error_code == ErrorCode.NONE, made
    topic_id: bytes = made.topic_id
    return topic_id


def topic_id(client: Client, name: str) -> bytes:
    """The id of a topic that exists."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    (topic,) = client.call(ApiKey.METADATA, 12, request).topics
    assert topic.error_code == ErrorCode.NONE, topic
    found: bytes = topic.topic_id
    return found


def create_topics(
    client: Client, *names: str, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> list[Any]:
    """Creates topics; returns the result of each."""
    configs = [CreatableTopicConfig(name=k, value=v) for k, v in (settings or {}).items()]
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=configs)
        for name in names
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
    made: list[Any] = client.call(ApiKey.CREATE_TOPICS, 7, request).topics
    return made


def delete_topic(client: Client, name: str) -> int:
    """Deletes a topic; returns the error."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
    return int(client.call(ApiKey.DELETE_TOPICS, 6, request).responses[0].error_code)


def delete_records_request(topic: str, *offsets: int) -> DeleteRecordsRequest:
    """Up to one offset for each partition from the first on."""
    cuts = [DeleteRecordsPartition(partition_index=i, offset=at) for i, at in enumerate(offsets)]
    wanted = DeleteRecordsTopic(name=topic, partitions=cuts)
    return DeleteRecordsRequest(topics=[wanted], timeout_ms=30_000)


def delete_records(client: Client, topic: str, offset: int) -> int:
    """Deletes the records of the first partition below an offset; returns the error."""
    reply = client.call(ApiKey.DELETE_RECORDS, 2, delete_records_request(topic, offset))
    return int(reply.topics[0].partitions[0].error_code)


def alter_topic(client: Client, topic: str, setting: str, value: str) -> int:
    """Changes one setting of a topic; returns the error."""
    change = AlterableConfig(name=setting, config_operation=0, value=value)
    wanted = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[wanted])
    reply = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    return int(reply.responses[0].error_code)


def offset_commit_request(
    group: str, topic: str, *offsets: int, **member: Any
) -> OffsetCommitRequest:
    """One offset for each partition from the first on."""
    places = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in enumerate(offsets)
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=places)]
    return OffsetCommitRequest(group_id=group, topics=topics, **member)


def commit_offset(
    client: Client, group: str, topic: str, offset: int, version: int = 8, **member: Any
) -> int:
    """Commits an offset of the first partition; returns the error."""
    request = offset_commit_request(group, topic, offset, **member)
    reply = client.call(ApiKey.OFFSET_COMMIT, version, request)
    return int(reply.topics[0].partitions[0].error_code)
