"""OffsetFetch (9): v1-10

Behaviour: the committed offsets of groups, for the requested partitions (-1 without an offset) or
           for all that have one. With require_stable, a partition with a pending offset of a
           transaction gets UNSTABLE_OFFSET_COMMIT. Answers when the offsets are durable.
Versions:  v2 null for all, and an error of the group; v5 leader epochs; v6 flexible; v7
           require_stable (KIP-447); v8 several groups; v9 member and epoch, which classic groups do
           not need; v10 topic ids. v1 has the group's error in every partition.
Errors:    GROUP_AUTHORIZATION_FAILED, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; per partition
           UNSTABLE_OFFSET_COMMIT, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.broker.context import Context
from fencepost.broker.groups.partition import GroupPartition
from fencepost.broker.turns import run_in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.views import OffsetView, fetch_all_offsets, fetch_offset
from fencepost.records.group_log import OffsetKey
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

FIRST_VERSION_WITH_GROUP_ERROR: Final = 2
FIRST_VERSION_WITH_TOPIC_IDS: Final = 10


def handle(request: OffsetFetchRequest, context: Context) -> Parked:
    """Serves one request; see above."""
    response = OffsetFetchResponse()
    asked: list[GroupPartition] = []

    def steps() -> Iterator[None]:
        for number, group in enumerate(request.groups):
            if number:
                yield
            found = _find(group, context)
            result = OffsetFetchResponseGroup(group_id=group.group_id)
            response.groups.append(result)
            if isinstance(found, ErrorCode):
                result.error_code = found
                yield from _refused(group, found, result, context)
                continue
            asked.append(found)
            reader = _Reader(found.state, group.group_id, request.require_stable, context)
            if group.topics is None:
                yield from reader.read_all(result)
            else:
                yield from reader.read(group.topics, result)

    parked = Parked()
    parked.holds_followers = not run_in_turns(
        context.services.runtime, steps(), partial(_answer_when_durable, parked, response, asked)
    )
    return parked


def _find(group: OffsetFetchRequestGroup, context: Context) -> GroupPartition | ErrorCode:
    if not context.authorize("DESCRIBE", "GROUP", group.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return context.services.groups.find(group.group_id)


def _answer_when_durable(
    parked: Parked, response: OffsetFetchResponse, asked: list[GroupPartition]
) -> None:
    """Replies when the offsets are durable: a power loss must not undo them."""
    parked.release()
    waiting = len(asked)

    def durable() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            parked.answer(response)

    if not asked:
        parked.answer(response)
    for partition in asked:
        partition.when_durable(durable)


def _refused(
    group: OffsetFetchRequestGroup,
    error: ErrorCode,
    result: OffsetFetchResponseGroup,
    context: Context,
) -> Iterator[None]:
    if context.api_version < FIRST_VERSION_WITH_GROUP_ERROR:
        # The oldest version has room for the error only in each partition.
        for topic in group.topics or ():
            yield from _refused_topic(topic, error, result)


def _refused_topic(
    topic: OffsetFetchRequestTopics, error: ErrorCode, result: OffsetFetchResponseGroup
) -> Iterator[None]:
    told = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
    result.topics.append(told)
    yield
    for index in topic.partition_indexes:
        told.partitions.append(_show(OffsetView(TopicPartition(topic.name, index), error=error)))
        yield


class _Reader:
    """The requested offsets of one group."""

    __slots__ = ("_by_id", "_context", "_group_id", "_require_stable", "_state")

    def __init__(
        self, state: GroupCoordinatorState, group_id: str, require_stable: bool, context: Context
    ) -> None:
        self._state = state
        self._group_id = group_id
        self._require_stable = require_stable
        self._context = context
        self._by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS

    def read(
        self, topics: Iterable[OffsetFetchRequestTopics], result: OffsetFetchResponseGroup
    ) -> Iterator[None]:
        """Describes the requested partitions."""
        for topic in topics:
            yield from self._read_topic(topic, result)

    def _read_topic(
        self, topic: OffsetFetchRequestTopics, result: OffsetFetchResponseGroup
    ) -> Iterator[None]:
        name: str | None = topic.name
        if self._by_id:
            name = self._context.services.metadata.topic_name(topic.topic_id)
        if name is None:
            yield from _refused_topic(topic, ErrorCode.UNKNOWN_TOPIC_ID, result)
            return
        if not self._context.authorize("DESCRIBE", "TOPIC", name):
            yield from _refused_topic(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED, result)
            return
        # Compared by id for names, too: a recreated topic does not inherit offsets.
        topic_id = self._context.services.metadata.topic_id(name) or ZERO_TOPIC_ID
        told = OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id)
        result.topics.append(told)
        yield
        for index in topic.partition_indexes:
            view = fetch_offset(
                self._state,
                OffsetKey(self._group_id, TopicPartition(name, index)),
                require_stable=self._require_stable,
                topic_id=topic_id,
            )
            told.partitions.append(_show(view))
            yield

    def read_all(self, result: OffsetFetchResponseGroup) -> Iterator[None]:
        """Describes all offsets of the group, without topics that this client may not describe."""
        found: dict[str, list[OffsetFetchResponsePartitions]] = {}
        for view in fetch_all_offsets(
            self._state,
            self._group_id,
            self._context.services.metadata.topic_id,
            require_stable=self._require_stable,
        ):
            found.setdefault(view.partition.topic, []).append(_show(view))
        for name, partitions in found.items():
            topic_id = self._context.services.metadata.topic_id(name)
            if self._context.may("DESCRIBE", "TOPIC", name) and (topic_id or not self._by_id):
                result.topics.append(
                    OffsetFetchResponseTopics(
                        name=name, topic_id=topic_id or ZERO_TOPIC_ID, partitions=partitions
                    )
                )
            yield


def _show(view: OffsetView) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=view.partition.partition,
        committed_offset=view.offset,
        committed_leader_epoch=view.leader_epoch,
        metadata=view.metadata,
        error_code=view.error,
    )
