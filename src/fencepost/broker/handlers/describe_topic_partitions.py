"""DescribeTopicPartitions (75): v0

Behaviour: topics and their partitions, sorted by name and in pages. A page has at most as many
           partitions as the client requests and max.request.partition.size.limit allows; the cursor
           points to the next page. All topics if none is named.
Versions:  v0 is the only one.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED,
           LEADER_NOT_AVAILABLE, INVALID_REQUEST (a cursor at a topic that was not requested, or
           before partition 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import INTERNAL_TOPICS, NO_NODE
from fencepost.base.topic_names import refuse_name
from fencepost.broker.authorization import TOPIC, authorized_operations
from fencepost.broker.context import Context
from fencepost.broker.handlers.metadata import is_available, offline_replicas
from fencepost.broker.turns import fill, in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.state import Topic
from fencepost.wire.forms.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)


def handle(
    request: DescribeTopicPartitionsRequest, context: Context
) -> DescribeTopicPartitionsResponse | Parked:
    """Serves one request; see above."""
    cursor = request.cursor
    asked = {topic.name for topic in request.topics}
    if cursor is not None and (
        cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)
    ):
        return _refuse_cursor(request, context)
    limit = context.services.config.max_request_partition_size_limit
    page = _Page(context, cursor, max(1, min(request.response_partition_limit, limit)))
    # Without names: all topics that this client may describe.
    names = sorted(asked or context.services.metadata.topics)
    steps = page.steps(names, leaves_out_denied=not asked)
    return in_turns(context.services.runtime, steps, page.response, holds_followers=True)


def _refuse_cursor(
    request: DescribeTopicPartitionsRequest, context: Context
) -> DescribeTopicPartitionsResponse | Parked:
    def refuse(topic: TopicRequest) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            name=topic.name, error_code=ErrorCode.INVALID_REQUEST
        )

    response = DescribeTopicPartitionsResponse()
    steps = fill(response.topics, request.topics, refuse)
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


class _Page:
    """The topics of one reply."""

    def __init__(self, context: Context, cursor: Cursor | None, limit: int) -> None:
        self.response: Final = DescribeTopicPartitionsResponse()
        self._context = context
        self._cursor = cursor
        self._left = limit

    def steps(self, names: Iterable[str], *, leaves_out_denied: bool) -> Iterator[None]:
        """Adds topics until the page is full."""
        cursor, context = self._cursor, self._context
        for name in names:
            yield
            if cursor is not None and name < cursor.topic_name:
                continue
            if leaves_out_denied and not context.may("DESCRIBE", TOPIC, name):
                continue
            if not leaves_out_denied and not context.authorize("DESCRIBE", TOPIC, name):
                self._add(name, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            topic = context.services.metadata.topics.get(name)
            if topic is not None:
                yield from self._add_partitions(topic)
                if self.response.next_cursor is not None:
                    return
            elif refuse_name(name) is None:
                self._add(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                self._add(name, None, ErrorCode.INVALID_TOPIC_EXCEPTION)

    def _add_partitions(self, topic: Topic) -> Iterator[None]:
        """Adds as many partitions of a topic as fit."""
        first = 0
        if self._cursor is not None and self._cursor.topic_name == topic.name:
            first = self._cursor.partition_index
        if self._left <= 0:
            self.response.next_cursor = Cursor(topic_name=topic.name, partition_index=first)
            return
        end = min(len(topic.partitions), first + self._left)
        described = self._add(topic.name, topic, ErrorCode.NONE)
        self._left -= max(0, end - first)
        for index in range(first, end):
            described.partitions.append(self._partition(topic, index))
            yield
        if end < len(topic.partitions):
            self.response.next_cursor = Cursor(topic_name=topic.name, partition_index=end)

    def _add(
        self, name: str, topic: Topic | None, error: ErrorCode
    ) -> DescribeTopicPartitionsResponseTopic:
        described = DescribeTopicPartitionsResponseTopic(error_code=error, name=name)
        if topic is not None:
            described.topic_id = topic.topic_id
        if error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            described.is_internal = name in INTERNAL_TOPICS
            operations = authorized_operations(self._context, TOPIC, name)
            described.topic_authorized_operations = operations
        self.response.topics.append(described)
        return described

    def _partition(self, topic: Topic, index: int) -> DescribeTopicPartitionsResponsePartition:
        partition = topic.partitions[index]
        services = self._context.services
        available = is_available(services, topic.name, index, partition)
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if available else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader if available else NO_NODE,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=offline_replicas(services, partition, available=available),
        )
