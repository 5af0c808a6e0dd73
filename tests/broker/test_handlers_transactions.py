"""The transaction APIs as clients see them: versions, authorization, shapes.

The numbers are the conformance cases.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    coordinator_partition,
)
from fencepost.broker.context import Context
from fencepost.broker.coordinators import log_loader
from fencepost.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    write_txn_markers,
)
from fencepost.broker.waiting import Parked
from fencepost.coordinator.txn.states import State
from fencepost.wire.forms.add_offsets_to_txn import AddOffsetsToTxnRequest
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.end_txn import EndTxnRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from fencepost.wire.forms.list_transactions import ListTransactionsRequest
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from fencepost.wire.schema import OUR_CLIENT
from tests.broker.transactions.shell import ShellNode
from tests.partition.batches import client_batch

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


def end(node: ShellNode, version: int, **fields: Any) -> Any:
    fields = {
        "transactional_id": "a",
        "producer_id": 9_000,
        "producer_epoch": 0,
        "committed": True,
        **fields,
    }
    return ask(node, end_txn, EndTxnRequest(**fields), version)


def add_offsets(node: ShellNode, version: int, **fields: Any) -> int:
    fields = {
        "transactional_id": "a",
        "producer_id": 9_000,
        "producer_epoch": 0,
        "group_id": "group",
        **fields,
    }
    response = ask(node, add_offsets_to_txn, AddOffsetsToTxnRequest(**fields), version)
    return int(response.error_code)


# -- InitProducerId --------------------------------------------------------------------------------


def test_case_1_without_a_transactional_id_every_init_gets_a_new_producer_id(
    node: ShellNode,
) -> None:
    first = init(node, 0, transactional_id=None)
    second = init(node, 0, transactional_id=None)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert first.producer_id != second.producer_id


@pytest.mark.parametrize("identity", [(9_000, -1), (-1, 0)])
def test_case_6_a_producer_id_without_an_epoch_is_refused_and_vice_versa(
    node: ShellNode, identity: tuple[int, int]
) -> None:
    response = init(node, producer_id=identity[0], producer_epoch=identity[1])
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90), (5, 90)])
def test_case_8_a_fenced_producer_gets_the_error_of_its_version(
    node: ShellNode, version: int, code: int
) -> None:
    init(node)
    init(node)
    response = init(node, version, producer_id=9_000, producer_epoch=0)
    assert response.error_code == code
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


def test_init_needs_permission_for_the_transactional_id(node: ShellNode) -> None:
    node.denied.add(("WRITE", "TRANSACTIONAL_ID", "a"))
    assert init(node).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_init_without_an_id_needs_permission_for_the_cluster_or_any_topic(node: ShellNode) -> None:
    node.denied.add(("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster"))
    assert init(node, transactional_id=None).error_code == 0
    node.denied.update(("WRITE", "TOPIC", topic) for topic in node.counts)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert init(node, transactional_id=None).error_code == refused


def test_authorization_is_checked_before_the_producer_id_and_epoch(node: ShellNode) -> None:
    node.denied.add(("WRITE", "TRANSACTIONAL_ID", "a"))
    response = init(node, producer_id=1, producer_epoch=-1)
    assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("transactional_id", ["x" * 10_000, "ünïcode-😀", " ", "a\0b"])
def test_any_id_that_is_not_empty_is_accepted(node: ShellNode, transactional_id: str) -> None:
    assert init(node, transactional_id=transactional_id).error_code == 0
    again = node.restart()
    again.load()
    assert again.transactions.describe(transactional_id).error is ErrorCode.NONE


# -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90)])
def test_case_19_a_stale_epoch_gets_the_error_of_its_version(
    node: ShellNode, version: int, code: int
) -> None:
    init(node)
    init(node)
    assert add(node, version, ("t", 0)) == {("t", 0): code}
    assert add_offsets(node, version) == code


def test_case_19_an_empty_id_is_refused(node: ShellNode) -> None:
    assert add(node, 3, ("t", 0), transactional_id="") == {("t", 0): 42}
    assert add_offsets(node, 3, transactional_id="") == 42
    assert end(node, 3, transactional_id="").error_code == 42


def test_case_23_a_missing_partition_prevents_the_others_from_being_added(node: ShellNode) -> None:
    init(node)
    assert add(node, 3, ("t", 0), ("t", 99), ("none", 0)) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 99): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert node.txn().state == State.EMPTY


def test_case_23_a_forbidden_topic_prevents_the_others_from_being_added(node: ShellNode) -> None:
    init(node)
    node.counts["secret"] = 1
    node.denied.add(("WRITE", "TOPIC", "secret"))
    assert add(node, 3, ("t", 0), ("secret", 0)) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("secret", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


def test_case_23_a_broker_can_add_an_internal_topic_and_a_client_cannot(node: ShellNode) -> None:
    init(node)
    name = (CONSUMER_OFFSETS_TOPIC, 0)
    assert add(node, 3, name) == {name: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert add(node, 4, name) == {name: 0}


def test_adding_and_ending_need_permission_for_the_transactional_id(node: ShellNode) -> None:
    init(node)
    node.denied.add(("WRITE", "TRANSACTIONAL_ID", "a"))
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert add(node, 3, ("t", 0)) == {("t", 0): refused}
    assert add_offsets(node, 3) == refused
    assert end(node, 3).error_code == refused


def test_the_versions_for_brokers_need_cluster_permission(node: ShellNode) -> None:
    node.denied.add(("CLUSTER_ACTION", "CLUSTER", "kafka-cluster"))
    response = ask(node, add_partitions_to_txn, AddPartitionsToTxnRequest(), 4)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_case_24_a_broker_can_verify_without_adding(node: ShellNode) -> None:
    init(node)
    add(node, 3, ("t", 0))
    assert add(node, 5, ("t", 0), ("t", 1), verify_only=True) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert node.txn().partitions == {"t": (0,)}


def test_a_broker_can_add_to_several_transactions_in_one_request(node: ShellNode) -> None:
    init(node)
    init(node, transactional_id="b")
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=producer_id, producer_epoch=0, topics=topics
            )
            for name, producer_id in (("a", 9_000), ("b", 9_001), ("c", 1))
        ]
    )
    response = ask(node, add_partitions_to_txn, request, 5)
    codes = {
        result.transactional_id: result.topic_results[0]
        .results_by_partition[1]
        .partition_error_code
        for result in response.results_by_transaction
    }
    assert codes == {"a": 0, "b": 0, "c": 49}
    assert node.txn("b").client_transaction_version == 2


def test_an_add_without_transactions_gets_an_empty_reply(node: ShellNode) -> None:
    response = ask(node, add_partitions_to_txn, AddPartitionsToTxnRequest(), 4)
    assert response.results_by_transaction == []


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


def test_a_group_is_added_by_its_partition(node: ShellNode) -> None:
    init(node)
    assert add_offsets(node, 4) == 0
    index = coordinator_partition("group", node.counts[CONSUMER_OFFSETS_TOPIC])
    assert node.txn().partitions == {CONSUMER_OFFSETS_TOPIC: (index,)}


def test_adding_a_group_needs_permission_for_it(node: ShellNode) -> None:
    init(node)
    node.denied.add(("READ", "GROUP", "group"))
    assert add_offsets(node, 4) == ErrorCode.GROUP_AUTHORIZATION_FAILED


# -- EndTxn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (4, 90), (5, 90)])
def test_case_34_a_stale_end_gets_the_error_of_its_version(
    node: ShellNode, version: int, code: int
) -> None:
    init(node)
    init(node)
    assert end(node, version).error_code == code


@pytest.mark.parametrize(("version", "identity"), [(4, (-1, -1)), (5, (9_000, 1))])
def test_the_version_of_end_txn_selects_the_transaction_version(
    node: ShellNode, version: int, identity: tuple[int, int]
) -> None:
    init(node)
    add(node, 3, ("t", 0))
    response = end(node, version)
    assert response.error_code == 0
    assert (response.producer_id, response.producer_epoch) == identity


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


def test_a_request_without_markers_gets_an_empty_reply(node: ShellNode) -> None:
    assert write(node) == []


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


def test_case_64_an_old_coordinator_is_fenced(node: ShellNode) -> None:
    assert write(node, marker(1, ("t", 0), coordinator_epoch=2)) == [(1, "t", 0, 0)]
    assert write(node, marker(1, ("t", 0), coordinator_epoch=1)) == [(1, "t", 0, 52)]


def test_writing_markers_needs_alter_or_cluster_action_permission(node: ShellNode) -> None:
    node.denied.add(("ALTER", "CLUSTER", "kafka-cluster"))
    assert write(node, marker(1, ("t", 0))) == [(1, "t", 0, 0)]
    node.denied.add(("CLUSTER_ACTION", "CLUSTER", "kafka-cluster"))
    assert write(node, marker(1, ("t", 0))) == [(1, "t", 0, 31)]
    assert len(node.markers_in()) == 1


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


def test_case_90_transactions_are_described(node: ShellNode) -> None:
    init(node)
    add(node, 3, ("t", 0), ("t", 2))
    request = DescribeTransactionsRequest(transactional_ids=["a", "nobody", ""])
    found = ask(node, describe_transactions, request, 0).transaction_states
    assert [state.error_code for state in found] == [0, 105, 42]
    assert found[0].transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in found[0].topics] == [("t", [0, 2])]
    assert (found[0].producer_id, found[0].producer_epoch) == (9_000, 0)
    assert (found[0].transaction_timeout_ms, found[0].transaction_start_time_ms) == (
        60_000,
        node.now_ms,
    )


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


def test_transactions_without_describe_permission_are_hidden(node: ShellNode) -> None:
    init(node)
    add(node, 3, ("t", 0))
    request = DescribeTransactionsRequest(transactional_ids=["a"])
    node.denied.add(("DESCRIBE", "TOPIC", "t"))
    (found,) = ask(node, describe_transactions, request, 0).transaction_states
    assert found.topics == []
    node.denied.add(("DESCRIBE", "TRANSACTIONAL_ID", "a"))
    (found,) = ask(node, describe_transactions, request, 0).transaction_states
    assert found.error_code == 53
    listed = ask(node, list_transactions, ListTransactionsRequest(), 2)
    assert listed.transaction_states == []


def test_case_90_transactions_are_listed_by_every_filter(node: ShellNode) -> None:
    for name in ("orders-1", "orders-2", "refunds"):
        init(node, transactional_id=name)
    add(node, 3, ("t", 0), transactional_id="orders-2", producer_id=9_001)

    def listed(**filters: Any) -> list[str]:
        response = ask(node, list_transactions, ListTransactionsRequest(**filters), 2)
        assert response.error_code == 0
        return [state.transactional_id for state in response.transaction_states]

    assert listed() == ["orders-1", "orders-2", "refunds"]
    assert listed(state_filters=["Ongoing"]) == ["orders-2"]
    assert listed(producer_id_filters=[9_002]) == ["refunds"]
    assert listed(transactional_id_pattern="orders-.*") == ["orders-1", "orders-2"]
    assert listed(transactional_id_pattern="orders") == []
    assert listed(duration_filter=0, state_filters=["Ongoing"]) == []
    node.now_ms += 1
    assert listed(duration_filter=0, state_filters=["Ongoing"]) == ["orders-2"]


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


def test_unknown_states_are_returned_and_a_bad_pattern_is_refused(node: ShellNode) -> None:
    response = ask(
        node, list_transactions, ListTransactionsRequest(state_filters=["Ongoing", "Lost"]), 2
    )
    assert response.unknown_state_filters == ["Lost"]
    bad = ListTransactionsRequest(transactional_id_pattern="(")
    response = ask(node, list_transactions, bad, 2)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(?=a)a",
            "(?!b)a",
            "(?<=b)a",
            "(?>a)",
            "(?x)a",
            "(?#a)a",
            "(?(1)a|b)",
            "(?P=n)",
        ),
        *(r"(a)\1", r"a\Z", "a++", "a*+", "a?+", "a{1}+", "a{1001}", "a{1,1001}"),
    ],
)
def test_a_pattern_that_re2_does_not_support_is_refused(node: ShellNode, pattern: str) -> None:
    init(node)
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    response = ask(node, list_transactions, request, 2)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?<n>a)", "(?P<n>a)", r"a\z", "(?i)A", "(?i:A)", "(?ms)a", "[a*+]", r"\x61", "a{1}"),
        *("(?:a)", "(?U)a", r"\pL", "[[:alpha:]]", r"\Qa\E"),
    ],
)
def test_a_pattern_that_re2_supports_is_accepted(node: ShellNode, pattern: str) -> None:
    init(node)
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    response = ask(node, list_transactions, request, 2)
    assert [found.transactional_id for found in response.transaction_states] == ["a"]


def test_case_90_producers_are_described(node: ShellNode) -> None:
    partition = node.partitions[TopicPartition("t", 0)]
    batch = client_batch(producer_id=5, epoch=2, sequence=0, transactional=True)
    guard = partition.begin_verification(batch, 1, starts_at_zero=False)
    partition.append_from_client(batch, 1, guard)  # type: ignore[arg-type]
    write(node, marker(6, ("t", 0), coordinator_epoch=3))
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    (topic,) = ask(node, describe_producers, request, 0).topics
    first, second = topic.partitions[0].active_producers
    assert (first.producer_id, first.producer_epoch, first.last_sequence) == (5, 2, 0)
    assert (first.coordinator_epoch, first.current_txn_start_offset) == (-1, 0)
    assert (second.producer_id, second.last_sequence, second.coordinator_epoch) == (6, -1, 3)
    assert second.current_txn_start_offset == -1


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
