"""ElectLeaders (43): v0-2

Behaviour: elects nothing, as every partition has one replica, which leads. For all partitions
           (null) the reply is empty; otherwise each partition has its error.
Versions:  v1 unclean elections (1) beside preferred ones (0); v2 flexible.
Errors:    ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST (another kind of
           election), CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.turns import fill, in_turns
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.broker.context import Context

PREFERRED: Final = 0
UNCLEAN: Final = 1


def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("ALTER", CLUSTER, CLUSTER_NAME):
        return ElectLeadersResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    known = request.election_type in (PREFERRED, UNCLEAN)
    response = ElectLeadersResponse(
        error_code=ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    )

    def steps() -> Iterator[None]:
        for topic in request.topic_partitions or ():
            result = ReplicaElectionResult(topic=topic.topic)
            response.replica_election_results.append(result)
            elect_one = partial(_elect, topic.topic, known=known, context=context)
            yield from fill(result.partition_result, topic.partitions, elect_one)

    return in_turns(context.services.runtime, steps(), response, holds_followers=True)


def _elect(topic: str, index: int, *, known: bool, context: Context) -> PartitionResult:
    if not known:
        error, message = ErrorCode.INVALID_REQUEST, "There is no such kind of election."
    elif context.services.metadata.partition(topic, index) is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no {topic}-{index}."
    else:
        error, message = ErrorCode.ELECTION_NOT_NEEDED, "The one copy leads already."
    return PartitionResult(partition_id=index, error_code=error, error_message=message)
