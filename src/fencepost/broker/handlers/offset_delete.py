"""OffsetDelete (47): v0

Behaviour: removes offsets of a group in topics that no member subscribes to. Answers when durable.
Versions:  v0 only, not flexible.
Errors:    INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (members that are not consumers),
           GROUP_AUTHORIZATION_FAILED, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
           COORDINATOR_NOT_AVAILABLE; per partition GROUP_SUBSCRIBED_TO_TOPIC,
           UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.groups.offsets import Sorting
from fencepost.broker.turns import then
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.events import CommitReply, DeleteOffsets
from fencepost.wire.forms.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(request: OffsetDeleteRequest, context: Context) -> object:
    """Serves one request; see above."""
    if not context.authorize("DELETE", "GROUP", request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    sorting = Sorting(context)
    steps = sorting.steps(request.topics, OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)
    return then(context.services.runtime, steps, partial(_delete, request, context, sorting))


def _delete(request: OffsetDeleteRequest, context: Context, sorting: Sorting) -> Parked:
    # A topic may have been deleted since its turn.
    sorting.refuse_deleted()
    parked = Parked()

    def done(reply: CommitReply) -> None:
        if reply.error is not ErrorCode.NONE:
            # An error of the group comes without partitions.
            parked.answer(OffsetDeleteResponse(error_code=reply.error))
            return
        sorting.add_errors(reply)
        parked.answer(OffsetDeleteResponse(topics=sorting.topics))

    partitions = tuple(admitted.partition for admitted in sorting.admitted)
    context.services.groups.delete_offsets(DeleteOffsets(request.group_id, partitions), done)
    return parked
