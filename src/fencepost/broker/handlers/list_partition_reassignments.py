"""ListPartitionReassignments (46): v0

Behaviour: returns nothing: no data is copied, so a reassignment is complete at once and never in
           progress. kafka-topics sends this before it describes a topic.
Versions:  v0 is the only one served.
Errors:    CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.wire.forms.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    request: ListPartitionReassignmentsRequest, context: Context
) -> ListPartitionReassignmentsResponse:
    """Serves one request; see above."""
    if not context.authorize("DESCRIBE", CLUSTER, CLUSTER_NAME):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="Not authorized to describe the cluster.",
        )
    return ListPartitionReassignmentsResponse(error_message=None)
