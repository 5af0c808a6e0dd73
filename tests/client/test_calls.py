"""Requests with retries: routing, error codes, deadlines, backoff.

Scripted, in virtual time.
"""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.client.admin import (
    NewTopic,
    create_topics,
    describe_cluster,
    list_transactions,
    metadata,
)
from fencepost.client.calls import AnyBroker, BrokerById, Controller, call_one, error_code
from fencepost.client.failures import (
    AuthenticationFailed,
    ClosedByBroker,
    Refused,
    RetriesExhausted,
    UnknownTopicOrPartition,
)
from fencepost.client.groups import CommittedOffset, offset_commit, offset_fetch
from fencepost.client.reading import LATEST, list_offsets
from fencepost.client.steps import Lost
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_topics import CreatableTopicResult, CreateTopicsResponse
from fencepost.wire.forms.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from fencepost.wire.forms.list_transactions import ListTransactionsResponse, TransactionState
from fencepost.wire.forms.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.client.scripted import ONE, TWO, Script, partition

CLUSTER = DescribeClusterResponse(cluster_id="c")


def committed(code: int) -> OffsetCommitResponse:
    result = OffsetCommitResponsePartition(error_code=code)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[result])])


def listed(*results: tuple[int, int, int]) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name="t",
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=i, error_code=code, offset=offset)
                    for i, code, offset in results
                ],
            )
        ]
    )


def test_a_lost_request_is_retried_on_another_broker(script: Script) -> None:
    script.on(ApiKey.DESCRIBE_CLUSTER, Lost("connection refused", sent=False), CLUSTER)
    assert script.run(describe_cluster(script.core)).cluster_id == "c"
    assert [seen.endpoint for seen in script.sent] == [ONE, TWO]


def test_a_coordinator_that_moved_is_looked_up_again(script: Script) -> None:
    script.on(ApiKey.OFFSET_COMMIT, committed(ErrorCode.NOT_COORDINATOR), committed(0))

    def moved(pause_ms: int) -> None:
        script.coordinator = 2

    script.pause = moved  # type: ignore[method-assign]
    script.run(offset_commit(script.core, "g", {partition(): CommittedOffset(1)}))
    assert script.apis == [
        ApiKey.FIND_COORDINATOR,
        ApiKey.OFFSET_COMMIT,
        ApiKey.FIND_COORDINATOR,
        ApiKey.OFFSET_COMMIT,
    ]
    assert [seen.endpoint for seen in script.of(ApiKey.OFFSET_COMMIT)] == [ONE, TWO]


def test_a_loading_coordinator_is_retried_without_a_new_lookup(script: Script) -> None:
    loading = committed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    script.on(ApiKey.OFFSET_COMMIT, loading, loading, committed(0))
    script.run(offset_commit(script.core, "g", {partition(): CommittedOffset(1)}))
    assert len(script.of(ApiKey.FIND_COORDINATOR)) == 1
    assert len(script.of(ApiKey.OFFSET_COMMIT)) == 3


def test_the_backoff_doubles_up_to_its_maximum() -> None:
    script = Script(retry_backoff_ms=100, retry_backoff_max_ms=1000, default_api_timeout_ms=5000)
    script.on(ApiKey.OFFSET_COMMIT, committed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    with pytest.raises(RetriesExhausted):
        script.run(offset_commit(script.core, "g", {partition(): CommittedOffset(1)}))
    assert script.pauses[:6] == [100, 200, 400, 801, 1001, 1001]


def test_the_timeout_error_names_the_last_error_code() -> None:
    script = Script(default_api_timeout_ms=3000)
    script.on(ApiKey.OFFSET_COMMIT, committed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    with pytest.raises(TimeoutError, match="COORDINATOR_LOAD_IN_PROGRESS") as caught:
        script.run(offset_commit(script.core, "g", {partition(): CommittedOffset(1)}))
    assert "OffsetCommit for group 'g' did not succeed within 3000 ms" in str(caught.value)
    assert script.clock.now <= 1_000 + 3000


def test_if_no_broker_answers_the_error_names_the_brokers_tried() -> None:
    script = Script(default_api_timeout_ms=500)
    script.on(ApiKey.DESCRIBE_CLUSTER, Lost("Connection refused", sent=False))
    with pytest.raises(RetriesExhausted, match=r"(one|two):9092: Connection refused"):
        script.run(describe_cluster(script.core))


HANG_UP = Lost("the broker closed the connection", closed_by_broker=True)
REFUSED = Lost("connection refused", sent=False)


def test_the_client_gives_up_if_a_broker_keeps_closing_the_connection(script: Script) -> None:
    script.on(ApiKey.DESCRIBE_CLUSTER, HANG_UP)
    with pytest.raises(ClosedByBroker, match=r"closed the connection 3 times .* DescribeCluster"):
        script.run(describe_cluster(script.core))
    assert [seen.endpoint for seen in script.sent] == [ONE, TWO, ONE, TWO, ONE]


def test_a_broker_restart_resets_the_count_of_closed_connections(script: Script) -> None:
    script.on(ApiKey.DESCRIBE_CLUSTER, HANG_UP, HANG_UP, REFUSED, HANG_UP, HANG_UP, CLUSTER)
    assert script.run(describe_cluster(script.core)).cluster_id == "c"


def test_a_commit_is_retried_until_its_deadline_however_often_the_connection_closes() -> None:
    script = Script()
    script.on(ApiKey.OFFSET_COMMIT, *[HANG_UP] * 9, committed(0))
    script.run(offset_commit(script.core, "g", {partition(): CommittedOffset(1)}))


def test_errors_raised_by_the_driver_are_not_retried(script: Script) -> None:
    script.on(ApiKey.DESCRIBE_CLUSTER, AuthenticationFailed("no"))
    with pytest.raises(AuthenticationFailed):
        script.run(describe_cluster(script.core))
    assert len(script.sent) == 1


def test_an_error_includes_the_brokers_message(script: Script) -> None:
    script.on(
        ApiKey.DESCRIBE_CLUSTER, DescribeClusterResponse(error_code=31, error_message="not you")
    )
    with pytest.raises(Refused, match=r"CLUSTER_AUTHORIZATION_FAILED .*; not you"):
        script.run(describe_cluster(script.core))


def test_a_controller_that_moved_is_looked_up_again(script: Script) -> None:
    script.on(
        ApiKey.DESCRIBE_CLUSTER,
        DescribeClusterResponse(error_code=ErrorCode.NOT_CONTROLLER),
        CLUSTER,
    )
    place = Controller()
    request = DescribeClusterRequest()
    script.run(call_one(script.core, place, ApiKey.DESCRIBE_CLUSTER, request, error_code))
    assert len(script.of(ApiKey.METADATA)) == 2


def test_an_unknown_broker_id_is_retried_until_the_deadline() -> None:
    script = Script(default_api_timeout_ms=1000)
    request = DescribeClusterRequest()
    with pytest.raises(RetriesExhausted, match="no live broker 7"):
        script.run(
            call_one(script.core, BrokerById(7), ApiKey.DESCRIBE_CLUSTER, request, error_code)
        )


def test_a_request_for_any_broker_needs_no_metadata(script: Script) -> None:
    script.on(ApiKey.DESCRIBE_CLUSTER, CLUSTER)
    request = DescribeClusterRequest()
    script.run(call_one(script.core, AnyBroker(), ApiKey.DESCRIBE_CLUSTER, request, error_code))
    assert script.apis == [ApiKey.DESCRIBE_CLUSTER]


# By leader.


def test_each_leader_is_sent_only_its_own_partitions(script: Script) -> None:
    script.leaders["t"] = [1, 2, 1]
    script.on(ApiKey.LIST_OFFSETS, listed((0, 0, 10), (2, 0, 12)), listed((1, 0, 11)))
    found = script.run(list_offsets(script.core, {partition(i): LATEST for i in range(3)}))
    assert {p.partition: o.offset for p, o in found.items()} == {0: 10, 1: 11, 2: 12}
    asked = [
        (seen.endpoint, [p.partition_index for p in seen.form.topics[0].partitions])
        for seen in script.of(ApiKey.LIST_OFFSETS)
    ]
    assert asked == [(ONE, [0, 2]), (TWO, [1])]


def test_only_the_failed_partition_is_retried_on_its_new_leader(script: Script) -> None:
    script.leaders["t"] = [1, 1]

    def moved(_: object) -> ListOffsetsResponse:
        script.leaders["t"] = [1, 2]
        return listed((0, 0, 10), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))

    script.on(ApiKey.LIST_OFFSETS, moved, listed((1, 0, 11)))
    found = script.run(list_offsets(script.core, {partition(0): LATEST, partition(1): LATEST}))
    assert {p.partition: o.offset for p, o in found.items()} == {0: 10, 1: 11}
    last = script.of(ApiKey.LIST_OFFSETS)[-1]
    assert (last.endpoint, [p.partition_index for p in last.form.topics[0].partitions]) == (
        TWO,
        [1],
    )


def test_a_partition_without_a_leader_is_retried(script: Script) -> None:
    script.leaders["t"] = [-1]
    pauses = []

    def elect(pause_ms: int) -> None:
        pauses.append(pause_ms)
        script.leaders["t"] = [2]

    script.pause = elect  # type: ignore[method-assign]
    script.on(ApiKey.LIST_OFFSETS, listed((0, 0, 10)))
    script.run(list_offsets(script.core, {partition(): LATEST}))
    assert len(pauses) == 1
    assert script.of(ApiKey.LIST_OFFSETS)[0].endpoint == TWO


def test_an_unknown_topic_is_an_error_after_a_short_wait(script: Script) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="create the topic first") as caught:
        script.run(list_offsets(script.core, {partition(): LATEST}))
    assert caught.value.partition == partition()
    assert 1_000 <= sum(script.pauses) < 3_000


def test_a_topic_that_appears_during_the_wait_is_used(script: Script) -> None:
    def create(pause_ms: int) -> None:
        script.clock.now += pause_ms
        script.leaders["t"] = [1]

    script.pause = create  # type: ignore[method-assign]
    script.on(ApiKey.LIST_OFFSETS, listed((0, 0, 10)))
    assert script.run(list_offsets(script.core, {partition(): LATEST}))[partition()].offset == 10


def test_a_partition_that_does_not_exist_is_named(script: Script) -> None:
    script.leaders["t"] = [1]
    with pytest.raises(UnknownTopicOrPartition, match="t-5"):
        script.run(list_offsets(script.core, {partition(5): LATEST}))


def test_metadata_fails_for_an_unknown_topic_but_not_for_all_topics(script: Script) -> None:
    script.leaders["t"] = [1, 2]
    with pytest.raises(UnknownTopicOrPartition, match="'absent'"):
        script.run(metadata(script.core, ["absent"]))
    view = script.run(metadata(script.core))
    assert [p.leader for p in view.topics["t"].partitions] == [1, 2]


# Single procedures.


def test_unstable_offsets_are_retried_until_they_are_stable() -> None:
    def fetched(code: int, offset: int) -> OffsetFetchResponse:
        result = OffsetFetchResponsePartitions(
            error_code=code, committed_offset=offset, metadata="words"
        )
        topic = OffsetFetchResponseTopics(name="t", partitions=[result])
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    script = Script()
    script.on(ApiKey.OFFSET_FETCH, fetched(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1), fetched(0, 5))
    found = script.run(offset_fetch(script.core, "g", [partition()]))
    assert found == {partition(): CommittedOffset(5, "words")}
    assert script.of(ApiKey.OFFSET_FETCH)[0].form.require_stable


def test_a_partition_without_a_commit_is_left_out() -> None:
    result = OffsetFetchResponsePartitions(committed_offset=-1, metadata="")
    topic = OffsetFetchResponseTopics(name="t", partitions=[result])
    script = Script()
    script.on(
        ApiKey.OFFSET_FETCH, OffsetFetchResponse(groups=[OffsetFetchResponseGroup(topics=[topic])])
    )
    assert script.run(offset_fetch(script.core, "g")) == {}
    assert script.of(ApiKey.OFFSET_FETCH)[0].form.groups[0].topics is None


def test_create_topics_waits_until_the_topic_is_in_the_metadata(script: Script) -> None:
    def created(_: object) -> CreateTopicsResponse:
        script.leaders["new"] = [1]
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="new")])

    script.on(ApiKey.CREATE_TOPICS, created)
    script.run(create_topics(script.core, [NewTopic("new", 1, configs={"retention.ms": "1"})]))
    (seen,) = script.of(ApiKey.CREATE_TOPICS)
    assert seen.form.topics[0].configs[0].name == "retention.ms"
    assert seen.form.topics[0].replication_factor == -1


def test_an_existing_topic_is_an_error_unless_exist_ok_is_set(script: Script) -> None:
    script.leaders["t"] = [1]
    exists = CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)]
    )
    script.on(ApiKey.CREATE_TOPICS, exists)
    with pytest.raises(Refused, match="'t' was refused with TOPIC_ALREADY_EXISTS"):
        script.run(create_topics(script.core, [NewTopic("t", 1)]))
    script.run(create_topics(script.core, [NewTopic("t", 1)], exist_ok=True))


def test_transactions_are_collected_from_every_broker() -> None:
    def listing(name: str) -> ListTransactionsResponse:
        state = TransactionState(transactional_id=name, producer_id=1, transaction_state="Ongoing")
        return ListTransactionsResponse(transaction_states=[state])

    script = Script()
    script.on(ApiKey.LIST_TRANSACTIONS, listing("a"), listing("b"))
    found = script.run(list_transactions(script.core))
    assert [(t.transactional_id, t.coordinator) for t in found] == [("a", 1), ("b", 2)]
    assert [seen.endpoint for seen in script.of(ApiKey.LIST_TRANSACTIONS)] == [ONE, TWO]
