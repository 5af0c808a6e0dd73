"""All versions of the transactional APIs: old clients get codes they know (KIP-588, KAFKA-7296)."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.protocol import TV1
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    state_of,
    values,
)

FENCED = ErrorCode.PRODUCER_FENCED
STALE = ErrorCode.INVALID_PRODUCER_EPOCH
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.fixture
def one(stage: Stage) -> WireProducer:
    create_topic(stage, "t", 2)
    await_coordinator(stage, "g", GROUP)
    return WireProducer(stage, "a", TV1).initialise()


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_init_bumps_the_epoch(
    stage: Stage, one: WireProducer, version: int
) -> None:
    before = one.identity
    assert one.init(version=version) == NONE
    assert one.identity == (before[0], before[1] + 1)


@pytest.mark.parametrize("version", range(3, 6))
def test_case_8_init_of_a_fenced_producer_gets_the_error_of_its_version(
    stage: Stage, one: WireProducer, version: int
) -> None:
    old = one.twin()
    assert one.init() == NONE
    error = old.init(version=version, producer_id=old.producer_id, epoch=old.epoch)
    assert error == (STALE if version < 4 else FENCED)


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_works_in_every_version(
    stage: Stage, one: WireProducer, version: int
) -> None:
    assert one.add_one("t", version=version) == NONE
    assert state_of(stage, "a") == "Ongoing"


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("difference", [-1, 1], ids=["lower", "higher"])
def test_case_19_adding_partitions_at_another_epoch_gets_the_error_of_its_version(
    stage: Stage, one: WireProducer, version: int, difference: int
) -> None:
    one.epoch += difference
    assert one.add_one("t", version=version) == (STALE if version < 2 else FENCED)


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_can_add_and_verify_partitions(
    stage: Stage, one: WireProducer, version: int
) -> None:
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=one.producer_id,
                producer_epoch=epoch,
                verify_only=verify,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
            for name, epoch, verify in (
                ("a", one.epoch, True),
                ("a", one.epoch, False),
                ("a", one.epoch, True),
                ("a", one.epoch + 1, False),
                ("b", 0, False),
            )
        ]
    )
    reply = stage.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
    errors = [
        result.topic_results[0].results_by_partition[0].partition_error_code
        for result in reply.results_by_transaction
    ]
    assert errors == [ErrorCode.TRANSACTION_ABORTABLE, NONE, NONE, FENCED, UNKNOWN]


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_works_in_every_version(stage: Stage, one: WireProducer, version: int) -> None:
    assert one.add_offsets("g", version=version) == NONE
    one.epoch += 1
    assert one.add_offsets("g", version=version) == (STALE if version < 2 else FENCED)
    one.producer_id += 1
    assert one.add_offsets("g", version=version) == UNKNOWN


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_end_txn_works_in_every_version(
    stage: Stage, one: WireProducer, version: int, commit: bool
) -> None:
    one.send("t", b"v")
    assert one.end(commit=commit, version=version) == NONE
    assert values(stage, "t") == [b"v"][not commit :]


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("difference", [-1, 1, 2], ids=["lower", "higher", "much higher"])
def test_case_34_an_end_at_another_epoch_gets_the_error_of_its_version(
    stage: Stage, one: WireProducer, version: int, difference: int
) -> None:
    assert one.init() == NONE
    one.send("t", b"v")
    live = one.twin()
    one.epoch += difference
    assert one.end(commit=True, version=version) == (STALE if version < 2 else FENCED)
    live.commit()
    assert values(stage, "t") == [b"v"]


@pytest.mark.parametrize("version", range(6))
def test_offsets_during_a_load_get_the_error_of_their_version(
    stage: Stage, one: WireProducer, version: int
) -> None:
    """KAFKA-7296: clients before v2 crashed on COORDINATOR_LOAD_IN_PROGRESS."""
    assert one.add_offsets("g") == NONE
    index = stage.node.transactions.partition_for("a")
    assert index is not None
    partition = stage.partition("__transaction_state", index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fencepost.broker.coordinators.log_loader.ENTRIES_PER_TURN", 1)
        stage.node.transactions.load(index, partition)
        (error,) = one.commit_offsets("g", {("t", 0): 7}, version=version).values()
    loading, away = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert error == (away if version < 2 else loading)
    stage.settle()
    (error,) = one.commit_offsets("g", {("t", 0): 7}, version=version).values()
    assert error == NONE
    one.commit()
    assert committed_offset(stage, "g", "t") == 7
