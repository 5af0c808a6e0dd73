"""The topics of a commit on their way to the group coordinator and back.

OffsetCommit, TxnOffsetCommit and OffsetDelete name topics and partitions in the same way. What does
not exist, or may not be touched, is answered here; the rest goes to the coordinator, whose errors
are then put where they belong. The reply lists everything in the order of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.broker.context import Context
    from fencepost.coordinator.group.events import CommitReply


class PartitionReply(Protocol):
    """The part of a reply that speaks of one partition."""

    error_code: int


class Admitted(NamedTuple):
    """A partition that exists and may be touched, the client's words about it, and the place for the answer."""

    partition: TopicPartition
    topic_id: bytes
    asked: Any
    reply: PartitionReply


class Sorting:
    """The partitions of one request: those that are answered already, and those for the coordinator."""

    __slots__ = ("_context", "admitted", "topics")

    def __init__(self, context: Context) -> None:
        self._context = context
        self.admitted: list[Admitted] = []
        self.topics: list[Any] = []

    def sort(
        self,
        topics: Sequence[Any],
        topic_reply: type[Any],
        partition_reply: type[Any],
        *,
        by_id: bool = False,
    ) -> None:
        """Goes through the topics of a request and makes the topics of its reply."""
        for topic in topics:
            name, topic_id, error = self._find(topic, by_id=by_id)
            replies = []
            for asked in topic.partitions:
                reply = partition_reply(partition_index=asked.partition_index)
                replies.append(reply)
                reply.error_code = error or self._refuse_partition(name, asked.partition_index)
                if reply.error_code == ErrorCode.NONE:
                    partition = TopicPartition(name, asked.partition_index)
                    self.admitted.append(Admitted(partition, topic_id, asked, reply))
            made = topic_reply(name=topic.name, partitions=replies)
            if by_id:
                made.topic_id = topic.topic_id
            self.topics.append(made)

    def _find(self, topic: Any, *, by_id: bool) -> tuple[str, bytes, ErrorCode]:
        metadata = self._context.node.metadata
        if by_id:
            name = metadata.topic_name(topic.topic_id)
            if name is None:
                return "", ZERO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID
        else:
            name = topic.name
        if not self._context.authorize("READ", "TOPIC", name):
            return name, ZERO_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic_id = metadata.topic_id(name)
        if topic_id is None:
            return name, ZERO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return name, topic_id, ErrorCode.NONE

    def _refuse_partition(self, name: str, index: int) -> ErrorCode:
        if 0 <= index < self._context.node.metadata.partition_count(name):
            return ErrorCode.NONE
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def refuse_deleted(self) -> None:
        """After a wait: takes out the topics that were deleted since.

        One of the same name is another topic.
        """
        metadata = self._context.node.metadata
        still_there = []
        for admitted in self.admitted:
            if metadata.topic_id(admitted.partition.topic) == admitted.topic_id:
                still_there.append(admitted)
            else:
                admitted.reply.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.admitted = still_there

    def refuse_all(self, error: ErrorCode) -> None:
        """The whole request is refused, whatever became of its partitions."""
        for topic in self.topics:
            for reply in topic.partitions:
                reply.error_code = error

    def settle(self, decided: CommitReply) -> None:
        """Puts the coordinator's errors into the replies of the partitions that it was asked about."""
        if decided.error is not ErrorCode.NONE:
            for admitted in self.admitted:
                admitted.reply.error_code = decided.error
            return
        for admitted, error in zip(self.admitted, decided.errors, strict=True):
            admitted.reply.error_code = error
