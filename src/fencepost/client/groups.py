"""Reads and writes a group's committed offsets, without being a member.

The broker accepts a plain commit from outside only while the group has no members, and a
transactional one (`transactions.py`) always. Reading with `require_stable` waits until no open
transaction has an offset for the partition (KIP-447): after a crash, the answer includes what was
just committed, and nothing that will be aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.client.calls import CodeOf, Core, call_one, group_by_topic
from fencepost.client.reactions import reaction
from fencepost.client.routes import CoordinatorKey, CoordinatorKind
from fencepost.client.steps import Reply, Steps
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)


class CommittedOffset(NamedTuple):
    """A group's committed offset in one partition, with its metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def call_coordinator(
    core: Core,
    group: str,
    api: ApiKey,
    request: Any,
    code_of: CodeOf,
    at_most: int | None = None,
) -> Steps[Reply]:
    """Sends a request to the coordinator of a group; see `call_one`."""
    place = CoordinatorKey(CoordinatorKind.GROUP, group)
    return call_one(core, place, api, request, code_of, about=str(place), at_most=at_most)


def offset_fetch(
    core: Core,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = True,
) -> Steps[dict[TopicPartition, CommittedOffset]]:
    """Returns the group's committed offsets; leaves out partitions without one. None means all.

    Name the partitions where it matters: in a request for all, Kafka leaves out a partition whose
    first commit is in an open transaction.
    """
    group_request = OffsetFetchRequestGroup(group_id=group, topics=None)
    if partitions is not None:
        group_request.topics = [
            OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in group_by_topic(partitions).items()
        ]
    request = OffsetFetchRequest(groups=[group_request], require_stable=require_stable)
    reply = yield from call_coordinator(core, group, ApiKey.OFFSET_FETCH, request, _code_of_fetch)
    return dict(_committed(reply.form))


def offset_commit(
    core: Core, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Steps[None]:
    """Commits offsets outside any transaction."""
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    _commit_partition(i, offsets[TopicPartition(topic, i)]) for i in indexes
                ],
            )
            for topic, indexes in group_by_topic(offsets).items()
        ],
    )
    yield from call_coordinator(core, group, ApiKey.OFFSET_COMMIT, request, partition_codes)


def partition_codes(form: Any) -> tuple[int, str | None]:
    """Returns the worst code of a reply that has one per partition."""
    codes = [partition.error_code for topic in form.topics for partition in topic.partitions]
    return worst_code(codes), None


def worst_code(codes: Iterable[int]) -> int:
    """Returns the code that decides the request: a fatal one before a retriable one."""
    failed = [code for code in codes if code]
    final = [code for code in failed if not reaction(ApiKey.TXN_OFFSET_COMMIT, code).is_retriable]
    return (final or failed or [0])[0]


def _commit_partition(index: int, committed: CommittedOffset) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def _code_of_fetch(form: OffsetFetchResponse) -> tuple[int, str | None]:
    (group,) = form.groups
    codes = [p.error_code for topic in group.topics for p in topic.partitions]
    return group.error_code or worst_code(codes), None


def _committed(form: OffsetFetchResponse) -> Iterable[tuple[TopicPartition, CommittedOffset]]:
    for topic in form.groups[0].topics:
        for p in topic.partitions:
            # Kafka answers -1 if nothing was committed.
            if p.committed_offset >= 0:
                committed = CommittedOffset(
                    p.committed_offset, p.metadata or "", p.committed_leader_epoch
                )
                yield TopicPartition(topic.name, p.partition_index), committed
