"""What the client does when one of several brokers dies, returns or hands over what it had.

Scripted, in virtual time. Writes through leaders that move are in `test_pump.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import describe_producers, describe_transactions, list_transactions
from fencepost.client.calls import BrokerById, call_one, error_code
from fencepost.client.failures import RetriesExhausted
from fencepost.client.options import Endpoint
from fencepost.client.reading import LATEST, ListedOffset, list_offsets
from fencepost.client.steps import Lost, Steps
from fencepost.client.transactions import (
    ProducerIdentity,
    add_partitions,
    coordinator_of,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_offsets_to_txn import AddOffsetsToTxnResponse
from fencepost.wire.forms.describe_cluster import DescribeClusterRequest
from fencepost.wire.forms.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from fencepost.wire.forms.describe_transactions import (
    DescribeTransactionsResponse,
    TransactionState,
)
from fencepost.wire.forms.find_coordinator import Coordinator, FindCoordinatorResponse
from fencepost.wire.forms.init_producer_id import InitProducerIdResponse
from fencepost.wire.forms.list_transactions import ListTransactionsResponse
from fencepost.wire.forms.list_transactions import TransactionState as Listed
from tests.client.scripted import ONE, TWO, Script, partition
from tests.client.test_calls import CLUSTER, listed
from tests.client.test_transactions import OFFSETS, added, ended, offsets_committed

THREE = Endpoint("three", 9092)
MOVED = Endpoint("two", 9999)


def three_brokers(**options: Any) -> Script:
    script = Script(**options)
    script.brokers[3] = THREE
    return script


def kill(script: Script, broker_id: int) -> None:
    """The broker dies, and the cluster has noticed."""
    script.down.add(script.brokers.pop(broker_id))


def listing(*names: str) -> ListTransactionsResponse:
    states = [
        Listed(transactional_id=name, producer_id=1, transaction_state="Ongoing") for name in names
    ]
    return ListTransactionsResponse(transaction_states=states)


# All brokers.


def test_a_broker_that_dies_while_transactions_are_listed_is_left_out() -> None:
    script = three_brokers()

    def dies(_: object) -> Lost:
        kill(script, 2)
        return Lost("connection reset")

    # Broker 1 takes over what broker 2 coordinated, so its first answer is too short.
    script.on(ApiKey.LIST_TRANSACTIONS, listing("a"), dies, listing("c"))
    script.on(ApiKey.LIST_TRANSACTIONS, listing("a", "b"), listing("c"))
    found = script.run(list_transactions(script.core))
    assert [(t.transactional_id, t.coordinator) for t in found] == [("a", 1), ("b", 1), ("c", 3)]


def test_a_dead_broker_that_metadata_still_names_is_retried_until_it_is_gone() -> None:
    script = three_brokers()
    script.down.add(TWO)

    def buried(_: object) -> ListTransactionsResponse:
        if len(script.of(ApiKey.LIST_TRANSACTIONS)) > 6:
            script.brokers.pop(2, None)
        return listing()

    script.on(ApiKey.LIST_TRANSACTIONS, buried)
    assert script.run(list_transactions(script.core)) == []
    assert script.pauses


def test_if_a_broker_never_answers_the_listing_fails_and_names_it() -> None:
    script = three_brokers(default_api_timeout_ms=1_000)
    script.down.add(TWO)
    script.on(ApiKey.LIST_TRANSACTIONS, listing())
    with pytest.raises(RetriesExhausted, match="two:9092: connection refused"):
        script.run(list_transactions(script.core))


def test_a_broker_that_loads_its_coordinators_is_asked_again(script: Script) -> None:
    loading = ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    script.on(ApiKey.LIST_TRANSACTIONS, loading, listing("b"), listing("a"), listing("b"))
    found = script.run(list_transactions(script.core))
    assert [(t.transactional_id, t.coordinator) for t in found] == [("a", 1), ("b", 2)]


def test_brokers_that_all_close_their_connections_once_are_asked_again() -> None:
    script = three_brokers()
    closed = Lost("closed", closed_by_broker=True)
    script.on(ApiKey.LIST_TRANSACTIONS, closed, closed, closed, listing())
    assert script.run(list_transactions(script.core)) == []


# One broker.


def test_a_broker_that_returned_at_another_address_is_found(script: Script) -> None:
    script.run(list_offsets_of(script))
    script.down.add(TWO)
    script.brokers[2] = MOVED
    script.on(ApiKey.DESCRIBE_CLUSTER, CLUSTER)
    request = DescribeClusterRequest()
    script.run(call_one(script.core, BrokerById(2), ApiKey.DESCRIBE_CLUSTER, request, error_code))
    assert [seen.endpoint for seen in script.of(ApiKey.DESCRIBE_CLUSTER)] == [TWO, MOVED]


def list_offsets_of(
    script: Script, *, leader: int = 1
) -> Steps[dict[TopicPartition, ListedOffset]]:
    script.leaders["t"] = [leader]
    script.on(ApiKey.LIST_OFFSETS, listed((0, 0, 7)))
    return list_offsets(script.core, {partition(): LATEST})


@pytest.mark.parametrize("dead", [ONE, TWO])
def test_one_dead_bootstrap_server_is_enough(dead: Endpoint) -> None:
    script = three_brokers()
    kill(script, 1 if dead == ONE else 2)
    found = script.run(list_offsets_of(script, leader=3))
    assert found[partition()].offset == 7
    assert script.of(ApiKey.LIST_OFFSETS)[0].endpoint == THREE


# Leaders.


def described(*results: tuple[int, int]) -> DescribeProducersResponse:
    partitions = [
        PartitionResponse(partition_index=index, error_code=code) for index, code in results
    ]
    return DescribeProducersResponse(topics=[TopicResponse(name="t", partitions=partitions)])


def test_producers_are_described_by_the_leader_of_each_partition() -> None:
    script = three_brokers()
    script.leaders["t"] = [1, 3]
    script.on(ApiKey.DESCRIBE_PRODUCERS, described((0, 0)), described((1, 0)))
    found = script.run(describe_producers(script.core, [partition(0), partition(1)]))
    assert found == {partition(0): [], partition(1): []}
    assert [seen.endpoint for seen in script.of(ApiKey.DESCRIBE_PRODUCERS)] == [ONE, THREE]


def test_producers_of_a_partition_that_moved_are_described_by_its_new_leader() -> None:
    script = three_brokers()
    script.leaders["t"] = [1]

    def moves(_: object) -> DescribeProducersResponse:
        script.leaders["t"] = [3]
        return described((0, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    script.on(ApiKey.DESCRIBE_PRODUCERS, moves, described((0, 0)))
    script.run(describe_producers(script.core, [partition()]))
    assert [seen.endpoint for seen in script.of(ApiKey.DESCRIBE_PRODUCERS)] == [ONE, THREE]


def test_a_leader_that_metadata_names_after_its_death_is_tried_until_it_is_replaced() -> None:
    script = three_brokers()
    script.down.add(ONE)
    script.leaders["t"] = [1]
    usual = script.metadata

    def noticing(request: object) -> object:
        if len(script.of(ApiKey.LIST_OFFSETS)) == 3:
            script.leaders["t"] = [3]
        return usual(request)

    script.on(ApiKey.METADATA, noticing)
    script.on(ApiKey.LIST_OFFSETS, listed((0, 0, 7)))
    script.run(list_offsets(script.core, {partition(): LATEST}))
    tried = [seen.endpoint for seen in script.of(ApiKey.LIST_OFFSETS)]
    assert tried == [ONE, ONE, ONE, THREE]


# Coordinators.


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dies_after", ["InitProducerId", "the writes", "the offsets"])
def test_a_transaction_survives_the_death_of_its_coordinator(version: int, dies_after: str) -> None:
    script = three_brokers(transaction_version=version)
    script.on(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=4000, producer_epoch=3))
    script.on(ApiKey.ADD_PARTITIONS_TO_TXN, added(0))
    script.on(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnResponse())
    script.on(ApiKey.TXN_OFFSET_COMMIT, offsets_committed())
    script.on(ApiKey.END_TXN, ended())

    def step(name: str) -> None:
        if name == dies_after:
            kill(script, 1)
            script.coordinator = 3

    identity = script.run(init_producer_id(script.core, "tx"))
    step("InitProducerId")
    if version == 1:
        script.run(add_partitions(script.core, identity, [partition()]))
    step("the writes")
    script.run(txn_offset_commit(script.core, identity, "group", OFFSETS))
    step("the offsets")
    following = script.run(end_txn(script.core, identity, commit=True))
    assert following.producer_epoch == (4 if version == 2 else following.producer_epoch)
    answered = [seen.endpoint for seen in script.of(ApiKey.END_TXN)]
    assert answered[-1] == THREE
    assert set(answered[:-1]) <= {ONE}


def test_a_coordinator_that_moved_without_dying_gets_no_second_end_txn() -> None:
    script = three_brokers()
    identity = script.run(init_of(script))

    def moves(_: object) -> object:
        script.coordinator = 3
        return ended(ErrorCode.NOT_COORDINATOR)

    script.on(ApiKey.END_TXN, moves, ended())
    script.run(end_txn(script.core, identity, commit=True))
    assert [seen.endpoint for seen in script.of(ApiKey.END_TXN)] == [ONE, THREE]


def init_of(script: Script) -> Steps[ProducerIdentity]:
    script.on(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=4000, producer_epoch=3))
    return init_producer_id(script.core, "tx")


def test_a_lookup_that_names_the_dead_coordinator_is_repeated_at_another_broker() -> None:
    script = three_brokers()
    script.down.add(ONE)
    names_the_dead = FindCoordinatorResponse(
        coordinators=[Coordinator(key="tx", node_id=1, host=ONE.host, port=ONE.port)]
    )
    names_the_next = FindCoordinatorResponse(
        coordinators=[Coordinator(key="tx", node_id=3, host=THREE.host, port=THREE.port)]
    )
    script.on(ApiKey.FIND_COORDINATOR, names_the_dead, names_the_dead, names_the_next)
    state = TransactionState(transactional_id="tx", transaction_state="Ongoing")
    script.on(
        ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsResponse(transaction_states=[state])
    )
    found = script.run(describe_transactions(script.core, ["tx"]))
    assert found["tx"] is not None
    assert script.core.routes.coordinator(coordinator_of("tx")) == THREE
