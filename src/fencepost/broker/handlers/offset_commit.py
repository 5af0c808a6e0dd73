"""OffsetCommit (8): v2-10

Behaviour: stores offsets of a group, for a member of its current generation, or for any client
           while the group is empty. Answers when they are durable. More than 1,000 partitions are
           committed in slices: a rebalance in between fails the remaining ones.
Versions:  v2-4 may set a retention; v6 leader epochs; v7 static members (KIP-345);
           v8 flexible; v9 GROUP_ID_NOT_FOUND for a group that does not exist, before that
           ILLEGAL_GENERATION; v10 topic ids.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE,
           ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
           REBALANCE_IN_PROGRESS, TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED,
           NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.groups.offsets import Sorting
from fencepost.broker.groups.slices import serve_in_slices
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.events import Commit, CommitReply, OffsetToCommit
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from fencepost.broker.context import Context
    from fencepost.broker.groups.slices import TopicIds

FIRST_VERSION_WITH_GROUP_NOT_FOUND: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 10


def handle(request: OffsetCommitRequest, context: Context) -> object:
    """Serves one request; see above."""
    return serve_in_slices(request, context, _commit)


def _commit(
    request: OffsetCommitRequest, context: Context, topic_ids: TopicIds | None
) -> OffsetCommitResponse | Parked:
    sorting = Sorting(context, topic_ids)
    may_commit = context.authorize("READ", "GROUP", request.group_id)
    sorting.sort(
        request.topics,
        OffsetCommitResponseTopic,
        OffsetCommitResponsePartition,
        by_id=context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS,
        refused=ErrorCode.NONE if may_commit else ErrorCode.GROUP_AUTHORIZATION_FAILED,
    )
    response = OffsetCommitResponse(topics=sorting.topics)
    if not sorting.admitted:
        return response
    parked = Parked()

    def done(reply: CommitReply) -> None:
        sorting.add_errors(reply)
        parked.answer(response)

    context.services.groups.commit(_read(request, sorting, context), done)
    return parked


def _read(request: OffsetCommitRequest, sorting: Sorting, context: Context) -> Commit:
    newer = context.api_version >= FIRST_VERSION_WITH_GROUP_NOT_FOUND
    return Commit(
        group_id=request.group_id,
        offsets=offsets_of(sorting),
        member_id=request.member_id,
        generation_id=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
        retention_ms=request.retention_time_ms,
        unknown_group_error=(
            ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION
        ),
    )


def offsets_of(sorting: Sorting) -> tuple[OffsetToCommit, ...]:
    """The offsets of the admitted partitions, with the ids of their topics."""
    return tuple(
        OffsetToCommit(
            admitted.partition,
            admitted.asked.committed_offset,
            admitted.asked.committed_leader_epoch,
            admitted.asked.committed_metadata or "",
            admitted.topic_id,
        )
        for admitted in sorting.admitted
    )
