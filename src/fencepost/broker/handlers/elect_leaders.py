"""ElectLeaders (43): v0-2

Behaviour: makes the preferred leader of each partition, the first of its replicas, its leader
           (election 0). A partition without a leader gets one as soon as a replica is alive, so an
           unclean election (1) has nothing to do. Answers when all brokers have applied it. For all
           partitions (null) the reply has all topics, and of each the partitions that needed an
           election.
Versions:  v1 unclean elections (1) beside preferred ones (0); v2 flexible.
Errors:    ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE,
           UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST (another kind of election),
           REQUEST_TIMED_OUT, CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.turns import fill, in_turns, run_in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.events import Election, PartitionOutcome
from fencepost.wire.forms.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

_KINDS: Final = {each.value: each for each in Election}


def handle(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("ALTER", CLUSTER, CLUSTER_NAME):
        message = "Not authorized to alter the cluster."
        return _refuse_all(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message, request, context)
    election = _KINDS.get(request.election_type)
    if election is None:
        message = "There is no such kind of election."
        return _refuse_all(ErrorCode.INVALID_REQUEST, message, request, context)
    return _elect(election, request, context)


def _refuse_all(
    error: ErrorCode, message: str, request: ElectLeadersRequest, context: Context
) -> ElectLeadersResponse | Parked:
    """The error of the whole request, and of each partition that it names."""
    response = ElectLeadersResponse(error_code=error)

    def outcome_of(name: TopicPartition) -> PartitionOutcome:
        return PartitionOutcome(name, error, message)

    steps = _describing(response, request.topic_partitions or (), outcome_of)
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _elect(election: Election, request: ElectLeadersRequest, context: Context) -> Parked:
    topics = request.topic_partitions
    parked = Parked()

    def elected(outcomes: Sequence[PartitionOutcome]) -> None:
        response = ElectLeadersResponse()
        if topics is None:
            steps = _listing(response, list(context.services.metadata.topics), outcomes)
        else:
            found = {outcome.partition: outcome for outcome in outcomes}
            steps = _describing(response, topics, found.__getitem__)
        run_in_turns(context.services.runtime, steps, partial(parked.answer, response))

    # The next request of this connection may be about leaders that are not elected yet.
    parked.holds_followers = not context.services.controller.elect_leaders(
        election,
        None if topics is None else _Partitions(topics),
        elected,
        timeout_ms=request.timeout_ms,
    )
    return parked


class _Partitions:
    """The partitions of a request; it may name very many, so they are listed one by one."""

    def __init__(self, topics: Sequence[TopicPartitions]) -> None:
        self._topics = topics

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic in self._topics:
            for index in topic.partitions:
                yield TopicPartition(topic.topic, index)


def _describing(
    response: ElectLeadersResponse,
    topics: Sequence[TopicPartitions],
    outcome_of: Callable[[TopicPartition], PartitionOutcome],
) -> Iterator[None]:
    """The steps of a reply in the order of the request."""
    for topic in topics:
        result = ReplicaElectionResult(topic=topic.topic)
        response.replica_election_results.append(result)
        names = (TopicPartition(topic.topic, index) for index in topic.partitions)
        yield from fill(result.partition_result, map(outcome_of, names), _describe)
        yield


def _listing(
    response: ElectLeadersResponse, topics: Iterable[str], outcomes: Sequence[PartitionOutcome]
) -> Iterator[None]:
    """The steps of a reply about all partitions: those that needed an election, by topic."""
    results = {topic: ReplicaElectionResult(topic=topic) for topic in topics}
    response.replica_election_results.extend(results.values())
    for outcome in outcomes:
        found = results.get(outcome.partition.topic)
        if found is not None:  # Otherwise the topic was deleted.
            found.partition_result.append(_describe(outcome))
        yield


def _describe(outcome: PartitionOutcome) -> PartitionResult:
    return PartitionResult(
        partition_id=outcome.partition.partition,
        error_code=outcome.error,
        error_message=outcome.message,
    )
