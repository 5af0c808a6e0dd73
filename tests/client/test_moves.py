"""Moves of leaders and coordinators on a scripted cluster that copies slowly, as Kafka does."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.failures import (
    ClientError,
    Refused,
    RetriesExhausted,
    UnknownTopicOrPartition,
)
from fencepost.client.moves import find_coordinator, move_coordinator, move_leader
from fencepost.client.routes import CoordinatorKey, CoordinatorKind
from fencepost.client.steps import Lost
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from fencepost.wire.forms.describe_transactions import (
    DescribeTransactionsResponse,
    TransactionState,
)
from fencepost.wire.forms.elect_leaders import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from fencepost.wire.forms.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from fencepost.wire.forms.metadata import MetadataResponse
from tests.client.scripted import ONE, TWO, Script, partition

STEPS = (
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.ELECT_LEADERS,
    ApiKey.LIST_OFFSETS,
)


class Kafka:
    """One partition of a cluster of brokers 1 and 2."""

    def __init__(
        self, leader: int, replicas: list[int], *, polls: int = 0, topic: str = "t"
    ) -> None:
        self.script = Script()
        self.topic = topic
        self.leader = leader
        self.replicas = replicas
        self.polls = polls
        """How often a reassignment is found unfinished."""
        self.lag = 0
        """How often Metadata shows the old leader after an election."""
        self._shown = leader
        script = self.script
        script.leaders[topic] = [leader]
        script.on(ApiKey.METADATA, self._metadata)
        script.on(ApiKey.ALTER_PARTITION_REASSIGNMENTS, self._alter)
        script.on(ApiKey.LIST_PARTITION_REASSIGNMENTS, self._list)
        script.on(ApiKey.ELECT_LEADERS, self._elect)
        script.on(ApiKey.LIST_OFFSETS, self._list_offsets)

    @property
    def steps(self) -> list[ApiKey]:
        return [api for api in self.script.apis if api in STEPS]

    def move(self, to: int, **more: Any) -> None:
        self.script.run(move_leader(self.script.core, partition(topic=self.topic), to, **more))

    def _metadata(self, request: Any) -> MetadataResponse:
        if self._shown != self.leader:
            self.lag -= 1
            if self.lag < 0:
                self._shown = self.leader
        self.script.leaders[self.topic] = [self._shown]
        reply = self.script.metadata(request)
        for topic in reply.topics:
            for each in topic.partitions:
                each.replica_nodes = self.replicas
        return reply

    def _alter(self, request: Any) -> AlterPartitionReassignmentsResponse:
        self.replicas = request.topics[0].partitions[0].replicas
        if self.leader not in self.replicas:
            self.leader = self.replicas[0]
        result = ReassignablePartitionResponse(partition_index=0, error_code=0)
        return AlterPartitionReassignmentsResponse(
            responses=[ReassignableTopicResponse(name=self.topic, partitions=[result])]
        )

    def _list(self, request: Any) -> ListPartitionReassignmentsResponse:
        self.polls -= 1
        if self.polls < 0:
            return ListPartitionReassignmentsResponse()
        ongoing = OngoingPartitionReassignment(partition_index=0, adding_replicas=[2])
        return ListPartitionReassignmentsResponse(
            topics=[OngoingTopicReassignment(name=self.topic, partitions=[ongoing])]
        )

    def _elect(self, request: Any) -> ElectLeadersResponse:
        needed = self.leader != self.replicas[0]
        self.leader = self.replicas[0]
        return elected(0 if needed else ErrorCode.ELECTION_NOT_NEEDED, self.topic)

    def _list_offsets(self, request: Any) -> ListOffsetsResponse:
        result = ListOffsetsPartitionResponse(partition_index=0, offset=0)
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=self.topic, partitions=[result])]
        )


def elected(code: int, topic: str = "t") -> ElectLeadersResponse:
    result = PartitionResult(partition_id=0, error_code=code)
    return ElectLeadersResponse(
        replica_election_results=[ReplicaElectionResult(topic=topic, partition_result=[result])]
    )


def test_a_replica_becomes_the_preferred_leader_and_is_elected() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2])
    kafka.move(2)
    assert kafka.replicas == [2, 1]
    assert kafka.steps == list(STEPS)
    assert kafka.script.of(ApiKey.LIST_OFFSETS)[0].endpoint == TWO


def test_a_broker_without_a_replica_replaces_the_last_one() -> None:
    kafka = Kafka(leader=1, replicas=[1])
    kafka.move(2)
    assert kafka.replicas == [2]
    # The old leader is no longer a replica, so there is nothing to elect.
    assert ApiKey.ELECT_LEADERS not in kafka.steps


def test_a_leader_that_is_preferred_already_is_only_asked_for_an_answer() -> None:
    kafka = Kafka(leader=2, replicas=[2, 1])
    kafka.move(2)
    assert kafka.steps == [ApiKey.LIST_OFFSETS]


def test_a_leader_that_is_not_preferred_becomes_so() -> None:
    kafka = Kafka(leader=2, replicas=[1, 2])
    kafka.move(2)
    assert kafka.replicas == [2, 1]
    assert ApiKey.ELECT_LEADERS not in kafka.steps


def test_a_preferred_leader_that_does_not_lead_is_elected_without_a_reassignment() -> None:
    kafka = Kafka(leader=1, replicas=[2, 1])
    kafka.move(2)
    assert kafka.steps == [ApiKey.ELECT_LEADERS, ApiKey.LIST_OFFSETS]


def test_the_election_waits_until_the_partition_is_copied() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2], polls=3)
    kafka.move(2)
    assert kafka.steps.count(ApiKey.LIST_PARTITION_REASSIGNMENTS) == 4
    assert kafka.steps.count(ApiKey.ELECT_LEADERS) == 1
    assert len(kafka.script.pauses) == 3


def test_brokers_that_show_the_old_leader_are_asked_again() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2])
    kafka.lag = 2
    kafka.move(2)
    assert len(kafka.script.pauses) == 2


def test_a_copy_that_takes_longer_than_the_timeout_is_named() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2], polls=1_000)
    with pytest.raises(RetriesExhausted, match=r"t-0 did not succeed within 5000 ms.*copied to"):
        kafka.move(2, timeout_ms=5_000)


def test_an_unknown_broker_topic_or_partition_is_refused_before_anything_is_changed() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2])
    with pytest.raises(ClientError, match="no live broker 7; its live brokers are 1, 2"):
        kafka.move(7)
    script = kafka.script
    with pytest.raises(UnknownTopicOrPartition):
        script.run(move_leader(script.core, TopicPartition("t", 9), 2))
    with pytest.raises(UnknownTopicOrPartition):
        script.run(move_leader(script.core, TopicPartition("nowhere", 0), 2))
    assert kafka.steps == []


@pytest.mark.parametrize("is_top_level", [False, True])
def test_a_refused_reassignment_is_raised_with_the_brokers_words(is_top_level: bool) -> None:
    kafka = Kafka(leader=1, replicas=[1, 2])
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    result = ReassignablePartitionResponse(partition_index=0, error_code=code, error_message="no")
    response = AlterPartitionReassignmentsResponse(
        responses=[ReassignableTopicResponse(name="t", partitions=[result])]
    )
    if is_top_level:
        response = AlterPartitionReassignmentsResponse(error_code=code, error_message="no")
    kafka.script._prepared[ApiKey.ALTER_PARTITION_REASSIGNMENTS].clear()
    kafka.script.on(ApiKey.ALTER_PARTITION_REASSIGNMENTS, response)
    with pytest.raises(Refused, match="no"):
        kafka.move(2)


def test_an_election_is_repeated_while_the_preferred_leader_is_not_in_sync() -> None:
    kafka = Kafka(leader=1, replicas=[2, 1])
    kafka.script._prepared[ApiKey.ELECT_LEADERS].appendleft(
        elected(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    )
    kafka.move(2)
    assert kafka.steps.count(ApiKey.ELECT_LEADERS) == 2


def test_a_controller_that_does_not_answer_is_replaced_by_a_broker_that_forwards() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2])
    for api in (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ELECT_LEADERS):
        kafka.script._prepared[api].appendleft(Lost("refused"))
    kafka.move(2)
    asked = [seen.endpoint for seen in kafka.script.of(ApiKey.ALTER_PARTITION_REASSIGNMENTS)]
    assert asked == [ONE, TWO]


def test_a_broker_that_does_not_forward_sends_the_client_back_to_the_controller() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2])
    refused = ReassignablePartitionResponse(partition_index=0, error_code=ErrorCode.NOT_CONTROLLER)
    answers = kafka.script._prepared[ApiKey.ALTER_PARTITION_REASSIGNMENTS]
    answers.appendleft(
        AlterPartitionReassignmentsResponse(
            responses=[ReassignableTopicResponse(name="t", partitions=[refused])]
        )
    )
    answers.appendleft(Lost("timed out"))
    kafka.move(2)
    asked = [seen.endpoint for seen in kafka.script.of(ApiKey.ALTER_PARTITION_REASSIGNMENTS)]
    assert asked == [ONE, TWO, ONE]


def test_a_coordinator_moves_with_the_partition_of_its_key() -> None:
    kafka = Kafka(leader=1, replicas=[1, 2], topic="__transaction_state")
    script = kafka.script
    key = CoordinatorKey(CoordinatorKind.TRANSACTION, "refunds")
    loading = TransactionState(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    script.on(
        ApiKey.DESCRIBE_TRANSACTIONS,
        DescribeTransactionsResponse(transaction_states=[loading]),
        DescribeTransactionsResponse(transaction_states=[TransactionState()]),
    )
    assert script.run(find_coordinator(script.core, key)) == 1

    def find(request: Any) -> Any:
        script.coordinator = kafka.leader
        return script._find_coordinator(request)

    script.on(ApiKey.FIND_COORDINATOR, find)
    script.run(move_coordinator(script.core, key, 2))
    assert kafka.leader == 2
    assert script.run(find_coordinator(script.core, key)) == 2
    # It returned only after the new coordinator had loaded.
    assert len(script.of(ApiKey.DESCRIBE_TRANSACTIONS)) == 2
    assert {seen.endpoint for seen in script.of(ApiKey.DESCRIBE_TRANSACTIONS)} == {TWO}
