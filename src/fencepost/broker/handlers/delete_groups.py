"""DeleteGroups (42): v0-3

Behaviour: deletes empty groups with their offsets, including pending offsets of transactions.
           Answers when durable.
Versions:  v2 flexible; v3 a message of each group, which is about streams groups in Kafka and
           always null here.
Errors:    GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, GROUP_AUTHORIZATION_FAILED, NOT_COORDINATOR,
           COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.turns import run_in_turns
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


def handle(request: DeleteGroupsRequest, context: Context) -> Parked:
    # A group that is listed twice is deleted once.
    """Serves one request; see above."""
    results = {name: DeletableGroupResult(group_id=name) for name in request.groups_names}
    response = DeleteGroupsResponse(results=list(results.values()))
    waiting = set(results)
    parked = Parked()

    def done(group_id: str, error: ErrorCode) -> None:
        results[group_id].error_code = error
        waiting.discard(group_id)
        if not waiting:
            parked.answer(response)

    def steps() -> Iterator[None]:
        for number, group_id in enumerate(results):
            if number:
                yield
            if context.authorize("DELETE", "GROUP", group_id):
                context.services.groups.delete_group(group_id, partial(done, group_id))
            else:
                done(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)

    if not results:
        parked.answer(response)
    parked.holds_followers = not run_in_turns(context.services.runtime, steps(), parked.release)
    return parked
