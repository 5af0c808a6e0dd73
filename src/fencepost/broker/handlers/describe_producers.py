"""DescribeProducers (61): v0

Behaviour: the active producers of partitions of this node, with the start of each open
           transaction.
Errors:    per partition INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED,
           UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER (on another node),
           KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.base.errors import ErrorCode
from fencepost.base.topic_names import refuse_name
from fencepost.broker.context import Context
from fencepost.broker.partitions import leadership
from fencepost.broker.turns import in_turns
from fencepost.broker.waiting import Parked
from fencepost.partition.partition import Partition
from fencepost.wire.forms.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(
    request: DescribeProducersRequest, context: Context
) -> DescribeProducersResponse | Parked:
    """Serves one request; see above."""
    response = DescribeProducersResponse()

    def steps() -> Iterator[None]:
        for topic in request.topics:
            refusal = _refuse_topic(topic.name, context)
            result = TopicResponse(name=topic.name)
            response.topics.append(result)
            yield
            for index in topic.partition_indexes:
                result.partitions.append(
                    _refused(index, *refusal) if refusal else _describe(topic.name, index, context)
                )
                yield

    return in_turns(context.services.runtime, steps(), response, holds_followers=True)


def _refuse_topic(name: str, context: Context) -> tuple[ErrorCode, str] | None:
    problem = refuse_name(name)
    if problem is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    if not context.authorize("READ", "TOPIC", name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to read {name!r}."
    if context.services.metadata.partition_count(name) == 0:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}."
    return None


def _describe(topic: str, index: int, context: Context) -> PartitionResponse:
    partition = leadership.find(context.services, topic, index)
    if not isinstance(partition, ErrorCode):
        return PartitionResponse(partition_index=index, active_producers=_producers_of(partition))
    if partition is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return _refused(index, partition, f"Topic {topic!r} has no partition {index}.")
    message = f"This broker does not serve partition {index} of topic {topic!r}."
    return _refused(index, partition, message)


def _producers_of(partition: Partition) -> list[ProducerState]:
    return [
        ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.txn_first_offset,
        )
        for producer in partition.producers
    ]


def _refused(index: int, error: ErrorCode, message: str) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=error, error_message=message)
