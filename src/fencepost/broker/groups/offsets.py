"""The partitions of a commit request, and the errors for each of them in the reply.

OffsetCommit, TxnOffsetCommit and OffsetDelete name topics and partitions in the same way. Topics
that do not exist or are not authorized are answered here. The rest goes to the coordinator, whose
errors are put into the reply. The reply lists everything in the order of the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.broker.context import Context
from fencepost.coordinator.group.events import CommitReply


class Admitted(NamedTuple):
    """A partition that exists and is authorized, with its parts of the request and the reply."""

    partition: TopicPartition
    topic_id: bytes
    asked: Any
    reply: Any
    """Has an `error_code`."""


class Sorting:
    """The partitions of one request: those already answered, and those for the coordinator."""

    __slots__ = ("_context", "_expected_ids", "_unknown", "admitted", "topics")

    def __init__(
        self, context: Context, expected_ids: Mapping[str, bytes | None] | None = None
    ) -> None:
        """`expected_ids`: a topic that has another id by now is unknown."""
        self._context = context
        self._unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        """The error of a topic that is deleted while the request waits."""
        self._expected_ids = expected_ids
        self.admitted: list[Admitted] = []
        self.topics: list[Any] = []

    def sort(
        self,
        topics: Sequence[Any],
        topic_reply: type[Any],
        partition_reply: type[Any],
        *,
        by_id: bool = False,
        refused: ErrorCode = ErrorCode.NONE,
    ) -> None:
        """Builds the topics of the reply, and collects the partitions for the coordinator.

        `refused` is the error of a request that is refused as a whole: no topic is looked at.
        """
        for _ in self.steps(topics, topic_reply, partition_reply, by_id=by_id, refused=refused):
            pass

    def steps(
        self,
        topics: Sequence[Any],
        topic_reply: type[Any],
        partition_reply: type[Any],
        *,
        by_id: bool = False,
        refused: ErrorCode = ErrorCode.NONE,
    ) -> Iterator[None]:
        """The same in steps, for a request with many partitions."""
        if by_id:
            self._unknown = ErrorCode.UNKNOWN_TOPIC_ID
        for topic in topics:
            name, topic_id, error = (
                ("", ZERO_TOPIC_ID, refused) if refused else self._find(topic, by_id=by_id)
            )
            replies: list[Any] = []
            made = topic_reply(name=topic.name, partitions=replies)
            if by_id:
                made.topic_id = topic.topic_id
            self.topics.append(made)
            yield
            for asked in topic.partitions:
                reply = partition_reply(partition_index=asked.partition_index)
                replies.append(reply)
                reply.error_code = error or self._refuse_partition(name, asked.partition_index)
                if reply.error_code == ErrorCode.NONE:
                    partition = TopicPartition(name, asked.partition_index)
                    self.admitted.append(Admitted(partition, topic_id, asked, reply))
                yield

    def _find(self, topic: Any, *, by_id: bool) -> tuple[str, bytes, ErrorCode]:
        metadata = self._context.services.metadata
        if by_id:
            name = metadata.topic_name(topic.topic_id)
            if name is None:
                return "", ZERO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID
        else:
            name = topic.name
        if not self._context.authorize("READ", "TOPIC", name):
            return name, ZERO_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic_id = metadata.topic_id(name)
        is_replaced = (
            not by_id
            and self._expected_ids is not None
            and self._expected_ids.get(name) != topic_id
        )
        if topic_id is None or is_replaced:
            return name, ZERO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return name, topic_id, ErrorCode.NONE

    def _refuse_partition(self, name: str, index: int) -> ErrorCode:
        if 0 <= index < self._context.services.metadata.partition_count(name):
            return ErrorCode.NONE
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def refuse_deleted(self) -> None:
        """After a wait, answers the topics that have been deleted.

        A topic of the same name is another topic.
        """
        metadata = self._context.services.metadata
        still_there = []
        for admitted in self.admitted:
            if metadata.topic_id(admitted.partition.topic) == admitted.topic_id:
                still_there.append(admitted)
            else:
                admitted.reply.error_code = self._unknown
        self.admitted = still_there

    def add_errors(self, decided: CommitReply) -> None:
        """Puts the coordinator's errors into the reply."""
        if decided.error is not ErrorCode.NONE:
            for admitted in self.admitted:
                admitted.reply.error_code = decided.error
            return
        for admitted, error in zip(self.admitted, decided.errors, strict=True):
            admitted.reply.error_code = error
