"""One transaction request by request, and the state in `__transaction_state` after each.

FindCoordinator, InitProducerId, AddPartitionsToTxn, Produce, AddOffsetsToTxn, TxnOffsetCommit,
EndTxn: all requests that a transactional producer ever sends, for the refunds example. A recovery
needs nothing but the log that they leave.
"""

from __future__ import annotations

import json

import pytest

from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.protocol import TV1, TV2
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    committed_offset,
    committed_offsets,
    find_coordinator,
    logged_states,
    partition_count,
    transaction_log,
    values,
)

REFUND = {"refund_id": "RFD-9001", "amount_paise": 250_000, "merchant": "test-merchant"}
AUDIT = {"refund_id": "RFD-9001", "actor": "system", "reason": "merchant-initiated"}


@pytest.fixture
def refunds(stage: Stage) -> Stage:
    create_topic(stage, "settlements")
    create_topic(stage, "refunds-emitted", 5)
    create_topic(stage, "refund-audit", 2)
    return stage


def test_the_requests_of_a_tv1_commit_lead_to_kafkas_states(refunds: Stage) -> None:
    stage = refunds
    found = find_coordinator(stage, "refunds-1")
    assert (found.error_code, found.node_id) == (NONE, stage.node.config.node_id)
    assert partition_count(stage, TRANSACTION_STATE_TOPIC) == 2
    assert logged_states(stage, "refunds-1") == []

    one = WireProducer(stage, "refunds-1", TV1)
    assert one.init(timeout_ms=60_000) == NONE
    assert one.epoch == 0
    assert logged_states(stage, "refunds-1") == ["Empty"]

    assert set(one.add(("refunds-emitted", 4), ("refund-audit", 1)).values()) == {NONE}
    (*_, ongoing) = transaction_log(stage, "refunds-1")
    assert ongoing is not None
    assert ongoing.partitions == {"refunds-emitted": (4,), "refund-audit": (1,)}

    refund, audit = json.dumps(REFUND).encode(), json.dumps(AUDIT).encode()
    assert one.produce("refunds-emitted", refund, index=4).error_code == NONE
    assert one.produce("refund-audit", audit, index=1).error_code == NONE
    assert logged_states(stage, "refunds-1") == ["Empty", "Ongoing"], (
        "the coordinator does not log writes"
    )
    assert values(stage, "refunds-emitted", index=4) == []

    assert find_coordinator(stage, "refunds", GROUP).error_code == NONE
    assert one.add_offsets("refunds") == NONE
    (*_, ongoing) = transaction_log(stage, "refunds-1")
    assert ongoing is not None
    group = coordinator_partition("refunds", partition_count(stage, CONSUMER_OFFSETS_TOPIC))
    assert ongoing.partitions[CONSUMER_OFFSETS_TOPIC] == (group,)

    assert set(one.commit_offsets("refunds", {("settlements", 0): 1}).values()) == {NONE}
    (pending,) = committed_offsets(stage, "refunds", "settlements", stable=True)
    assert pending.error_code == 88
    assert logged_states(stage, "refunds-1") == ["Empty", "Ongoing", "Ongoing"]

    assert one.end(commit=True) == NONE
    assert logged_states(stage, "refunds-1") == [
        "Empty",
        "Ongoing",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert values(stage, "refunds-emitted", index=4) == [refund]
    assert values(stage, "refund-audit", index=1) == [audit]
    assert committed_offset(stage, "refunds", "settlements") == 1
    assert one.epoch == 0, "TV1 keeps its epoch"


def test_the_requests_of_a_tv2_commit_are_fewer_and_lead_to_the_same_states(refunds: Stage) -> None:
    stage = refunds
    for key, key_type in (("refunds-1", 1), ("refunds", GROUP)):
        assert find_coordinator(stage, key, key_type).error_code == NONE
    one = WireProducer(stage, "refunds-1", TV2)
    assert one.init() == NONE
    assert one.produce("refunds-emitted", b"refund", index=4).error_code == NONE
    assert one.produce("refund-audit", b"audit", index=1).error_code == NONE
    assert set(one.commit_offsets("refunds", {("settlements", 0): 1}).values()) == {NONE}
    assert one.end(commit=True) == NONE
    assert logged_states(stage, "refunds-1") == [
        "Empty",
        "Ongoing",
        "Ongoing",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    epochs = [
        metadata.producer_epoch for metadata in transaction_log(stage, "refunds-1") if metadata
    ]
    assert epochs == [0, 0, 0, 0, 1, 1], "the epoch rises with the decision"
    assert one.epoch == 1
    assert values(stage, "refunds-emitted", index=4) == [b"refund"]
    assert committed_offset(stage, "refunds", "settlements") == 1
