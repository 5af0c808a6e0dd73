"""ListGroups (16): v0-5

Behaviour: the groups that this broker coordinates: all for clients that may describe the cluster,
           otherwise those that the client may describe.
Versions:  v3 flexible; v4 states and a filter by them (KIP-518); v5 types and a filter by them
           (KIP-848). Filters ignore case; an unknown one finds nothing.
Errors:    COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME, GROUP
from fencepost.broker.context import Context
from fencepost.broker.turns import in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.views import GROUP_TYPE, list_groups
from fencepost.wire.forms.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(request: ListGroupsRequest, context: Context) -> ListGroupsResponse | Parked:
    """Serves one request; see above."""
    states = context.services.groups.states()
    if isinstance(states, ErrorCode):
        return ListGroupsResponse(error_code=states)
    sees_all = context.may("DESCRIBE", CLUSTER, CLUSTER_NAME)
    response = ListGroupsResponse()

    def steps() -> Iterator[None]:
        for state in states:
            response.groups += [
                ListedGroup(
                    group_id=view.group_id,
                    protocol_type=view.protocol_type,
                    group_state=view.state,
                    group_type=GROUP_TYPE,
                )
                for view in list_groups(state, request.states_filter, request.types_filter)
                if sees_all or context.may("DESCRIBE", GROUP, view.group_id)
            ]
            yield

    return in_turns(context.services.runtime, steps(), response, holds_followers=True)
