"""Finding and moving leaders and coordinators, over Kafka's own requests.

A leader is moved in three steps, which work on Apache Kafka too. The broker becomes the first
replica of the partition (AlterPartitionReassignments), so that it becomes the preferred leader and
remains so. Kafka may have to copy the partition to it, so ListPartitionReassignments is asked until
that is done. Then the preferred leader is elected (ElectLeaders), unless it leads already.

A coordinator is the leader of one partition of `__transaction_state` or `__consumer_offsets`:
moving it moves all ids of this partition. FindCoordinator creates the topic if it does not exist.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.client import admin, groups
from fencepost.client.admin import PartitionView
from fencepost.client.calls import Attempt, Controller, Core, call_one, error_code, locate
from fencepost.client.failures import ClientError, refusal
from fencepost.client.reading import LATEST, list_offsets
from fencepost.client.routes import CoordinatorKey, CoordinatorKind
from fencepost.client.steps import Steps
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from fencepost.wire.forms.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from fencepost.wire.forms.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

PREFERRED: Final = 0
"""The kind of election that makes the first replica the leader."""

_TOPICS: Final = {
    CoordinatorKind.TRANSACTION: TRANSACTION_STATE_TOPIC,
    CoordinatorKind.GROUP: CONSUMER_OFFSETS_TOPIC,
}


def find_coordinator(core: Core, key: CoordinatorKey) -> Steps[int]:
    """Returns the id of the broker that coordinates a transactional id or a group now."""
    core.routes.forget_coordinator(key)
    attempt = Attempt(core, ApiKey.FIND_COORDINATOR, str(key))
    yield from locate(core, key, attempt)
    return core.routes.coordinator_id(key)


def move_leader(
    core: Core, partition: TopicPartition, to: int, *, timeout_ms: int | None = None
) -> Steps[None]:
    """Makes a broker the leader of a partition, and its preferred leader; returns when it answers.

    RetriesExhausted if that takes longer; the cluster continues the move nevertheless.
    """
    attempt = Attempt(core, ApiKey.ALTER_PARTITION_REASSIGNMENTS, str(partition), timeout_ms)
    found = yield from _find(core, partition, to)
    others = [replica for replica in found.replicas if replica != to]
    # The replication factor stays, so a broker that is added replaces the last one.
    wanted = [to, *others][: len(found.replicas)]
    if wanted != list(found.replicas):
        yield from _reassign(core, partition, wanted, attempt)
        yield from _await_reassignment(core, partition, attempt)
    found = yield from _find(core, partition, to)
    if found.leader != to:
        yield from _elect(core, partition, attempt)
    while (found := (yield from _find(core, partition, to))).leader != to:
        # Kafka's brokers learn of it one after the other.
        attempt.last = f"broker {found.leader} leads {partition}"
        yield from attempt.pause()
    yield from list_offsets(core, {partition: LATEST})


def _find(core: Core, partition: TopicPartition, to: int) -> Steps[PartitionView]:
    view = yield from admin.metadata(core, [partition.topic])
    if to not in view.brokers:
        known = ", ".join(map(str, sorted(view.brokers)))
        raise ClientError(f"The cluster has no live broker {to}; its live brokers are {known}.")
    for found in view.topics[partition.topic].partitions:
        if found.index == partition.partition:
            return found
    raise refusal(
        API[ApiKey.METADATA].name,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        about=str(partition),
        partition=partition,
    )


def _reassign(
    core: Core, partition: TopicPartition, replicas: list[int], attempt: Attempt
) -> Steps[None]:
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=attempt.request_timeout_ms(),
        topics=[
            ReassignableTopic(
                name=partition.topic,
                partitions=[
                    ReassignablePartition(partition_index=partition.partition, replicas=replicas)
                ],
            )
        ],
    )
    yield from call_one(
        core,
        Controller(),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        request,
        _code_of_reassignment,
        attempt=attempt,
    )


def _code_of_reassignment(form: AlterPartitionReassignmentsResponse) -> tuple[int, str | None]:
    if form.error_code:
        return form.error_code, form.error_message
    result = form.responses[0].partitions[0]
    return result.error_code, result.error_message


def _await_reassignment(core: Core, partition: TopicPartition, attempt: Attempt) -> Steps[None]:
    request = ListPartitionReassignmentsRequest(
        timeout_ms=attempt.request_timeout_ms(),
        topics=[
            ListPartitionReassignmentsTopics(
                name=partition.topic, partition_indexes=[partition.partition]
            )
        ],
    )
    api = ApiKey.LIST_PARTITION_REASSIGNMENTS
    while True:
        reply = yield from call_one(core, Controller(), api, request, error_code, attempt=attempt)
        adding = [each.adding_replicas for topic in reply.form.topics for each in topic.partitions]
        if not adding:
            return
        attempt.last = f"{partition} is being copied to {adding[0]}"
        yield from attempt.pause()


def _elect(core: Core, partition: TopicPartition, attempt: Attempt) -> Steps[None]:
    request = ElectLeadersRequest(
        election_type=PREFERRED,
        topic_partitions=[TopicPartitions(topic=partition.topic, partitions=[partition.partition])],
        timeout_ms=attempt.request_timeout_ms(),
    )
    api = ApiKey.ELECT_LEADERS
    yield from call_one(core, Controller(), api, request, _code_of_election, attempt=attempt)


def _code_of_election(form: ElectLeadersResponse) -> tuple[int, str | None]:
    if form.error_code:
        return form.error_code, None
    result = form.replica_election_results[0].partition_result[0]
    if result.error_code == ErrorCode.ELECTION_NOT_NEEDED:
        return ErrorCode.NONE, None
    return result.error_code, result.error_message


def move_coordinator(
    core: Core, key: CoordinatorKey, to: int, *, timeout_ms: int | None = None
) -> Steps[None]:
    """Makes a broker the coordinator of a transactional id or a group; returns when it answers."""
    yield from find_coordinator(core, key)
    topic = _TOPICS[key.kind]
    view = yield from admin.metadata(core, [topic])
    count = len(view.topics[topic].partitions)
    partition = TopicPartition(topic, coordinator_partition(key.name, count))
    yield from move_leader(core, partition, to, timeout_ms=timeout_ms)
    attempt = Attempt(core, ApiKey.FIND_COORDINATOR, str(key), timeout_ms)
    while (found := (yield from find_coordinator(core, key))) != to:
        attempt.last = f"broker {found} coordinates it"
        yield from attempt.pause()
    # Answered when it has loaded its partition of the log.
    if key.kind is CoordinatorKind.TRANSACTION:
        yield from admin.describe_transactions(core, [key.name])
    else:
        yield from groups.offset_fetch(core, key.name, require_stable=False)
