"""ElectLeaders (43): v0-2

Behaviour: a partition has one copy, and whoever has it leads: no election is ever needed. Asked for all partitions
           (null), the answer is that nothing was done; asked for some, each gets its reason.
Versions:  v1 unclean elections (1) beside preferred ones (0); v2 flexible.
Errors:    ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST (another kind of election),
           CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.operations import CLUSTER, CLUSTER_NAME
from fencepost.wire.forms.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from fencepost.broker.context import Context

PREFERRED: Final = 0
UNCLEAN: Final = 1


def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    if not context.authorize("ALTER", CLUSTER, CLUSTER_NAME):
        return ElectLeadersResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    known = request.election_type in (PREFERRED, UNCLEAN)
    return ElectLeadersResponse(
        error_code=ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    elect(topic.topic, index, known, context) for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def elect(topic: str, index: int, known: bool, context: Context) -> PartitionResult:
    if not known:
        error, message = ErrorCode.INVALID_REQUEST, "There is no such kind of election."
    elif context.node.topics.state.partition(topic, index) is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no {topic}-{index}."
    else:
        error, message = ErrorCode.ELECTION_NOT_NEEDED, "The one copy leads already."
    return PartitionResult(partition_id=index, error_code=error, error_message=message)
