"""Surveys: every partition and broker has an answer or a reason, and none of them fails the rest.

Scripted, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import ListedTransaction, TransactionView, write_abort_marker
from fencepost.client.configs import topic_settings
from fencepost.client.steps import Lost
from fencepost.client.survey.asking import MAX_ITEMS, PATIENCE_MS, Missing
from fencepost.client.survey.coordinators import (
    describe_listed,
    leaderless_coordinators,
    transactions_of,
)
from fencepost.client.survey.partitions import PartitionEnds, partition_ends, producers_of
from fencepost.client.survey.rights import may_describe, transactional_id_acls
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_acls import DescribeAclsResponse
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from fencepost.wire.forms.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from fencepost.wire.forms.describe_transactions import DescribeTransactionsResponse
from fencepost.wire.forms.describe_transactions import TransactionState as DescribedState
from fencepost.wire.forms.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from fencepost.wire.forms.list_transactions import ListTransactionsResponse, TransactionState
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from tests.client.scripted import TWO, Script

ORDERS = [TopicPartition("orders", index) for index in range(3)]


def script(**leaders: list[int]) -> Script:
    found = Script()
    found.leaders = dict(leaders) or {"orders": [1, 2, 1]}
    return found


def offsets(stable: int = 10, watermark: int = 20, code: int = 0) -> Callable[[Any], Any]:
    """Answers ListOffsets by the isolation level."""

    def answer(request: Any) -> ListOffsetsResponse:
        offset = stable if request.isolation_level else watermark
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=p.partition_index, error_code=code, offset=offset
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return answer


def fetched(codes: dict[int, int] | None = None) -> Callable[[Any], Any]:
    def answer(request: Any) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[
                        PartitionData(
                            partition_index=p.partition,
                            error_code=(codes or {}).get(p.partition, 0),
                            high_watermark=21,
                            last_stable_offset=10,
                            log_start_offset=3,
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return answer


def test_the_ends_of_all_partitions_take_two_requests_per_broker() -> None:
    stage = script()
    stage.on(ApiKey.LIST_OFFSETS, offsets())
    stage.on(ApiKey.FETCH, fetched())
    found = stage.run(partition_ends(stage.core, ORDERS))
    assert found == dict.fromkeys(ORDERS, PartitionEnds(3, 21, 10))
    assert len(stage.of(ApiKey.LIST_OFFSETS)) == len(stage.of(ApiKey.FETCH)) == 2
    request = stage.of(ApiKey.FETCH)[0].form
    assert (request.min_bytes, request.max_wait_ms, request.max_bytes) == (0, 0, 1)
    assert request.topics[0].partitions[0].fetch_offset == 20


def test_many_partitions_are_asked_in_groups() -> None:
    count = 2 * MAX_ITEMS + 1
    stage = script(orders=[1] * count)
    stage.on(ApiKey.LIST_OFFSETS, offsets())
    stage.on(ApiKey.FETCH, fetched())
    places = [TopicPartition("orders", index) for index in range(count)]
    assert len(stage.run(partition_ends(stage.core, places))) == count
    assert len(stage.of(ApiKey.FETCH)) == 3


def test_without_the_right_to_read_the_ends_come_from_list_offsets() -> None:
    stage = script()
    stage.on(ApiKey.LIST_OFFSETS, offsets())
    stage.on(ApiKey.FETCH, fetched({1: ErrorCode.TOPIC_AUTHORIZATION_FAILED}))
    found = stage.run(partition_ends(stage.core, ORDERS))
    assert found[ORDERS[0]] == PartitionEnds(3, 21, 10)
    assert found[ORDERS[1]] == PartitionEnds(None, 20, 10)


def test_a_dead_broker_leaves_the_partitions_of_the_others() -> None:
    stage = script()
    stage.down.add(TWO)
    stage.on(ApiKey.LIST_OFFSETS, offsets())
    stage.on(ApiKey.FETCH, fetched())
    found = stage.run(partition_ends(stage.core, ORDERS))
    assert found[ORDERS[0]] == PartitionEnds(3, 21, 10)
    missing = found[ORDERS[1]]
    assert isinstance(missing, Missing)
    assert missing.broker == 2
    assert "broker 2 at two:9092 did not answer" in missing.reason
    assert stage.pauses == [], "a dead broker is not waited for"


@pytest.mark.parametrize(
    ("code", "is_waited_for"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_only_errors_that_may_pass_are_retried(code: ErrorCode, is_waited_for: bool) -> None:
    stage = script()
    stage.on(ApiKey.LIST_OFFSETS, offsets(code=code))
    found = stage.run(partition_ends(stage.core, ORDERS))
    assert {each.code for each in found.values() if isinstance(each, Missing)} == {code}
    assert bool(stage.pauses) is is_waited_for
    assert sum(stage.pauses) <= PATIENCE_MS


def test_a_topic_that_was_deleted_meanwhile_is_believed_at_the_second_time() -> None:
    stage = script()
    found = stage.run(producers_of(stage.core, [TopicPartition("gone", 0)]))
    (missing,) = found.values()
    assert isinstance(missing, Missing)
    assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(stage.pauses) == 1


def test_a_partition_without_a_leader_is_missing_with_that_reason() -> None:
    stage = script(orders=[1, -1])
    stage.on(ApiKey.LIST_OFFSETS, offsets())
    stage.on(ApiKey.FETCH, fetched())
    found = stage.run(partition_ends(stage.core, ORDERS[:2]))
    assert found[ORDERS[0]] == PartitionEnds(3, 21, 10)
    assert "no leader" in str(found[ORDERS[1]])


def test_a_partition_that_a_reply_leaves_out_is_missing() -> None:
    stage = script()
    stage.on(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersResponse())
    found = stage.run(producers_of(stage.core, ORDERS))
    assert list(found) == ORDERS
    assert all("leaves it out" in str(each) for each in found.values())


def test_a_leader_that_moved_is_found_again() -> None:
    stage = script()

    def producers(request: Any) -> DescribeProducersResponse:
        moved = not stage.pauses
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name="orders",
                    partitions=[
                        PartitionResponse(
                            partition_index=index,
                            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER if moved else 0,
                            active_producers=[ProducerState(producer_id=7)],
                        )
                        for index in request.topics[0].partition_indexes
                    ],
                )
            ]
        )

    stage.on(ApiKey.DESCRIBE_PRODUCERS, producers)
    found = stage.run(producers_of(stage.core, ORDERS))
    assert [[each.producer_id for each in one] for one in found.values()] == [[7], [7], [7]]  # type: ignore[union-attr]


def test_brokers_that_do_not_list_their_ids_are_named() -> None:
    stage = script()
    one = TransactionState(transactional_id="a", producer_id=7, transaction_state="Ongoing")
    stage.on(
        ApiKey.LIST_TRANSACTIONS,
        ListTransactionsResponse(transaction_states=[one]),
        Lost("timed out"),
    )
    listed, missing = stage.run(transactions_of(stage.core, producer_ids=[7]))
    assert listed == [ListedTransaction("a", 7, "Ongoing", 1)]
    assert list(missing) == [2]


def test_a_coordinator_that_is_loading_is_waited_for() -> None:
    stage = script()
    stage.brokers = {1: stage.brokers[1]}
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.on(
        ApiKey.LIST_TRANSACTIONS,
        ListTransactionsResponse(error_code=loading),
        ListTransactionsResponse(),
    )
    assert stage.run(transactions_of(stage.core)) == ([], {})
    assert stage.pauses


def test_a_coordinator_that_does_not_stop_loading_is_given_up_with_its_reason() -> None:
    stage = script()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.on(ApiKey.LIST_TRANSACTIONS, ListTransactionsResponse(error_code=loading))
    listed, missing = stage.run(transactions_of(stage.core))
    assert listed == []
    assert missing[1].reason == "broker 1 does not list its ids: COORDINATOR_LOAD_IN_PROGRESS"
    assert missing[1].broker == 1


def test_ids_are_described_with_one_request_per_coordinator() -> None:
    stage = script()

    def describe(request: Any) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[
                DescribedState(
                    transactional_id=name,
                    error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                    if name == "hidden"
                    else 0,
                    transaction_state="Empty",
                )
                for name in request.transactional_ids
            ]
        )

    stage.on(ApiKey.DESCRIBE_TRANSACTIONS, describe)
    stage.run(transactions_of_nothing(stage))
    names = ["a", "b", "hidden"]
    found = stage.run(
        describe_listed(stage.core, [ListedTransaction(name, 1, "Empty", 1) for name in names])
    )
    assert isinstance(found["a"], TransactionView)
    assert isinstance(found["hidden"], Missing)
    assert len(stage.of(ApiKey.DESCRIBE_TRANSACTIONS)) == 1


def transactions_of_nothing(stage: Script) -> Any:
    """Learns the brokers."""
    stage.on(ApiKey.LIST_TRANSACTIONS, ListTransactionsResponse())
    return transactions_of(stage.core)


def test_partitions_of_the_transaction_log_without_a_leader_are_found() -> None:
    stage = script(__transaction_state=[1, -1, 2, -1])
    assert stage.run(leaderless_coordinators(stage.core)) == [1, 3]
    stage.leaders = {}
    missing = stage.run(leaderless_coordinators(stage.core))
    assert isinstance(missing, Missing)
    assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("code", "may"),
    [
        (0, True),
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, True),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, None),
    ],
)
def test_the_right_to_describe_is_probed(code: int, may: bool | None) -> None:
    stage = script()
    state = DescribedState(transactional_id="x", error_code=code)
    stage.on(ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsResponse(transaction_states=[state]))
    assert stage.run(may_describe(stage.core, "x")) is may


def test_a_cluster_without_an_authorizer_says_so() -> None:
    stage = script()
    stage.on(ApiKey.DESCRIBE_ACLS, DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED))
    found = stage.run(transactional_id_acls(stage.core))
    assert isinstance(found, Missing)
    assert found.code == ErrorCode.SECURITY_DISABLED


def test_settings_that_may_not_be_read_are_left_out() -> None:
    stage = script()
    policy = DescribeConfigsResourceResult(name="cleanup.policy", value="compact,delete")
    readable = DescribeConfigsResult(resource_name="a", configs=[policy])
    hidden = DescribeConfigsResult(
        resource_name="b", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    stage.on(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsResponse(results=[readable, hidden]))
    found = stage.run(topic_settings(stage.core, ["a", "b"], "cleanup.policy"))
    assert found == {"a": "compact,delete"}


@pytest.mark.parametrize(("known", "sent"), [(-1, 0), (4, 4)])
def test_an_abort_marker_has_the_coordinator_epoch_that_the_partition_knows(
    known: int, sent: int
) -> None:
    stage = script()
    result = WritableTxnMarkerPartitionResult(partition_index=0)
    topic = WritableTxnMarkerTopicResult(name="orders", partitions=[result])
    marker = WritableTxnMarkerResult(producer_id=7, topics=[topic])
    stage.on(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersResponse(markers=[marker]))
    stage.run(write_abort_marker(stage.core, ORDERS[0], 7, 3, known))
    (written,) = stage.of(ApiKey.WRITE_TXN_MARKERS)[0].form.markers
    assert (written.producer_id, written.producer_epoch) == (7, 3)
    assert (written.transaction_result, written.coordinator_epoch) == (False, sent)
    assert written.transaction_version == 0
