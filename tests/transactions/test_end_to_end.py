"""Several producers and tools on one broker, over the wire (cases 86 to 88 and 90)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.list_transactions import ListTransactionsRequest
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.node_stage import Stage
from tests.broker.requests import batch_of, create_topic
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import marker_request, produce_request
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    consume,
    describe,
    end_offset,
    state_of,
    values,
)

FENCED = ErrorCode.PRODUCER_FENCED
STALE = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture(autouse=True)
def _topics(stage: Stage) -> None:
    create_topic(stage, "t", 2)
    create_topic(stage, "source", 2)
    await_coordinator(stage, "g", GROUP)


def producer(stage: Stage, protocol: Protocol, name: str = "a") -> WireProducer:
    return WireProducer(stage, name, protocol).initialise()


# -- case 86: the second producer fences the first -------------------------------------------------


def test_case_86_a_fenced_tv2_producer_cannot_retry_an_end_after_the_fence(stage: Stage) -> None:
    first = producer(stage, TV2)
    first.send("t", b"v")
    second = producer(stage, TV2)
    assert first.end(commit=False) == FENCED
    assert second.epoch == first.epoch + 2, "no producer gets the epoch of the abort"


# -- case 87: consume, transform, produce ----------------------------------------------------------


def test_case_87_five_hundred_records_are_copied_once_each_with_every_second_transaction_aborted(
    stage: Stage, protocol: Protocol
) -> None:
    """With one broker; Kafka's test restarts several brokers in turn."""
    for index in range(2):
        records = batch_of(*[b"%d-%d" % (index, number) for number in range(250)])
        request = produce_request({("source", index): records}, transactional_id=None)
        stage.call(ApiKey.PRODUCE, 11, request)
    copier = producer(stage, protocol)
    for attempt in range(200):
        if not copy_some(stage, copier, commit=attempt % 2 == 1):
            break
    copied = [value for index in range(2) for value in values(stage, "t", index=index)]
    assert copied == [b"%d-%d" % (index, number) for index in range(2) for number in range(250)]
    everything = [values(stage, "t", index=index, committed=False) for index in range(2)]
    assert sum(map(len, everything)) > 900, "aborted records are in the log too"


def copy_some(stage: Stage, copier: WireProducer, *, commit: bool) -> bool:
    """Copies up to 20 records of each partition and the offsets; returns whether there were any."""
    found = False
    for index in range(2):
        offset = max(0, committed_offset(stage, "g", "source", index))
        records = consume(stage, "source", index=index, offset=offset).records[:20]
        if records:
            found = True
            copier.send("t", *[record.value or b"" for record in records], index=index)
            copier.send_offsets("g", {("source", index): records[-1].offset + 1})
    if found:
        assert copier.end(commit=commit) == NONE
    return found


# -- case 88: fenced by a tool ---------------------------------------------------------------------


def fence_producers(stage: Stage, name: str) -> None:
    """What Admin.fenceProducers sends: InitProducerId without an identity, retried on 51."""
    WireProducer(stage, name, TV2).initialise(timeout_ms=60_000)


def test_case_88_the_open_transaction_of_a_producer_fenced_by_a_tool_is_aborted(
    stage: Stage, protocol: Protocol
) -> None:
    one = producer(stage, protocol)
    one.send("t", b"dropped")
    fence_producers(stage, "a")
    assert one.produce("t", b"late").error_code == STALE
    assert one.end(commit=True) == FENCED
    assert values(stage, "t") == []
    assert state_of(stage, "a") == "Empty"


# -- case 90: what tools can see and repair --------------------------------------------------------


def listed(stage: Stage, version: int = 2, **filters: Any) -> dict[str, str]:
    reply = stage.call(ApiKey.LIST_TRANSACTIONS, version, ListTransactionsRequest(**filters))
    assert reply.error_code == NONE
    return {each.transactional_id: each.transaction_state for each in reply.transaction_states}


def producers_on(stage: Stage, topic: str, index: int = 0) -> list[Any]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[index])])
    (told,) = stage.call(ApiKey.DESCRIBE_PRODUCERS, 0, request).topics[0].partitions
    assert told.error_code == NONE
    return list(told.active_producers)


def test_case_90_transactions_are_listed_by_every_filter(stage: Stage) -> None:
    committed, aborted, open_one = (producer(stage, TV1, name) for name in "cao")
    producer(stage, TV1, "e")
    for one in (committed, aborted, open_one):
        one.send("t", b"v")
    committed.commit()
    aborted.abort()
    everything = {"c": "CompleteCommit", "a": "CompleteAbort", "o": "Ongoing", "e": "Empty"}
    for version in range(3):
        assert listed(stage, version) == everything
        assert listed(stage, version, state_filters=["Ongoing"]) == {"o": "Ongoing"}
        by_id = listed(stage, version, producer_id_filters=[aborted.producer_id])
        assert by_id == {"a": "CompleteAbort"}
    stage.advance(5_000)
    open_one.send("t", b"more")
    assert "o" in listed(stage, 1, state_filters=["Ongoing"], duration_filter=4_999)
    assert "o" not in listed(stage, 1, state_filters=["Ongoing"], duration_filter=5_000)
    assert set(listed(stage, 2, transactional_id_pattern="[ac]")) == {"a", "c"}


def test_case_90_an_invalid_pattern_is_refused_and_unknown_states_are_returned(
    stage: Stage,
) -> None:
    bad = ListTransactionsRequest(transactional_id_pattern="[")
    reply = stage.call(ApiKey.LIST_TRANSACTIONS, 2, bad)
    assert reply.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    unknown = ListTransactionsRequest(state_filters=["Ongoing", "Asleep"])
    reply = stage.call(ApiKey.LIST_TRANSACTIONS, 2, unknown)
    assert (reply.error_code, reply.unknown_state_filters) == (NONE, ["Asleep"])


def test_case_90_a_transaction_is_described_from_beginning_to_end(
    stage: Stage, protocol: Protocol
) -> None:
    one = producer(stage, protocol)
    assert describe(stage, "a").transaction_state == "Empty"
    began_ms = stage.clock.now_ms()
    one.send("t", b"v", index=1)
    one.send("source", b"v")
    told = describe(stage, "a")
    assert (told.transaction_state, told.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert told.transaction_start_time_ms == began_ms
    assert (told.producer_id, told.producer_epoch) == one.identity
    assert {topic.topic: topic.partitions for topic in told.topics} == {"t": [1], "source": [0]}
    one.commit()
    told = describe(stage, "a")
    assert (told.transaction_state, told.topics) == ("CompleteCommit", [])
    assert describe(stage, "nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(stage, "").error_code == ErrorCode.INVALID_REQUEST


def test_case_90_producers_are_described_on_their_partition(
    stage: Stage, protocol: Protocol
) -> None:
    one = producer(stage, protocol)
    first_epoch = one.epoch
    one.send("t", b"1", b"2")
    (told,) = producers_on(stage, "t")
    assert (told.producer_id, told.producer_epoch, told.last_sequence) == (*one.identity, 1)
    assert (told.current_txn_start_offset, told.coordinator_epoch) == (0, -1)
    one.commit()
    (told,) = producers_on(stage, "t")
    assert told.current_txn_start_offset == -1
    assert told.coordinator_epoch >= 0
    if protocol is TV1:
        assert (told.producer_epoch, told.last_sequence) == (first_epoch, 1)
    else:
        assert (told.producer_epoch, told.last_sequence) == (first_epoch + 1, -1)


def test_case_90_a_hanging_transaction_is_found_and_ended_by_a_tool(stage: Stage) -> None:
    """`kafka-transactions find-hanging` and `abort --start-offset`, request by request."""
    hanging = stage.partition("t", 0)
    # Since KIP-890 no request can cause this, so the test writes it to the log.
    hanging.append_records(
        [(None, b"hanging")],
        stage.clock.now_ms(),
        producer_id=77,
        producer_epoch=3,
        transactional=True,
    )
    behind = producer(stage, TV1, "behind")
    behind.send("t", b"behind")
    behind.commit()
    assert values(stage, "t") == []
    stage.advance(16 * 60_000)
    assert values(stage, "t") == [], "no coordinator knows it, so it never times out"
    suspects = [p for p in producers_on(stage, "t") if p.current_txn_start_offset >= 0]
    (suspect,) = [p for p in suspects if not listed(stage, producer_id_filters=[p.producer_id])]
    assert (suspect.producer_id, suspect.current_txn_start_offset) == (77, 0)
    marker = WritableTxnMarker(
        producer_id=suspect.producer_id,
        producer_epoch=suspect.producer_epoch,
        coordinator_epoch=max(suspect.coordinator_epoch, 0),
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    reply = stage.call(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[marker]))
    assert reply.markers[0].topics[0].partitions[0].error_code == NONE
    assert values(stage, "t") == [b"behind"]
    assert end_offset(stage, "t") == end_offset(stage, "t", committed=False)


def test_a_marker_of_an_older_coordinator_is_fenced_over_the_wire(stage: Stage) -> None:
    """Case 64, over the wire, and after a restart that reads the producers from their snapshot."""
    one = producer(stage, TV1)
    one.send("t", b"v")

    def write(epoch: int) -> int:
        request = marker_request(one, {"t": [0]}, commit=True, coordinator_epoch=epoch)
        reply = stage.call(ApiKey.WRITE_TXN_MARKERS, 1, request)
        return int(reply.markers[0].topics[0].partitions[0].error_code)

    assert write(5) == NONE
    assert write(4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    stage.stop()
    stage = stage.again()
    assert write(4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert write(5) == NONE
    stage.abandon()
