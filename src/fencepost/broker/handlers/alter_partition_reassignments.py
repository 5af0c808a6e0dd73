"""AlterPartitionReassignments (45): v0-1

Behaviour: gives partitions other replicas: the brokers that may lead them, the preferred leader
           first. The disk has one copy of the data and nothing has to be copied, so a reassignment
           is complete when the reply is sent, and there is never one to cancel (null). The leader
           stays if it is among the new replicas. Answers when all brokers have applied it.
Versions:  v1 can forbid a change of the replication factor.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR,
           NO_REASSIGNMENT_IN_PROGRESS, REQUEST_TIMED_OUT, CLUSTER_AUTHORIZATION_FAILED,
           NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.turns import fill, in_turns, run_in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.events import PartitionOutcome
from fencepost.wire.forms.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fencepost.broker.context import Context
    from fencepost.broker.controller.controller import Reassignment


def handle(
    request: AlterPartitionReassignmentsRequest, context: Context
) -> AlterPartitionReassignmentsResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("ALTER", CLUSTER, CLUSTER_NAME):
        return _refuse_all(request, context)
    allowed = request.allow_replication_factor_change
    parked = Parked()

    def altered(outcomes: Sequence[PartitionOutcome]) -> None:
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allowed, error_message=None
        )
        found = {outcome.partition: outcome for outcome in outcomes}
        steps = _describing(response, request.topics, found.__getitem__)
        run_in_turns(context.services.runtime, steps, partial(parked.answer, response))

    # The next request of this connection may be about replicas that are not decided yet.
    parked.holds_followers = not context.services.controller.alter_reassignments(
        _Reassignments(request.topics),
        altered,
        allow_factor_change=allowed,
        timeout_ms=request.timeout_ms,
    )
    return parked


class _Reassignments:
    """The partitions of a request; it may name very many, so they are listed one by one."""

    def __init__(self, topics: Sequence[ReassignableTopic]) -> None:
        self._topics = topics

    def __iter__(self) -> Iterator[Reassignment]:
        for topic in self._topics:
            for each in topic.partitions:
                yield TopicPartition(topic.name, each.partition_index), each.replicas


def _refuse_all(
    request: AlterPartitionReassignmentsRequest, context: Context
) -> AlterPartitionReassignmentsResponse | Parked:
    """Not authorized: as in Kafka, each partition of the request has the error, too."""
    error, message = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Not authorized to alter the cluster."
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=error,
        error_message=message,
    )

    def outcome_of(name: TopicPartition) -> PartitionOutcome:
        return PartitionOutcome(name, error, message)

    steps = _describing(response, request.topics, outcome_of)
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _describing(
    response: AlterPartitionReassignmentsResponse,
    topics: Sequence[ReassignableTopic],
    outcome_of: Callable[[TopicPartition], PartitionOutcome],
) -> Iterator[None]:
    """The steps of a reply in the order of the request."""
    for topic in topics:
        result = ReassignableTopicResponse(name=topic.name)
        response.responses.append(result)
        names = (TopicPartition(topic.name, each.partition_index) for each in topic.partitions)
        yield from fill(result.partitions, map(outcome_of, names), _describe)
        yield


def _describe(outcome: PartitionOutcome) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=outcome.partition.partition,
        error_code=outcome.error,
        error_message=outcome.message,
    )
