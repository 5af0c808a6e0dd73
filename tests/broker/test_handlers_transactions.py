"""The transaction APIs by handler: shapes that no client of `tests/transactions` sends.

The numbers are the conformance cases.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.broker.context import Context
from fencepost.broker.coordinators import log_loader
from fencepost.broker.handlers import (
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    init_producer_id,
    list_transactions,
    write_txn_markers,
)
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.list_transactions import ListTransactionsRequest
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from fencepost.wire.schema import OUR_CLIENT
from tests.broker.transactions.shell import ShellNode

pytestmark = pytest.mark.interpreted


@pytest.fixture
def node() -> ShellNode:
    node = ShellNode()
    node.load()
    return node


def ask(node: ShellNode, handler: Any, request: Any, version: int, software: str = "") -> Any:
    """The answer, which must be there once the turns that are due have run."""
    context = Context(node.services, version, "client", "127.0.0.1", client_software=software)
    reply = handler.handle(request, context)
    if isinstance(reply, Parked):
        node.pass_time(0)  # On a slow machine a reply may take several turns.
        assert reply.answered
        return reply.reply
    return reply


def init(node: ShellNode, version: int = 4, **fields: Any) -> Any:
    fields = {"transactional_id": "a", "transaction_timeout_ms": 60_000, **fields}
    return ask(node, init_producer_id, InitProducerIdRequest(**fields), version)


def add(node: ShellNode, version: int, *names: tuple[str, int], **fields: Any) -> dict[Any, int]:
    fields = {"transactional_id": "a", "producer_id": 9_000, "producer_epoch": 0, **fields}
    topics = [AddPartitionsToTxnTopic(name=topic, partitions=[index]) for topic, index in names]
    request = AddPartitionsToTxnRequest(
        transactions=[AddPartitionsToTxnTransaction(topics=topics, **fields)]
    )
    response = ask(node, add_partitions_to_txn, request, version)
    (result,) = response.results_by_transaction
    return {
        (topic.name, partition.partition_index): partition.partition_error_code
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }


# -- AddPartitionsToTxn ----------------------------------------------------------------------------


def test_case_23_a_broker_can_add_an_internal_topic_and_a_client_cannot(node: ShellNode) -> None:
    init(node)
    name = (CONSUMER_OFFSETS_TOPIC, 0)
    assert add(node, 3, name) == {name: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert add(node, 4, name) == {name: 0}
    assert node.txn().client_transaction_version == 2


def test_a_partition_listed_twice_gets_two_results(node: ShellNode) -> None:
    init(node)
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[1, 1])]
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="a", producer_id=9_000, producer_epoch=0, topics=topics
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    (result,) = ask(node, add_partitions_to_txn, request, 3).results_by_transaction
    (topic,) = result.topic_results
    assert [row.partition_index for row in topic.results_by_partition] == [1, 1]
    assert node.txn().partitions == {"t": (1,)}


# -- WriteTxnMarkers -------------------------------------------------------------------------------


def marker(producer_id: int, *names: tuple[str, int], **fields: Any) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=fields.pop("producer_epoch", 0),
        transaction_result=fields.pop("transaction_result", True),
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=[index]) for topic, index in names
        ],
        **fields,
    )


def write(node: ShellNode, *markers: WritableTxnMarker) -> list[tuple[int, str, int, int]]:
    response = ask(node, write_txn_markers, WriteTxnMarkersRequest(markers=list(markers)), 2)
    return [
        (result.producer_id, topic.name, partition.partition_index, partition.error_code)
        for result in response.markers
        for topic in result.topics
        for partition in topic.partitions
    ]


def test_case_49_every_partition_of_every_marker_has_a_result(node: ShellNode) -> None:
    offline = node.partitions.pop(TopicPartition("t", 1))
    assert write(
        node, marker(1, ("t", 0), ("t", 1)), marker(2, ("t", 0), ("none", 0)), marker(3)
    ) == [(1, "t", 0, 0), (1, "t", 1, 3), (2, "t", 0, 0), (2, "none", 0, 3)]
    assert node.markers_in() == [(True, 0, 0), (True, 0, 0)]
    assert offline.log_end_offset == 0


def test_markers_of_one_producer_share_one_result(node: ShellNode) -> None:
    """The last entry for a partition counts; a marker without partitions has no effect."""
    assert write(
        node, marker(1, ("t", 0), coordinator_epoch=5), marker(1, ("t", 0)), marker(2)
    ) == [(1, "t", 0, 52)]


def test_case_50_a_loading_group_coordinator_is_reported_as_not_leader(node: ShellNode) -> None:
    node.groups_loading.add(0)
    name = (CONSUMER_OFFSETS_TOPIC, 0)
    assert write(node, marker(1, name)) == [(1, *name, 6)]
    node.groups_loading.clear()
    assert write(node, marker(1, name)) == [(1, *name, 0)]
    assert len(node.settled) == 1


def test_markers_are_acknowledged_when_all_of_them_are_durable() -> None:
    node = ShellNode(fsync=True)
    request = WriteTxnMarkersRequest(markers=[marker(1, ("t", 0), ("t", 1))])
    parked = write_txn_markers.handle(request, Context(node.services, 2, "x", "y"))
    assert isinstance(parked, Parked)
    node.pass_time(0)  # On a slow machine the request takes several turns.
    assert not parked.answered
    node.sync()
    assert parked.answered


# -- describe and list -----------------------------------------------------------------------------


def described_client(node: ShellNode, software: str = OUR_CLIENT) -> tuple[str | None, str | None]:
    request = DescribeTransactionsRequest(transactional_ids=["a"])
    (found,) = ask(node, describe_transactions, request, 0, software).transaction_states
    return found.client_id, found.client_host


def init_from(node: ShellNode, client_id: str, host: str, **fields: Any) -> int:
    request = InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=60_000, **fields)
    parked = init_producer_id.handle(request, Context(node.services, 4, client_id, host))
    assert isinstance(parked, Parked)
    reply: Any = parked.reply
    return int(reply.error_code)


def test_a_transaction_is_described_with_the_client_that_got_its_epoch(node: ShellNode) -> None:
    assert described_client(node) == (None, None)
    assert init_from(node, "orders-app", "192.0.2.7") == 0
    add(node, 3, ("t", 0))
    assert described_client(node) == ("orders-app", "192.0.2.7")
    # A second instance that is refused, or has to wait, does not have the transaction.
    assert init_from(node, "fenced", "192.0.2.8", producer_id=9_000, producer_epoch=5) != 0
    assert described_client(node) == ("orders-app", "192.0.2.7")


@pytest.mark.parametrize("software", ["", "apache-kafka-java", "librdkafka", "fencepost-2"])
def test_other_clients_do_not_get_the_fields_of_fencepost(node: ShellNode, software: str) -> None:
    init_from(node, "orders-app", "192.0.2.7")
    assert described_client(node) == ("orders-app", "192.0.2.7")
    assert described_client(node, software) == (None, None)


def test_an_expired_id_does_not_keep_its_client(node: ShellNode) -> None:
    init_from(node, "orders-app", "192.0.2.7")
    (coordinator,) = [each for each in node.transactions.coordinators() if each.clients]
    node.now_ms += 8 * 86_400_000
    node.transactions.clock.expire(coordinator)
    assert coordinator.clients == {}


def test_a_load_is_reported_before_a_bad_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_loader, "ENTRIES_PER_TURN", 1)
    node = ShellNode()
    log = node.partitions[TopicPartition(TRANSACTION_STATE_TOPIC, 0)]
    log.append_records([(b"a record", b""), (b"another", b"")], node.now_ms)
    node.load()
    bad = ListTransactionsRequest(transactional_id_pattern="(")
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert ask(node, list_transactions, bad, 2).error_code == loading
    node.pass_time(1)
    assert ask(node, list_transactions, bad, 2).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_describing_producers_of_a_missing_or_forbidden_partition_gets_an_error(
    node: ShellNode,
) -> None:
    del node.partitions[TopicPartition("t", 1)]
    node.counts["secret"] = 1
    node.denied.add(("READ", "TOPIC", "secret"))
    names = [("t", 1), ("t", 99), ("none", 0), ("bad/name", 0), ("secret", 0)]
    request = DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=[index]) for name, index in names]
    )
    found = ask(node, describe_producers, request, 0).topics
    assert [topic.partitions[0].error_code for topic in found] == [6, 3, 3, 17, 29]
    assert all(topic.partitions[0].error_message for topic in found)
