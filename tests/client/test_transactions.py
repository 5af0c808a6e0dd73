"""The requests of a transactional producer in both protocols, and the outcome of EndTxn."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.client.failures import (
    ClientError,
    ProducerFenced,
    Refused,
    RetriesExhausted,
    TransactionAbortable,
    UnknownOutcome,
    UnknownTopicOrPartition,
)
from fencepost.client.groups import CommittedOffset
from fencepost.client.steps import Lost
from fencepost.client.transactions import (
    ProducerIdentity,
    add_partitions,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_offsets_to_txn import AddOffsetsToTxnResponse
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from fencepost.wire.forms.end_txn import EndTxnResponse
from fencepost.wire.forms.init_producer_id import InitProducerIdResponse
from fencepost.wire.forms.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.client.scripted import Script, partition

TV2 = ProducerIdentity("tx", 4000, 3, 2)
TV1 = replace(TV2, transaction_version=1)
OFFSETS = {partition(): CommittedOffset(7, "ledger")}


def ended(code: int = 0, *, epoch: int = 4) -> EndTxnResponse:
    return EndTxnResponse(error_code=code, producer_id=4000, producer_epoch=epoch)


def offsets_committed(code: int = 0) -> TxnOffsetCommitResponse:
    result = TxnOffsetCommitResponsePartition(error_code=code)
    return TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name="t", partitions=[result])]
    )


def added(*codes: int) -> AddPartitionsToTxnResponse:
    results = [
        AddPartitionsToTxnPartitionResult(partition_index=i, partition_error_code=code)
        for i, code in enumerate(codes)
    ]
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=results)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[AddPartitionsToTxnResult(topic_results=[topic])]
    )


# Identity.


@pytest.mark.parametrize(("level", "is_tv2"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_protocol_follows_the_clusters_transaction_version(level: int, is_tv2: bool) -> None:
    script = Script(transaction_version=level)
    script.on(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=9, producer_epoch=0))
    identity = script.run(init_producer_id(script.core, "tx", 1234))
    assert identity == ProducerIdentity("tx", 9, 0, level)
    assert identity.is_tv2 is is_tv2
    request = script.of(ApiKey.INIT_PRODUCER_ID)[0].form
    assert (request.transactional_id, request.transaction_timeout_ms) == ("tx", 1234)


def test_init_producer_id_is_retried_until_the_previous_transaction_ends(script: Script) -> None:
    busy = InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
    done = InitProducerIdResponse(producer_id=9, producer_epoch=2)
    script.on(ApiKey.INIT_PRODUCER_ID, busy, busy, done)
    assert script.run(init_producer_id(script.core, "tx")).producer_epoch == 2
    assert script.pauses == [20, 20]


def test_init_producer_id_can_send_the_current_id_and_epoch(script: Script) -> None:
    script.on(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=9, producer_epoch=3))
    script.run(init_producer_id(script.core, "tx", producer_id=9, producer_epoch=2))
    request = script.of(ApiKey.INIT_PRODUCER_ID)[0].form
    assert (request.producer_id, request.producer_epoch) == (9, 2)


def test_an_idempotent_producer_needs_no_coordinator(script: Script) -> None:
    script.on(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=9))
    assert script.run(init_producer_id(script.core, None)).transactional_id is None
    assert ApiKey.FIND_COORDINATOR not in script.apis


def test_an_identity_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(TV2)) == TV2


# Partitions and offsets.


def test_tv1_adds_partitions_by_name(script: Script) -> None:
    script.on(ApiKey.ADD_PARTITIONS_TO_TXN, added(0, 0))
    script.run(add_partitions(script.core, TV1, [partition(1), partition(0)]))
    (seen,) = script.of(ApiKey.ADD_PARTITIONS_TO_TXN)
    assert seen.version == 3
    (transaction,) = seen.form.transactions
    assert (transaction.transactional_id, transaction.producer_epoch) == ("tx", 3)
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", [0, 1])]


def test_the_error_is_that_of_the_refused_partition_not_of_those_not_attempted() -> None:
    script = Script()
    script.on(ApiKey.ADD_PARTITIONS_TO_TXN, added(ErrorCode.OPERATION_NOT_ATTEMPTED, 29))
    with pytest.raises(Refused, match="TOPIC_AUTHORIZATION_FAILED"):
        script.run(add_partitions(script.core, TV1, [partition(0), partition(1)]))


def test_adding_partitions_waits_for_the_markers_of_the_last_transaction(script: Script) -> None:
    script.on(ApiKey.ADD_PARTITIONS_TO_TXN, added(ErrorCode.CONCURRENT_TRANSACTIONS), added(0))
    script.run(add_partitions(script.core, TV1, [partition()]))
    assert script.pauses == [20]


def test_tv1_adds_offsets_before_it_commits_them(script: Script) -> None:
    script.on(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnResponse())
    script.on(ApiKey.TXN_OFFSET_COMMIT, offsets_committed())
    script.run(txn_offset_commit(script.core, TV1, "g", OFFSETS))
    assert [api for api in script.apis if api is not ApiKey.FIND_COORDINATOR] == [
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
    ]
    assert script.of(ApiKey.TXN_OFFSET_COMMIT)[0].version == 4


def test_tv2_commits_offsets_directly(script: Script) -> None:
    script.on(ApiKey.TXN_OFFSET_COMMIT, offsets_committed())
    script.run(txn_offset_commit(script.core, TV2, "g", OFFSETS))
    assert script.apis == [ApiKey.FIND_COORDINATOR, ApiKey.TXN_OFFSET_COMMIT]
    (seen,) = script.of(ApiKey.TXN_OFFSET_COMMIT)
    assert seen.version == 5
    (offset,) = seen.form.topics[0].partitions
    assert (offset.committed_offset, offset.committed_metadata) == (7, "ledger")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (47, ProducerFenced),
        (90, ProducerFenced),
        (120, TransactionAbortable),
        (3, UnknownTopicOrPartition),
        (12, Refused),
        (49, Refused),
    ],
)
def test_refused_offsets_raise_the_matching_error(code: int, kind: type[Exception]) -> None:
    script = Script()
    script.on(ApiKey.TXN_OFFSET_COMMIT, offsets_committed(code))
    with pytest.raises(kind):
        script.run(txn_offset_commit(script.core, TV2, "g", OFFSETS))


# EndTxn.


def test_tv2_returns_the_next_epoch(script: Script) -> None:
    script.on(ApiKey.END_TXN, ended(epoch=4))
    assert script.run(end_txn(script.core, TV2, commit=True)) == replace(TV2, producer_epoch=4)
    (seen,) = script.of(ApiKey.END_TXN)
    assert (seen.version, seen.form.committed) == (5, True)


def test_tv1_keeps_its_epoch(script: Script) -> None:
    script.on(ApiKey.END_TXN, EndTxnResponse())
    assert script.run(end_txn(script.core, TV1, commit=False)) == TV1
    (seen,) = script.of(ApiKey.END_TXN)
    assert (seen.version, seen.form.committed) == (4, False)


@pytest.mark.parametrize("code", [47, 90, 48, 49, 53])
def test_a_refusal_in_the_first_answer_is_definite(script: Script, code: int) -> None:
    script.on(ApiKey.END_TXN, ended(code))
    with pytest.raises(Refused) as caught:
        script.run(end_txn(script.core, TV2, commit=True))
    assert caught.value.code == code


@pytest.mark.parametrize("doubtful", [Lost("broken pipe"), ended(15), ended(16), ended(7)])
def test_end_txn_is_retried_until_its_outcome_is_known(script: Script, doubtful: object) -> None:
    script.on(ApiKey.END_TXN, doubtful, ended(51), ended(epoch=4))
    assert script.run(end_txn(script.core, TV2, commit=True)).producer_epoch == 4
    sent = [seen.form for seen in script.of(ApiKey.END_TXN)]
    assert len(sent) == 3
    assert all(form == sent[0] for form in sent)


@pytest.mark.parametrize("doubtful", [Lost("broken pipe"), ended(15), ended(16), ended(7)])
@pytest.mark.parametrize("refused", [47, 48, 49, 90])
def test_a_refusal_after_an_ambiguous_answer_leaves_the_outcome_unknown(
    script: Script, doubtful: object, refused: int
) -> None:
    script.on(ApiKey.END_TXN, doubtful, ended(refused))
    with pytest.raises(UnknownOutcome, match=r"not known whether the commit of tx"):
        script.run(end_txn(script.core, TV2, commit=True))


@pytest.mark.parametrize("harmless", [ended(14), ended(51), Lost("refused", sent=False)])
def test_a_refusal_after_answers_without_effect_is_definite(harmless: object) -> None:
    script = Script()
    script.on(ApiKey.END_TXN, harmless, ended(90))
    with pytest.raises(ProducerFenced):
        script.run(end_txn(script.core, TV2, commit=True))


def test_end_txn_without_any_answer_leaves_the_outcome_unknown() -> None:
    script = Script(default_api_timeout_ms=2000)
    script.on(ApiKey.END_TXN, Lost("no answer within the request timeout"))
    with pytest.raises(UnknownOutcome, match="init_producer_id") as caught:
        script.run(end_txn(script.core, TV2, commit=True))
    assert isinstance(caught.value.__cause__, RetriesExhausted)


def test_end_txn_that_was_never_sent_does_not_leave_the_outcome_unknown() -> None:
    script = Script(default_api_timeout_ms=2000)
    script.on(ApiKey.END_TXN, Lost("connection refused", sent=False))
    with pytest.raises(RetriesExhausted):
        script.run(end_txn(script.core, TV2, commit=True))


def test_losing_the_coordinator_after_an_ambiguous_answer_leaves_the_outcome_unknown() -> None:
    script = Script(default_api_timeout_ms=2000)
    script.on(ApiKey.END_TXN, ended(16))

    def gone(_: object) -> object:
        script.on(ApiKey.FIND_COORDINATOR, Lost("connection refused", sent=False))
        return ended(16)

    script.on(ApiKey.END_TXN, gone)
    with pytest.raises(UnknownOutcome):
        script.run(end_txn(script.core, TV2, commit=True))


def test_errors_survive_pickling() -> None:
    script = Script(default_api_timeout_ms=100)
    problems: list[ClientError] = []
    for code in (90, 45, 14):
        script.on(ApiKey.TXN_OFFSET_COMMIT, offsets_committed(code), offsets_committed(code))
        with pytest.raises(ClientError) as caught:
            script.run(txn_offset_commit(script.core, TV2, "g", OFFSETS))
        problems.append(caught.value)
    for problem in problems:
        arrived = pickle.loads(pickle.dumps(problem))
        assert type(arrived) is type(problem)
        assert str(arrived) == str(problem)
