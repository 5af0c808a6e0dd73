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

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import INTERNAL_TOPICS, NO_NODE
from fencepost.base.topic_names import refuse_name
from fencepost.broker.authorization import TOPIC, authorized_operations
from fencepost.broker.context import Context
from fencepost.broker.handlers.metadata import is_available, offline_replicas
from fencepost.coordinator.metadata.state import Topic
from fencepost.wire.forms.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def handle(
    request: DescribeTopicPartitionsRequest, context: Context
) -> DescribeTopicPartitionsResponse:
    """Serves one request; see above."""
    cursor = request.cursor
    asked = {topic.name for topic in request.topics}
    if cursor is not None and (
        cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)
    ):
        return _refuse_cursor(request)
    names = sorted(asked) if asked else _known_names(context)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    limit = context.services.config.max_request_partition_size_limit
    page = _Page(context, cursor, max(1, min(request.response_partition_limit, limit)))
    for name in names:
        if not page.add(name):
            break
    return DescribeTopicPartitionsResponse(topics=page.topics, next_cursor=page.next_cursor)


def _refuse_cursor(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                name=topic.name, error_code=ErrorCode.INVALID_REQUEST
            )
            for topic in request.topics
        ]
    )


def _known_names(context: Context) -> list[str]:
    """All topics that this client may describe."""
    names = sorted(context.services.metadata.topics)
    return [name for name in names if context.may("DESCRIBE", TOPIC, name)]


class _Page:
    """The topics of one reply."""

    def __init__(self, context: Context, cursor: Cursor | None, limit: int) -> None:
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self.next_cursor: Cursor | None = None
        self._context = context
        self._cursor = cursor
        self._left = limit

    def add(self, name: str) -> bool:
        """Adds as many partitions of a topic as fit; False when the page is full."""
        topic = self._context.services.metadata.topics.get(name)
        error = self._refuse(name, topic)
        if topic is None or error is not ErrorCode.NONE:
            self.topics.append(self._describe(name, None, error))
            return True
        first = 0
        if self._cursor is not None and self._cursor.topic_name == name:
            first = self._cursor.partition_index
        if self._left <= 0:
            self.next_cursor = Cursor(topic_name=name, partition_index=first)
            return False
        end = min(len(topic.partitions), first + self._left)
        described = self._describe(name, topic, ErrorCode.NONE)
        described.partitions = [self._partition(topic, index) for index in range(first, end)]
        self.topics.append(described)
        self._left -= max(0, end - first)
        if end < len(topic.partitions):
            self.next_cursor = Cursor(topic_name=name, partition_index=end)
            return False
        return True

    def _refuse(self, name: str, topic: Topic | None) -> ErrorCode:
        if not self._context.authorize("DESCRIBE", TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is None:
            legal = refuse_name(name) is None
            return (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION
            )
        return ErrorCode.NONE

    def _describe(
        self, name: str, topic: Topic | None, error: ErrorCode
    ) -> DescribeTopicPartitionsResponseTopic:
        described = DescribeTopicPartitionsResponseTopic(error_code=error, name=name)
        if topic is not None:
            described.topic_id = topic.topic_id
        if error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            described.is_internal = name in INTERNAL_TOPICS
            operations = authorized_operations(self._context, TOPIC, name)
            described.topic_authorized_operations = operations
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
