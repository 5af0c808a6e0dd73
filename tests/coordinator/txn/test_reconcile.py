"""Coordinator and partition logs from different times: what ends, and at which epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.base.ids import MAX_PRODUCER_EPOCH, TopicPartition
from fencepost.coordinator.txn.reconcile import (
    MissingMarker,
    ProducerSeen,
    Reconciliation,
    reconcile,
)
from fencepost.coordinator.txn.states import State
from fencepost.records.transaction_log import TransactionMetadata, new_metadata

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS = TopicPartition("__consumer_offsets", 3)
NOTHING = Reconciliation([], [])
P = 7


def known(
    state: State, epoch: int, *listed: TopicPartition, last: int = -1, version: int = 2
) -> TransactionMetadata:
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, index in listed:
        partitions[topic] = (*partitions.get(topic, ()), index)
    return replace(
        new_metadata(P, 60_000, 100),
        previous_producer_id=P,
        producer_epoch=epoch,
        last_producer_epoch=last,
        state=state,
        partitions=partitions,
        client_transaction_version=version,
    )


def opened(name: TopicPartition, epoch: int) -> ProducerSeen:
    return ProducerSeen(name, P, epoch, is_open=True, coordinator_epoch=2)


def idle(name: TopicPartition, epoch: int) -> ProducerSeen:
    return ProducerSeen(name, P, epoch, is_open=False)


def settled(txn: TransactionMetadata, *seen: ProducerSeen) -> Reconciliation:
    return reconcile(seen, [("a", txn)], 200)


def ends(result: Reconciliation) -> list[tuple[TopicPartition, int, bool]]:
    return [(marker.name, marker.epoch, marker.commit) for marker in result.markers]


def after(result: Reconciliation) -> tuple[int, int, int]:
    """State, epoch and last epoch of the one record."""
    (record,) = result.records
    assert record.metadata is not None
    assert record.metadata.producer_id == P
    assert not record.metadata.partitions
    return (
        record.metadata.state,
        record.metadata.producer_epoch,
        record.metadata.last_producer_epoch,
    )


@pytest.mark.parametrize(
    ("txn", "seen"),
    [
        (known(State.EMPTY, 3), [idle(T0, 3)]),
        (known(State.COMPLETE_COMMIT, 4, last=3), [idle(T0, 4), idle(T1, 2)]),
        (known(State.PREPARE_COMMIT, 4, T0, T1, last=3), [opened(T0, 3), idle(T1, 4)]),
        (known(State.PREPARE_ABORT, 4, T0, last=3), [opened(T0, 3)]),
        (known(State.PREPARE_ABORT, 4, T0, last=3), [opened(T0, 1)]),
        (known(State.PREPARE_COMMIT, 3, T0, version=0), [idle(T0, 3)]),
    ],
)
def test_logs_that_agree_are_not_changed(
    txn: TransactionMetadata, seen: list[ProducerSeen]
) -> None:
    assert settled(txn, *seen) == NOTHING


def test_a_transaction_without_an_owner_is_aborted() -> None:
    result = reconcile([opened(T0, 5), opened(OFFSETS, 4), idle(T1, 6)], [], 200)
    assert result == Reconciliation(
        [MissingMarker(T0, P, 6, False, 2), MissingMarker(OFFSETS, P, 5, False, 2)], []
    )


def test_an_ongoing_transaction_is_aborted_because_records_of_it_may_be_lost() -> None:
    result = settled(known(State.ONGOING, 5, T0, T1), opened(T0, 5), idle(T1, 4))
    assert ends(result) == [(T0, 6, False)]
    assert after(result) == (State.COMPLETE_ABORT, 6, 5)


def test_an_ongoing_transaction_that_lost_all_its_data_is_also_aborted() -> None:
    result = settled(known(State.ONGOING, 5, T0))
    assert ends(result) == []
    assert after(result) == (State.COMPLETE_ABORT, 6, 5)


def test_a_tv2_commit_whose_marker_was_lost_is_written_again() -> None:
    result = settled(known(State.COMPLETE_COMMIT, 6, last=5), opened(T0, 5), idle(T1, 6))
    assert ends(result) == [(T0, 6, True)]
    assert result.records == []


@pytest.mark.parametrize(
    "txn",
    [
        known(State.COMPLETE_COMMIT, 5, version=0),  # TV1: a later transaction has the same epoch.
        known(State.COMPLETE_COMMIT, 6, last=5, version=0),
        known(State.PREPARE_COMMIT, 5, T0, version=0),
        known(State.COMPLETE_COMMIT, 7, last=6),  # An earlier transaction.
        known(State.PREPARE_COMMIT, 7, T0, last=6),
        known(State.PREPARE_COMMIT, 6, T1, last=5),  # The commit does not list this partition.
        known(State.COMPLETE_ABORT, 6, last=5),
        known(State.EMPTY, 6),
    ],
)
def test_an_open_transaction_with_an_uncertain_outcome_is_aborted(txn: TransactionMetadata) -> None:
    result = settled(txn, opened(T0, 5))
    fenced = txn.producer_epoch + 1
    assert ends(result) == [(T0, fenced, False)]
    assert after(result) == (State.COMPLETE_ABORT, fenced, fenced - 1)


def test_an_open_transaction_that_the_coordinator_lost_is_aborted_and_fenced() -> None:
    result = settled(known(State.COMPLETE_COMMIT, 5, last=4), opened(T0, 5))
    assert ends(result) == [(T0, 6, False)]
    assert after(result) == (State.COMPLETE_ABORT, 6, 5)


def test_an_idle_id_adopts_the_highest_epoch_that_a_partition_knows() -> None:
    result = settled(known(State.COMPLETE_COMMIT, 4, last=3), idle(T0, 9), idle(T1, 6))
    assert ends(result) == []
    assert after(result) == (State.EMPTY, 9, -1)


def test_a_prepared_transaction_that_its_partitions_have_moved_past_is_complete() -> None:
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        result = settled(known(state, 4, T0, T1, last=3), idle(T0, 9), idle(T1, 4))
        assert ends(result) == []
        assert after(result) == (State.COMPLETE_ABORT, 10, 9)


def test_an_outdated_commit_is_written_only_where_it_is_certain() -> None:
    prepared = known(State.PREPARE_COMMIT, 4, T0, T1, last=3)
    result = settled(prepared, opened(T0, 3), opened(T1, 4), opened(OFFSETS, 2))
    assert ends(result) == [(T0, 4, True), (T1, 5, False), (OFFSETS, 5, False)]
    assert after(result) == (State.COMPLETE_ABORT, 5, 4)


def test_the_last_epoch_is_not_given_out() -> None:
    txn = known(State.ONGOING, MAX_PRODUCER_EPOCH - 1, T0)
    result = settled(txn, opened(T0, MAX_PRODUCER_EPOCH - 1))
    assert ends(result) == [(T0, MAX_PRODUCER_EPOCH, False)]
    assert after(result) == (State.COMPLETE_ABORT, MAX_PRODUCER_EPOCH, -1)


@pytest.mark.parametrize("markers_kept", [0, 1, 2, 3])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_interrupted_start_is_repeated(markers_kept: int, is_recorded: bool) -> None:
    prepared = known(State.PREPARE_COMMIT, 4, T0, T1, last=3)
    seen = {each.name: each for each in (opened(T0, 3), opened(T1, 4), opened(OFFSETS, 2))}
    first = settled(prepared, *seen.values())
    for marker in first.markers[:markers_kept]:
        seen[marker.name] = idle(marker.name, marker.epoch)
    (record,) = first.records
    txn = record.metadata if is_recorded and record.metadata is not None else prepared
    second = settled(txn, *seen.values())
    was_committed = (T0, 4, True) in ends(first)[:markers_kept]
    assert was_committed or is_recorded or (T0, 4, True) in ends(second)
    for marker in second.markers:
        assert seen[marker.name].epoch < marker.epoch
        seen[marker.name] = idle(marker.name, marker.epoch)
    for again in second.records:
        assert again.metadata is not None
        txn = again.metadata
    assert settled(txn, *seen.values()) == NOTHING
    assert txn.producer_epoch >= max(each.epoch for each in seen.values())
